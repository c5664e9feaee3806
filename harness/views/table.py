"""The results of a table as a view, and its notes.

CSV, JSON and Parquet hold every number unrounded on the metric's own scale: the results of single runs, JSON the cells too. The other formats
show cells in points (x100) with two decimals. `docs/results.md` documents them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from harness.paths import without_folders
from harness.views.caption import Caption, caption_lines, footnotes, note_lines
from harness.views.cells import Cell, Grid
from harness.views.ranks import ranks, sets_of_the_best
from harness.views.runs import column_name, size_name
from harness.views.view import DASH, Table, View, best, noted, with_spread
from harness.wording import in_points


def results_view(grid: Grid, caption: Caption) -> View:
    """A table for each size, of one column one table with the sizes side by side."""
    r = grid.resolved
    letters, notes = footnotes(grid)
    leading = sets_of_the_best(grid)

    def rows(columns: Sequence[tuple[int, str]]) -> list[list[str]]:
        found = []
        for title in (*r.printed_rows, *r.averages):
            places = [(size, title, column) for size, column in columns]
            cells = [grid.cells[place] for place in places]
            marks = [",".join(letters[note] for note in cell.notes) for cell in cells]
            texts = [_text(grid, cell, place in leading) for cell, place in zip(cells, places, strict=True)]
            found.append([title, *map(noted, texts, marks)])
            if r.comparable and any(cell.paper is not None for cell in cells):
                found.append([f"{title} (paper)", *(_score(cell.paper, cell.paper_spread) for cell in cells)])
        return found

    if len(grid.columns) == 1 < len(r.sizes):
        (column,) = grid.columns
        head = ["Method", *(size_name(size, r.size_unit) for size in r.sizes)]
        tables = [Table(column_name(grid, column), head, rows([(size, column) for size in r.sizes]))]
    else:
        head = ["Method", *(column_name(grid, column) for column in grid.columns)]
        parts = {size: rows([(size, column) for column in grid.columns]) for size in r.sizes}
        tables = [Table(size_name(size, r.size_unit), head, part) for size, part in parts.items()]
    about = {name: getattr(r, name) for name in ("protocol", "preset", "comparable")}
    about |= {name: [*getattr(r, name)] for name in ("sizes", "subsets", "seeds")}
    about |= {name: without_folders(getattr(r, name)) for name in ("encoder", "data")}
    about |= {"incomparable": [*map(without_folders, r.incomparable)], "footnotes": notes, "cells": cell_records(grid)}
    about = {"table": r.table.name, "title": r.table.title, **about}
    return View("results", grid.results, tables, caption_lines(grid, caption), about=about, notes=notes)


def notes_view(grid: Grid, caption: Caption) -> View:
    """What a reader of a paper asks of the table: terms, examples, selection, verdicts and what its plan says of the data."""
    import pandas as pd

    lines = note_lines(grid, caption)
    return View("notes", pd.DataFrame({"note": lines}), [], lines, about={"table": grid.resolved.table.name})


def _text(grid: Grid, cell: Cell, leads: bool) -> str:
    """A cell: its value, how many of its runs are done, or a dash."""
    if cell.skip:
        return DASH
    if not cell.complete or cell.value is None:
        return f"{cell.done}/{cell.expected}"
    text = _score(cell.value, cell.spread if grid.resolved.aggregate.spread != "none" else None)
    return best(text) if leads else text


def _score(value: float | None, spread: float | None) -> str:
    return "" if value is None else with_spread(in_points(value), "" if spread is None else in_points(spread))


def cell_records(grid: Grid) -> list[dict[str, Any]]:
    """Cells as flat records, in the order of the grid."""
    cells, ranked = [], ranks(grid)
    for (size, row, column), cell in grid.cells.items():
        spec = grid.resolved.columns.get(column)
        place: dict[str, Any] = {"size": size, "row": row, "column": column}
        place |= {name: getattr(spec, name) if spec else "" for name in ("task", "metric", "evaluation")}
        rank = ranked.get((size, row, column))
        of_rank = {
            "in_best_set": bool(rank and rank.best),
            "rank_low": rank and rank.low,
            "rank_high": rank and rank.high,
        }
        cells.append({**place, **asdict(cell), "notes": [f"{n.kind}: {n.reason}" for n in cell.notes], **of_rank})
    return cells
