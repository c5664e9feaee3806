"""ELECTRA: replaced token detection, an auxiliary network fills masked positions and the encoder tells originals from
replacements (Clark et al., ICLR 2020), as COCO-LM pre-trains it for its comparison (section 3.1).

Deviations.
- The setting is COCO-LM's "ELECTRA (Ours)", so that the two differ in their objective alone: 15 % of the tokens of a
  sequence, a fixed count, special ones except the first too, all replaced by the mask; no dropout in the pass that samples;
  one linear layer without bias decides (ELECTRA has a hidden layer before it); relative positions as in COCO-LM.
- The binary loss is a mean over real tokens with weight 50, as in ELECTRA's and MC-BERT's code.
- A sampled token that equals the original counts as original.
- `auxiliary: narrow` is ELECTRA's generator, as deep as the encoder and a third as wide, with random weights. The width is
  rounded to whole attention heads (256 of 768 is four of twelve heads). `shallow` is
  COCO-LM's, a third of the layers at full width, which begin as copies of the encoder's first ones, MLM head included (the
  paper starts both from random weights, and a copy of random weights is one more random start).
- Embeddings, positions and their normalisation are shared with the auxiliary network (COCO-LM's released code).
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from harness.methods.base import Method, Text, unlabelled_stage
from harness.objectives import objective
from harness.specs import Objective, Stage
from harness.yaml_files import Strict

AUXILIARY = ("auxiliary", "auxiliary_layers")
RELATIVE = ("relative_buckets", "relative_distance")


class ReplacedTokens(Strict):
    """What ELECTRA and COCO-LM share."""

    p_m: Annotated[float, Field(gt=0, le=1, description="share of the tokens that is masked and filled")] = 0.15
    auxiliary_layers: Annotated[
        int, Field(ge=0, description="0: a third of the encoder's, or its size's, when shallow; all when narrow")
    ] = 0
    relative_buckets: Annotated[
        int, Field(ge=0, description="buckets of T5's relative positions, added to the encoder's own; 0: none")
    ] = 32
    relative_distance: Annotated[int, Field(ge=1, description="distance from which all share a bucket")] = 128

    @model_validator(mode="after")
    def _buckets_can_be_shared_out(self) -> Self:
        buckets = self.relative_buckets
        if buckets and (buckets < 4 or buckets % 2):
            raise ValueError(f"relative_buckets {buckets} cannot be shared out; set an even number of 4 or more, or 0")
        if buckets and self.relative_distance <= buckets // 4:
            raise ValueError(
                f"relative_distance {self.relative_distance} lies within the {buckets // 4} distances that have a bucket "
                f"each; set {buckets // 4 + 1} or more"
            )
        return self


class Hyperparameters(ReplacedTokens):
    lambda_rtd: Annotated[float, Field(gt=0, allow_inf_nan=False, description="weight of the binary loss")] = 50.0
    auxiliary: Annotated[
        Literal["narrow", "shallow"],
        Field(description="all layers at a third of the width, or a third of the layers at full width"),
    ] = "narrow"


def effective(params: dict[str, Any]) -> dict[str, Any]:
    """Without the distance where there are no relative positions."""
    return {k: v for k, v in params.items() if k != "relative_distance" or params["relative_buckets"]}


def spec(h: Hyperparameters) -> Objective:
    return objective("electra", **effective(h.model_dump()))


def train(h: Hyperparameters, text: Text) -> tuple[Stage, ...]:
    return (unlabelled_stage(spec(h), text, mlm_head=h.auxiliary == "shallow"),)


NARROW = "auxiliary network's width rounded to whole heads"


def choices(h: Hyperparameters) -> tuple[str, ...]:
    return (NARROW,) if h.auxiliary == "narrow" else ()


ELECTRA = Method(
    "electra",
    "ELECTRA",
    "Clark et al., ELECTRA, ICLR 2020, as run in Meng et al., COCO-LM, 2021",
    Hyperparameters,
    train,
    choices=choices,
)
