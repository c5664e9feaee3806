"""The hidden test sets of GLUE: scores that its server returned, beside the paper's and those that the paper quotes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.analysis.server_scores import Scores
from harness.planning.aggregation import AVERAGE, average
from harness.planning.table import Server, Table
from harness.report import document
from harness.report.caption import quoted_lines
from harness.report.document import DASH, Document, Entry, Lines, Section, in_format
from harness.report.page import page
from harness.tasks.metrics import METRICS
from harness.wording import in_points, listed


@dataclass(frozen=True)
class Line:
    """One printed row. `kind`: server, paper or quoted; `source` of its `values` by column, with 1 for 100 %."""

    row: str
    kind: str
    source: str
    values: Mapping[str, float]

    @property
    def title(self) -> str:
        return self.row if self.kind == "server" else f"{self.row} ({self.kind})"


def rendered_scores(table: Table, server: Server, scores: Scores, file: str, format: str) -> tuple[str, bool]:
    """The table of the server's scores in one of md, latex, csv, json, text, html, and whether each row that the paper prints has all of them. `file`: the name of
    the file that they were read from. Raises UserError for another format."""
    import pandas as pd

    lines = [*_lines(table, server, scores, file)]
    complete = all((row, column) in scores for row in server.paper for column in server.columns)
    made = _document(table, server, lines, file)
    if format == "html":
        title, lead, *more = made.lines
        sections = [Section("results", "Results", [*made.tables, Lines(more)])]
        return page(f"{table.name}: {title.rstrip('.')}", "", sections, lead), complete
    cells = [
        {"row": line.row, "kind": line.kind, "source": line.source, "column": column, "score": value}
        for line in lines
        for column, value in line.values.items()
    ]
    body = {"table": table.name, "published": server.table, "scores": [], "complete": complete, "lines": [*made.lines]}
    return in_format(format, pd.DataFrame(cells), "scores", body, made), complete


def _lines(table: Table, server: Server, scores: Scores, file: str) -> Iterator[Line]:
    """The rows that have scores or that the paper prints, in the table's order, each with the paper's below, then the quoted ones."""
    assert table.source
    unit = table.paper_unit
    for row in dict.fromkeys(row.title for row in table.rows):
        values = {column: scores[row, column] for column in server.columns if (row, column) in scores}
        if all(column in values for group in server.groups for column in group):
            values[AVERAGE] = average(values, server.groups)
        if values or row in server.paper:
            yield Line(row, "server", file, values)
        if row in server.paper:
            theirs = {column: unit.converted(pair)[0] for column, pair in server.paper[row].items()}
            yield Line(row, "paper", f"{table.source.paper}, {server.table}", theirs)
    for quoted in server.quoted:
        values = {column: unit.converted(pair)[0] for column, pair in quoted.values.items()}
        yield Line(quoted.name, "quoted", quoted.source, values)


def _document(table: Table, server: Server, lines: list[Line], file: str) -> Document:
    assert table.source
    columns = [*server.columns, AVERAGE]
    heads = [f"{column.title} ({METRICS[column.metric].short})" for column in server.columns.values()]
    rows: list[list[Any]] = [[line.title, *(_entry(line, column) for column in columns)] for line in lines]
    groups = "; ".join(listed(server.columns[column].title for column in group) for group in server.groups)
    said = [
        f"{server.title} ({table.source.paper}, {server.table}).",
        f"Scores in points (x100). Rows without a mark are those of {file}, a user's record of what GLUE's evaluation server returned for files of 'harness "
        "report --format glue-submission'; nothing here computes or checks them.",
        "Rows of the paper stand as printed, without a verdict: one submission has no spread.",
        f"Avg: the mean over {groups}.",
        *quoted_lines(server.quoted),
        *server.notes,
    ]
    head = ["Method", *heads, "Avg"]
    return Document(
        f"{table.name}-server", [document.Table("Hidden test sets of GLUE", head, rows)], said, caption=said
    )


def _entry(line: Line, column: str) -> Entry:
    """An empty cell where the paper prints none; a dash where the file has none."""
    value = line.values.get(column)
    if value is None:
        return Entry(DASH if line.kind == "server" else "")
    return Entry(in_points(value))
