"""One row minus another over their common replicates: every figure of a comparison, or the sentence why it cannot be had."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.statistics.bootstrap import RESAMPLES, percentile_interval, resampled_means
from harness.statistics.crossed import (
    ROUNDING,
    half_width,
    item_variance,
    mean_squares,
    p_value,
    t_inference,
)
from harness.statistics.sign_flip import sign_flip, smallest_p

Floats = NDArray[np.float64]

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    low: float
    high: float


def mean_interval(scores: ArrayLike, level: float = LEVEL) -> Interval | None:
    """(subsets, seeds) -> the interval of their mean, crossed over both. None for a single run, and where scores do not vary."""
    values = np.asarray(scores, dtype=np.float64)
    variance, degrees = t_inference(mean_squares(values))
    if values.size < 2 or not float(variance) > 0:
        return None
    mean, half = float(values.mean()), float(half_width(variance, degrees, level))
    return Interval(mean - half, mean + half)


@dataclass(frozen=True)
class SignFlip:
    """`count`: of the differences, the means of the subsets (of the seeds where there is one subset); `floor`: the smallest p
    that so many can have."""

    p: float
    floor: float
    count: int


@dataclass(frozen=True)
class Difference:
    """On the metric's own scale. What cannot be had is None, and `why` says why.

    `interval`, `error`, `degrees`, `p`: of the crossed t test. `bootstrap`: the two-way percentile interval. `improvement`: the share of
    pairs in which the row is better, ties counted half. `equivalence_p`: of two one-sided t tests, that the difference lies outside
    the region of practical equivalence. `item_share`: of the squared standard error, the part of the test items, where they are
    in it.
    """

    mean: float
    num_subsets: int
    num_seeds: int
    error: float | None = None
    degrees: float | None = None
    interval: Interval | None = None
    p: float | None = None
    flip: SignFlip | None = None
    bootstrap: Interval | None = None
    improvement: float | None = None
    improvement_interval: Interval | None = None
    equivalence_p: float | None = None
    item_share: float | None = None
    why: str = ""


def difference(
    differences: ArrayLike, region: float, items: ArrayLike | None = None, level: float = LEVEL, seed: int = 0
) -> Difference:
    """`differences`: (subsets, seeds), all finite. `region`: half the width of the region of practical equivalence around 0. `items`:
    (items, subsets, seeds), whose mean over items `differences` is: the interval then holds for other test sets too.
    `seed`: of the bootstrap."""
    d = np.asarray(differences, dtype=np.float64)
    num_subsets, num_seeds = d.shape
    found = Difference(float(d.mean()), num_subsets, num_seeds, improvement=float(better(d).mean()))
    if why := _without_interval(d):
        return replace(found, why=why)
    variance, degrees = (float(each) for each in t_inference(mean_squares(d)))
    share = None
    if items is not None:
        drawn = item_variance(items)
        share = max(0.0, drawn.variance) / (variance + max(0.0, drawn.variance))
        variance, degrees = _added(variance, degrees, max(0.0, drawn.variance), drawn.count - 1)
    mean, error = found.mean, math.sqrt(variance)
    half = float(half_width(np.asarray(variance), np.asarray(degrees), level))
    each = d.mean(axis=0) if found.num_subsets == 1 else d.mean(axis=1)
    low, high = percentile_interval(resampled_means(d, RESAMPLES, seed), degrees, level)
    return replace(
        found,
        error=error,
        degrees=degrees,
        interval=Interval(mean - half, mean + half),
        p=float(p_value(np.asarray(mean), np.asarray(variance), np.asarray(degrees))),
        flip=SignFlip(float(sign_flip(each)), smallest_p(each.size), each.size),
        bootstrap=Interval(float(low), float(high)),
        improvement_interval=Interval(*(float(end) for end in improvement_interval(d, level))),
        equivalence_p=equivalence(mean, error, degrees, region),
        item_share=share,
    )


def better(differences: Floats) -> Floats:
    """1 for a positive difference, 1/2 for a tie, 0 for a negative one."""
    found: Floats = (differences > ROUNDING) + 0.5 * (np.abs(differences) <= ROUNDING)
    return found


def improvement_interval(differences: Floats, level: float = LEVEL) -> tuple[Floats, Floats]:
    """(..., subsets, seeds) -> the ends of the probability that the row is better in a further pair, by Clopper and Pearson with as many
    trials as there are subsets (seeds where there is one subset): pairs of one subset are not independent."""
    from scipy.special import betaincinv

    count = differences.shape[-2] if differences.shape[-2] > 1 else differences.shape[-1]
    won = count * better(differences).mean(axis=(-1, -2))
    tail = (1 - level) / 2
    low = betaincinv(np.maximum(won, ROUNDING), count - won + 1, tail)
    high = betaincinv(won + 1, np.maximum(count - won, ROUNDING), 1 - tail)
    return np.where(won > 0, low, 0.0), np.where(won < count, high, 1.0)


def equivalence(mean: float, error: float, degrees: float, region: float) -> float:
    """p of two one-sided t tests (Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15, 1987, 657-680): below 0.05 exactly where
    the 90 % interval lies within -region to region."""
    from scipy.special import stdtr

    return float(stdtr(degrees, (abs(mean) - region) / error))


def _without_interval(differences: Floats) -> str:
    """Why a difference has no interval, as the end of a sentence; '' where it has one."""
    if differences.size < 2:
        return "one pair of runs has no spread"
    if np.ptp(differences) > ROUNDING:
        return (
            ""
            if float(t_inference(mean_squares(differences))[0]) > 0
            else "the means of the subsets and of the seeds do not vary"
        )
    same = (
        "the rows have equal scores in all"
        if abs(differences.flat[0]) <= ROUNDING
        else "the difference is the same in all"
    )
    return f"{same} {differences.size} pairs of runs, so that there is no spread to judge it by"


def _added(variance: float, degrees: float, more: float, more_degrees: float) -> tuple[float, float]:
    """The sum of two independent variances, and its degrees of freedom by Satterthwaite."""
    total = variance + more
    return total, total**2 / (variance**2 / degrees + more**2 / more_degrees)
