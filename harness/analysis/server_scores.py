"""Scores from GLUE's evaluation server, read from a file that a user writes: one line for each row and column of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from harness.errors import UserError, unknown
from harness.planning.table import Server, Table
from harness.tasks.metrics import METRICS
from harness.tasks.reading import existing_file, whole_rows

HEADER = ("row", "column", "score")

Scores = Mapping[tuple[str, str], float]
"""By (row, column), with 1 for 100 %."""


def read_scores(path: Path, table: Table, server: Server) -> Scores:
    """The scores of a CSV file with the header `row,column,score`: rows as the table prints them, ids of the server's columns, scores in
    points.

    Raises UserError, with file and line, for another form, an unknown row or column, a place that is given twice, and a score that its metric
    cannot have; also where all scores look like shares of 1.
    """
    form = f"a file of scores has the header {','.join(HEADER)} and a line for each score"
    rows = dict.fromkeys(row.title for row in table.rows)
    points: dict[tuple[str, str], float] = {}
    for line, cells in whole_rows(existing_file(path, "--scores", (".csv",))):
        if cells.keys() != {*HEADER}:
            raise UserError(f"{path}, line 1: {form}.")
        place = f"{path}, line {line}"
        row, column, written = (cells[name].strip() for name in HEADER)
        if row not in rows:
            raise unknown("row", row, rows, place)
        if column not in server.columns:
            raise unknown("column", column, server.columns, place)
        if (row, column) in points:
            raise UserError(f"{place}: {row} has a score of {column} already; keep one.")
        points[row, column] = _score(written, server.columns[column].metric, place)
    if not points:
        raise UserError(f"{path}: has no scores; {form}.")
    if any(points.values()) and all(abs(score) <= 1 for score in points.values()):
        raise UserError(
            f"{path}: no score is above 1; write them in points, as the server prints them (84.6, not 0.846)."
        )
    return {place: round(score / 100, 10) for place, score in points.items()}


def _score(written: str, metric: str, place: str) -> float:
    """In points. Raises UserError for no number, and for one that the metric cannot have."""
    try:
        score = float(written)
    except ValueError:
        score = math.nan
    lowest = 100 * METRICS[metric].worst
    if not lowest <= score <= 100:
        raise UserError(
            f"{place}: the score is {written[:40]!r}; {metric} is a number of points from {lowest:g} to 100."
        )
    return score
