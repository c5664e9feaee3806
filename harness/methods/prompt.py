"""Prompt: fine-tuning through the MLM head on clozes with label words, with demonstrations (Gao et al., LM-BFF, ACL 2021, sections 5.1
and 6), as COCO-LM's Table 4 does it.

Deviations. The rows of docs/papers.md that `decisions` names say them. Automatic templates and words, and the choice of demonstrations by similarity
(which the paper's best rows have), are not there.
"""

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from harness.kinds import Classes, Scores
from harness.methods.base import Method, RunContext
from harness.methods.definition import Config, Definition, StepSize, narrow_embeddings
from harness.specs import Objective


class LabelWords(Definition):
    """Cross-entropy over the label words at the mask of a cloze. `head`: what predicts words, the encoder's MLM head, or the 'embeddings'
    that COCO-LM ties its own to."""

    name = "prompt"
    network = "classification:LabelWords"
    labelled = True
    neutral: ClassVar = {"head": "mlm"}

    head: Literal["mlm", "embeddings"] = "mlm"

    def expected(self, rows: float, length: float) -> StepSize:
        return StepSize.of(rows, length, predicted=1 / length)

    @property
    def mlm_head(self) -> bool:
        return self.head == "mlm"

    def refused(self, config: Config) -> str | None:
        reason = narrow_embeddings(config) if self.head == "embeddings" else None
        return reason and f"{reason}, so its word embeddings predict no words; set prompt.head to mlm"


class PromptMethod(Method):
    name = "prompt"
    title = "Prompt"
    full_name = "prompt-based fine-tuning"
    citation = "Gao, Fisch and Chen, Making Pre-trained Language Models Better Few-shot Learners, ACL 2021"
    labelled = True
    kinds = (Classes, Scores)
    decisions = ("P1", "P2", "P3", "P4", "P5", "P6")

    demonstrations: bool = Field(True, description="a training example of each class behind the text")
    zero_shot: bool = Field(False, description="no update: the MLM head as it is")
    head: Literal["mlm", "embeddings"] = Field(
        "mlm", description="what predicts words: the MLM head, or the word embeddings, as COCO-LM's own head does"
    )

    def adapt(self, context: RunContext) -> RunContext:
        """The rows as clozes; no update for a zero-shot row."""
        assert context.prompt is not None
        draws = context.prompt.draws if self.demonstrations else 0
        prompt = replace(context.prompt, demonstrations=self.demonstrations, draws=draws)
        fine_tune = replace(context.fine_tune, steps=0) if self.zero_shot else context.fine_tune
        return replace(context, data=replace(context.data, prompt=prompt, standardised=()), fine_tune=fine_tune)

    def objective(self, batch_size: int = 0) -> Objective:
        return LabelWords(head=self.head).objective()

    @classmethod
    def skipped(cls, context: RunContext) -> str | None:
        missing = None if context.prompt else f"task {context.task} has no template; give it a prompt"
        return super().skipped(context) or missing
