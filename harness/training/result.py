"""The result of training a stage, its progress on the way, and its speed: tokens and FLOPs a second while it trains."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from harness.errors import DivergedError
from harness.kinds import Predictions
from harness.specs import Selection, Stage
from harness.tasks.metrics import score

if TYPE_CHECKING:
    from torch import Tensor

REPORT_SECONDS = 2.0
"""The time between two reports of the speed."""


@dataclass(frozen=True)
class Speed:
    """The speed of a stage of `steps` updates after `step` of them: `updates`, `tokens` and training `flops` a second of this process's
    own time. Tokens are those of the whole batch, without padding."""

    step: int
    steps: int
    updates: float
    tokens: float
    flops: float

    @property
    def seconds_left(self) -> float:
        return (self.steps - self.step) / self.updates

    @property
    def provenance(self) -> dict[str, float]:
        """Fields of a record's provenance."""
        return {"tokens_per_second": round(self.tokens, 1), "flops_per_second": self.flops}


class Stopwatch:
    """Counts what a stage trains and the seconds of it, without those of evaluations."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self.updates = self.tokens = 0
        self.flops = self.seconds = 0.0
        self._since: float | None = None
        self._reported = time.monotonic()

    def start(self) -> None:
        """Training goes on from here."""
        if self._since is None:
            self._since = time.monotonic()

    def stop(self) -> None:
        """Training pauses; the device has finished its work."""
        if self._since is not None:
            self.seconds += time.monotonic() - self._since
        self._since = None

    def count(self, tokens: int, flops: float) -> None:
        """One more update, on the tokens of the whole batch."""
        self.updates += 1
        self.tokens += tokens
        self.flops += flops

    def speed(self, step: int) -> Speed | None:
        """So far; None before anything was timed."""
        seconds = self.seconds + (0.0 if self._since is None else time.monotonic() - self._since)
        if not self.updates or seconds <= 0:
            return None
        return Speed(step, self._steps, self.updates / seconds, self.tokens / seconds, self.flops / seconds)

    def due(self) -> bool:
        """Whether it is time for a report; if so, the next one is due later."""
        if time.monotonic() - self._reported < REPORT_SECONDS:
            return False
        self._reported = time.monotonic()
        return True


@dataclass(frozen=True)
class Scoring:
    """How the best checkpoint is chosen: `dev`, a digest of an evaluation set, is scored with `metrics`."""

    selection: Selection
    dev: str
    metrics: tuple[str, ...]

    @classmethod
    def of(cls, stage: Stage, metrics: tuple[str, ...]) -> Self | None:
        """A stage's own; None for one that keeps its last state."""
        if stage.selection is None:
            return None
        assert stage.data.dev is not None
        return cls(stage.selection, stage.data.dev.digest, metrics)


@dataclass
class TrainingResult:
    """The result of one stage. `predictions` by digest: dev and test of the selected state. `provenance`: fields of the record's, of this process
    since it began or resumed; no part of a checkpoint."""

    selected_step: int
    tied: int = 0
    dev_scores: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    flops: float = 0.0
    predictions: dict[str, Predictions] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    def select(self, step: int, scoring: Scoring, predictions: Predictions) -> tuple[dict[str, float], bool]:
        """Scores on dev after `step`, and whether they beat all before: then they are selected."""
        scores = {name: score(name, predictions) for name in scoring.metrics}
        found, best = (each.get(scoring.selection.metric, -math.inf) for each in (scores, self.dev_scores))
        self.tied += found == best
        if found > best:
            self.tied, self.selected_step, self.dev_scores = 1, step, scores
            self.predictions[scoring.dev] = predictions
        return scores, found > best


def finite(predictions: Predictions, name: str, place: str) -> Predictions:
    """Raises DivergedError for predictions that are not."""
    if problem := predictions.problem:
        raise DivergedError(f"the {name} predictions {problem} at {place}")
    return predictions


@dataclass
class TrainingProgress:
    """The state of training after `step` updates; `best`: the weights of the best evaluation so far; `pending`: the terms of each
    update since the last evaluation."""

    result: TrainingResult
    step: int = 0
    best: dict[str, Tensor] = field(default_factory=dict)
    pending: list[tuple[int, dict[str, Tensor]]] = field(default_factory=list)
