"""A grid of cells as Markdown, LaTeX, plain text, CSV or JSON. Pure: the same grid and caption give the same bytes.

The three texts show points (x100) with two decimals. CSV and JSON hold every number unrounded on the metric's own scale: CSV
the results, JSON the cells too. `docs/results.md` documents both.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from harness.errors import unknown
from harness.tables.caption import Caption, caption_lines, footnotes, in_points, note_lines, title_lines
from harness.tables.cells import Cell, Grid, Note
from harness.tables.class_report import ClassScores
from harness.tables.schema import csv_text, records
from harness.tables.values import by_origin

Format = Literal["md", "latex", "csv", "json", "text"]
FORMATS: tuple[Format, ...] = ("md", "latex", "csv", "json", "text")
SHORT = {"accuracy": "acc"}
METRIC_NAMES = {
    "accuracy": "accuracy",
    "f1": "F1",
    "f1_macro": "macro F1",
    "f1_micro": "micro F1",
    "f1_weighted": "weighted F1",
    "mcc": "MCC",
}
MOST_CONFUSED = 8
"""Classes of which the whole confusion matrix is shown."""


@dataclass(frozen=True)
class Style:
    """How one format marks text: every function takes escaped text."""

    plus_minus: str
    dash: str

    def escape(self, text: str) -> str:
        return " ".join(text.split())

    def best(self, text: str) -> str:
        return f"{text}*"

    def mark(self, letters: str) -> str:
        return f" [{letters}]"


class _Markdown(Style):
    def escape(self, text: str) -> str:
        return "".join(f"\\{c}" if c in "\\|*_<>`[]~" else c for c in " ".join(text.split()))

    def best(self, text: str) -> str:
        return f"**{text}**"

    def mark(self, letters: str) -> str:
        return f"<sup>{letters}</sup>"


class _Latex(Style):
    def escape(self, text: str) -> str:
        return escape_latex(text)

    def best(self, text: str) -> str:
        return f"\\textbf{{{text}}}"

    def mark(self, letters: str) -> str:
        return f"\\textsuperscript{{{letters}}}"


STYLES: dict[str, Style] = {
    "text": Style(" ± ", "—"),
    "md": _Markdown(" ± ", "—"),
    "latex": _Latex(" $\\pm$ ", "---"),
}

_LATEX = {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "±": "$\\pm$",
    "×": "$\\times$",
    "−": "$-$",
    "–": "--",
    "—": "---",
    "…": "\\dots{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    '"': "''",
    "*": "{*}",
    "[": "{[}",
    "]": "{]}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
}


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it stands; characters that plain pdflatex cannot print become '?'."""
    out = []
    for c in " ".join(text.split()):
        printable = c.isascii() and c.isprintable()
        out.append(_LATEX.get(c, c if printable or (ord(c) < 0x180 and c.isalpha()) else "?"))
    return "".join(out)


def render(grid: Grid, caption: Caption, format: str) -> str:
    """The grid in one of md, latex, csv, json, text; ends with a newline. Raises UserError for another format."""
    if format == "csv":
        return csv_text(grid.results)
    if format == "json":
        return _json(grid, caption)
    if format not in STYLES:
        raise unknown("format", format, FORMATS)
    style = STYLES[format]
    letters, marks = footnotes(grid)
    blocks = [(size_name(size), _block(grid, size, letters, style)) for size in grid.resolved.sizes]
    header = ["Method", *(column_name(grid, column) for column in grid.columns)]
    header = [style.escape(name) for name in header]
    notes = [style.escape(line) for line in marks]
    if format == "latex":
        lines = [style.escape(line) for line in title_lines(grid)]
        name = grid.resolved.table.name
        found = [latex_table(name, header, blocks, lines, notes, comments=note_lines(grid, caption))]
        for number, (title, head, body) in enumerate(class_tables(caption, style), start=1):
            found.append(latex_table(f"{name}-classes-{number}", head, [("", body)], [title], []))
        return "\n".join(found)
    lines = [style.escape(line) for line in caption_lines(grid, caption, bold=format != "text")]
    parts = []
    for name, body in blocks:
        parts.append(f"### {name}\n" if format == "md" else name)
        parts += table_lines(header, body, format)
        parts.append("")
    for title, head, body in class_tables(caption, style):
        parts += [f"### {title}\n" if format == "md" else title, *table_lines(head, body, format), ""]
    bullet = "- " if format == "md" else ""
    parts += [bullet + line for line in [*notes, *lines]]
    return "\n".join(parts) + "\n"


