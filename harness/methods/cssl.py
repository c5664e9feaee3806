"""CSSL: post-training by contrast between two back-translations of a text (Fang and Xie, CERT, 2020), as the CMLM paper
runs it for its comparison (equations 13-14).

Deviations. CERT itself is MoCo with a queue of 6,720 and a momentum encoder; the rows of docs/papers.md that `decisions` names say what is done
here. Views are the two back-translations, or the text itself and one of them where there is one. No MLM term (equation 14).
"""

from typing import Annotated, Literal

from pydantic import Field

from harness.methods.base import (
    ContrastGroup,
    Method,
    RunContext,
    UnlabelledPhase,
    contrast_params,
    unlabelled_stage,
)
from harness.objectives import objective
from harness.specs import Objective, Stage


class Cssl(Method):
    name = "cssl"
    title = "CSSL"
    full_name = "contrastive self-supervised learning"
    citation = "Fang and Xie, CERT: Contrastive Self-supervised Learning for Language Understanding, 2020"
    translates = True
    decisions = ("C1", "C2", "C3", "C11", "D2")

    contrast: Annotated[Literal["simclr", "simsiam"], Field(description="equation 7, or equation 9")] = "simclr"
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False, description="tau of CMLM's equation 7")] = 0.07
    contrast_group: ContrastGroup = 0

    def objective(self, batch_size: int, num_views: int) -> Objective:
        """`num_views`: K, the number of views without view 0, given by the translator."""
        return objective("cssl", num_views=num_views, **contrast_params(self, batch_size, "cssl"))

    def train(self, phase: UnlabelledPhase) -> tuple[Stage, ...]:
        return (unlabelled_stage(self.objective(phase.optim.batch_size, phase.data.views - 1), phase),)

    @classmethod
    def skip(cls, context: RunContext) -> str | None:
        return context.untranslated if context.translated is None else None
