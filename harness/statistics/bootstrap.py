"""The two-way bootstrap of a crossed design: subsets and seeds are drawn again, each with all its runs.

Sources: Owen, The pigeonhole bootstrap, Annals of Applied Statistics 1 (2007) 386-411; Hesterberg, The American Statistician 69
(2015) 371-386 (percentiles widened for small samples).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

RESAMPLES = 4000


def resampled_means(scores: ArrayLike, resamples: int = RESAMPLES, seed: int = 0) -> Floats:
    """(..., subsets, seeds) -> (..., resamples): means of as many subsets and seeds, drawn with replacement. Every leading design
    is drawn alike, so that rows stay paired. A single subset or seed stays."""
    y = np.asarray(scores, dtype=np.float64)
    draw = np.random.default_rng(seed)
    subsets, seeds = (
        draw.multinomial(count, np.full(count, 1 / count), size=resamples) / count for count in y.shape[-2:]
    )
    found: Floats = np.einsum("...ts,ts->...t", np.einsum("...sr,tr->...ts", y, seeds), subsets)
    return found


def percentile_interval(means: Floats, degrees: float, level: float = 0.95) -> tuple[Floats, Floats]:
    """(..., resamples) -> its ends. Widened: the tail is that of the normal at sqrt(n / (n - 1)) times the t quantile, with
    n - 1 = `degrees`, which makes up for the narrow percentiles of small samples, as far as their range allows."""
    from scipy.special import ndtr, stdtrit

    tail = float(ndtr(-math.sqrt((degrees + 1) / degrees) * stdtrit(degrees, (1 + level) / 2)))
    low, high = np.quantile(means, [tail, 1 - tail], axis=-1)
    return low, high


def best_shares(means: Floats) -> Floats:
    """(rows, resamples) -> the share of the resamples in which each row has the highest mean; rows that tie share it."""
    highest = means >= means.max(axis=0) - 1e-12
    found: Floats = (highest / highest.sum(axis=0)).mean(axis=1)
    return found
