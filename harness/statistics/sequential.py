"""Replicates added until an interval is narrow enough: the path of grids, and the level at which each look is taken.

A look decides by the width alone, never by the mean or by p. For normal effects the mean squares are independent of the mean, so the
mean at the end is unbiased. But a grid whose mean squares are small by chance stops early, so that at the end an interval of the nominal level
holds the truth too rarely: 95 % intervals in 92 % of cases at worst. `LOOK_LEVEL` makes up for it. The path is fixed in advance: a path
that follows the estimated components ends in grids with few seeds where few seeds seem enough by chance. `tests/statistics/test_sequential.py`
measures the whole procedure, docs/statistics.md has the figures.

Source: Chow and Robbins, Annals of Mathematical Statistics 36 (1965) 457-462 (intervals of fixed width).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from harness.statistics.crossed import ROUNDING, half_width, mean_squares, t_inference

LOOK_LEVEL = 0.975
"""Of the interval at each look: the one at the last look then holds the truth in 95 % of cases or more, by simulation, for up to nine looks; along
seeds alone in 93.5 %."""
FIRST = (5, 3)
"""Subsets and seeds of the first look, at least."""


def path(subsets: int, seeds: int, most: int, most_subsets: int | None = None) -> Iterator[tuple[int, int]]:
    """The grids (subsets, seeds) at which is looked: first `FIRST`, or the given one where it is larger, then a subset and a seed more each time, up
    to `most` replicates. `most_subsets`: how many there can be (None: any number)."""

    def fitting(count: int) -> int:
        return count if most_subsets is None else min(count, most_subsets)

    a, b = fitting(max(subsets, FIRST[0])), max(seeds, FIRST[1])
    while a * b <= most:
        yield a, b
        a, b = fitting(a + 1), b + 1


def look_width(differences: ArrayLike) -> float | None:
    """(subsets, seeds) -> half the width of the crossed interval at `LOOK_LEVEL`: 0 where all are equal, None where there is no interval yet."""
    d = np.asarray(differences, dtype=np.float64)
    if d.size < 2:
        return None
    if np.ptp(d) <= ROUNDING:
        return 0.0
    return float(half_width(*t_inference(mean_squares(d)), LOOK_LEVEL)) or None
