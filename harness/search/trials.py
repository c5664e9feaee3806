"""Trials and the outcomes of their replicates, in plain types. Pure: no optuna, no ray."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.planning.aggregation import mean
from harness.planning.recipe import Value
from harness.specs import Status

Point = Mapping[str, Value]
"""One hyperparameter point: values by path ('alpha', 'fine_tune.lr')."""
Mode = Literal["grid", "search"]
State = Literal["running", "complete", "dropped", "failed"]
Replicates = Sequence[tuple[int, int]]
"""(subset, seed), all pairs of them, across subsets first: the order that is the same for all trials."""


@dataclass(frozen=True)
class ReplicateOutcome:
    """One replicate of a trial.

    `value`: always finite: a failed or diverged replicate has the metric's worst value. `flops` and
    `seconds`: recorded cost of its stages, without those that many replicates share (an MLM head, pre-training).
    `stages`: how many those are.
    """

    value: float
    status: Status = "done"
    reason: str = ""
    flops: float = 0.0
    seconds: float = 0.0
    stages: int = 0

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"the value of a replicate is finite, not {self.value}")


@dataclass(frozen=True)
class Trial:
    """One hyperparameter point with its replicates so far, in the order that is the same for all trials.

    'complete': all replicates ended; 'dropped': the racing rule stopped it; 'failed': the point cannot be run.
    """

    number: int
    point: Point
    outcomes: tuple[ReplicateOutcome, ...] = ()
    state: State = "running"
    reason: str = ""

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(outcome.value for outcome in self.outcomes)

    def mean(self) -> float | None:
        """The mean of the replicates so far; None before the first."""
        return mean(self.values) if self.outcomes else None

    @property
    def eligible(self) -> bool:
        """Every replicate is done. Only such a trial can be the best."""
        ended = self.state == "complete" and bool(self.outcomes)
        return ended and all(outcome.status == "done" for outcome in self.outcomes)


def best_trial(trials: Iterable[Trial]) -> Trial | None:
    """The eligible trial with the best mean; of equals the first one."""
    eligible = sorted((trial for trial in trials if trial.eligible), key=lambda trial: trial.number)
    return max(eligible, key=lambda trial: trial.mean() or 0.0, default=None)
