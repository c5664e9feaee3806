"""MLM: masked language modelling, the baseline that TACO and COCO-LM pre-train for comparison.

As post-training on a task's texts it is TAPT, key included; as pre-training it reads a corpus.

Deviations.
- Every token is selected with probability p_m by a draw of its own, 80/10/10, special tokens never: TACO's released
  code and CMLM's equation 1; fairseq selects a fixed number, COCO-LM's RoBERTa baseline does not say.
- `token_prediction` also predicts the tokens that are not masked (TACO section 5.2, MLM+TP): one mean over all tokens
  that are not special; the paper does not say how the two parts are weighted.
"""

from typing import Annotated

from pydantic import Field

from harness.methods.base import Method, UnlabelledPhase, unlabelled_stage
from harness.objectives import objective
from harness.specs import Objective, Stage
from harness.yaml_files import Strict


class Hyperparameters(Strict):
    p_m: Annotated[float, Field(gt=0, le=1, description="masking probability")] = 0.15
    token_prediction: Annotated[bool, Field(description="predict the tokens that are not masked as well (MLM+TP)")] = (
        False
    )


def spec(p_m: float, token_prediction: bool) -> Objective:
    return objective("mlm", p_m=p_m, **({"token_prediction": True} if token_prediction else {}))


def train(h: Hyperparameters, phase: UnlabelledPhase) -> tuple[Stage, ...]:
    return (unlabelled_stage(spec(h.p_m, h.token_prediction), phase, mlm_head=True),)


MLM = Method("mlm", "MLM", "Devlin et al., BERT, 2019, as pre-trained in Fu et al., TACO, 2022", Hyperparameters, train)
