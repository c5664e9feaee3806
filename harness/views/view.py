"""A view: a frame with every number, and what people see of it. Pure: an equal view gives equal bytes in every format.

What a table and a line hold is plain text: each format escapes it and marks it in its own way.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import itertools
import json
import re
import textwrap
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from markupsafe import Markup
from rich.cells import cell_len

from harness.errors import UserError, unknown
from harness.scores import records
from harness.wording import escaped, wrapped

if TYPE_CHECKING:
    import pandas as pd

PICTURES = ("png", "svg", "pdf")
FORMATS = ("text", "md", "latex", "csv", "json", "parquet", "html", *PICTURES)
DASH = "—"
"""A cell without a value."""
WIDEST = 72
"""Letters of a column of text; a longer text takes several lines of it, in LaTeX too."""
LONG = 40
"""A text with more letters may take several lines of its cell on a page."""
TEMPLATES = Path(__file__).parent / "templates"
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML admits nowhere, not even escaped."""
_MARKS = {
    "text": ("", "*", " [", "]"),
    "md": ("**", "**", "<sup>", "</sup>"),
    "latex": ("\\textbf{", "}", "\\textsuperscript{", "}"),
    "html": ("<b>", "</b>", "<sup>", "</sup>"),
}
_BEST, _END, _NOTE, _NOTE_END = "\ue000\ue001\ue002\ue003"
_NUMBER = re.compile(r"(.*?)(?: ± ([\d.,]+))?(\)?\*?(?: \[[a-z,]+\])?)")
_HYPHEN = re.compile(r"(?<![\w-])-(?=\d)")


def best(text: str) -> str:
    """A cell that cannot be told from the best: bold, or with a star."""
    return f"{_BEST}{text}{_END}"


def noted(text: str, letters: str) -> str:
    """A cell with the letters of its footnotes."""
    return f"{text}{_NOTE}{letters}{_NOTE_END}" if letters else text


def with_spread(value: str, spread: str = "") -> str:
    return f"{value} ± {spread}" if spread else value


@dataclass(frozen=True)
class Table:
    """`left`: the columns of text; the others are numbers, set to the right."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Collection[int] = (0,)

    def shown(self, format: str) -> list[list[str]]:
        """Head and rows, escaped and with the format's marks."""
        return [[shown(cell, format) for cell in row] for row in (self.head, *self.rows)]


@dataclass(frozen=True, repr=False)
class View:
    """`frame`: every number, unrounded, on the metric's own scale. `tables`: what is printed of it. `lines`: sentences below, of which the first
    two are LaTeX's caption. `picture`: makes a figure of matplotlib. `about`: what JSON has besides the rows, which stand under `name`.
    `notes`: footnotes of the tables."""

    name: str
    frame: pd.DataFrame
    tables: Sequence[Table]
    lines: Sequence[str] = ()
    picture: Callable[[], Any] | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def written(self, format: str) -> str | bytes:
        """In one of `FORMATS`. Raises UserError for another format, and where there is nothing to draw."""
        if format == "csv":
            return self.frame.to_csv(index=False, lineterminator="\n")
        if format == "parquet":
            return self.frame.to_parquet(index=False)
        if format == "json":
            lines = [shown(line, "text") for line in self.lines]
            body = {"lines": lines, **self.about, self.name: records(self.frame)}
            return json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        if format in PICTURES:
            return self._drawn(format)
        if format == "text":
            return self.text()
        if format not in FORMATS:
            raise unknown("format", format, FORMATS)
        return self.html if format == "html" else {"md": self._markdown, "latex": self._latex}[format]()

    def __repr__(self) -> str:
        return self.text().rstrip("\n")

    def _repr_html_(self) -> str:
        return f"<div>{self.html}</div>"

    def _drawn(self, format: str) -> bytes:
        if self.picture is None:
            raise UserError(f"{self.name}: there is nothing to draw; take another format than {format}.")
        return file_of(self.picture, format)

    def text(self, width: int | None = None) -> str:
        """As plain text; sentences are wrapped at `width`, tables are not."""
        lines = [part for line in (*self.notes, *self.lines) for part in wrapped(shown(line, "text"), width)]
        return "\n\n".join("\n".join(part) for part in [*map(text_lines, self.tables), lines] if part) + "\n"

    def _markdown(self) -> str:
        lines = [f"- {shown(line, 'md')}" for line in (*self.notes, *self.lines)]
        return "\n\n".join("\n".join(part) for part in [*map(markdown_lines, self.tables), lines] if part) + "\n"

    def _latex(self) -> str:
        """Tables that need the package booktabs and nothing else; those with one head are one. The first has caption and label."""
        names = "-".join(str(name) for name in (self.about.get("table"), self.name) if name)
        label = "".join(c for c in names if c.isascii() and (c.isalnum() or c in "-_"))
        caption, comments = [shown(line, "latex") for line in self.lines[:2]], self.lines[2:]
        out, groups = [], [[*group] for _, group in itertools.groupby(self.tables, lambda table: tuple(table.head))]
        for number, group in enumerate(groups):
            notes = "\\\\\n".join(shown(line, "latex") for line in self.notes) if not number else ""
            out += ["% \\usepackage{booktabs}", "\\begin{table}", "\\centering", "\\small", *_tabular(group)]
            out += ["\\par\\smallskip", f"{{\\footnotesize {notes}\\par}}"] if notes else []
            out += [f"\\caption{{{' '.join(caption)}}}", f"\\label{{tab:{label}}}"] if not number else []
            out.append("\\end{table}")
        out += [f"% {shown(line, 'text')}" for line in (comments if groups else self.lines)]
        beyond = max("".join(out), default="") >= "\u0180"  # from here on pdflatex knows hardly a letter
        return "\n".join([BEYOND_LATIN] * beyond + out) + "\n"

    @property
    def html(self) -> str:
        picture = ""
        if self.picture is not None:
            said = html.escape(shown(". ".join([self.name, *self.lines[:1]]), "text"))
            data = base64.b64encode(self._drawn("svg")).decode()
            picture = f'<figure><img alt="{said}" src="data:image/svg+xml;base64,{data}"></figure>'
        return picture + html_of(self.tables, (*self.notes, *self.lines))


