"""Variance components, standard errors and intervals of a balanced crossed design: subsets x seeds, one run a pair; and one row minus another: every figure of
a comparison, or the sentence why it cannot be had.

Model of one score, or of one paired difference of two rows: `y[s, r] = mean + S[s] + R[r] + SR[s, r]`, with independent S, R
and SR of mean zero; with one run a pair the interaction and the run's own noise are one component. Test items are a
third crossed factor where the score is a mean over items (accuracy).

Sources: Searle, Casella and McCulloch, Variance Components (1992), section 4.3 (mean squares of the balanced two-way random model);
Banerjee, Sankhya 22 (1960) 359-362 (interval of a mean whose variance is estimated in parts); Williams, Biometrika 49 (1962)
278-281, and Tukey, Biometrics 7 (1951) 13-28 (interval of a component). `docs/statistics.md` has the measured coverage.

Functions of mean squares and intervals take leading axes: many designs at once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtri, fdtri, stdtr, stdtrit

Floats = NDArray[np.float64]

INTERVAL_LEVEL = 0.95
ROUNDING = 1e-9
"""On the metric's own scale: smaller differences are rounding errors of sums and count as zero."""


@dataclass(frozen=True)
class MeanSquares:
    """Mean and mean squares, each of the leading shape; `subset`, `seed` and `residual` are 0 where they have no degrees of freedom."""

    mean: Floats
    subset: Floats
    seed: Floats
    residual: Floats
    num_subsets: int
    num_seeds: int

    @property
    def degrees(self) -> tuple[int, int, int]:
        """Of subset, seed and residual."""
        a, b = self.num_subsets - 1, self.num_seeds - 1
        return a, b, a * b


def mean_squares(scores: ArrayLike) -> MeanSquares:
    """(..., subsets, seeds), all finite. Mean squares below `ROUNDING` squared are 0."""
    y = np.asarray(scores, dtype=np.float64)
    num_subsets, num_seeds = y.shape[-2:]
    mean = y.mean(axis=(-1, -2))
    by_subset, by_seed = y.mean(axis=-1) - mean[..., None], y.mean(axis=-2) - mean[..., None]
    rest = y - mean[..., None, None] - by_subset[..., :, None] - by_seed[..., None, :]
    a, b = num_subsets - 1, num_seeds - 1
    found = (
        num_seeds * (by_subset**2).sum(axis=-1) / max(1, a),
        num_subsets * (by_seed**2).sum(axis=-1) / max(1, b),
        (rest**2).sum(axis=(-1, -2)) / max(1, a * b),
    )
    subset, seed, residual = (np.where(each < ROUNDING**2, 0.0, each) for each in found)
    return MeanSquares(mean, subset, seed, residual, num_subsets, num_seeds)


def t_inference(squares: MeanSquares) -> tuple[Floats, tuple[int, ...]]:
    """(..., parts): independent estimates that add up to the squared standard error of the mean, MS_subset / runs and MS_seed / runs; and
    the degrees of freedom of each. A factor with one level has no part and says nothing of further levels; a single run has none.

    Their sum is too large by interaction / runs. The unbiased estimate subtracts MS_residual / runs; with few subsets and seeds that difference
    often falls near or below 0 by chance.
    """
    a, b, _ = squares.degrees
    runs = squares.num_subsets * squares.num_seeds
    parts = [(square / runs, degrees) for square, degrees in ((squares.subset, a), (squares.seed, b)) if degrees]
    variances = np.stack([each for each, _ in parts], axis=-1) if parts else np.zeros((*np.shape(squares.mean), 0))
    return variances, tuple(degrees for _, degrees in parts)


def half_width(variances: ArrayLike, degrees: Sequence[float], level: float = INTERVAL_LEVEL) -> Floats:
    """Of the interval of a mean, (..., parts) -> (...): `variances` are independent estimates that add up to its squared standard error, each with
    its `degrees` of freedom.

    The square is the sum of the parts, each times its own squared t quantile. With normal effects this holds the truth at least as often as
    `level` says, whatever the true parts are. One t quantile at Satterthwaite's degrees of freedom does not: where a factor with
    two or three levels has most of the variance, its 95 % intervals hold 89 %, and its errors at the levels of Holm's
    correction are up to 16 times the nominal ones.
    """
    quantiles = stdtrit(np.asarray(degrees, dtype=np.float64), (1 + level) / 2)
    found: Floats = np.sqrt((np.asarray(variances) * quantiles**2).sum(axis=-1))
    return found


