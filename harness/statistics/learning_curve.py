"""Learning curves of crossed designs: what more training examples are worth, by a power law whose exponent is not taken as known.

Model: the mean score at n examples is `a + b g(n)` with `g(n) = (1 - n^-c) / c`, or `log n` at c = 0: a power law with an exponent c from -0.5 to 1.5. For a given c
every figure of the curve is a linear function of the means of the sizes, so that each replicate (subset k of every size, one seed) has its own, and the crossed
interval holds for it (`harness.statistics.crossed`), whether the subsets of two sizes share examples or not. The exponent is a nuisance: those that the sizes reject are
left out, and the interval is the hull over the others, of which a little of the level pays for the rejections.

Sources: Berger and Boos, Journal of the American Statistical Association 89 (1994) 1012-1016 (nuisance parameters by their confidence set); Viering and Loog, IEEE TPAMI 45 (2023)
7799-7819 (power laws of learning curves).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.statistics.crossed import ROUNDING, half_width, mean_squares, t_inference

Floats = NDArray[np.float64]

EXPONENTS = tuple(np.round(np.linspace(-0.5, 1.5, 21), 1).tolist())
"""Below 0 a curve rises ever faster in log n, as it does where it has just left chance."""
REJECTED = 0.01
"""The part of the level that pays for leaving out exponents."""
LEVEL = 0.95
LEAST_SIZES = 3
"""Two sizes fit every exponent."""


@dataclass(frozen=True)
class Worth:
    """A figure of a curve, (...): its estimate at the exponent that fits best, and its interval; NaN where the sizes reject every exponent. `lowest` and `highest`: of the
    exponents that they do not."""

    estimate: Floats
    low: Floats
    high: Floats
    lowest: Floats
    highest: Floats


def growth(sizes: Sequence[float], exponent: float) -> Floats:
    """g(n) of the model."""
    n = np.asarray(sizes, dtype=np.float64)
    found: Floats = np.log(n) if exponent == 0 else (1 - n**-exponent) / exponent
    return found


def more_examples(start: float, more: float) -> Callable[[float], tuple[float, float]]:
    """The figure 'f(start + more) - f(start)', as `worth` takes it: its coefficients of a and b by exponent."""
    return lambda c: (0.0, float(growth([start + more], c)[0] - growth([start], c)[0]))


def score_at(size: float) -> Callable[[float], tuple[float, float]]:
    """The figure f(size)."""
    return lambda c: (1.0, float(growth([size], c)[0]))


def worth(
    scores: Floats,
    sizes: Sequence[int],
    figure: Callable[[float], tuple[float, float]],
    less: Floats | float = 0.0,
    exponents: Sequence[float] = EXPONENTS,
) -> Worth:
    """`scores`: (..., sizes, subsets, seeds), all finite, of three sizes or more; `less`: (..., subsets, seeds), subtracted from the figure, of the same replicates.

    At each exponent the curve is fitted to the sizes by least squares. An exponent is left out where one of the contrasts of the sizes that are 0 under it is not, by the
    crossed t test at `REJECTED` over all of them (Bonferroni).
    """
    y = np.asarray(scores, dtype=np.float64)
    assert len(sizes) >= LEAST_SIZES
    estimates, halves, fits, rejected = [], [], [], 1 - REJECTED / (len(sizes) - 2)
    for c in exponents:
        design = np.column_stack([np.ones(len(sizes)), growth(sizes, c)])
        # each column of Q: the two of the curve, then the contrasts that are 0 where the exponent is right
        q, r = np.linalg.qr(design, mode="complete")
        weights = q[:, :2] @ np.linalg.solve(r[:2].T, np.asarray(figure(c)))
        fits.append(np.max([_misfit(np.einsum("k,...ksr->...sr", each, y), rejected) for each in q[:, 2:].T], axis=0))
        squares = mean_squares(np.einsum("k,...ksr->...sr", weights, y) - less)
        estimates.append(squares.mean)
        halves.append(half_width(*t_inference(squares), LEVEL + REJECTED))
    fit, estimate, half = np.array(fits), np.array(estimates), np.array(halves)
    kept = fit <= 1
    none = ~kept.any(axis=0)
    best = np.take_along_axis(estimate, fit.argmin(axis=0)[None], axis=0)[0]
    each = np.asarray(exponents).reshape(-1, *[1] * (fit.ndim - 1))

    def ends(values: Floats, of: Callable[..., Floats], outside: float) -> Floats:
        return np.where(none, np.nan, of(np.where(kept, values, outside), axis=0))

    return Worth(
        np.where(none, np.nan, best),
        ends(estimate - half, np.min, np.inf),
        ends(estimate + half, np.max, -np.inf),
        ends(each + 0 * fit, np.min, np.inf),
        ends(each + 0 * fit, np.max, -np.inf),
    )


def _misfit(contrast: Floats, level: float) -> Floats:
    """(..., subsets, seeds) -> (...): the distance of its mean from 0 in half widths of its interval."""
    squares = mean_squares(contrast)
    found: Floats = np.abs(squares.mean) / np.maximum(half_width(*t_inference(squares), level), ROUNDING)
    return found
