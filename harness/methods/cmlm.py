"""CMLM: post-training with MLM and contrast between complementary masked views (Luo et al., Findings of ACL 2021).

Deviations. Where the paper leaves a question open, the rows of docs/papers.md that `decisions` names say what is done. Ablations of Table 3 as
settings: w/ SimCLR `contrast: simclr`; w/o CL `alpha: 0` (which is TAPT, key included); w/o MLM `mlm: false`; w/o CRM `masking: independent`.
"""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from harness.methods.base import Method
from harness.methods.definition import ContrastGroup, StepSize
from harness.methods.mlm import Masked, MaskedLm
from harness.specs import Objective


class Cmlm(Masked, Method):
    name = "cmlm"
    title = "CMLM"
    full_name = "contrastive masked language modelling"
    citation = "Luo et al., Bi-Granularity Contrastive Learning, Findings of ACL 2021"
    network = "masked:ContrastiveMaskedLM"
    retired: ClassVar = {"mask_only": False}
    decisions = ("C1", "C2", "C3", "C5", "C6", "C7", "C8", "C9", "C10", "D2")

    alpha: float = Field(0.5, ge=0, allow_inf_nan=False, description="weight of the contrastive term (equation 12)")
    p_m: float = Field(0.15, gt=0, le=1, description="masking probability of view 0 (equation 1)")
    p_c: float = Field(0.7, gt=0, le=1, description="masking probability of views 1..K (equation 2)")
    num_views: int = Field(1, ge=1, description="K, the number of complementary views (equation 4)")
    contrast: Literal["simsiam", "simclr"] = Field("simsiam", description="equation 9, or equation 7")
    temperature: float = Field(0.07, gt=0, allow_inf_nan=False, description="tau of equation 7")
    masking: Literal["complementary", "independent"] = Field(
        "complementary", description="of views 1..K: exclude view 0's (equation 2), or not ('w/o CRM')"
    )
    mlm: bool = Field(True, description="the MLM term on view 0 (false: 'w/o MLM')")
    contrast_group: ContrastGroup = 0

    @model_validator(mode="after")
    def _something_to_train(self) -> Self:
        if self.alpha == 0 and not self.mlm:
            raise ValueError("alpha 0 with mlm false leaves nothing to train; set one of them")
        return self

    @property
    def without_effect(self) -> tuple[str, ...]:
        return ("temperature", "contrast_group") if self.contrast == "simsiam" else ()

    def objective(self, batch_size: int = 0) -> Objective:
        """With alpha 0 nothing of the contrast has an effect: it is TAPT."""
        return super().objective(batch_size) if self.alpha else MaskedLm(p_m=self.p_m).objective()

    def expected(self, rows: float, length: float) -> StepSize:
        return StepSize.of(rows, length, views=1 + self.num_views, predicted=self.p_m if self.mlm else 0.0)

    @property
    def mlm_head(self) -> bool:
        return self.mlm
