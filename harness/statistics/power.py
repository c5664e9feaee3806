"""Power of a planned design: the smallest difference that it detects, and the cheapest design for a wanted one.

The test is the crossed t test of `harness.statistics.crossed`. Its half width depends on the two mean squares, which are independent of each
other and of the mean, so power is an average over them.

Variances that were estimated from a pilot are too small in half of all pilots, and a design planned with the estimates has less power on average
than it promises: 58 to 88 % for 80 % in simulated worlds. `upper_components` are upper confidence limits, with which it has 83 to 98 % from a
pilot of 5 x 3 and 78 to 98 % from one of 3 x 3 (`tests/statistics/test_coverage.py`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, ndtr

from harness.statistics.crossed import MeanSquares, component_interval, half_width, t_inference, variance_interval

Floats = NDArray[np.float64]

POWER, LEVEL = 0.8, 0.05
MOST_SUBSETS, MOST_SEEDS = 30, 10
"""Of a design that is proposed."""
LEAST = 3
"""Subsets, and seeds, of a design that is proposed: two levels of a factor hardly show how much it matters."""
CONFIDENCE = 0.65
"""Of the upper limit at which a design is planned, of each component."""
QUANTILES = 32
"""Of each mean square's chi-squared distribution, in the middle of as many equal parts."""


@dataclass(frozen=True)
class Components:
    """Variances of a paired difference, on any scale (squared): of its subset, seed and interaction effects."""

    subset: float
    seed: float
    interaction: float


def upper_components(squares: MeanSquares) -> Components:
    """The upper confidence limit of each component by a crossed table of at least two subsets and two seeds."""
    (a, b, ab), level = squares.degrees, 2 * CONFIDENCE - 1
    return Components(
        float(component_interval(squares.subset, squares.residual, (a, ab), squares.num_seeds, level)[2]),
        float(component_interval(squares.seed, squares.residual, (b, ab), squares.num_subsets, level)[2]),
        float(variance_interval(squares.residual, ab, level)[1]),
    )


@dataclass(frozen=True)
class Precision:
    """Of a design: the standard deviation of its mean difference, and the half widths of the test that it may come to, equally
    likely. With one subset or one seed the effect that the design cannot see is left out, as in its test."""

    error: float
    half_widths: Floats


def precision(components: Components, num_subsets: int, num_seeds: int, level: float = LEVEL) -> Precision:
    """Of a design of at least two runs, for a two-sided test at `level`."""
    a, b = num_subsets, num_seeds
    assert a * b > 1
    expected = components.interaction + b * components.subset, components.interaction + a * components.seed
    parts = (np.arange(QUANTILES) + 0.5) / QUANTILES
    effects, runs = [*zip(expected, (a, b), strict=True)], a * b
    subset, seed = (m * chdtri(n - 1, parts) / (n - 1) if n > 1 else np.zeros(QUANTILES) for m, n in effects)
    first, second = np.meshgrid(subset, seed)
    squares = MeanSquares(np.zeros(1), first, second, np.zeros(1), a, b)
    both = components.interaction if a > 1 and b > 1 else 0.0
    error = math.sqrt((sum(mean for mean, count in effects if count > 1) - both) / runs)
    return Precision(error, half_width(*t_inference(squares), 1 - level).ravel())


def power(difference: float, design: Precision) -> float:
    """Probability that the test finds a true `difference` with its sign."""
    if not design.error:
        return 1.0 if difference else 0.0
    return float(ndtr((abs(difference) - design.half_widths) / design.error).mean())


def detectable(design: Precision, wanted: float = POWER) -> float:
    """The smallest true difference that is found with probability `wanted`."""
    low, high = 0.0, design.error
    while design.error and power(high, design) < wanted:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, design) < wanted else (low, middle)
    return high


@dataclass(frozen=True)
class Design:
    """`cost` as the caller counts it; `detects`: the smallest difference that is found with the wanted power."""

    num_subsets: int
    num_seeds: int
    cost: float
    detects: float


def cheapest(
    components: Sequence[Components], difference: float, cost: Callable[[int, int], float], *, level: float = LEVEL
) -> Design | None:
    """The design of the least `cost` (of subsets, seeds) that detects `difference` with probability `POWER` under each of the
    `components`; of equal costs the one that detects less. None where none of these does. `cost` grows with each."""

    def enough(a: int, b: int) -> bool:
        return all(power(difference, precision(each, a, b, level)) >= POWER for each in components)

    found = []
    for b in range(LEAST, MOST_SEEDS + 1):
        if enough(MOST_SUBSETS, b):  # more subsets never detect less: the fewest by bisection
            a = bisect_left(range(MOST_SUBSETS), True, lo=LEAST, key=lambda a: enough(a, b))
            detects = max(detectable(precision(parts, a, b, level)) for parts in components)
            found.append(Design(a, b, cost(a, b), detects))
    return min(found, key=lambda each: (each.cost, each.detects), default=None)
