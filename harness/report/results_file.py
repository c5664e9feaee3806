"""A file of results printed by itself: mean and spread of each cell, without table, plan, records or data. Pure."""

from __future__ import annotations

from harness.analysis.published import Published
from harness.analysis.schema import PLACE
from harness.report.document import DASH, Document, Table, in_format
from harness.wording import counted, in_points


def rendered_results(published: Published, format: str) -> str:
    """Ends with a newline. Raises UserError for an unknown format."""
    import pandas as pd

    frame = pd.DataFrame(published.rows)
    own = frame.drop_duplicates(PLACE)  # the column's own metric comes first of each run
    done = own[own["test"].notna() & (own["status"] == "done")]
    by = ["size", "row", "column", "metric"]
    cells = done.groupby(by, sort=False)["test"].agg(mean="mean", std="std", runs="size").reset_index()
    heads = list(dict.fromkeys(zip(own["column"], own["metric"], strict=True)))
    found = {
        (size, row, (column, metric)): (mean, std, runs)
        for size, row, column, metric, mean, std, runs in cells.itertuples(index=False)
    }
    tables = []
    for size in dict.fromkeys(own["size"]):
        rows = [
            [row, *(_cell(found.get((size, row, head))) for head in heads)]
            for row in dict.fromkeys(own[own["size"] == size]["row"])
        ]
        tables.append(
            Table(_size(size), ("Row", *(f"{column} ({metric})" for column, metric in heads)), rows, frozenset({0}))
        )
    bad = len(own) - len(done)
    lines = [
        f"From {published.path.name} alone: test scores in points (x100), mean ± standard deviation (ddof 1) over the runs of the file, their number in brackets"
        + (f"; {counted(bad, 'score')} of runs that ended badly left out." if bad else "."),
        "Size: the training examples of a run, in k-shot tables of each class.",
        "How many runs the table plans, its own averages, the paper's values and the settings are not in such a file: 'harness report --store FOLDER' prints "
        "a published folder with them.",
    ]
    body = {"file": published.path.name, "cells": [], "notes": lines}
    return in_format(format, cells, "cells", body, Document(published.path.stem, tables, lines, caption=lines[:1]))


def _size(size: int) -> str:
    """What it counts the table's protocol says, which is not in the file."""
    return f"size {size:,}" if size else "all examples"


def _cell(cell: tuple[float, float, int] | None) -> str:
    if cell is None:
        return DASH
    mean, std, runs = cell
    return f"{in_points(mean)}{f' ± {in_points(std)}' if std == std else ''} ({runs})"
