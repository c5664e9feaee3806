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
