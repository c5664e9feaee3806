"""COCO-LM: corrective language modelling and contrast between a corrupted and a cropped sequence (Meng et al., NeurIPS
2021, equations 1-4).

Deviations. Where the paper leaves a question open, the rows of docs/papers.md that `decisions` names say what is done. The converged auxiliary network
trains for as many updates as the main network, with the same recipe; the paper does not say when it counts as converged. Relative positions are a
setting of the encoder that all rows of a table share. Table 3 as settings: benchmarks/coco_lm_ablation.yaml.
"""

from dataclasses import replace
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from harness.encoders.flops import TRAIN, forward_flops
from harness.methods.base import Method, UnlabelledPhase, unlabelled_stage
from harness.methods.definition import Config, ContrastGroup, StepSize, narrow_embeddings
from harness.methods.electra import Auxiliary, Electra
from harness.specs import Objective, Parent, Stage


class AuxiliaryMlm(Auxiliary):
    """Trains the 'converged' auxiliary network before the encoder."""

    name = "auxiliary_mlm"
    network = "replaced:AuxiliaryMaskedLM"

    def flops(self, config: Config, size: StepSize) -> float:
        return self.auxiliary_flops(config, size, TRAIN)


class CocoLm(Auxiliary, Method):
    name = "coco_lm"
    title = "COCO-LM"
    full_name = "correcting and contrasting text sequences"
    citation = "Meng et al., COCO-LM: Correcting and Contrasting Text Sequences, NeurIPS 2021"
    network = "replaced:ReplacedTokens"
    retired: ClassVar = {"auxiliary_layers": 0, "projection": False}
    sampling_dropout: ClassVar = False
    decisions = ("L1", "L2", "L3", "L4", "L5", "L6", "L7", "L8", "L9", "L10", "L12", "L13", "L14", "L15")

    rtd: bool = Field(True, description="the binary loss that trains the copy mechanism (equation 2)")
    lambda_copy: float = Field(50.0, gt=0, allow_inf_nan=False, description="weight of the binary loss (appendix B)")
    lm: Literal["mixture", "softmax", "all_token", "none"] = Field(
        "mixture", description="the printed mixture, without copying, over all tokens, or no LM loss"
    )
    stop_gradient: bool = Field(True, description="of the copy probability in the LM loss")
    contrast: bool = Field(True, description="the sequence contrast (equation 3)")
    temperature: float = Field(1.0, gt=0, allow_inf_nan=False, description="tau (equation 3)")
    crop_ratio: float = Field(0.9, gt=0, le=1, description="share of the tokens that a crop keeps; 1: no crop")
    contrast_group: ContrastGroup = 0
    replacements: Literal["auxiliary", "random", "converged"] = Field(
        "auxiliary", description="from the network trained along, from the vocabulary, or from one trained before"
    )

    @model_validator(mode="after")
    def _something_to_train(self) -> Self:
        if self.lm == "none" and not self.rtd and not self.contrast:
            raise ValueError("lm none with rtd false and contrast false leaves nothing to train; set one of them")
        if self.lm in ("mixture", "all_token") and not self.rtd and self.stop_gradient:
            raise ValueError(
                f"lm {self.lm} with rtd false and stop_gradient true leaves the copy probability untrained; set "
                "stop_gradient to false, or lm to softmax"
            )
        return self

    @property
    def without_effect(self) -> tuple[str, ...]:
        return (
            *(() if self.has_network else ("auxiliary", "auxiliary_layers")),
            *(() if self.rtd else ("lambda_copy",)),
            *(("stop_gradient",) if self.lm in ("none", "softmax") else ()),
            *(() if self.contrast else ("temperature", "crop_ratio", "projection", "contrast_group")),
        )

    def objective(self, batch_size: int = 0) -> Objective:
        """With the binary loss alone it is ELECTRA."""
        if self.replacements == "auxiliary" and self.lm == "none" and not self.contrast:
            return Electra(lambda_rtd=self.lambda_copy, p_m=self.p_m, auxiliary=self.auxiliary).objective()
        return super().objective(batch_size)

    def train(self, phase: UnlabelledPhase) -> tuple[Stage, ...]:
        if self.replacements != "converged":
            return super().train(phase)
        first = unlabelled_stage(AuxiliaryMlm(p_m=self.p_m, auxiliary=self.auxiliary).objective(), phase)
        return first, *super().train(replace(phase, base=Parent(first)))

    @property
    def has_network(self) -> bool:
        return self.replacements != "random"

    @property
    def crop(self) -> float:
        """The share of the tokens that a crop keeps; 0 where none is contrasted."""
        return self.crop_ratio if self.contrast else 0.0

    def flops(self, config: Config, size: StepSize) -> float:
        """As ELECTRA's, with an auxiliary network that is trained unless it has converged, and the LM loss."""
        total = TRAIN * forward_flops(config, size.encoded, size.encoded_squares)
        if self.has_network:
            total += self.auxiliary_flops(config, size, 1.0 if self.replacements == "converged" else TRAIN + 1)
        if self.lm != "none":
            positions = size.tokens if self.lm == "all_token" else size.predicted
            total += TRAIN * 2.0 * positions * config["hidden_size"] * config["vocab_size"]
        return total

    def expected(self, rows: float, length: float) -> StepSize:
        """A corrupted view, and a crop of the text where it is contrasted."""
        size, kept = super().expected(rows, length), self.crop
        encoded, squares = size.tokens + kept * size.tokens, size.squares + kept * kept * size.squares
        return replace(size, encoded=encoded, encoded_squares=squares)

    def refused(self, config: Config) -> str | None:
        """The corrective LM head is the word embeddings themselves."""
        narrow = narrow_embeddings(config) if self.lm != "none" else None
        missing = narrow and f"{narrow}, so the LM head cannot be the embeddings themselves; set coco_lm.lm to none"
        return super().refused(config) or missing

    @property
    def inherits(self) -> tuple[str, ...]:
        return ("auxiliary",) if self.replacements == "converged" else super().inherits
