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


class Mlm(Method):
    name = "mlm"
    title = "MLM"
    full_name = "masked language modelling"
    citation = "Devlin et al., BERT, 2019, as pre-trained in Fu et al., TACO, 2022"
    decisions = ("C7", "C8", "C10", "T14")

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

    def train(self, phase: UnlabelledPhase) -> tuple[Stage, ...]:
        params = self.model_dump(exclude={"embeddings"})
        main = objective("mlm", **params, fixed_embeddings=self.embeddings != "trained")
        if self.embeddings != "pretrained":
            return (unlabelled_stage(main, phase),)
        first = unlabelled_stage(objective("mlm", **params), phase)
        return first, Stage(
            main, phase.data, phase.optim, phase.seed, Parent(first, parts=(WORD_EMBEDDINGS,)), phase=phase.name
        )
