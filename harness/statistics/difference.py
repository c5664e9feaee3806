"""One row minus another over their common replicates: every figure of a comparison, or the sentence why it cannot be had."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.statistics.crossed import ROUNDING, half_width, item_variance, mean_squares, p_value, t_inference

Floats = NDArray[np.float64]

LEVEL = 0.95


def mean_interval(scores: ArrayLike) -> tuple[float, float] | None:
    """(subsets, seeds) -> the ends of the interval of their mean, crossed over both. None for a single run, and where scores do not vary."""
    values = np.asarray(scores, dtype=np.float64)
    half, mean = float(half_width(*t_inference(mean_squares(values)), LEVEL)), float(values.mean())
    return (mean - half, mean + half) if half else None


def published_half_width(scores: ArrayLike, spread: ArrayLike | None, count: int, level: float = LEVEL) -> Floats:
    """(..., subsets, seeds) -> (...): half the width of the interval of their mean minus a published mean. `spread`: (...) or one number, the standard
    deviation that was published with it; without one the published mean is taken to be as uncertain as this one. `count`: of its
    subsets (seeds where there is one subset), which are independent, as runs of one subset are not."""
    variances, degrees = t_inference(mean_squares(scores))
    theirs, their_degrees = variances, degrees
    if spread is not None and count > 1:
        theirs = np.broadcast_to(np.square(spread) / count, variances.shape[:-1])[..., None]
        their_degrees = (count - 1,)
    return half_width(np.concatenate([variances, theirs], axis=-1), (*degrees, *their_degrees), level)


@dataclass(frozen=True)
class Difference:
    """On the metric's own scale. What cannot be had is None, and `why` says why."""

    difference: float
    num_subsets: int
    num_seeds: int
    improvement: float  # share of pairs in which the row is better, ties counted half
    error: float | None = None  # this and the next three: of the crossed t test
    low: float | None = None
    high: float | None = None
    p: float | None = None
    equivalence_p: float | None = None  # of two one-sided t tests
    item_share: float | None = None  # of the squared standard error, where test items are in it
    why: str = ""


def difference(
    differences: ArrayLike, region: float, items: ArrayLike | None = None, level: float = LEVEL
) -> Difference:
    """`differences`: (subsets, seeds), all finite. `region`: half the width of the region of practical equivalence around 0. `items`:
    (items, subsets, seeds), whose mean over items `differences` is: interval, p and equivalence then hold for other test sets too."""
    d = np.asarray(differences, dtype=np.float64)
    mean, (num_subsets, num_seeds) = float(d.mean()), d.shape
    found = Difference(mean, num_subsets, num_seeds, float(better(d).mean()), why=_without_interval(d))
    if found.why:
        return found
    variances, degrees = t_inference(mean_squares(d))
    if items is not None:
        drawn = item_variance(items)
        variances, degrees = np.append(variances, max(0.0, drawn.variance)), (*degrees, drawn.count - 1)
        found = replace(found, item_share=float(variances[-1] / variances.sum()))
    half = float(half_width(variances, degrees, level))
    return replace(
        found,
        error=math.sqrt(variances.sum()),
        low=mean - half,
        high=mean + half,
        p=float(p_value(mean, variances, degrees)),
        equivalence_p=equivalence(mean, variances, degrees, region),
    )


def better(differences: Floats) -> Floats:
    """1 for a positive difference, 1/2 for a tie, 0 for a negative one."""
    found: Floats = (differences > ROUNDING) + 0.5 * (np.abs(differences) <= ROUNDING)
    return found


def equivalence(mean: float, variances: ArrayLike, degrees: Sequence[float], region: float) -> float:
    """p of two one-sided t tests (Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15, 1987, 657-680): below 0.05 exactly where
    the 90 % interval lies within -region to region."""
    inside = region - abs(mean)
    beyond = float(p_value(inside, variances, degrees)) / 2
    return beyond if inside > 0 else 1 - beyond


def holm(p_values: Sequence[float], family: int = 0) -> list[float]:
    """Adjusted p values in the order given (Holm, Scandinavian Journal of Statistics 6, 1979, 65-70): rejecting those below a level keeps the probability of any
    wrong rejection in the family at most at this level, whatever their dependence. `family`: how many comparisons it has, at least those that are
    given; of those that are not, p counts as the largest."""
    family, found, largest = max(family, len(p_values)), [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (family - rank) * p_values[place]))
        found[place] = largest
    return found


def _without_interval(differences: Floats) -> str:
    """Why a difference has no interval, as the end of a sentence; '' where it has one."""
    if differences.size < 2:
        return "one pair of runs has no spread"
    if np.ptp(differences) > ROUNDING:
        varies = float(t_inference(mean_squares(differences))[0].sum()) > 0
        return "" if varies else "the means of the subsets and of the seeds do not vary"
    equal = abs(differences.flat[0]) <= ROUNDING
    same = "the rows have equal scores in all" if equal else "the difference is the same in all"
    return f"{same} {differences.size} pairs of runs, so that there is no spread to judge it by"