def html_of(tables: Iterable[Table], lines: Iterable[str]) -> str:
    """Tables that scroll and sort, and a list of sentences."""
    found = []
    for table in tables:
        head, *rows = table.shown("html")
        label = html.escape(shown(table.title, "text"))
        found += [f'<div class="wide" role="group" aria-label="{label}" tabindex="0"><table class="sortable">']
        found += [f"<caption>{shown(table.title, 'html')}</caption>"] if table.title else []
        found += [f"<thead>{_html_row(head, table.left, 'th')}</thead><tbody>"]
        found += [*(_html_row(row, table.left, "td") for row in rows), "</tbody></table></div>"]
    items = "".join(f"<li>{shown(line, 'html')}</li>" for line in lines)
    return "".join([*found, f"<ul>{items}</ul>" if items else ""])


def shown(text: str, format: str) -> str:
    """A text from a record, a file or a user as a format shows it."""
    text = escaped(" ".join(text.split()))
    if format == "md":
        text = re.sub(r"[\\|*_<>`\[\]~]", r"\\\g<0>", text)
    elif format == "latex":
        text = escape_latex(text)
    elif format == "html":
        text = html.escape(text)
    for mark, sign in zip((_BEST, _END, _NOTE, _NOTE_END), _MARKS[format], strict=True):
        text = text.replace(mark, sign)
    return text


def file_of(make: Callable[[], Any], format: str) -> bytes:
    """The figure of matplotlib that `make` returns, as a file: the same bytes each time. An SVG is well-formed whatever its texts hold."""
    import matplotlib

    file = io.BytesIO()
    no_date: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with matplotlib.rc_context(fname=str(TEMPLATES / "figure.mplstyle")), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make().savefig(file, format=format, metadata=no_date.get(format), dpi=200)
    return _NOT_XML.sub("", file.getvalue().decode()).encode() if format == "svg" else file.getvalue()


# -------------------------------------------------------------------------------------------------- text and Markdown


def text_lines(table: Table) -> list[str]:
    """Title, head, rule and rows in aligned columns; a long text in a left column takes several lines."""
    head, *rows = table.shown("text")
    by_column = enumerate(zip(*rows, strict=True))
    columns = [[*map(str.strip, each)] if i in table.left else _aligned(each) for i, each in by_column]
    cut = [[textwrap.wrap(cell, WIDEST, break_on_hyphens=False) or [""] if i in table.left else [cell] for cell in column]
           for i, column in enumerate(columns)]  # fmt: skip
    body = [line for row in zip(*cut, strict=True) for line in itertools.zip_longest(*row, fillvalue="")]
    head, *rows = _justified([head, *body], table.left)
    lines = ["  ".join(line).rstrip() for line in (head, ["-" * cell_len(cell) for cell in head], *rows)]
    return [shown(table.title, "text"), *lines] if table.title else lines


