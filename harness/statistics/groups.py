"""Whether a paired difference is another one in each of several groups of subsets: a one-way analysis of variance of the subsets' means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.statistics.crossed import half_width

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class GroupTest:
    """`p`: of the F test that all groups have one mean; `gap`: the first group minus the second, and `half_width`: half of its interval (0 of more than two
    groups). All of the leading shape."""

    p: Floats
    gap: Floats
    half_width: Floats


def group_test(groups: Sequence[ArrayLike], level: float = 0.95) -> GroupTest:
    """(..., units, others) of each group: the differences of its units (subsets) over the same others (seeds) as in every other group.

    An effect of a seed is in all groups alike, so it is in no difference between them. The units are drawn anew for each group; with normal effects of one
    variance the test is exact. `groups` have at least one degree of freedom together: more units than groups.
    """
    from scipy.special import fdtrc

    means = [np.asarray(group, dtype=np.float64).mean(axis=-1) for group in groups]
    counts = np.array([each.shape[-1] for each in means])
    within, between = int(counts.sum()) - len(means), len(means) - 1
    if within < 1:
        raise ValueError(f"{counts.sum()} units in {len(means)} groups leave no spread to judge by")
    centers = [each.mean(axis=-1) for each in means]
    spread = sum(((each - center[..., None]) ** 2).sum(axis=-1) for each, center in zip(means, centers, strict=True))
    square: Floats = np.asarray(spread, dtype=np.float64) / within
    overall = np.asarray(sum(n * c for n, c in zip(counts, centers, strict=True))) / counts.sum()
    moved = np.asarray(sum(n * (c - overall) ** 2 for n, c in zip(counts, centers, strict=True))) / between
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(square > 0, moved / square, np.where(moved > 0, np.inf, 0.0))
    gap: Floats = np.asarray(centers[0] - centers[1])
    half: Floats = np.zeros_like(gap)
    if len(means) == 2:
        half = half_width(square[..., None] * (1 / counts).sum(), (within,), level)
    return GroupTest(np.asarray(fdtrc(between, within, ratio)), gap, half)