def class_tables(caption: Caption, style: Style) -> Iterable[tuple[str, list[str], list[list[str]]]]:
    """(title, header, rows) of the scores of each row of a user's own task, and of the classes of its best row."""
    for report in caption.class_reports:
        size = "the full training set" if not report.size else f"{report.size:,} training examples"
        title = f"{report.title}, {size}: means over the runs on {report.test_rows:,} test examples"
        head = ["Method", *(METRIC_NAMES.get(metric, metric) for metric in report.metrics)]
        yield (
            style.escape(title),
            [style.escape(name) for name in head],
            [[style.escape(row), *map(in_points, means)] for row, means in report.rows],
        )
        names = [each.name for each in report.classes]
        shown = len(names) <= MOST_CONFUSED
        head = [
            "Class",
            "Test",
            "Precision",
            "Recall",
            "F1",
            *([f"as {name}" for name in names] if shown else ["Most often as"]),
        ]
        body = [
            [
                style.escape(each.name),
                f"{each.gold:,}",
                *map(in_points, (each.precision, each.recall, each.f1)),
                *([f"{value:.1f}" for value in each.predicted] if shown else [style.escape(_confused(each, names))]),
            ]
            for each in report.classes
        ]
        best = (
            f"{report.title}, {size}: classes under {report.best}, the highest mean {METRIC_NAMES[report.metrics[0]]}"
        )
        yield (
            style.escape(f"{best}; 'as': for how many test examples a class is predicted"),
            [*map(style.escape, head)],
            body,
        )


def _confused(scores: ClassScores, names: Sequence[str]) -> str:
    """The wrong class that is predicted most often for a class, and for how many examples."""
    wrong = [(count, name) for name, count in zip(names, scores.predicted, strict=True) if name != scores.name]
    count, name = max(wrong, key=lambda each: each[0])
    return f"{name} {count:.1f}" if count else ""


def _block(grid: Grid, size: int, letters: Mapping[Note, str], style: Style) -> list[list[str]]:
    """The rows of one size; under a comparable preset each with the paper's own row below."""
    body = []
    spread = grid.resolved.aggregate.spread != "none"
    for title in (*grid.resolved.printed_rows, *grid.resolved.averages):
        cells = [grid.cells[size, title, column] for column in grid.columns]
        body.append([style.escape(title), *(cell_text(cell, letters, style, spread) for cell in cells)])
        if grid.resolved.comparable and any(cell.paper is not None for cell in cells):
            paper = [_number(cell.paper, cell.paper_spread, style) for cell in cells]
            body.append([style.escape(f"{title} (paper)"), *paper])
    return body


def cell_text(cell: Cell, letters: Mapping[Note, str], style: Style, spread: bool) -> str:
    """A cell with its marks, as every format shows it: its value, how many of its runs are done, or a dash."""
    if cell.skip:
        text = style.dash
    elif not cell.complete or cell.value is None:
        text = f"{cell.done}/{cell.expected}"
    else:
        text = _number(cell.value, cell.spread if spread else None, style)
        text = style.best(text) if cell.best else text
    marks = ",".join(letters[note] for note in cell.notes)
    return text + (style.mark(marks) if marks else "")


def _number(value: float | None, spread: float | None, style: Style) -> str:
    if value is None:
        return ""
    text = in_points(value)
    if isinstance(style, _Latex):
        text = text.replace("-", "$-$")
    return text + (f"{style.plus_minus}{in_points(spread)}" if spread is not None else "")


def size_name(size: int) -> str:
    """A heading: '20 training examples'."""
    return f"{size} training examples" if size else "Full training set"


def column_name(grid: Grid, column: str) -> str:
    """'SST-2 (acc)'."""
    spec = grid.resolved.columns.get(column)
    return f"{spec.title} ({SHORT.get(spec.metric, spec.metric)})" if spec else grid.title(column)


def table_lines(
    header: Sequence[str], body: Sequence[Sequence[str]], format: str, left: Collection[int] = (0,)
) -> list[str]:
    """Header, rule and rows in aligned columns as 'md' or 'text'; the columns `left` to the left, others to the right."""
    widths = [max(len(row[i]) for row in [header, *body]) for i in range(len(header))]
    rows = [
        [cell.ljust(w) if i in left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
        for row in [header, *body]
    ]
    if format == "md":
        rule = "|".join(":" + "-" * (w + 1) if i in left else "-" * (w + 1) + ":" for i, w in enumerate(widths))
        lines = [f"| {' | '.join(row)} |" for row in rows]
        return [lines[0], f"|{rule}|", *lines[1:]]
    lines = ["  ".join(row).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * w for w in widths), *lines[1:]]


