"""MLM: masked language modelling, the baseline that TACO and COCO-LM pre-train for comparison.

As post-training on a task's texts it is TAPT, key included; as pre-training it reads a corpus.

Deviations.
- Every token is selected with probability p_m by a draw of its own, 80/10/10, special tokens never: TACO's released
  code and CMLM's equation 1; fairseq selects a fixed number, COCO-LM's RoBERTa baseline does not say.
- `token_prediction` also predicts the tokens that are not masked (TACO section 5.2, MLM+TP): one mean over all tokens
  that are not special; the paper does not say how the two parts are weighted.
- `embeddings` fixes the word embeddings (TACO Figure 4): those that the encoder has, random ones of a new encoder, or those of an MLM run
  before, with as many updates and the same recipe; all else is the encoder as it is. The MLM head's output, which is tied to them, is
  fixed with them. Positions, token types and the normalisation are trained, since the paper says "embeddings" alone.
"""

from typing import Annotated, Literal

from pydantic import Field

from harness.methods.base import Method, UnlabelledPhase, unlabelled_stage
from harness.objectives import objective
from harness.objectives.definitions import WORD_EMBEDDINGS
from harness.specs import Objective, Parent, Stage
from harness.yaml_files import Strict


class Hyperparameters(Strict):
    p_m: Annotated[float, Field(gt=0, le=1, description="masking probability")] = 0.15
    token_prediction: Annotated[bool, Field(description="predict the tokens that are not masked as well (MLM+TP)")] = (
        False
    )
    embeddings: Annotated[
        Literal["trained", "fixed", "pretrained"],
        Field(description="word embeddings: trained, fixed as they are, or fixed as an MLM run before left them"),
    ] = "trained"


def spec(p_m: float, token_prediction: bool, fixed_embeddings: bool = False) -> Objective:
    switches = {"token_prediction": token_prediction, "fixed_embeddings": fixed_embeddings}
    return objective("mlm", p_m=p_m, **{name: True for name, on in switches.items() if on})


def train(h: Hyperparameters, phase: UnlabelledPhase) -> tuple[Stage, ...]:
    main = spec(h.p_m, h.token_prediction, h.embeddings != "trained")
    if h.embeddings != "pretrained":
        return (unlabelled_stage(main, phase, mlm_head=True),)
    first = unlabelled_stage(spec(h.p_m, h.token_prediction), phase, mlm_head=True)
    return first, Stage(
        main, phase.data, phase.optim, phase.seed, Parent(first, parts=(WORD_EMBEDDINGS,)), phase=phase.name
    )


def choices(h: Hyperparameters) -> tuple[str, ...]:
    return () if h.embeddings == "trained" else ("of the embedding layer the words alone fixed",)


MLM = Method(
    "mlm",
    "MLM",
    "Devlin et al., BERT, 2019, as pre-trained in Fu et al., TACO, 2022",
    Hyperparameters,
    train,
    choices=choices,
)
