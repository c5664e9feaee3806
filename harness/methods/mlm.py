"""MLM: masked language modelling, the baseline that TACO and COCO-LM pre-train for comparison.

As post-training on a task's own texts it is TAPT (Gururangan et al., ACL 2020), key included, which is also CMLM with alpha = 0; as
pre-training it reads a corpus.

Deviations. The rows T14, T19, C7, C8, C10 and L8 of docs/papers.md say how tokens are selected and embeddings are fixed. `token_prediction` also predicts
the tokens that are not masked (TACO section 5.2, MLM+TP): one mean over all tokens that are not special; the paper does not say how the two parts are
weighted. TAPT's settings are those of CMLM's comparison (learning rate, 200/50/5 epochs, batch 8), not Gururangan's (100 epochs, learning rate 1e-4, batch
256).
"""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from harness.encoders.flops import TRAIN, forward_flops, mlm_head_flops
from harness.methods.base import Method, UnlabelledPhase, unlabelled_stage
from harness.methods.definition import WORD_EMBEDDINGS, Config, Definition, StepSize
from harness.specs import Objective, Parent, Stage

Share = Annotated[float, Field(gt=0, le=1, description="masking probability")]


class Masked(Definition):
    """What predicts masked tokens."""

    p_m: Share = 0.15

    def expected(self, rows: float, length: float) -> StepSize:
        return StepSize.of(rows, length, predicted=self.p_m)

    @property
    def mlm_head(self) -> bool:
        return True


class MaskedLm(Masked):
    """`token_prediction`: tokens that are not masked are predicted as well; `mask_special_tokens`: all special tokens but the first of a sequence may be
    masked; `fixed_embeddings`: the word embeddings are not trained."""

    name = "mlm"
    network = "masked:MaskedLM"
    neutral: ClassVar = {"token_prediction": False, "mask_special_tokens": False, "fixed_embeddings": False}

    token_prediction: bool = False
    mask_special_tokens: bool = False
    fixed_embeddings: bool = False

    def expected(self, rows: float, length: float) -> StepSize:
        return StepSize.of(rows, length, predicted=1.0 if self.token_prediction else self.p_m)


class MlmHead(MaskedLm):
    """The encoder is frozen: one forward pass."""

    name = "mlm_head"
    network = "masked:MaskedLMHead"

    def flops(self, config: Config, size: StepSize) -> float:
        encoder = forward_flops(config, size.encoded, size.encoded_squares)
        return encoder + TRAIN * mlm_head_flops(config, size.predicted)


class Mlm(Method):
    name = "mlm"
    title = "MLM"
    full_name = "masked language modelling"
    citation = "Devlin et al., BERT, 2019, as pre-trained in Fu et al., TACO, 2022"
    decisions = ("C7", "C8", "C10", "T14")

    p_m: Share = 0.15
    token_prediction: bool = Field(False, description="predict the tokens that are not masked as well (MLM+TP)")
    mask_special_tokens: bool = Field(
        False, description="special tokens are masked too, except the first of a sequence (RoBERTa)"
    )
    embeddings: Literal["trained", "fixed", "pretrained"] = Field(
        "trained", description="word embeddings: trained, fixed as they are, or fixed as an MLM run before left them"
    )

    def train(self, phase: UnlabelledPhase) -> tuple[Stage, ...]:
        plain = MaskedLm(**self.model_dump(exclude={"embeddings"}))
        main = unlabelled_stage(
            plain.model_copy(update={"fixed_embeddings": self.embeddings != "trained"}).objective(), phase
        )
        if self.embeddings != "pretrained":
            return (main,)
        first = unlabelled_stage(plain.objective(), phase)
        return first, replace(main, init=Parent(first, parts=(WORD_EMBEDDINGS,)))


class Tapt(Method):
    name = "tapt"
    title = "TAPT"
    full_name = "task-adaptive pre-training"
    citation = "Gururangan et al., Don't Stop Pretraining, ACL 2020"
    decisions = ("C7", "C8", "C10", "C13")

    p_m: Share = 0.15

    def objective(self, batch_size: int = 0) -> Objective:
        return MaskedLm(p_m=self.p_m).objective()