def p_value(distance: ArrayLike, variances: ArrayLike, degrees: Sequence[float]) -> Floats:
    """Two-sided p of a mean that lies `distance` from the value that is tested: below 1 - level exactly where the distance exceeds the `half_width` at
    that level. 1 for a distance of 0 without variance.

    Of one part it is that of t. Of several it lies between those of t with the most and with the fewest degrees of freedom, and is found by
    bisection of its logarithm.
    """
    parts, each = np.asarray(variances, dtype=np.float64), np.asarray(degrees, dtype=np.float64)
    apart, total = np.abs(np.asarray(distance, dtype=np.float64)), parts.sum(axis=-1)
    t = np.where(total > 0, apart / np.sqrt(np.where(total > 0, total, 1.0)), np.where(apart > ROUNDING, np.inf, 0.0))
    low, high = (np.log(np.maximum(2 * stdtr(count, -t), 1e-300)) for count in (max(degrees), min(degrees)))
    shares = parts / np.where(total > 0, total, 1.0)[..., None]
    for _ in range(50 if len(set(degrees)) > 1 else 0):
        middle = (low + high) / 2
        critical = (shares * stdtrit(each, np.exp(middle)[..., None] / 2) ** 2).sum(axis=-1)
        beyond = t**2 > critical
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    return np.where(np.isinf(t), 0.0, np.exp(high))


def component_interval(
    upper: Floats, lower: Floats, degrees: tuple[int, int], count: int, level: float = INTERVAL_LEVEL
) -> tuple[Floats, Floats, Floats]:
    """(estimate, low, high) of the component in `upper`, which estimates it `count` times plus `lower`: (MS_subset - MS_residual) /
    seeds is the variance between subsets. Interval of Williams and Tukey; all cut at 0."""
    tail, (above, below) = (1 - level) / 2, degrees
    ends = []
    for p in (1 - tail, tail):
        ratio = float(fdtri(above, below, p))
        ends.append(above * (upper - lower * ratio) / (count * float(chdtri(above, 1 - p))))
    estimate, low, high = (np.maximum(0.0, each) for each in ((upper - lower) / count, *ends))
    return estimate, low, high


def variance_interval(square: Floats, degrees: int, level: float = INTERVAL_LEVEL) -> tuple[Floats, Floats]:
    """Of the variance that a mean square estimates, by chi-squared; assumes a normal distribution."""
    tail = (1 - level) / 2
    return degrees * square / float(chdtri(degrees, tail)), degrees * square / float(chdtri(degrees, 1 - tail))


@dataclass(frozen=True)
class Items:
    """The part of the test items in a score that is a mean over them. `variance`: of the score by the draw of the test set, the same for
    all its runs; an unbiased estimate, so that it may be below 0. `errors`: what adds up to its squared standard error, by the draw of items, subsets
    and seeds, each with its `degrees` of freedom; `count`: of the items."""

    variance: float
    errors: tuple[float, ...]
    degrees: tuple[int, ...]
    count: int

    def interval(self, level: float = INTERVAL_LEVEL) -> tuple[float, float]:
        half = float(half_width(self.errors, self.degrees, level))
        return max(0.0, self.variance - half), max(0.0, self.variance + half)


