"""COCO-LM: corrective language modelling and contrast between a corrupted and a cropped sequence (Meng et al., NeurIPS
2021, equations 1-4).

Deviations. Where the paper leaves a question open, the rows of docs/papers.md that `decisions` names say what is done. The converged auxiliary network
trains for as many updates as the main network, with the same recipe; the paper does not say when it counts as converged. Relative positions are a
setting of the encoder that all rows of a table share. Table 3 as settings: benchmarks/coco_lm_ablation.yaml.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from harness.methods.base import ContrastGroup, Method, UnlabelledPhase, group_of, unlabelled_stage
from harness.objectives import objective
from harness.specs import Objective, Parent, Stage


class CocoLm(Method):
    name = "coco_lm"
    title = "COCO-LM"
    full_name = "correcting and contrasting text sequences"
    citation = "Meng et al., COCO-LM: Correcting and Contrasting Text Sequences, NeurIPS 2021"
    decisions = ("L1", "L2", "L3", "L4", "L5", "L6", "L7", "L8", "L9", "L10", "L12", "L13", "L14", "L15")

    p_m: Annotated[float, Field(gt=0, le=1, description="share of the tokens that is masked and filled")] = 0.15
    rtd: Annotated[bool, Field(description="the binary loss that trains the copy mechanism (equation 2)")] = True
    lambda_copy: Annotated[
        float, Field(gt=0, allow_inf_nan=False, description="weight of the binary loss (appendix B)")
    ] = 50.0
    lm: Annotated[
        Literal["mixture", "softmax", "all_token", "none"],
        Field(description="the printed mixture, without copying, over all tokens, or no LM loss"),
    ] = "mixture"
    stop_gradient: Annotated[bool, Field(description="of the copy probability in the LM loss")] = True
    contrast: Annotated[bool, Field(description="the sequence contrast (equation 3)")] = True
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False, description="tau (equation 3)")] = 1.0
    crop_ratio: Annotated[float, Field(gt=0, le=1, description="share of the tokens that a crop keeps; 1: no crop")] = (
        0.9
    )
    contrast_group: ContrastGroup = 0
    replacements: Annotated[
        Literal["auxiliary", "random", "converged"],
        Field(description="from the network trained along, from the vocabulary, or from one trained before"),
    ] = "auxiliary"
    auxiliary: Annotated[
        Literal["shallow", "narrow"],
        Field(description="a third of the layers at full width, or all layers at a third of the width"),
    ] = "shallow"

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

    def objective(self, batch_size: int) -> Objective:
        """Parameters without effect are dropped; with the binary loss alone it is ELECTRA."""
        params: dict[str, Any] = self.model_dump()
        if self.replacements == "random":
            del params["auxiliary"]
        elif self.replacements == "auxiliary" and self.lm == "none" and not self.contrast:
            return objective("electra", lambda_rtd=self.lambda_copy, p_m=self.p_m, auxiliary=self.auxiliary)
        if not self.rtd:
            del params["lambda_copy"]
        if self.lm in ("none", "softmax"):
            del params["stop_gradient"]
        if self.contrast:
            params["contrast_group"] = group_of(self.contrast_group, batch_size, "coco_lm")
        else:
            for name in ("temperature", "crop_ratio", "contrast_group"):
                del params[name]
        return objective("coco_lm", **params)

    def train(self, phase: UnlabelledPhase) -> tuple[Stage, ...]:
        main = self.objective(phase.optim.batch_size)
        if self.replacements != "converged":
            return (unlabelled_stage(main, phase),)
        alone = objective("auxiliary_mlm", p_m=self.p_m, auxiliary=self.auxiliary)
        first = unlabelled_stage(alone, phase)
        after = UnlabelledPhase(phase.data, phase.optim, phase.seed, Parent(first), phase.name)
        return first, unlabelled_stage(main, after)
