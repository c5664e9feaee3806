"""How far predicted probabilities are from shares: the expected calibration error, the Brier score and its parts.

Pure. Sources: Brier, Monthly Weather Review 78 (1950) 1-3; Murphy, Journal of Applied Meteorology 12 (1973) 595-600 (reliability, resolution,
uncertainty); Stephenson, Coelho and Jolliffe, Weather and Forecasting 23 (2008) 752-757 (what bins leave over); Naeini, Cooper and Hauskrecht, AAAI 2015,
and Guo et al., ICML 2017, section 2 (expected calibration error). `docs/statistics.md` has the measured bias.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

BINS = 10
"""Of equal mass: each has a tenth of the examples, ordered by the probability."""


@dataclass(frozen=True)
class Bins:
    """Of each bin the mean probability, the share of outcomes, the number of examples and the mean of probability x (1 - probability), [b]."""

    probability: Floats
    outcome: Floats
    count: Floats
    variance: Floats


def binned(probability: ArrayLike, outcome: ArrayLike, bins: int = BINS) -> Bins:
    """(n,) probabilities of an event and whether it happened, in up to `bins` bins of equal mass."""
    shares, happened = np.asarray(probability, dtype=np.float64), np.asarray(outcome, dtype=np.float64)
    order = np.argsort(shares, kind="stable")
    cuts = np.linspace(0, len(shares), min(bins, len(shares)) + 1).round().astype(int)
    parts = [order[low:high] for low, high in pairwise(cuts)]
    means = [[float(each[part].mean()) for part in parts] for each in (shares, happened, shares * (1 - shares))]
    return Bins(np.array(means[0]), np.array(means[1]), np.array([len(part) for part in parts]), np.array(means[2]))


@dataclass(frozen=True)
class Brier:
    """`score`: the mean over examples of the sum over classes of (probability - outcome)², from 0 to 2. It is reliability - resolution + uncertainty +
    `within`, what the bins leave over."""

    score: float
    reliability: float
    resolution: float
    uncertainty: float
    within: float


def brier(probabilities: ArrayLike, gold: ArrayLike) -> Brier:
    """(n, C) probabilities, (n,) codes: sums over classes, each in bins of its own probability."""
    shares = np.asarray(probabilities, dtype=np.float64)
    outcomes = np.asarray(gold)[:, None] == np.arange(shares.shape[1])
    parts = np.zeros(3)
    for share, outcome in zip(shares.T, outcomes.T, strict=True):
        of, base = binned(share, outcome), float(outcome.mean())
        weights = of.count / of.count.sum()
        parts += [
            float((weights * (of.probability - of.outcome) ** 2).sum()),
            float((weights * (of.outcome - base) ** 2).sum()),
            base * (1 - base),
        ]
    score = float(((shares - outcomes) ** 2).sum(axis=1).mean())
    reliability, resolution, uncertainty = parts.tolist()
    return Brier(score, reliability, resolution, uncertainty, score - (reliability - resolution + uncertainty))


def calibration_error(bins: Bins) -> float:
    """The expected calibration error: the mean over bins of |share right - mean probability|, weighted by their examples."""
    return float(np.average(np.abs(bins.outcome - bins.probability), weights=bins.count))


def calibrated_error(bins: Bins) -> float:
    """What `calibration_error` is on average where the probabilities are right, by the normal distribution of a share: so many examples cannot
    show less."""
    deviations = np.sqrt(2 / math.pi * bins.variance / bins.count)
    return float(np.average(deviations, weights=bins.count))
