"""Documents: what a view writes, for the modules that do not make views yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from harness.analysis.schema import csv_text, records
from harness.errors import unknown
from harness.views import view
from harness.views.view import DASH as DASH
from harness.views.view import best, json_text, noted, with_spread

if TYPE_CHECKING:
    from markupsafe import Markup

FORMATS = ("text", "md", "latex", "csv", "json")


# ------------------------------------------------------------------------------------------------------------- content


@dataclass(frozen=True)
class Entry:
    """A cell that is more than its text: `spread` stands after ±, `partial` is in parentheses, `best` bold (a star in text), `marks` are the
    letters of its footnotes."""

    text: str
    spread: str = ""
    best: bool = False
    partial: bool = False
    marks: str = ""

    def __str__(self) -> str:
        text = with_spread(self.text, self.spread)
        text = f"({text})" if self.partial else text
        return noted(best(text) if self.best else text, self.marks)


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

    @property
    def plain(self) -> view.Table:
        return view.Table(self.title, self.head, [[*map(str, row)] for row in self.rows], self.left)


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


@dataclass(frozen=True)
class Picture:
    """`data`: what it shows, as a table; a legend has none."""

    image: Markup
    caption: str
    data: Table | None = None


@dataclass(frozen=True)
class Commands:
    """Command lines."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Folded:
    """Blocks that a reader opens."""

    summary: str
    blocks: Sequence[Block]


Block = view.View | Table | Lines | Picture | Commands | Folded


@dataclass(frozen=True)
class Section:
    """`name`: its anchor."""

    name: str
    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)


def written(document: Document, format: str) -> str:
    """Its tables, then footnotes and lines, as text, md or latex; ends with a newline. Raises UserError for another format."""
    if format not in FORMATS[:3]:
        raise unknown("format", format, FORMATS)
    return str(view_of(document).written(format))


def fragment(document: Document) -> str:
    """As a notebook shows it below a cell."""
    return view_of(document)._repr_html_()


def view_of(document: Document) -> view.View:
    lines = [*document.caption, *(line for line in document.lines if line not in document.caption)]
    tables = [table.plain for table in (*document.tables, *document.below)]
    return view.View(document.name, pd.DataFrame(), tables, lines, notes=document.notes)


def in_format(format: str, frame: Any, name: str, body: Mapping[str, Any], document: Document) -> str:
    """A frame as csv; as json its rows under `name` in `body`; the document in the other formats. Raises UserError for an unknown one."""
    if format == "csv":
        return csv_text(frame)
    if format == "json":
        return json_text({key: records(frame) if key == name else value for key, value in body.items()})
    return written(document, format)
