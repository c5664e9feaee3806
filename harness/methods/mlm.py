"""MLM: masked language modelling, the baseline that TACO and COCO-LM pre-train for comparison.

As post-training on a task's texts it is TAPT, key included; as pre-training it reads a corpus.

Deviations.
- Every token is selected with probability p_m by a draw of its own, 80/10/10, special tokens never: TACO's released
  code and CMLM's equation 1; fairseq selects a fixed number, COCO-LM's RoBERTa baseline does not say.
- `mask_special_tokens` masks special tokens too, except the first of a sequence: RoBERTa's setting by COCO-LM's appendix D, which
  leaves the first token open. COCO-LM's tables set it.
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
from harness.specs import Parent, Stage
from harness.yaml_files import Strict


class Hyperparameters(Strict):
    p_m: Annotated[float, Field(gt=0, le=1, description="masking probability")] = 0.15
    token_prediction: Annotated[bool, Field(description="predict the tokens that are not masked as well (MLM+TP)")] = (
        False
    )
    mask_special_tokens: Annotated[
        bool, Field(description="special tokens are masked too, except the first of a sequence (RoBERTa)")
    ] = False
    embeddings: Annotated[
        Literal["trained", "fixed", "pretrained"],
        Field(description="word embeddings: trained, fixed as they are, or fixed as an MLM run before left them"),
    ] = "trained"


def train(h: Hyperparameters, phase: UnlabelledPhase) -> tuple[Stage, ...]:
    params = h.model_dump(exclude={"embeddings"})
    main = objective("mlm", **params, fixed_embeddings=h.embeddings != "trained")
    if h.embeddings != "pretrained":
        return (unlabelled_stage(main, phase),)
    first = unlabelled_stage(objective("mlm", **params), phase)
    return first, Stage(
        main, phase.data, phase.optim, phase.seed, Parent(first, parts=(WORD_EMBEDDINGS,)), phase=phase.name
    )


def masking_words(p_m: float, *, special: bool = False) -> list[str]:
    """How one view is masked, in a caption (docs/papers.md C6-C8, T14, L8)."""
    which = (
        "special tokens masked too (COCO-LM, appendix D) except the first" if special else "special tokens never masked"
    )
    return [f"the masked {100 * p_m:.15g} % a draw for each token, 80/10/10", which]


def loss_words(token_prediction: bool = False) -> str:
    """What the MLM loss is a mean over, in a caption (C10)."""
    return f"MLM loss a mean over {'all tokens that may be masked' if token_prediction else 'the masked tokens'}"


def choices(h: Hyperparameters) -> tuple[str, ...]:
    found = [*masking_words(h.p_m, special=h.mask_special_tokens), loss_words(h.token_prediction)]
    if h.embeddings != "trained":
        whose = "an MLM run before left them" if h.embeddings == "pretrained" else "they are"
        found.append(f"of the embedding layer the words alone fixed as {whose}")
    return tuple(found)


MLM = Method(
    "mlm",
    "MLM",
    "Devlin et al., BERT, 2019, as pre-trained in Fu et al., TACO, 2022",
    Hyperparameters,
    train,
    choices=choices,
    full_name="masked language modelling",
)