def markdown_lines(table: Table) -> list[str]:
    """The same as a table of Markdown."""
    head, *rows = _justified(table.shown("md"), table.left)
    rules = ["-" * (cell_len(cell) + 1) for cell in head]
    rule = "|".join(f":{rule}" if i in table.left else f"{rule}:" for i, rule in enumerate(rules))
    lines = [f"| {' | '.join(head)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]
    return [f"### {shown(table.title, 'md')}", "", *lines] if table.title else lines


def _justified(rows: Sequence[Sequence[str]], left: Collection[int]) -> list[list[str]]:
    """Rows with the cells of a column of one width; an ideograph takes two columns, which tabulate does not know."""
    columns = []
    for i, column in enumerate(zip(*rows, strict=True)):
        gaps = [" " * (max(map(cell_len, column)) - cell_len(cell)) for cell in column]
        columns.append([cell + gap if i in left else gap + cell for cell, gap in zip(column, gaps, strict=True)])
    return [[*row] for row in zip(*columns, strict=True)]


def _aligned(cells: Sequence[str]) -> list[str]:
    """Numbers, spreads and marks of a column each below one another."""
    parts = [found.groups("") if (found := _NUMBER.fullmatch(cell)) else (cell, "", "") for cell in cells]
    widest = max(len(spread) for _, spread, _ in parts)
    ends = [f" ± {spread:>{widest}}{end}" if spread else end for _, spread, end in parts]
    last = max(map(len, ends))
    return [value + end.ljust(last) for (value, _, _), end in zip(parts, ends, strict=True)]


def _html_row(cells: Sequence[str], left: Collection[int], tag: str) -> str:
    long = [' class="long"' if len(cell) > LONG else "" for cell in cells]  # the others stay on one line
    sides = [each if i in left else ' align="right"' for i, each in enumerate(long)]
    return f"<tr>{''.join(f'<{tag}{side}>{cell}</{tag}>' for side, cell in zip(sides, cells, strict=True))}</tr>"


# -------------------------------------------------------------------------------------------------------------- LaTeX

_LATEX = {
    "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$", "×": "$\\times$",
    "−": "$-$", "–": "--", "—": "---", "…": "\\dots{}", "<": "$<$", ">": "$>$", "|": "$|$", '"': "''",
    "*": "{*}", "[": "{[}", "]": "{]}", **{c: f"\\{c}" for c in "&%$#_{}"},
}  # fmt: skip
BEYOND_LATIN = "% Letters beyond Latin: compile with LuaLaTeX or XeLaTeX and \\setmainfont{a font that has them}."


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    out = []
    for before, c in itertools.pairwise(f" {text}"):
        if before in "-`',?!" and c in "-`',":  # LaTeX would draw the two as one, as -- and ?`
            out.append("{}")
        out.append(_LATEX.get(c, c))
    return "".join(out)


def _tabular(tables: Sequence[Table]) -> list[str]:
    """Tables with one head as one."""
    first = tables[0]
    long = {i for table in tables for row in table.rows for i in first.left if len(row[i]) > WIDEST}
    text = f"p{{{0.6 / max(1, len(long)):.2f}\\linewidth}}"
    columns = "".join((text if i in long else "l") if i in first.left else "r" for i in range(len(first.head)))
    out = [f"\\begin{{tabular}}{{{columns}}}", "\\toprule", " & ".join(shown(h, "latex") for h in first.head) + " \\\\"]
    for table in tables:
        title = f"\\multicolumn{{{len(first.head)}}}{{c}}{{{shown(table.title, 'latex')}}} \\\\"
        out += ["\\midrule", title, "\\midrule"] if table.title else ["\\midrule"]
        for row in table.rows:
            cells = [shown(cell if i in table.left else _HYPHEN.sub("−", cell), "latex") for i, cell in enumerate(row)]
            cells = [f"{{\\raggedright {cell}\\par}}" if len(cell) > WIDEST else cell for cell in cells]
            out.append(" & ".join(cells) + " \\\\")
    return [*out, "\\bottomrule", "\\end{tabular}"]


def page(title: str, subtitle: str, sections: Sequence[tuple[str, str, str]], lead: str) -> str:
    """The whole file. `sections`: anchor, title, and what is in each as HTML; `lead`: the conclusion, in a sentence above everything."""
    style, script = (TEMPLATES.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    policy = "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; ".format(*digests)
    values: dict[str, Any] = {"title": title, "subtitle": subtitle, "lead": shown(lead, "text")}
    values["sections"] = [(name, heading, Markup(body)) for name, heading, body in sections]
    values |= {"style": Markup(style), "script": Markup(script)}  # ours, from the package
    values["policy"] = f"{policy}img-src data:; base-uri 'none'; form-action 'none'"
    return escaped(rendered("harness.views", "page.html.jinja", values, autoescape=True), lines=True)


def rendered(
    package: str,
    template: str,
    values: Mapping[str, Any],
    filters: Mapping[str, Any] = MappingProxyType({}),
    **how: Any,
) -> str:
    """A template of a package with these values. `how`: options of its environment."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader(package)
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, **how)
    environment.filters |= filters
    return environment.get_template(template).render(values)


def commands(lines: Iterable[str]) -> str:
    """Command lines as HTML."""
    return "".join(f'<pre tabindex="0"><code>{html.escape(line)}</code></pre>' for line in lines)


def folded(summary: str, body: str) -> str:
    """HTML that a reader opens."""
    return f'<details class="folded"><summary>{shown(summary, "html")}</summary>{body}</details>'
