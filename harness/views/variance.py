"""The variance of each cell's scores by its sources: training subset, seed, their interaction with the run's own noise, test items.

Pure. `docs/statistics.md` says how each is estimated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.statistics.crossed import Items, component_interval, item_variance, mean_squares, variance_interval
from harness.statistics.design import full_grid
from harness.views.cells import Grid
from harness.views.numbers.comparison import NO_RUNS, Answers, columns_of, metric_of, runs_of

SOURCES = ("subset", "seed", "interaction", "test items")


@dataclass(frozen=True)
class Source:
    """Variance of one run's score by one source, on the metric's own scale squared, with its 95 % interval; None where it cannot be
    had, and `why`. `share`: of the sum of all sources that are known."""

    name: str
    variance: float | None = None
    low: float | None = None
    high: float | None = None
    share: float | None = None
    why: str = ""


@dataclass(frozen=True)
class CellVariance:
    size: int
    row: str
    column: str
    title: str
    metric: str
    num_subsets: int
    num_seeds: int
    sources: tuple[Source, ...]


def decomposed(grid: Grid, answers: Answers) -> list[CellVariance]:
    """Every cell with at least two runs, of its largest full grid of replicates."""
    found = []
    runs = runs_of(grid)
    for size in grid.resolved.sizes:
        for column in columns_of(grid):
            for row in grid.resolved.printed_rows:
                of_cell = runs.get((size, row, column), NO_RUNS)
                subsets, seeds = full_grid(list(of_cell.scores))
                if len(subsets) * len(seeds) < 2:
                    continue
                scores = np.array([[of_cell.scores[s, r] for r in seeds] for s in subsets])
                keys = [[(size, of_cell.configurations[s, r], column, s, r) for r in seeds] for s in subsets]
                items = None
                if all(key in answers for row_keys in keys for key in row_keys):
                    right = np.array([[answers[key] for key in row_keys] for row_keys in keys], dtype=np.float64)
                    items = item_variance(np.moveaxis(right, -1, 0))
                place = (size, row, column, grid.title(column), metric_of(grid, column), len(subsets), len(seeds))
                found.append(CellVariance(*place, _with_shares(_sources(scores, items))))
    return found


def _sources(scores: NDArray[np.float64], items: Items | None) -> dict[str, Source]:
    squares = mean_squares(scores)
    a, b, ab = squares.degrees
    of = [_item_source(items, scores.size)]
    if ab:
        for name, square, degrees, count in (
            ("subset", squares.subset, a, squares.num_seeds),
            ("seed", squares.seed, b, squares.num_subsets),
        ):
            value, low, high = component_interval(square, squares.residual, (degrees, ab), count)
            of.append(Source(name, float(value), float(low), float(high)))
        low, high = variance_interval(squares.residual, ab)
        of.append(Source("interaction", float(squares.residual), float(low), float(high)))
    else:
        varied, single = ("subset", "seed") if a else ("seed", "subset")
        square = squares.subset if a else squares.seed
        low, high = variance_interval(square, max(a, b))
        why = f"with one {single} the run's own noise is in it"
        of.append(Source(varied, float(square), float(low), float(high), why=why))
        of += [Source(name, why=f"not known from one {single}") for name in (single, "interaction")]
    return {source.name: source for source in of}


def _item_source(items: Items | None, num_runs: int) -> Source:
    if items is None:
        why = "known for accuracy, EM and answer F1 on one test set only"
    elif num_runs < 3:
        why = "not known from two runs, which do not show whether runs lean to one class"
    elif items.variance <= 0:
        why = "not known, because the runs differ more than the items"
    else:
        low, high = items.interval()
        return Source("test items", items.variance, low, high)
    return Source("test items", why=why)


def _with_shares(of: Mapping[str, Source]) -> tuple[Source, ...]:
    total = sum(source.variance or 0.0 for source in of.values())
    return tuple(
        replace(of[name], share=v / total if (v := of[name].variance) is not None and total else None)
        for name in SOURCES
    )
