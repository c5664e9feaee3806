"""The result of training a stage, its progress on the way, and its speed: tokens and FLOPs a second while it trains."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.kinds import Predictions

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
        running = 0.0 if self._since is None else time.monotonic() - self._since
        seconds = self.seconds + running
        if not self.updates or seconds <= 0:
            return None
        rates = (self.updates / seconds, self.tokens / seconds, self.flops / seconds)
        return Speed(step, self._steps, *rates)

    def due(self) -> bool:
        """Whether it is time for a report; if so, the next one is due later."""
        if time.monotonic() - self._reported < REPORT_SECONDS:
            return False
        self._reported = time.monotonic()
        return True


def provenance_of(speed: Speed | None) -> dict[str, float]:
    """Fields of a record's provenance."""
    return {"tokens_per_second": round(speed.tokens, 1), "flops_per_second": speed.flops} if speed else {}


@dataclass
class TrainingResult:
    """The result of one stage. `predictions` by digest: dev and test of the selected state. `speed`: of this process since it began or
    resumed; no part of a checkpoint."""

    selected_step: int
    tied: int = 0
    dev_scores: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    flops: float = 0.0
    predictions: dict[str, Predictions] = field(default_factory=dict)
    speed: Speed | None = None


@dataclass
class TrainingProgress:
    """The state of training after `step` updates; `best`: the weights of the best evaluation so far. `since`: what was measured since the
    last evaluation, where training stopped between two of them; for JSON."""

    result: TrainingResult
    step: int = 0
    best: dict[str, Tensor] = field(default_factory=dict)
    since: dict[str, Any] = field(default_factory=dict)
