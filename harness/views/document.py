"""Tables, lines and pictures to print, and their writers for text, Markdown and LaTeX; `page.py` writes them as HTML.

Pure: equal content gives equal bytes. What a table holds is plain text: each writer escapes it and adds its own marks.
"""

from __future__ import annotations

import html
import itertools
import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from rich.cells import cell_len

from harness.analysis.schema import csv_text, records
from harness.errors import unknown
from harness.wording import escaped

if TYPE_CHECKING:
    from markupsafe import Markup

FORMATS = ("text", "md", "latex", "csv", "json")
WIDEST = 72
"""Letters of a column of text; a longer text takes several lines of it, in LaTeX and HTML too."""
DASH = "—"
"""A cell without a value."""


# ------------------------------------------------------------------------------------------------------------- content


@dataclass(frozen=True)
class Entry:
    """A cell that is more than its text: `spread` stands after ±, `partial` is in parentheses, `best` bold (a star in text), `marks` are the
    letters of its footnotes, `below` small lines of (class or '', text) that only HTML shows."""

    text: str
    spread: str = ""
    best: bool = False
    partial: bool = False
    marks: str = ""
    below: tuple[tuple[str, str], ...] = ()

    @property
    def value(self) -> str:
        text = self.text + (f" ± {self.spread}" if self.spread else "")
        return f"({text})" if self.partial else text


