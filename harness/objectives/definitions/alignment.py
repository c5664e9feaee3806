"""TACO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.encoders.flops import TRAIN
from harness.objectives.definitions.base import Config, StepSize, narrow_embeddings
from harness.objectives.definitions.masked import MaskedDefinition


@dataclass(frozen=True, kw_only=True)
class TacoDefinition(MaskedDefinition):
    """`num_negatives`: K; `window`: W; `concentrated`: anchors are the masked positions alone; `embedding`: what is taken from the
    state, the embedding layer's output ('layer'), the word embedding alone ('word'), or that of the token before it was masked
    ('original'); `contrast_group`: negatives come from its other sequences."""

    name = "taco"
    version = 1
    module = "TokenAlignment"

    weight: float
    num_negatives: int
    window: int
    window_reading: Literal["half", "less", "at_most", "released"]
    temperature: float
    concentrated: bool
    token_prediction: bool
    detach_contrast: bool
    embedding: Literal["layer", "word", "original"]
    contrast_group: int

    def flops(self, config: Config, size: StepSize) -> float:
        """Each token has cosines with a positive and K negatives."""
        cosines = 2.0 * size.tokens * (self.num_negatives + 1) * int(config["hidden_size"])
        return super().flops(config, size) + TRAIN * cosines

    def expected(self, rows: float, length: float) -> StepSize:
        return StepSize.of(rows, length, predicted=1.0 if self.token_prediction else self.p_m)

    def unmet(self, config: Config) -> str | None:
        """The embedding is taken from the state."""
        narrow = narrow_embeddings(config)
        if not narrow or self.embedding == "layer":
            return None
        return f"{narrow}, so one cannot be taken from the other; set taco.embedding to layer"