def latex_table(
    name: str,
    header: Sequence[str],
    blocks: Iterable[tuple[str, Sequence[Sequence[str]]]],
    lines: Sequence[str],
    notes: Sequence[str],
    left: Collection[int] = (0,),
    comments: Sequence[str] = (),
) -> str:
    """A table environment that needs the package booktabs and nothing else. Of `lines`, the caption, and `notes`, shown under
    the table, all is escaped; `comments` follow as LaTeX comments, `name` is the label."""
    width = len(header)
    out = ["% \\usepackage{booktabs}", "\\begin{table}", "\\centering", "\\small"]
    columns = "".join("l" if i in left else "r" for i in range(width))
    out += [f"\\begin{{tabular}}{{{columns}}}", "\\toprule", " & ".join(header) + " \\\\"]
    for title, body in blocks:
        out += ["\\midrule", f"\\multicolumn{{{width}}}{{c}}{{{title}}} \\\\"] if title else []
        out += ["\\midrule"]
        out += [" & ".join(row) + " \\\\" for row in body]
    out += ["\\bottomrule", "\\end{tabular}"]
    if notes:
        out += ["\\par\\smallskip", "{\\footnotesize " + "\\\\\n".join(notes) + "\\par}"]
    label = "".join(c for c in name if c.isascii() and (c.isalnum() or c in "-_"))
    out += [f"\\caption{{{' '.join(lines)}}}", f"\\label{{tab:{label}}}", "\\end{table}"]
    out += [f"% {' '.join(line.split())}" for line in comments]
    return "\n".join(out) + "\n"


def latex_document(tables: str) -> str:
    """Tables of `latex_table` as a whole document, which pdflatex compiles."""
    lines = [
        "\\documentclass{article}",
        "\\usepackage[T1]{fontenc}",
        "\\usepackage[utf8]{inputenc}",
        "\\usepackage[a4paper,landscape,margin=15mm]{geometry}",
        "\\usepackage{booktabs}",
        "\\begin{document}",
        tables.rstrip("\n"),
        "\\end{document}",
    ]
    return "\n".join(lines) + "\n"


def cell_records(grid: Grid) -> list[dict[str, Any]]:
    """Cells as flat records, in the order of the grid."""
    cells = []
    for (size, row, column), cell in grid.cells.items():
        spec = grid.resolved.columns.get(column)
        place = {"size": size, "row": row, "column": column, "task": spec.task if spec else ""}
        place |= {"metric": spec.metric if spec else "", "evaluation": spec.evaluation if spec else ""}
        cells.append({**place, **asdict(cell), "notes": [f"{n.kind}: {n.reason}" for n in cell.notes]})
    return cells


def csv_value(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else value


def _json(grid: Grid, caption: Caption) -> str:
    r = grid.resolved
    body = {
        "table": r.table.name,
        "title": r.table.title,
        "source": r.table.source.model_dump() if r.table.source else None,
        "protocol": r.protocol,
        "preset": r.preset,
        "encoder": r.encoder,
        "encoder_settings": dict(r.encoder_settings),
        "data": r.data,
        "sizes": list(r.sizes),
        "subsets": list(r.subsets),
        "seeds": list(r.seeds),
        "rows": [{**row.model_dump(), "set": r.hyperparameters(row)} for row in r.rows],
        "recipe": r.recipe.model_dump(exclude_none=True),
        "task_recipes": {task: each.model_dump(exclude_none=True) for task, each in r.task_recipes.items()},
        "max_length": r.max_length,
        "selection_every": r.selection_every,
        "mlm_head": r.mlm_head.model_dump(),
        "aggregate": r.aggregate.model_dump(),
        "comparable": r.comparable,
        "incomparable": list(r.incomparable),
        "deviations": list(r.deviations),
        "origin": by_origin(r),
        "caption": {
            **asdict(caption),
            "hardware": sorted(set(caption.hardware)),
            "lines": caption_lines(grid, caption),
        },
        "footnotes": footnotes(grid)[1],
        "cells": cell_records(grid),
        "results": records(grid.results),
    }
    return json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
