"""A grid of cells as Markdown, LaTeX, plain text, CSV or JSON. Pure: the same grid and caption give the same bytes.

The three texts show points (x100) with two decimals. CSV and JSON hold every number unrounded on the metric's own scale: CSV
the results, JSON the cells too. `docs/results.md` documents both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from harness.analysis.schema import csv_text, records
from harness.paths import without_folders
from harness.planning.resolved import ResolvedTable
from harness.tasks.metrics import METRICS
from harness.views.caption import Caption, caption_lines, footnotes, title_lines
from harness.views.cells import Grid, Note
from harness.views.classes import ClassScores
from harness.views.document import DASH, Document, Entry, Table, written
from harness.views.numbers.comparison import Place
from harness.views.numbers.power import resolutions
from harness.views.numbers.ranks import ranks, sets_of_the_best
from harness.views.settings import grid_records, setting_records, settings_table
from harness.views.view import json_text
from harness.wording import in_points, training_examples

MOST_CONFUSED = 8
"""Classes of which the whole confusion matrix is shown."""


def render(grid: Grid, caption: Caption, format: str) -> str:
    """The grid in one of md, latex, csv, json, text; ends with a newline. Raises UserError for another format."""
    if format == "csv":
        return csv_text(grid.results)
    if format == "json":
        return _json(grid, caption)
    return written(results_document(grid, caption, bold=format != "text"), format)


def results_document(grid: Grid, caption: Caption, bold: bool = True) -> Document:
    """A table for each size, the footnotes and the caption, then the classes and the settings. `bold`: whether the best are bold, and not
    starred."""
    letters, notes = footnotes(grid)
    head, leading = ["Method", *(column_name(grid, column) for column in grid.columns)], sets_of_the_best(grid)
    tables = [
        Table(size_name(size, grid.resolved.size_unit), head, _rows(grid, size, letters, leading))
        for size in grid.resolved.sizes
    ]
    below = [*class_tables(caption, grid.resolved.size_unit), settings_table(grid.resolved)]
    return Document(
        grid.resolved.table.name, tables, caption_lines(grid, caption, bold), notes, title_lines(grid), below
    )


def class_tables(caption: Caption, size_unit: str) -> list[Table]:
    """For each of a user's own tasks and sizes the scores of each row, and the classes of its best row."""
    tables = []
    for report in caption.class_reports:
        size = "the full training set" if not report.size else training_examples(report.size, size_unit)
        title = f"{report.title}, {size}: means over the runs on {report.test_rows:,} test examples"
        head = ["Method", *(METRICS[metric].title for metric in report.metrics)]
        tables.append(Table(title, head, [[row, *map(in_points, means)] for row, means in report.rows]))
        names = [each.name for each in report.classes]
        shown = len(names) <= MOST_CONFUSED
        predicted = [f"as {name}" for name in names] if shown else ["Most often as"]
        rows = [
            [
                each.name,
                f"{each.gold:,}",
                *map(in_points, (each.precision, each.recall, each.f1)),
                *([f"{value:.1f}" for value in each.predicted] if shown else [_confused(each, names)]),
            ]
            for each in report.classes
        ]
        metric = METRICS[report.metrics[0]]
        best = f"{report.title}, {size}: classes under {report.best}, the highest mean {metric.title}"
        title = f"{best}; 'as': for how many test examples a class is predicted"
        tables.append(Table(title, ["Class", "Test", "Precision", "Recall", "F1", *predicted], rows))
    return tables


def _confused(scores: ClassScores, names: Sequence[str]) -> str:
    """The wrong class that is predicted most often for a class, and for how many examples."""
    wrong = [(count, name) for name, count in zip(names, scores.predicted, strict=True) if name != scores.name]
    count, name = max(wrong, key=lambda pair: pair[0])
    return f"{name} {count:.1f}" if count else ""


def _rows(grid: Grid, size: int, letters: Mapping[Note, str], leading: Collection[Place]) -> list[list[str | Entry]]:
    """The rows of one size; under a comparable preset each with the paper's own row below."""
    rows: list[list[str | Entry]] = []
    for title in (*grid.resolved.printed_rows, *grid.resolved.averages):
        places = [(size, title, column) for column in grid.columns]
        cells = [grid.cells[place] for place in places]
        rows.append([title, *(cell_entry(grid, place, letters, leading) for place in places)])
        if grid.resolved.comparable and any(cell.paper is not None for cell in cells):
            rows.append([f"{title} (paper)", *(_score(cell.paper, cell.paper_spread) for cell in cells)])
    return rows


