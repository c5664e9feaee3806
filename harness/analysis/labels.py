"""What more labels are worth, beside another method: the learning curve of each row over the recorded sizes, extrapolated a little.

Pure. `docs/statistics.md` has the model and how often its intervals hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.analysis.cells import Grid
from harness.analysis.comparison import (
    NO_RUNS,
    Pair,
    Place,
    Runs,
    columns_of,
    metric_of,
    paired,
    reference_of,
    runs_of,
)
from harness.errors import UserError
from harness.statistics.design import full_grid
from harness.statistics.difference import mean_interval
from harness.statistics.learning_curve import EXPONENTS, LEAST_SIZES, more_examples, score_at, worth
from harness.wording import counted, sizes_text

Kind = Literal["score", "step", "labels", "method", "labels less method"]
"""`score`: at a size, recorded or extrapolated; `step`: from the size before the largest to the largest, as recorded; `labels`: what more labels than the largest size
are worth; `method`: the row minus the one that it is compared with, at the largest size; `labels less method`: what the labels are worth with the latter, less that."""


@dataclass(frozen=True)
class Figure:
    """On the metric's own scale. `size`: training examples; `extrapolated`: no run has so many. What cannot be had is None, and `why` says why. `exponents`: the lowest and the highest
    that the sizes admit, of an extrapolated figure."""

    kind: Kind
    column: str
    row: str
    against: str
    size: int
    sizes: tuple[int, ...]
    num_subsets: int
    num_seeds: int
    extrapolated: bool = False
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    exponents: tuple[float, float] | None = None
    why: str = ""


@dataclass(frozen=True)
class Labels:
    """`more`: labels than the largest size of each column; `against`: the row, in words, that others are compared with; `metrics`: of the columns."""

    grid: Grid
    more: int
    against: str
    figures: tuple[Figure, ...]
    metrics: Mapping[str, str]


@dataclass(frozen=True)
class Curve:
    """A row's scores in one column, (sizes, subsets, seeds), of the replicates that all its sizes have."""

    sizes: tuple[int, ...]
    scores: NDArray[np.float64]
    pairs: tuple[Pair, ...]


def labels_worth(grid: Grid, more: int, against: str = "", option: Callable[[str], str] = "--{}".format) -> Labels:
    """What `more` labels are worth to each row beyond the largest size that is recorded of its column. Raises UserError for an unknown row, where no size but the full training set is
    recorded, and for more labels than the largest size has."""
    drawn = sorted(size for size in grid.resolved.sizes if size)
    if not drawn:
        raise UserError(
            f"labels: this table has the full training set alone, and a curve needs sizes; name some with {option('sizes')}."
        )
    if more > max(drawn):
        raise UserError(
            f"{option('labels')} {more}: reaches beyond twice the largest size, {max(drawn):,}, where nothing is known of how often intervals hold; give {max(drawn)} or less."
        )
    named, reference = reference_of(grid.resolved, against, option)
    runs, figures = runs_of(grid), []
    for column in columns_of(grid):
        for row in grid.resolved.printed_rows:
            other = reference(row)
            places = [(size, (row, column)) for size in drawn]
            figures += _of_row(runs, places, more, other)
    return Labels(grid, more, named, tuple(figures), {column: metric_of(grid, column) for column in columns_of(grid)})


def _of_row(
    runs: Mapping[Place, Runs], places: Sequence[tuple[int, tuple[str, str]]], more: int, against: str
) -> list[Figure]:
    row, column = places[0][1]
    sizes = [size for size, _ in places]
    curve = _curve(runs, row, column, sizes)
    if curve is None:
        return []
    subsets, seeds = curve.scores.shape[1:]
    base = Figure("score", column, row, against, curve.sizes[-1], curve.sizes, subsets, seeds)
    found = [
        _recorded(replace(base, size=size), scores) for size, scores in zip(curve.sizes, curve.scores, strict=True)
    ]
    target = curve.sizes[-1] + more
    found.append(_extrapolated(replace(base, size=target), curve, score_at(target)))
    if len(curve.sizes) > 1:
        found.append(_recorded(replace(base, kind="step"), curve.scores[-1] - curve.scores[-2]))
    found.append(_extrapolated(replace(base, kind="labels", size=target), curve, more_examples(curve.sizes[-1], more)))
    if against != row:
        found += _beside(runs, base, more)
    return found


