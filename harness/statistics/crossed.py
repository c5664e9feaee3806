"""Variance components, standard errors and intervals of a balanced crossed design: subsets x seeds, one run a pair.

Model of one score, or of one paired difference of two rows: `y[s, r] = mean + S[s] + R[r] + SR[s, r]`, with independent S, R
and SR of mean zero; with one run a pair the interaction and the run's own noise are one component. Test items are a
third crossed factor where the score is a mean over items (accuracy).

Sources: Searle, Casella and McCulloch, Variance Components (1992), section 4.3 (mean squares of the balanced two-way random model);
Satterthwaite, Biometrics 2 (1946) 110-114 (degrees of freedom of a combination of mean squares); Williams, Biometrika 49 (1962)
278-281, and Tukey, Biometrics 7 (1951) 13-28 (interval of a component). `docs/statistics.md` has the measured coverage.

Every function takes leading axes: many designs at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

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


def t_inference(squares: MeanSquares) -> tuple[Floats, Floats]:
    """(variance of the mean, degrees of freedom) for t; degrees 0 where there is one run.

    (MS_subset + MS_seed) / runs, with Satterthwaite's degrees of freedom. The unbiased estimate also subtracts MS_residual; with few
    subsets and seeds that difference falls near or below 0 by chance, and its intervals hold the truth in 70 to 90 % of cases
    instead of 95. Without it they are too wide, by sqrt(2) at most, where subsets and seeds have no effect of their own.
    With one subset or one seed the mean square of the other factor, which then says nothing of further ones.
    """
    a, b, _ = squares.degrees
    runs = squares.num_subsets * squares.num_seeds
    total = squares.subset + squares.seed
    parts = squares.subset**2 / max(1, a) + squares.seed**2 / max(1, b)
    degrees = np.where(parts > 0, total**2 / np.where(parts > 0, parts, 1.0), float(a + b))
    return total / runs, degrees


def half_width(variance: Floats, degrees: Floats, level: float = 0.95) -> Floats:
    """Of the interval of a mean: the t quantile times the standard error."""
    from scipy.special import stdtrit

    found: Floats = stdtrit(degrees, (1 + level) / 2) * np.sqrt(variance)
    return found


def p_value(mean: Floats, variance: Floats, degrees: Floats) -> Floats:
    """Two-sided p of a mean of 0 by t; 1 for a mean of 0 without variance."""
    from scipy.special import stdtr

    error = np.sqrt(variance)
    t = np.where(
        error > 0, np.abs(mean) / np.where(error > 0, error, 1.0), np.where(np.abs(mean) > ROUNDING, np.inf, 0.0)
    )
    found: Floats = 2 * stdtr(degrees, -t)
    return found


def component_interval(
    upper: Floats, lower: Floats, degrees: tuple[int, int], count: int, level: float = 0.95
) -> tuple[Floats, Floats, Floats]:
    """(estimate, low, high) of the component in `upper`, which estimates it `count` times plus `lower`: (MS_subset - MS_residual) /
    seeds is the variance between subsets. Interval of Williams and Tukey; all cut at 0."""
    from scipy.special import chdtri, fdtri

    tail, (above, below) = (1 - level) / 2, degrees
    ends = []
    for p in (1 - tail, tail):
        ratio = float(fdtri(above, below, p))
        ends.append(above * (upper - lower * ratio) / (count * float(chdtri(above, 1 - p))))
    estimate, low, high = (np.maximum(0.0, each) for each in ((upper - lower) / count, *ends))
    return estimate, low, high


def variance_interval(square: Floats, degrees: int, level: float = 0.95) -> tuple[Floats, Floats]:
    """Of the variance that a mean square estimates, by chi-squared; assumes a normal distribution."""
    from scipy.special import chdtri

    tail = (1 - level) / 2
    return degrees * square / float(chdtri(degrees, tail)), degrees * square / float(chdtri(degrees, 1 - tail))


@dataclass(frozen=True)
class Items:
    """The part of the test items in a score that is a mean over them. `variance`: of the score by the draw of the test set, the same for
    all its runs; an unbiased estimate, so that it may be below 0. `error`: its standard error; `count`: of the items."""

    variance: float
    error: float
    count: int

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        from scipy.special import ndtri

        half = float(ndtri((1 + level) / 2)) * self.error
        return max(0.0, self.variance - half), max(0.0, self.variance + half)


def item_variance(values: ArrayLike) -> Items:
    """(items, subsets, seeds): what each item adds to the score of each run, 0 or 1 of accuracy, or the difference of two rows.

    Of the three-way crossed random model with one value a place: the main effect of the items, divided by their number. Item by
    item it is the squared deviation of the item's mean less what its runs vary by; over items these are independent, which
    gives the error.
    """
    x = np.asarray(values, dtype=np.float64)
    count = len(x)
    squares = mean_squares(x - x.mean(axis=0))
    runs = squares.num_subsets * squares.num_seeds
    rest = squares.residual if squares.degrees[2] else 0.0
    own = (squares.subset + squares.seed - rest) / runs
    each = (squares.mean**2 - own) * count / (count - 1)
    return Items(float(each.mean()) / count, float(each.std(ddof=1)) / count**1.5, count)
