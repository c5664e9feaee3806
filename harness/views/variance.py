"""The variance of each cell's scores by its sources: training subset, seed, their interaction with the run's own noise, test items.

Pure. `docs/statistics.md` says how each is estimated.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.statistics.crossed import Items, component_interval, item_variance, mean_squares, variance_interval
from harness.views.cells import Grid, answers_of, on_grid
from harness.views.view import DASH, Table, View
from harness.wording import in_points, some_of, training_examples

SOURCES = ("subset", "seed", "interaction", "test items")
CELL = ["size", "row", "column", "metric", "num_subsets", "num_seeds"]
COLUMNS = [*CELL, "source", "variance", "low", "high", "share", "why"]
"""Of the frame, a row a cell and source: variances of one run's score on the metric's own scale squared, empty where they cannot be had, and `why`;
`share`: of the sum of all sources that are known."""
ABOUT = (
    "Standard deviation of one run's score in points (x100) by source, its 95 % interval and its share of the variance. Interaction: "
    "of subset and seed, with the run's own noise. Test items: what another test set of this size would change in all "
    "runs alike; what it would change in single runs is in the other columns."
)
Source = dict[str, Any]


def variance(grid: Grid) -> View:
    """Every cell with at least two runs, of its largest full grid of replicates."""
    r, cells = grid.resolved, list[list[Source]]()
    for size, column, row in itertools.product(r.sizes, grid.compared, r.printed_rows):
        runs = grid.scores.get((size, row, column))
        if runs is None or len((found := on_grid(runs))[1]) < 2:
            continue
        (scores,), pairs = found
        right = answers_of(runs, pairs)
        items = None if right is None else item_variance(right.reshape(len(right), *scores.shape))
        place = {"size": size, "row": row, "column": column, "metric": grid.metric(column)}
        place |= {"num_subsets": scores.shape[0], "num_seeds": scores.shape[1]}
        cells.append([place | source for source in _sources(scores, items)])
    frame = pd.DataFrame([source for cell in cells for source in cell], columns=[*COLUMNS])
    head, tables = ("Column", "Row", *(name.capitalize() for name in SOURCES)), []
    for size in r.sizes:
        here = [cell for cell in cells if cell[0]["size"] == size]
        rows = [[grid.column_name(cell[0]["column"]), cell[0]["row"], *map(_text, cell)] for cell in here]
        tables.append(Table(grid.size_name(size), head, rows, {0, 1}))
    return View("variance", frame, tables, [ABOUT, *_unknown(grid, cells)], about={"table": r.table.name})


def _sources(scores: NDArray[np.float64], items: Items | None) -> list[Source]:
    squares = mean_squares(scores)
    a, b, ab = squares.degrees
    known: dict[str, Sequence[Any]] = {}
    why = dict.fromkeys(SOURCES, "")
    if ab:
        known["subset"] = component_interval(squares.subset, squares.residual, (a, ab), squares.num_seeds)
        known["seed"] = component_interval(squares.seed, squares.residual, (b, ab), squares.num_subsets)
        known["interaction"] = squares.residual, *variance_interval(squares.residual, ab)
    else:
        varied, single = ("subset", "seed") if a else ("seed", "subset")
        square = squares.subset if a else squares.seed
        known[varied] = square, *variance_interval(square, max(a, b))
        why |= {varied: f"with one {single} the run's own noise is in it"}
        why |= dict.fromkeys((single, "interaction"), f"not known from one {single}")
    if items is None:
        why["test items"] = "known for accuracy, EM and answer F1 on one test set only"
    elif scores.size < 3:
        why["test items"] = "not known from two runs, which do not show whether runs lean to one class"
    elif items.variance <= 0:
        why["test items"] = "not known, because the runs differ more than the items"
    else:
        known["test items"] = items.variance, *items.interval()
    total, sources = sum(float(values[0]) for values in known.values()), list[Source]()
    for name in SOURCES:
        variance, low, high = map(float, known[name]) if name in known else [None] * 3
        share = variance / total if variance is not None and total else None
        source = {"source": name, "variance": variance, "low": low, "high": high, "share": share}
        sources.append({**source, "why": why[name]})
    return sources


def _text(source: Source) -> str:
    if source["variance"] is None:
        return DASH
    sd, low, high = (in_points(source[name] ** 0.5) for name in ("variance", "low", "high"))
    share = "" if source["share"] is None else f", {100 * source['share']:.0f} %"
    return f"{sd} ({low} to {high}){share}"


def _unknown(grid: Grid, cells: list[list[Source]]) -> list[str]:
    """Why sources of variance are not known, each reason once, with the cells that it holds for."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for source in (source for cell in cells for source in cell if source["why"]):
        size = training_examples(source["size"], grid.resolved.protocol.size_unit)
        place = f"{source['row']}, {grid.title(source['column'])}, {size}"
        reasons.setdefault((source["source"], source["why"]), []).append(place)
    where = {each: "all cells" if len(at) == len(cells) else some_of(at, 3) for each, at in reasons.items()}
    return [f"{name.capitalize()}: {why} ({cells_of})." for (name, why), cells_of in where.items()]