@dataclass(frozen=True)
class Table:
    """`left`: columns of text, which a page sorts as text; the others are numbers, set to the right. In HTML the first cell of a row is its
    heading, where the table is `headed`; the last row stays last, where it is a `total`; on a narrow screen each row of a `stacked` one
    is a list of its cells."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | Entry]]
    left: frozenset[int] = frozenset({0})
    headed: bool = True
    total: bool = False
    stacked: bool = False
    kind: ClassVar[str] = "table"


@dataclass(frozen=True)
class Document:
    """Tables, the lines below them, and further tables `below` these. `notes`: the tables' footnotes; `caption`: what LaTeX has as its
    caption, where the other `lines` become comments; `name`: the label in LaTeX, where each table below stands alone."""

    name: str
    tables: Sequence[Table]
    lines: Sequence[str]
    notes: Sequence[str] = ()
    caption: Sequence[str] = ()
    below: Sequence[Table] = ()


@dataclass(frozen=True)
class Lines:
    """Sentences, a list where there are several."""

    lines: Sequence[str]
    kind: ClassVar[str] = "lines"


@dataclass(frozen=True)
class Picture:
    """`data`: what it shows, as a table; a legend has none."""

    image: Markup
    caption: str
    data: Table | None = None
    kind: ClassVar[str] = "picture"


@dataclass(frozen=True)
class Pictures:
    """Small pictures side by side."""

    pictures: Sequence[Picture]
    kind: ClassVar[str] = "pictures"


@dataclass(frozen=True)
class Commands:
    """Command lines."""

    lines: Sequence[str]
    kind: ClassVar[str] = "commands"


@dataclass(frozen=True)
class Folded:
    """Blocks that a reader opens."""

    summary: str
    blocks: Sequence[Block]
    kind: ClassVar[str] = "folded"


Block = Table | Lines | Picture | Pictures | Commands | Folded


@dataclass(frozen=True)
class Section:
    """`name`: its anchor."""

    name: str
    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)


# -------------------------------------------------------------------------------------------------------------- writers


class Style:
    """How plain text marks a cell; the other formats escape and mark in their own way. All but `escape` take escaped text."""

    def escape(self, text: str) -> str:
        """A text from a record, a file or a user as this format shows it; every writer asks this first."""
        return escaped(" ".join(text.split()))

    def best(self, text: str) -> str:
        return f"{text}*"

    def mark(self, letters: str) -> str:
        return f" [{letters}]"

    def cell(self, cell: str | Entry) -> str:
        if isinstance(cell, str):
            return self.escape(cell)
        text = self.escape(cell.value)
        return (self.best(text) if cell.best else text) + (self.mark(cell.marks) if cell.marks else "")


class Markdown(Style):
    def escape(self, text: str) -> str:
        return re.sub(r"[\\|*_<>`\[\]~]", r"\\\g<0>", super().escape(text))

    def best(self, text: str) -> str:
        return f"**{text}**"

    def mark(self, letters: str) -> str:
        return f"<sup>{letters}</sup>"


class Latex(Style):
    def escape(self, text: str) -> str:
        return escape_latex(super().escape(text))

    def best(self, text: str) -> str:
        return f"\\textbf{{{text}}}"

    def mark(self, letters: str) -> str:
        return f"\\textsuperscript{{{letters}}}"


class Html(Style):
    def escape(self, text: str) -> str:
        return html.escape(super().escape(text))

    def best(self, text: str) -> str:
        return f"<b>{text}</b>"

    def mark(self, letters: str) -> str:
        return f"<sup>{letters}</sup>"


TEXT, MARKDOWN, LATEX, HTML = Style(), Markdown(), Latex(), Html()


def written(document: Document, format: str) -> str:
    """Its tables, then footnotes and lines, then the tables below, as text, md or latex; ends with a newline. Raises UserError for another
    format."""
    if format == "latex":
        alone = [
            Document(f"{document.name}-{number}", [replace(table, title="")], (), caption=[table.title])
            for number, table in enumerate(document.below, start=1)
        ]
        return "\n".join(map(_latex, [document, *alone]))
    if format not in ("text", "md"):
        raise unknown("format", format, FORMATS)
    style, bullet = (MARKDOWN, "- ") if format == "md" else (TEXT, "")
    parts = [part for table in document.tables for part in _titled(table, format)]
    parts += [bullet + style.escape(line) for line in (*document.notes, *document.lines)]
    below = [part for table in document.below for part in ("", *_titled(table, format)[:-1])]
    return "\n".join([*parts, *below]) + "\n"


def fragment(document: Document) -> str:
    """As a notebook shows it below a cell: tables, footnotes and lines, then the tables below to be opened. `page.py` writes whole pages."""
    lines = "".join(f"<div>{HTML.escape(line)}</div>" for line in (*document.notes, *document.lines))
    below = "".join(map(_html_table, document.below))
    folded = f"<details><summary>More tables</summary>{below}</details>" if below else ""
    return f"<div>{''.join(map(_html_table, document.tables))}<small>{lines}</small>{folded}</div>"


def _html_table(table: Table) -> str:
    sides = ["left" if i in table.left else "right" for i in range(len(table.head))]
    rows = [
        "".join(f'<{tag} style="text-align: {side}">{text}</{tag}>' for side, text in zip(sides, cells, strict=True))
        for tag, cells in (("th", map(HTML.escape, table.head)), *(("td", map(HTML.cell, row)) for row in table.rows))
    ]
    caption = f"<caption>{HTML.escape(table.title)}</caption>" if table.title else ""
    return f"<table>{caption}<tr>{'</tr><tr>'.join(rows)}</tr></table>"


def _titled(table: Table, format: str) -> list[str]:
    """Title and rows, with an empty line below."""
    if format == "md":
        return [*([f"### {MARKDOWN.escape(table.title)}\n"] if table.title else []), *markdown_lines(table), ""]
    return [*([TEXT.escape(table.title)] if table.title else []), *text_lines(table), ""]


def text_lines(table: Table) -> list[str]:
    """Header, rule and rows in aligned columns, without the title; a long text in a left column takes several lines."""
    columns = [_aligned([row[i] for row in table.rows], i in table.left) for i in range(len(table.head))]
    cut = [
        [textwrap.wrap(cell, WIDEST, break_on_hyphens=False) or [""] if i in table.left else [cell] for cell in column]
        for i, column in enumerate(columns)
    ]
    body = [line for row in zip(*cut, strict=True) for line in itertools.zip_longest(*row, fillvalue="")]
    rows, widths = _justified(table, TEXT, body)
    lines = ["  ".join(row).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def markdown_lines(table: Table) -> list[str]:
    rows, widths = _justified(table, MARKDOWN, [[*map(MARKDOWN.cell, row)] for row in table.rows])
    rules = (":" + "-" * (w + 1) if i in table.left else "-" * (w + 1) + ":" for i, w in enumerate(widths))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], f"|{'|'.join(rules)}|", *lines[1:]]


def _justified(table: Table, style: Style, body: Sequence[Sequence[str]]) -> tuple[list[list[str]], list[int]]:
    """Head and rows with all cells of a column of one width, and the widths. (tabulate makes each column two letters wider than its
    head, and a table of GLUE wider than a terminal.)"""
    rows = [[*map(style.escape, table.head)], *body]
    widths = [min(WIDEST, max(map(cell_len, column))) for column in zip(*rows, strict=True)]

    def justified(cell: str, i: int) -> str:
        space = " " * (widths[i] - cell_len(cell))  # an ideograph takes two columns
        return cell + space if i in table.left else space + cell

    return [[justified(cell, i) for i, cell in enumerate(row)] for row in rows], widths


def _aligned(cells: Sequence[str | Entry], left: bool) -> list[str]:
    """A column as text. Of numbers the values, spreads and marks each stand below one another."""
    texts = [TEXT.cell(cell).strip() for cell in cells]
    entries = [cell for cell in cells if isinstance(cell, Entry)]
    if left or not entries:
        return texts
    width = max(len(entry.spread) for entry in entries)
    ends = [_after_number(cell) for cell in cells]
    last = max(ends)
    for i, cell in enumerate(cells):
        missing = 0
        if isinstance(cell, Entry) and width:
            missing = 0 if cell.spread else width + len(" ± ")
            texts[i] = texts[i].replace(" ± ", " ± " + " " * (width - len(cell.spread)), 1)
        texts[i] += " " * (missing + last - ends[i])
    return texts


def _after_number(cell: str | Entry) -> int:
    """How many characters of a cell stand behind its number."""
    if isinstance(cell, str):
        return 0
    return cell.partial + cell.best + (len(TEXT.mark(cell.marks)) if cell.marks else 0)


def _latex(document: Document) -> str:
    """A table environment that needs the package booktabs and nothing else; its tables share the first one's head."""
    comments = _comments(line for line in document.lines if line not in document.caption)
    if not document.tables:
        return "\n".join([*_comments(document.caption), *comments]) + "\n"
    first = document.tables[0]
    long = {i for row in first.rows for i in first.left if len(LATEX.cell(row[i])) > WIDEST}
    left = f"p{{{0.6 / max(1, len(long)):.2f}\\linewidth}}"
    columns = "".join((left if i in long else "l") if i in first.left else "r" for i in range(len(first.head)))
    out = ["% \\usepackage{booktabs}", "\\begin{table}", "\\centering", "\\small"]
    out += [f"\\begin{{tabular}}{{{columns}}}", "\\toprule", " & ".join(map(LATEX.escape, first.head)) + " \\\\"]
    for table in document.tables:
        title = LATEX.escape(table.title)
        out += ["\\midrule", f"\\multicolumn{{{len(first.head)}}}{{c}}{{{title}}} \\\\"] if title else []
        out += ["\\midrule"]
        for row in table.rows:
            cells = (cell if i in table.left else _with_minus(cell) for i, cell in enumerate(row))
            texts = map(LATEX.cell, cells)
            cut = (f"{{\\raggedright {text}\\par}}" if len(text) > WIDEST else text for text in texts)
            out.append(" & ".join(cut) + " \\\\")
    out += ["\\bottomrule", "\\end{tabular}"]
    if document.notes:
        notes = "\\\\\n".join(map(LATEX.escape, document.notes))
        out += ["\\par\\smallskip", "{\\footnotesize " + notes + "\\par}"]
    label = "".join(c for c in document.name if c.isascii() and (c.isalnum() or c in "-_"))
    out += [f"\\caption{{{' '.join(map(LATEX.escape, document.caption))}}}", f"\\label{{tab:{label}}}", "\\end{table}"]
    beyond = [f"% {BEYOND_LATIN}"] if any(ord(c) >= LATIN for line in out for c in line) else []
    return "\n".join([*beyond, *out, *comments]) + "\n"