def _beside(runs: Mapping[Place, Runs], base: Figure, more: int) -> list[Figure]:
    """A row beside the one that it is compared with, at its largest size; and what labels are worth with the latter, less that."""
    ours, theirs = (runs.get((base.size, name, base.column), NO_RUNS) for name in (base.row, base.against))
    subsets, seeds = full_grid([pair for pair in ours.scores if pair in theirs.scores])
    if not subsets:
        return []
    base = replace(base, kind="method", num_subsets=len(subsets), num_seeds=len(seeds))
    found = [_recorded(base, paired(ours, theirs, subsets, seeds))]
    curve = _curve(runs, base.against, base.column, base.sizes, [pair for pair in ours.scores if pair in theirs.scores])
    if curve and curve.sizes[-1] == base.size:
        levels = [sorted({pair[k] for pair in curve.pairs}) for k in (0, 1)]
        place = replace(base, kind="labels less method", size=base.size + more, sizes=curve.sizes)
        place = replace(place, num_subsets=len(levels[0]), num_seeds=len(levels[1]))
        figure = more_examples(base.size, more)
        found.append(_extrapolated(place, curve, figure, paired(ours, theirs, *levels)))
    return found


def _curve(
    runs: Mapping[Place, Runs], row: str, column: str, sizes: Sequence[int], among: Sequence[Pair] | None = None
) -> Curve | None:
    """The sizes of which any run is there, over the largest full grid of the replicates that all of them have (and that are `among` these)."""
    there = {size: of.scores for size in sizes if (of := runs.get((size, row, column), NO_RUNS)).scores}
    if not there:
        return None
    common = set.intersection(*(set(scores) for scores in there.values()), *([set(among)] if among is not None else []))
    subsets, seeds = full_grid(sorted(common))
    if not subsets:
        return None
    scores = np.array([[[of[s, r] for r in seeds] for s in subsets] for of in there.values()])
    return Curve(tuple(there), scores, tuple((s, r) for s in subsets for r in seeds))


def _recorded(figure: Figure, values: NDArray[np.float64]) -> Figure:
    interval = mean_interval(values)
    if interval is None:
        why = "one run has no spread" if values.size < 2 else "all runs are equal, so that there is no spread"
        return replace(figure, estimate=float(values.mean()), why=why)
    return replace(figure, estimate=float(values.mean()), low=interval.low, high=interval.high)


def _extrapolated(
    figure: Figure, curve: Curve, of: Callable[[float], tuple[float, float]], less: NDArray[np.float64] | float = 0.0
) -> Figure:
    figure = replace(figure, extrapolated=True)
    if figure.size > 2 * curve.sizes[-1]:
        return replace(figure, why=f"more than twice the largest size that is recorded, {curve.sizes[-1]:,}")
    if len(curve.sizes) < LEAST_SIZES:
        return replace(
            figure, why=f"{counted(len(curve.sizes), 'size')} {'fits' if len(curve.sizes) == 1 else 'fit'} every curve"
        )
    if curve.scores[0].size < 2:
        return replace(figure, why="one run a size has no spread")
    found = worth(curve.scores, curve.sizes, of, less)
    if np.isnan(found.estimate):
        span = f"{EXPONENTS[0]:g} to {EXPONENTS[-1]:g}"
        return replace(
            figure, why=f"no power law with an exponent from {span} fits {sizes_text(curve.sizes, 'examples')}"
        )
    return replace(
        figure,
        estimate=float(found.estimate),
        low=float(found.low),
        high=float(found.high),
        exponents=(float(found.lowest), float(found.highest)),
    )
