"""The result of training a stage, and its progress on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from harness.kinds import Predictions
from harness.training.throughput import Speed


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
    best_score: float = float("-inf")
    best: dict[str, Tensor] = field(default_factory=dict)
    since: dict[str, Any] = field(default_factory=dict)
