"""ELECTRA: replaced token detection, an auxiliary network fills masked positions and the encoder tells originals from
replacements (Clark et al., ICLR 2020), as COCO-LM pre-trains it for its comparison (section 3.1).

Deviations.
- The setting is COCO-LM's "ELECTRA (Ours)": 15 % of the tokens of a sequence, a fixed count, special ones except the first
  too, all replaced by the mask; one linear layer without bias decides (ELECTRA has a hidden layer before it).
  COCO-LM's encoders also have T5's relative positions; here they are a setting of the encoder that all rows of a table share
  (`encoder.relative_buckets`), so that rows differ in their objective and not in the architecture.
- The binary loss is a mean over real tokens with weight 50, as in ELECTRA's and MC-BERT's code.
- Replacements come from a pass without dropout, as in COCO-LM. ELECTRA and so "ELECTRA (Ours)" sample from the pass that trains
  the auxiliary network, dropout included (COCO-LM 3.3 calls its own setting different): `sampling_dropout`, which COCO-LM's
  tables set.
- A sampled token that equals the original counts as original.
- `auxiliary: narrow` is ELECTRA's generator, as deep as the encoder and a third as wide, with random weights. The width is
  rounded to whole attention heads (256 of 768 is four of twelve heads). `shallow` is
  COCO-LM's, a third of the layers at full width, which begin as copies of the encoder's first ones, MLM head included (the
  paper starts both from random weights, and a copy of random weights is one more random start).
- Embeddings, positions and their normalisation are shared with the auxiliary network (COCO-LM's released code).
"""

from typing import Annotated, Literal

from pydantic import Field

from harness.methods.base import Method, UnlabelledPhase, unlabelled_stage
from harness.objectives import objective
from harness.specs import Stage
from harness.yaml_files import Strict

AUXILIARY = ("auxiliary", "auxiliary_layers")


class ReplacedTokens(Strict):
    """What ELECTRA and COCO-LM share."""

    p_m: Annotated[float, Field(gt=0, le=1, description="share of the tokens that is masked and filled")] = 0.15
    auxiliary_layers: Annotated[
        int, Field(ge=0, description="0: a third of the encoder's, or its size's, when shallow; all when narrow")
    ] = 0


class Hyperparameters(ReplacedTokens):
    lambda_rtd: Annotated[float, Field(gt=0, allow_inf_nan=False, description="weight of the binary loss")] = 50.0
    auxiliary: Annotated[
        Literal["narrow", "shallow"],
        Field(description="all layers at a third of the width, or a third of the layers at full width"),
    ] = "narrow"
    sampling_dropout: Annotated[
        bool, Field(description="replacements from the very pass that trains the auxiliary network, dropout included")
    ] = False


def train(h: Hyperparameters, phase: UnlabelledPhase) -> tuple[Stage, ...]:
    return (unlabelled_stage(objective("electra", **h.model_dump()), phase),)


def masking_words(p_m: float) -> list[str]:
    """How the auxiliary network's text is masked, in a caption (docs/papers.md L7, L8)."""
    masked = f"the masked {100 * p_m:.15g} % a fixed count of each sequence"
    return [
        masked,
        "special tokens masked too (COCO-LM, appendix D) except the first",
        "100 % of the masked tokens the mask",
    ]


def auxiliary_words(auxiliary: str, *, shared: bool = True, sampling_dropout: bool = False) -> list[str]:
    """What an auxiliary network is and how it samples, in a caption (L6, L9)."""
    narrow = "auxiliary network's width rounded to whole heads"
    found = [
        narrow
        if auxiliary == "narrow"
        else "auxiliary network's layers copies of the encoder's first ones at the start"
    ]
    found += ["word and position embeddings and their norm shared with it"] if shared else []
    dropout = "with dropout (ELECTRA)" if sampling_dropout else "without dropout (COCO-LM, 3.3)"
    return [*found, f"replacements sampled from it {dropout}"]


ORIGINAL = "a replacement that equals the original counts as original"
BINARY = "binary loss a mean over all tokens without padding, not their sum"
DETECTOR = "no bias in what detects replacements"
POSITIONS = "absolute positions kept beside relative ones"


def choices(h: Hyperparameters) -> tuple[str, ...]:
    network = auxiliary_words(h.auxiliary, sampling_dropout=h.sampling_dropout)
    return (*masking_words(h.p_m), *network, ORIGINAL, BINARY, DETECTOR, POSITIONS)


ELECTRA = Method(
    "electra",
    "ELECTRA",
    "Clark et al., ELECTRA, ICLR 2020, as run in Meng et al., COCO-LM, 2021",
    Hyperparameters,
    train,
    choices=choices,
    full_name="replaced token detection",
)
