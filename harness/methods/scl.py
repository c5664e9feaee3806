"""SCL: fine-tuning with cross-entropy and the supervised contrastive loss (Gunel et al., ICLR 2021, equations 1-3).

Deviations. Where the paper leaves a question open, the rows of docs/papers.md that `decisions` names say what is done; among them is that lambda and
temperature are from memory, so the row is not comparable cell by cell.
"""

from typing import Literal

from pydantic import Field

from harness.kinds import Classes
from harness.methods.base import Method
from harness.methods.definition import ContrastGroup, Definition
from harness.methods.ft import CrossEntropy
from harness.specs import Objective


class Scl(Definition, Method):
    name = "scl"
    title = "SCL"
    full_name = "supervised contrastive learning"
    citation = "Gunel et al., Supervised Contrastive Learning, ICLR 2021"
    network = "classification:SupervisedContrast"
    labelled = True
    kinds = (Classes,)
    decisions = ("S1", "S2", "S3", "S4", "S6", "D2")

    lam: float = Field(
        0.9, ge=0, le=1, description="lambda, weight of the contrastive term (equation 1); 1 trains no classifier"
    )
    temperature: float = Field(0.3, gt=0, allow_inf_nan=False, description="tau (equation 3)")
    reduction: Literal["mean", "mean_valid", "sum"] = Field(
        "mean", description="over the anchors: of all, of those with a positive, or their sum (equation 3 as printed)"
    )
    representation: Literal["first_token", "pooled"] = Field(
        "first_token", description="raw first token with its dropout, or after dense and tanh"
    )
    contrast_group: ContrastGroup = 0

    def objective(self, batch_size: int = 0) -> Objective:
        """lambda = 0 is FT: the other parameters then have no effect."""
        return super().objective(batch_size) if self.lam else CrossEntropy().objective()
