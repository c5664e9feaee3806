"""What several runs predict of the same examples: their consensus, how often they flip, and labels that they agree against.

Pure: class codes in, shares out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

AGREED = 0.9
"""Share of runs that predict the same other class than the label, from which on the label is doubted."""


@dataclass(frozen=True)
class Votes:
    """Of n examples: `counts` [n, C], how many runs predict each class."""

    counts: Codes

    @property
    def runs(self) -> int:
        return int(self.counts[0].sum())

    @property
    def consensus(self) -> Codes:
        """The class that most runs predict, [n]; of equally many the lowest code."""
        return np.asarray(self.counts.argmax(axis=1))

    @property
    def agreement(self) -> Floats:
        """The share of the runs that predict the consensus, [n]."""
        return np.asarray(self.counts.max(axis=1) / self.runs)

    @property
    def flips(self) -> Floats:
        """The share of pairs of runs that predict different classes, [n]: that a further pair does has this expectation. NaN for a single run."""
        pairs = self.runs * (self.runs - 1)
        if not pairs:
            return np.full(len(self.counts), np.nan)
        return np.asarray(1 - (self.counts * (self.counts - 1)).sum(axis=1) / pairs)


def votes(codes: ArrayLike, classes: int) -> Votes:
    """(runs, n) class codes."""
    given = np.asarray(codes, dtype=np.int64)
    return Votes(np.stack([(given == code).sum(axis=0) for code in range(classes)], axis=1))


@dataclass(frozen=True)
class FlipRates:
    """Shares of pairs of runs that predict different classes, means over examples: of all pairs, of those of one subset (other seeds), and of those
    of one seed (other subsets). NaN where there is no such pair."""

    all: float
    by_seed: float
    by_subset: float


def flip_rates(codes: ArrayLike, classes: int) -> FlipRates:
    """(subsets, seeds, n) class codes."""
    grid = np.asarray(codes, dtype=np.int64)

    def rate(runs: Codes) -> float:
        return float(votes(runs, classes).flips.mean())

    def within(grids: Codes) -> float:
        return float(np.mean([rate(runs) for runs in grids]))

    return FlipRates(rate(grid.reshape(-1, grid.shape[-1])), within(grid), within(np.swapaxes(grid, 0, 1)))


def doubted(runs: Votes, gold: ArrayLike) -> NDArray[np.bool_]:
    """Which of n labels a share `AGREED` of the runs or more predict one other class for."""
    return np.asarray((runs.consensus != np.asarray(gold)) & (runs.agreement >= AGREED))
