"""TACO: MLM with a token-alignment contrast between a token's and its neighbours' global semantics (Fu et al., ACL 2022,
equations 2-11).

Deviations.
- Equation 7 has no exponential, so equation 6 would take the logarithm of what can be negative; the released code is a
  cross-entropy over cos / tau, and so is ours.
- Positives and negatives carry no gradient in the released code, which the paper does not mention (`detach_contrast`).
- e, "static embedding", is the released code's output of the embedding layer for the corrupted input, position, type,
  normalisation and dropout included (`embedding: layer`); `word` takes the word embedding alone, and `original` that of the
  token before it was masked, as section 2.1 defines e.
- "Within a window span" W: `half` means 0 < |d| <= floor(W / 2), as in the released sampler for odd W; `less` |d| < W is
  its README, `at_most` |d| <= W; `released` adds its fallback at the edges, where an offset outside the sequence becomes a
  uniform draw over the whole sequence (odd W only).
- All tokens are anchors, special ones included; `concentrated` takes the masked positions alone (section 5.2).
- Negatives come from other sequences of the batch, as printed. The released code takes the micro-batch of a device, 80
  sequences in the paper's setting; `contrast_group: 80` does the same on any hardware.
- Packed blocks (`harness/encoders/tokens/corpus_files.py`): the paper does not say how a block is framed. Here the texts stand end to end
  with a separator between two, and each block of `max_length` tokens begins and ends with the tokenizer's own special
  tokens. Blocks cross documents, as in the released code.
- Intra- and inter-context cosines in a stage's history are appendix A.3's, on up to 32 sequences of a batch, and MLM, TAPT and
  CMLM log them too; the context is the sequence, a whole block, where A.3 has a sentence. The paper takes the training corpus; dropout is off and nothing is masked, which it does not say.
- weight 0 is MLM, key included; weight 0 with `token_prediction` is the paper's MLM+TP.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from harness.methods.base import ContrastGroup, Method, UnlabelledPhase, group_of, unlabelled_stage
from harness.objectives import objective
from harness.specs import Objective, Stage
from harness.yaml_files import Strict


class Hyperparameters(Strict):
    weight: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="weight of the contrastive term (equation 11)")
    ] = 1.0
    p_m: Annotated[float, Field(gt=0, le=1, description="masking probability")] = 0.15
    num_negatives: Annotated[int, Field(ge=1, description="K, negatives of each token (equation 6)")] = 50
    window: Annotated[int, Field(ge=1, description="W, the span that a positive comes from")] = 5
    window_reading: Annotated[
        Literal["half", "less", "at_most", "released"],
        Field(description="|d| <= W/2, |d| < W, |d| <= W, or the released sampler"),
    ] = "half"
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False, description="tau (equation 7)")] = 0.07
    concentrated: Annotated[bool, Field(description="anchors are the masked positions alone")] = False
    token_prediction: Annotated[bool, Field(description="predict the tokens that are not masked as well")] = False
    detach_contrast: Annotated[bool, Field(description="no gradient through positives and negatives (released)")] = True
    embedding: Annotated[
        Literal["layer", "word", "original"],
        Field(
            description="e is the embedding layer's output (released), the word embedding, or that of the original token"
        ),
    ] = "layer"
    contrast_group: ContrastGroup = 0

    @model_validator(mode="after")
    def _window_holds_a_neighbour(self) -> Self:
        if self.window_reading == "released" and self.window % 2 == 0:
            raise ValueError(
                f"window {self.window} is even, and the released sampler takes odd windows only; set window to "
                f"{self.window + 1} or window_reading to half"
            )
        reach = {"half": self.window // 2, "released": self.window // 2, "less": self.window - 1}
        if reach.get(self.window_reading, self.window) < 1:
            raise ValueError(
                f"window {self.window} holds no neighbour under window_reading {self.window_reading}; set window to 3 or more"
            )
        return self


def spec(h: Hyperparameters, batch_size: int) -> Objective:
    """Without weight nothing of the contrast has an effect, and what is left is MLM."""
    if h.weight == 0:
        return objective("mlm", p_m=h.p_m, token_prediction=h.token_prediction)
    params: dict[str, Any] = h.model_dump()
    return objective("taco", **params | {"contrast_group": group_of(h.contrast_group, batch_size, "taco")})


def train(h: Hyperparameters, phase: UnlabelledPhase) -> tuple[Stage, ...]:
    return (unlabelled_stage(spec(h, phase.optim.batch_size), phase),)


TACO = Method(
    "taco",
    "TACO",
    "Fu et al., Contextual Representation Learning beyond Masked Language Modeling, ACL 2022",
    Hyperparameters,
    train,
    decisions=("T1", "T2", "T3", "T5", "T6", "T7", "T8", "T9", "T14", "C10"),
    full_name="token-alignment contrastive objective",
)