def cell_entry(grid: Grid, place: Place, letters: Mapping[Note, str], leading: Collection[Place]) -> Entry:
    """A cell with its marks: its value (best where it is one of those `leading`), how many of its runs are done, or a dash."""
    cell = grid.cells[place]
    if cell.skip:
        entry = Entry(DASH)
    elif not cell.complete or cell.value is None:
        entry = Entry(f"{cell.done}/{cell.expected}")
    else:
        entry = _score(cell.value, cell.spread if grid.resolved.aggregate.spread != "none" else None)
        entry = replace(entry, best=place in leading)
    return replace(entry, marks=",".join(letters[note] for note in cell.notes))


def _score(value: float | None, spread: float | None) -> Entry:
    if value is None:
        return Entry("")
    return Entry(in_points(value), in_points(spread) if spread is not None else "")


def size_name(size: int, unit: str) -> str:
    """A heading: '20 training examples'. `unit`: what a protocol's sizes count."""
    return f"{size} {unit}" if size else "Full training set"


def column_name(grid: Grid, column: str) -> str:
    """'SST-2 (acc)'."""
    spec = grid.resolved.columns.get(column)
    return f"{spec.title} ({METRICS[spec.metric].short})" if spec else grid.title(column)


def cell_records(grid: Grid) -> list[dict[str, Any]]:
    """Cells as flat records, in the order of the grid."""
    cells, ranked = [], ranks(grid)
    for (size, row, column), cell in grid.cells.items():
        spec = grid.resolved.columns.get(column)
        place = {"size": size, "row": row, "column": column, "task": spec.task if spec else ""}
        place |= {"metric": spec.metric if spec else "", "evaluation": spec.evaluation if spec else ""}
        rank = ranked.get((size, row, column))
        of_rank = {
            "in_best_set": bool(rank and rank.best),
            "rank_low": rank and rank.low,
            "rank_high": rank and rank.high,
        }
        cells.append({**place, **asdict(cell), "notes": [f"{n.kind}: {n.reason}" for n in cell.notes], **of_rank})
    return cells


def _values(r: ResolvedTable) -> dict[str, Any]:
    """What differs between encoders; of several under the name of each in `by_encoder`."""
    found = {
        each.title: {
            "encoder_settings": dict(each.settings),
            "recipe": each.recipe.model_dump(exclude_none=True),
            "task_recipes": {task: recipe.model_dump(exclude_none=True) for task, recipe in each.task_recipes.items()},
            "deviations": [*map(without_folders, r.deviations_under(each))],
        }
        for each in r.encoders
    }
    return {"by_encoder": found} if len(found) > 1 else next(iter(found.values()))


def _json(grid: Grid, caption: Caption) -> str:
    r = grid.resolved
    body = {
        "table": r.table.name,
        "title": r.table.title,
        "source": r.table.source.model_dump() if r.table.source else None,
        "protocol": r.protocol,
        "preset": r.preset,
        "encoder": without_folders(r.encoder),
        "data": without_folders(r.data),
        "sizes": list(r.sizes),
        "subsets": list(r.subsets),
        "seeds": list(r.seeds),
        "rows": [{**row.model_dump(), "set": r.hyperparameters(row)} for row in r.rows],
        **_values(r),
        "max_length": r.max_length,
        "selection_every": r.selection_every,
        "mlm_head": r.mlm_head.model_dump(),
        "aggregate": r.aggregate.model_dump(),
        "comparable": r.comparable,
        "incomparable": [*map(without_folders, r.incomparable)],
        "settings": setting_records(r),
        "grids": grid_records(r),
        "caption": {
            **asdict(caption),
            "notes": [*map(without_folders, caption.notes)],
            "hardware": sorted(set(caption.hardware)),
            "lines": caption_lines(grid, caption),
        },
        "footnotes": footnotes(grid)[1],
        "cells": cell_records(grid),
        "resolution": [
            {"size": each.size, "column": each.column, "detects": each.detects, "recorded": each.recorded}
            for each in resolutions(grid).by_column
        ],
        "results": records(grid.results),
    }
    return json_text(body)
