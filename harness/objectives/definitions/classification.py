"""Fine-tuning objectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.encoders.flops import forward_flops
from harness.objectives.definitions.base import Config, Definition, StepSize, narrow_embeddings


@dataclass(frozen=True, kw_only=True)
class CrossEntropyDefinition(Definition):
    """Cross-entropy, or squared error for regression."""

    name = "cross_entropy"
    version = 1
    module = "CrossEntropy"
    labelled = True


@dataclass(frozen=True, kw_only=True)
class FrozenHeadDefinition(CrossEntropyDefinition):
    """The same where the head alone is trained: a forward pass."""

    name = "frozen_head"
    version = 1
    module = "FrozenHead"
    encodes_once = True

    def flops(self, config: Config, size: StepSize) -> float:
        return forward_flops(config, size.encoded, size.encoded_squares)


@dataclass(frozen=True, kw_only=True)
class PromptDefinition(Definition):
    """Cross-entropy over the label words at the mask of a cloze. `head`: what predicts words, the encoder's MLM head, or the 'embeddings'
    that COCO-LM ties its own to."""

    name = "prompt"
    version = 1
    module = "LabelWords"
    labelled = True

    head: Literal["mlm", "embeddings"] = "mlm"

    def expected(self, rows: float, length: float) -> StepSize:
        return StepSize.of(rows, length, predicted=1 / length)

    @property
    def mlm_head(self) -> bool:
        return self.head == "mlm"

    def unmet(self, config: Config) -> str | None:
        reason = narrow_embeddings(config) if self.head == "embeddings" else None
        return reason and f"{reason}, so its word embeddings predict no words; set prompt.head to mlm"


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
