"""Fine-tuning objectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.objectives.definitions.base import Definition


@dataclass(frozen=True, kw_only=True)
class CrossEntropyDefinition(Definition):
    """Cross-entropy, or squared error for regression."""

    name = "cross_entropy"
    version = 1
    module = "CrossEntropy"
    labelled = True


@dataclass(frozen=True, kw_only=True)
class SclDefinition(Definition):
    """`representation`: 'first_token', the raw state that the head reads, taken with dropout active; 'pooled', the state before the
    head's last layer."""

    name = "scl"
    version = 1
    module = "SupervisedContrast"
    labelled = True

    lam: float
    temperature: float
    reduction: Literal["mean", "mean_valid", "sum"]
    representation: Literal["first_token", "pooled"]
    contrast_group: int
