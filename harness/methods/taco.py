"""TACO: MLM with a token-alignment contrast between a token's and its neighbours' global semantics (Fu et al., ACL 2022,
equations 2-11).

Deviations. The rows of docs/papers.md that it decides say them; `contrast_group: 80` contrasts what one GPU holds in the paper's setting.
Packed blocks (`harness/encoders/tokens/corpus_files.py`) cross documents, with a separator between two texts. weight 0 is MLM, key included.
"""

from typing import ClassVar

from pydantic import Field

from harness.encoders.flops import TRAIN
from harness.methods.base import Method
from harness.methods.definition import Config, ContrastGroup, StepSize
from harness.methods.mlm import Masked, MaskedLm
from harness.specs import Objective


class Taco(Masked, Method):
    name = "taco"
    title = "TACO"
    full_name = "token-alignment contrastive objective"
    citation = "Fu et al., Contextual Representation Learning beyond Masked Language Modeling, ACL 2022"
    network = "masked:TokenAlignment"
    retired: ClassVar = {
        "embedding": "layer",
        "detach_contrast": True,
        "window_reading": "half",
        "token_prediction": False,
    }
    decisions = ("T1", "T2", "T3", "T5", "T6", "T7", "T8", "T9", "T14", "C10")

    weight: float = Field(1.0, ge=0, allow_inf_nan=False, description="weight of the contrastive term (equation 11)")
    p_m: float = Field(0.15, gt=0, le=1, description="masking probability")
    num_negatives: int = Field(50, ge=1, description="K, negatives of each token (equation 6)")
    window: int = Field(5, ge=2, description="W, the span that a positive comes from")
    temperature: float = Field(0.07, gt=0, allow_inf_nan=False, description="tau (equation 7)")
    concentrated: bool = Field(False, description="anchors are the masked positions alone")
    contrast_group: ContrastGroup = 0

    def objective(self, batch_size: int = 0) -> Objective:
        """Without weight nothing of the contrast has an effect, and what is left is MLM."""
        return super().objective(batch_size) if self.weight else MaskedLm(p_m=self.p_m).objective()

    def flops(self, config: Config, size: StepSize) -> float:
        """Each token has cosines with a positive and K negatives."""
        cosines = 2.0 * size.tokens * (self.num_negatives + 1) * int(config["hidden_size"])
        return super().flops(config, size) + TRAIN * cosines
