"""CSSL: post-training by contrast between two back-translations of a text (Fang and Xie, CERT, 2020), as the CMLM paper
runs it for its comparison (equations 13-14).

Deviations.
- CERT itself is MoCo with a queue of 6,720 and a momentum encoder; the CMLM repository's command line runs SimCLR on two
  back-translated views, and so do we (`contrast: simclr`), with `simsiam` as the option.
- SimCLR is CMLM's equation 7: one direction, view 0 the anchor, temperature 0.07 (CERT's; CMLM gives none).
- Views: English-German-English and English-Chinese-English in the repository; here what the translator makes of two
  pivot languages, or the text itself and one back-translation where it has one pivot. The caption names the translator.
- No MLM term (equation 14).
- Negatives are the batch's other texts, as in equation 7; `contrast_group` cuts the batch into smaller groups.
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