def item_variance(values: ArrayLike) -> Items:
    """(items, subsets, seeds): what each item adds to the score of each run, 0 or 1 of accuracy, or the difference of two rows.

    Of the three-way crossed random model with one value a place: the main effect of the items, divided by their number. Its error by
    other items takes them as independent; that by other subsets and seeds is the jackknife's, and is the larger one where runs lean to one class:
    all items of a class then go together, and which way depends on the runs.
    """
    x = np.asarray(values, dtype=np.float64)
    count, each = len(x), _item_squares(x)
    squared = [float(each.var(ddof=1)) / count, *(_jackknife(x, axis) for axis in (1, 2) if x.shape[axis] > 1)]
    degrees = [count - 1, *(levels - 1 for levels in x.shape[1:] if levels > 1)]
    return Items(float(each.mean()) / count, tuple(error / count**2 for error in squared), tuple(degrees), count)


def _item_squares(x: Floats) -> Floats:
    """(items, subsets, seeds) -> (items,), whose mean is the variance of the items' main effect: the squared deviation of the item's mean less what its
    runs vary by."""
    count, squares = len(x), mean_squares(x - x.mean(axis=0))
    rest = squares.residual if squares.degrees[2] else 0.0
    own = (squares.subset + squares.seed - rest) / (squares.num_subsets * squares.num_seeds)
    found: Floats = (squares.mean**2 - own) * count / (count - 1)
    return found


def _jackknife(x: Floats, axis: int) -> float:
    """Squared error of the mean of `_item_squares` by the levels of one factor, each left out in turn; 0 where one run or none would be left."""
    levels = x.shape[axis]
    if x[0].size - x[0].size // levels < 2:
        return 0.0
    without = np.array([_item_squares(np.delete(x, level, axis)).mean() for level in range(levels)])
    return float((levels - 1) * without.var())


def full_grid(pairs: Collection[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """The grid of the most pairs of (subset, seed): subsets and seeds, in ascending order, such that every pair of them is among `pairs`; both empty where there
    is none.

    Of equally large grids that whose smaller side is longer, then that with more subsets, then that of the lowest subsets and seeds.
    Branch and bound: the subset that lacks most of the seeds is left out, or the seeds that it lacks are. 30 x 30 pairs of which some
    lack take a second or so.
    """
    there = {s: {seed for other, seed in pairs if other == s} for s in sorted({subset for subset, _ in pairs})}
    best: tuple[tuple[int, int, int], list[int], list[int]] = ((0, 0, 0), [], [])
    open_grids = [([*there], {seed for _, seed in pairs})]
    while open_grids:
        subsets, seeds = open_grids.pop()
        having = sorted((len(there[subset] & seeds) for subset in subsets), reverse=True)
        # the first `a` of them have `b` seeds or more, so no grid of `a` subsets here has more
        bound = min(((-a * b, -min(a, b), -a) for a, b in enumerate(having, 1)), default=(0, 0, 0))
        if bound > best[0] or not bound[0]:
            continue
        worst = min(subsets, key=lambda subset: len(there[subset] & seeds))
        if seeds <= there[worst]:
            best = min(best, (bound, subsets, sorted(seeds)))
        else:
            open_grids += [([s for s in subsets if s != worst], seeds), (subsets, seeds & there[worst])]
    return best[1], best[2]


def mean_interval(scores: ArrayLike) -> tuple[float, float] | None:
    """(subsets, seeds) -> the ends of the interval of their mean, crossed over both. None for a single run, and where scores do not vary."""
    values = np.asarray(scores, dtype=np.float64)
    half, mean = float(half_width(*t_inference(mean_squares(values)))), float(values.mean())
    return (mean - half, mean + half) if half else None


def published_half_width(scores: ArrayLike, spread: ArrayLike | None, count: int, level: float) -> Floats:
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
    differences: ArrayLike, region: float, items: ArrayLike | None = None, level: float = INTERVAL_LEVEL
) -> Difference:
    """`differences`: (subsets, seeds), all finite. `region`: half the width of the region of practical equivalence around 0. `items`:
    (items, subsets, seeds), whose mean over items `differences` is: interval, p and equivalence then hold for other test sets too."""
    d = np.asarray(differences, dtype=np.float64)
    mean, (num_subsets, num_seeds) = float(d.mean()), d.shape
    improvement = float(np.where(np.abs(d) <= ROUNDING, 0.5, d > 0).mean())
    found = Difference(mean, num_subsets, num_seeds, improvement, why=_without_interval(d))
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
