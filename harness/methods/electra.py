"""ELECTRA: replaced token detection, an auxiliary network fills masked positions and the encoder tells originals from
replacements (Clark et al., ICLR 2020), as COCO-LM pre-trains it for its comparison (section 3.1).

Deviations. The setting is COCO-LM's "ELECTRA (Ours)", by the rows of docs/papers.md that `decisions` names; one linear layer without bias
decides (ELECTRA has a hidden layer before it). `auxiliary: narrow` is ELECTRA's generator, as deep as the encoder and a third as wide, in whole
attention heads (256 of 768), with random weights. `shallow` is COCO-LM's, a third of the layers at full width, which begin as copies of the encoder's
first ones, MLM head included (the paper starts both from random weights, and a copy of random weights is one more random start).
"""

from typing import Annotated, Literal

from pydantic import Field

from harness.methods.base import Method, UnlabelledPhase, unlabelled_stage
from harness.objectives import objective
from harness.specs import Stage


class Electra(Method):
    name = "electra"
    title = "ELECTRA"
    full_name = "replaced token detection"
    citation = "Clark et al., ELECTRA, ICLR 2020, as run in Meng et al., COCO-LM, 2021"
    decisions = ("L2", "L6", "L7", "L8", "L9", "L10", "L13", "L14")

    p_m: Annotated[float, Field(gt=0, le=1, description="share of the tokens that is masked and filled")] = 0.15
    lambda_rtd: Annotated[float, Field(gt=0, allow_inf_nan=False, description="weight of the binary loss")] = 50.0
    auxiliary: Annotated[
        Literal["narrow", "shallow"],
        Field(description="all layers at a third of the width, or a third of the layers at full width"),
    ] = "narrow"
    sampling_dropout: Annotated[
        bool, Field(description="replacements from the very pass that trains the auxiliary network, dropout included")
    ] = False

    def train(self, phase: UnlabelledPhase) -> tuple[Stage, ...]:
        return (unlabelled_stage(objective("electra", **self.model_dump()), phase),)
