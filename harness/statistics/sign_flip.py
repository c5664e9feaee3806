"""The exact sign-flip test of paired differences, and Holm's correction of several p values.

Sources: Fisher, The Design of Experiments (1935), section 21; Holm, Scandinavian Journal of Statistics 6 (1979) 65-70.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.statistics.crossed import ROUNDING

Floats = NDArray[np.float64]

MOST_EXACT = 16
"""Differences of which all sign flips are counted; of more, `SAMPLED` flips are drawn."""
SAMPLED = 100_000


def sign_flip(differences: ArrayLike) -> Floats:
    """(..., k) -> two-sided p of the sum of k differences under all 2^k changes of their signs.

    Assumes that the differences are independent and, where the rows do not differ, symmetric about 0: no normal distribution. p is
    never below `smallest_p(k)`. Of more than `MOST_EXACT` differences flips are drawn, always the same ones, and p is
    (1 + as extreme) / (1 + drawn).
    """
    values = np.asarray(differences, dtype=np.float64)
    flips = _flips(values.shape[-1])
    extreme = np.abs(values @ flips) >= np.abs(values.sum(axis=-1))[..., None] - ROUNDING
    if values.shape[-1] <= MOST_EXACT:
        exact: Floats = extreme.mean(axis=-1)
        return exact
    drawn: Floats = (1 + extreme.sum(axis=-1)) / (1 + SAMPLED)
    return drawn


def smallest_p(k: int) -> float:
    """The smallest two-sided p that k differences can have: 2 / 2^k, as both 'all positive' and 'all negative' are as extreme; of
    sampled flips 1 / (1 + drawn)."""
    return 2.0 / 2.0**k if k <= MOST_EXACT else 1 / (1 + SAMPLED)


def holm(p_values: Sequence[float], family: int = 0) -> list[float]:
    """Adjusted p values in the order given: rejecting those below a level keeps the probability of any wrong rejection in the
    family at most at this level, whatever their dependence. `family`: how many comparisons it has, at least those that are given; of those that are
    not, p counts as the largest."""
    family, found, largest = max(family, len(p_values)), [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (family - rank) * p_values[place]))
        found[place] = largest
    return found


@cache
def _flips(k: int) -> Floats:
    """(k, flips) of +1 and -1. The first sign is fixed: the other half mirrors it and is as extreme."""
    if k > MOST_EXACT:
        bits = np.random.default_rng(0).integers(0, 2, (k, SAMPLED))
    else:
        bits = (np.arange(2 ** (k - 1)) >> np.arange(k)[:, None]) & 1
    signs: Floats = np.asarray(1 - 2 * bits, dtype=np.float64)
    return signs
