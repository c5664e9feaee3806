"""TACO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from harness.encoders.flops import TRAIN
from harness.objectives.definitions.base import Config, StepSize
from harness.objectives.definitions.masked import MaskedDefinition


@dataclass(frozen=True, kw_only=True)
class TacoDefinition(MaskedDefinition):
    """`num_negatives`: K; `window`: W; `concentrated`: anchors are the masked positions alone; `contrast_group`: negatives come from its other sequences."""

    name = "taco"
    version = 1
    module = "TokenAlignment"
    retired: ClassVar = {"embedding": "layer", "detach_contrast": True, "window_reading": "half"}

    weight: float
    num_negatives: int
    window: int
    temperature: float
    concentrated: bool
    token_prediction: bool
    contrast_group: int

    def flops(self, config: Config, size: StepSize) -> float:
        """Each token has cosines with a positive and K negatives."""
        cosines = 2.0 * size.tokens * (self.num_negatives + 1) * int(config["hidden_size"])
        return super().flops(config, size) + TRAIN * cosines

    def expected(self, rows: float, length: float) -> StepSize:
        return StepSize.of(rows, length, predicted=1.0 if self.token_prediction else self.p_m)
