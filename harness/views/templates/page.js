"use strict";
// Sorts a table by a column. Without this script everything is there, in its own order.
const number = (cell) => {
  if (/^\d+\/\d/.test(cell.textContent)) return NaN; // of an incomplete cell: 2/3
  const found = cell.textContent.replace(/[,<\s]/g, "").match(/^[(+]?(-?\d[\d.]*(e[+-]?\d+)?)/);
  return found ? parseFloat(found[1]) : NaN;
};
const compare = (column, text) => (a, b) => {
  if (text) return a.cells[column].textContent.localeCompare(b.cells[column].textContent, "en", { numeric: true });
  return number(a.cells[column]) - number(b.cells[column]);
};
const sorted = (rows, column, text, up) => {
  const known = text ? rows : rows.filter((row) => !isNaN(number(row.cells[column])));
  const found = [...known].sort(compare(column, text));
  if (!up) found.reverse();
  return [...found, ...rows.filter((row) => !known.includes(row))];
};
const sortable = (table) => {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button"), text = !head.hasAttribute("align");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const order = text ? ["ascending", "descending", ""] : ["descending", "ascending", ""];
      const next = order[(order.indexOf(head.getAttribute("aria-sort") || "") + 1) % 3];
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      if (next) head.setAttribute("aria-sort", next);
      body.append(...(next ? sorted(rows, column, text, next === "ascending") : rows));
    });
  });
};
const folded = [...document.querySelectorAll("details.folded")], closed = new Set();
addEventListener("beforeprint", () => folded.filter((each) => !each.open).forEach((each) => { closed.add(each); each.open = true; }));
addEventListener("afterprint", () => { closed.forEach((each) => { each.open = false; }); closed.clear(); });
document.querySelectorAll("table.sortable").forEach(sortable);
