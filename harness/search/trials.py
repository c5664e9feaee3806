"""Trials and the outcomes of their replicates, in plain types. Pure: no optuna, no ray."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.planning.aggregation import mean, subset_std
from harness.planning.recipe import Value
from harness.specs import Status

Point = Mapping[str, Value]
"""One hyperparameter point: values by path ('alpha', 'fine_tune.lr')."""
Direction = Literal["maximize", "minimize"]
Mode = Literal["grid", "search"]
State = Literal["running", "complete", "dropped", "failed", "excluded"]


@dataclass(frozen=True)
class ReplicateOutcome:
    """One replicate of a trial.

    `values`: one for each metric, always finite: a failed or diverged replicate has the metric's worst value. `flops` and
    `seconds`: recorded cost of its stages, without those that many replicates share (an MLM head, pre-training).
    `trained`: how many of its `stages` were trained for this study.
    """

    values: tuple[float, ...]
    status: Status = "done"
    reason: str = ""
    flops: float = 0.0
    seconds: float = 0.0
    trained: int = 0
    stages: int = 0

    def __post_init__(self) -> None:
        if not self.values or not all(math.isfinite(value) for value in self.values):
            raise ValueError(f"the values of a replicate are finite, one a metric, not {self.values}")


@dataclass(frozen=True)
class Trial:
    """One hyperparameter point with its replicates so far, in the order that is the same for all trials.

    'complete': all replicates ended; 'dropped': the racing rule stopped it; 'failed': the point cannot be run; 'excluded': it costs more than the search
    allows, and was not run.
    """

    number: int
    point: Point
    outcomes: tuple[ReplicateOutcome, ...] = ()
    state: State = "running"
    reason: str = ""

    def values(self, metric: int = 0) -> tuple[float, ...]:
        return tuple(outcome.values[metric] for outcome in self.outcomes)

    def mean(self, metric: int = 0) -> float | None:
        """The mean of the replicates so far; None before the first."""
        return mean(self.values(metric)) if self.outcomes else None

    def spread(self, replicates: Sequence[tuple[int, int]], metric: int = 0) -> float | None:
        """Sd of the subsets' means (ddof 1); of the replicates where there is one subset; None while there is only one.
        `replicates`: (subset, seed) in the study's order."""
        subsets = [subset for subset, _ in replicates[: len(self.outcomes)]]
        return subset_std(subsets, self.values(metric)) if self.outcomes else None

    @property
    def eligible(self) -> bool:
        """Every replicate is done. Only such a trial can be the best."""
        ended = self.state == "complete" and bool(self.outcomes)
        return ended and all(outcome.status == "done" for outcome in self.outcomes)


def best_trial(trials: Iterable[Trial], direction: Direction, metric: int = 0) -> Trial | None:
    """The eligible trial with the best mean of a metric; of equals the first one."""
    sign = 1 if direction == "maximize" else -1
    eligible = sorted((trial for trial in trials if trial.eligible), key=lambda trial: trial.number)
    return max(eligible, key=lambda trial: sign * (trial.mean(metric) or 0.0), default=None)


def pareto_front(trials: Iterable[Trial], directions: Sequence[Direction]) -> tuple[Trial, ...]:
    """The eligible trials that no other trial dominates, sorted by the first metric."""
    signs = [1 if direction == "maximize" else -1 for direction in directions]
    placed = [
        (tuple(sign * (trial.mean(k) or 0.0) for k, sign in enumerate(signs)), trial)
        for trial in trials
        if trial.eligible
    ]
    front = [
        (values, trial)
        for values, trial in placed
        if not any(other != values and all(o >= v for o, v in zip(other, values, strict=True)) for other, _ in placed)
    ]
    return tuple(trial for _, trial in sorted(front, key=lambda pair: (*(-v for v in pair[0]), pair[1].number)))
