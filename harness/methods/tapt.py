"""TAPT: masked language modelling on the task's own texts, then fine-tuning (Gururangan et al., ACL 2020).

Deviations. The settings are those of CMLM's comparison (learning rate, 200/50/5 epochs, batch 8), not Gururangan's
(100 epochs, learning rate 1e-4, batch 256). It is the same computation as CMLM with alpha = 0 and has the same key.
"""

from typing import Annotated

from pydantic import Field

from harness.methods.base import Method, UnlabelledPhase, unlabelled_stage
from harness.objectives import objective
from harness.specs import Stage


class Tapt(Method):
    name = "tapt"
    title = "TAPT"
    full_name = "task-adaptive pre-training"
    citation = "Gururangan et al., Don't Stop Pretraining, ACL 2020"
    decisions = ("C7", "C8", "C10", "C13")

    p_m: Annotated[float, Field(gt=0, le=1, description="masking probability")] = 0.15

    def train(self, phase: UnlabelledPhase) -> tuple[Stage, ...]:
        return (unlabelled_stage(objective("mlm", p_m=self.p_m), phase),)
