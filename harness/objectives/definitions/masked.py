"""Objectives on masked views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.encoders.flops import TRAIN, forward_flops, mlm_head_flops
from harness.objectives.definitions.base import Config, Definition, StepSize
from harness.objectives.definitions.view_contrast import ViewContrastDefinition


@dataclass(frozen=True, kw_only=True)
class MaskedDefinition(Definition):
    """`p_m`: masking probability of view 0, whose masked tokens are predicted."""

    p_m: float

    def expected(self, rows: float, length: float) -> StepSize:
        return StepSize.of(rows, length, predicted=self.p_m)

    @property
    def mlm_head(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class MlmDefinition(MaskedDefinition):
    """`token_prediction`: the tokens that are not masked are predicted as well; `mask_special_tokens`: all special tokens but the
    first of a sequence may be masked; `fixed_embeddings`: the word embeddings are not trained."""

    name = "mlm"
    version = 1
    module = "MaskedLM"

    token_prediction: bool = False
    mask_special_tokens: bool = False
    fixed_embeddings: bool = False

    def expected(self, rows: float, length: float) -> StepSize:
        return StepSize.of(rows, length, predicted=1.0 if self.token_prediction else self.p_m)


@dataclass(frozen=True, kw_only=True)
class MlmHeadDefinition(MlmDefinition):
    """The encoder is frozen: one forward pass."""

    name = "mlm_head"
    version = 1
    module = "MaskedLMHead"

    def flops(self, config: Config, size: StepSize) -> float:
        encoder = forward_flops(config, size.encoded, size.encoded_squares)
        return encoder + TRAIN * mlm_head_flops(config, size.predicted)


@dataclass(frozen=True, kw_only=True)
class CmlmDefinition(ViewContrastDefinition, MaskedDefinition):
    """`p_c`: masking probability of views 1 to K, whose masks are 'complementary' to that of view 0 or 'independent' of it ('w/o
    CRM'), and of the mask alone with `mask_only`; `mlm`: the MLM term on view 0."""

    name = "cmlm"
    version = 1
    module = "ContrastiveMaskedLM"

    alpha: float
    p_c: float
    masking: Literal["complementary", "independent"]
    mask_only: bool
    mlm: bool

    def expected(self, rows: float, length: float) -> StepSize:
        return StepSize.of(rows, length, views=1 + self.num_views, predicted=self.p_m if self.mlm else 0.0)

    @property
    def mlm_head(self) -> bool:
        return self.mlm
