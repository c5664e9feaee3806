"""CSSL: post-training by contrast between two back-translations of a text (Fang and Xie, CERT, 2020), as the CMLM paper
runs it for its comparison (equations 13-14).

Deviations. CERT itself is MoCo with a queue of 6,720 and a momentum encoder; the rows of docs/papers.md that `decisions` names say what is done
here. Views are the two back-translations, or the text itself and one of them where there is one. No MLM term (equation 14).
"""

from typing import Literal

from pydantic import Field

from harness.methods.base import Method, RunContext, UnlabelledPhase, unlabelled_stage
from harness.methods.definition import ContrastGroup, Definition, StepSize
from harness.specs import Stage


class TranslatedViews(Definition):
    """The contrast between view 0 and views 1 to K = `num_views`, which the data hold side by side."""

    name = "cssl"
    network = "view_contrast:TranslatedContrast"

    num_views: int
    contrast: Literal["simclr", "simsiam"]
    temperature: float = 0.0
    contrast_group: int = 0

    @property
    def without_effect(self) -> tuple[str, ...]:
        return ("temperature", "contrast_group") if self.contrast == "simsiam" else ()

    def expected(self, rows: float, length: float) -> StepSize:
        return StepSize.of(rows, length, views=1 + self.num_views)


class Cssl(Method):
    name = "cssl"
    title = "CSSL"
    full_name = "contrastive self-supervised learning"
    citation = "Fang and Xie, CERT: Contrastive Self-supervised Learning for Language Understanding, 2020"
    translates = True
    decisions = ("C1", "C2", "C3", "C11", "D2")

    contrast: Literal["simclr", "simsiam"] = Field("simclr", description="equation 7, or equation 9")
    temperature: float = Field(0.07, gt=0, allow_inf_nan=False, description="tau of CMLM's equation 7")
    contrast_group: ContrastGroup = 0

    def train(self, phase: UnlabelledPhase) -> tuple[Stage, ...]:
        views = TranslatedViews(num_views=phase.data.views - 1, **self.model_dump())
        return (unlabelled_stage(views.objective(phase.optim.batch_size), phase),)

    @classmethod
    def skipped(cls, context: RunContext) -> str | None:
        return super().skipped(context) or (context.untranslated if context.translated is None else None)