def _comments(lines: Iterable[str]) -> list[str]:
    return [f"% {TEXT.escape(line)}" for line in lines]


def _with_minus(cell: str | Entry) -> str | Entry:
    """A number with a minus where a hyphen stands for one: '-1.88 to +3.64', but '1e-5'."""
    if isinstance(cell, Entry):
        return replace(cell, text=_HYPHEN.sub("−", cell.text))
    return _HYPHEN.sub("−", cell)


_HYPHEN = re.compile(r"(?<!\w)-(?=\d)")


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


LATIN = 0x180
"""From this character on pdflatex knows hardly a letter."""
BEYOND_LATIN = "Letters beyond Latin: compile with LuaLaTeX or XeLaTeX and \\setmainfont{a font that has them}."


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    out = []
    for before, c in itertools.pairwise(f" {text}"):
        if before in "-`',?!" and c in "-`',":  # LaTeX would draw the two as one, as -- and ?`
            out.append("{}")
        out.append(_LATEX.get(c, c))
    return "".join(out)


def latex_document(tables: str) -> str:
    """Tables in LaTeX as a whole document, which pdflatex compiles, and LuaLaTeX and XeLaTeX with letters that it has not."""
    lines = [
        "\\documentclass{article}",
        "\\usepackage{iftex}",
        "\\ifPDFTeX\\usepackage[T1]{fontenc}\\usepackage[utf8]{inputenc}\\else\\usepackage{fontspec}\\fi",
        "\\usepackage[a4paper,landscape,margin=15mm]{geometry}",
        "\\usepackage{booktabs}",
        "\\begin{document}",
        tables.rstrip("\n"),
        "\\end{document}",
    ]
    return "\n".join(lines) + "\n"


def in_format(format: str, frame: Any, name: str, body: Mapping[str, Any], document: Document) -> str:
    """A frame as csv; as json its rows under `name` in `body`; the document in the other formats. Raises UserError for an unknown one."""
    if format == "csv":
        return csv_text(frame)
    if format == "json":
        return json_text({key: records(frame) if key == name else value for key, value in body.items()})
    return written(document, format)


def json_text(body: Mapping[str, Any] | Iterable[Any], sort_keys: bool = False) -> str:
    return json.dumps(body, indent=1, sort_keys=sort_keys, ensure_ascii=False, allow_nan=False) + "\n"
