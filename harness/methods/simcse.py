"""SimCSE: contrast between two dropout passes of the same text (Gao et al., EMNLP 2021, unsupervised, equation 4), here as
post-training on a task's own texts.

Deviations. The paper trains sentence embeddings on a million sentences of Wikipedia and compares them by cosine; here the encoder that it leaves is
fine-tuned, on the protocol of CMLM's comparison and with the table's learning rate, batch size and updates. No paper prints this row. Temperature and
`projection` (dense and tanh on the first token, dropped after training) are from memory. Equation 4 is CMLM's equation 7 with one further view: one
direction, pass 0 the anchor, the positive in the denominator. A text that occurs twice in a batch is its own negative, as in the paper. Both passes draw
their dropout in one forward pass of the doubled batch. The paper's optional MLM term is left out.
"""

from typing import ClassVar

from pydantic import Field

from harness.methods.base import Method
from harness.methods.definition import ContrastGroup, Definition, StepSize


class SimCse(Definition, Method):
    name = "simcse"
    title = "SimCSE"
    full_name = "simple contrastive learning of sentence embeddings"
    citation = "Gao et al., SimCSE: Simple Contrastive Learning of Sentence Embeddings, EMNLP 2021"
    network = "view_contrast:DropoutContrast"
    retired: ClassVar = {"num_views": 1, "contrast": "simclr"}
    num_views: ClassVar = 1
    contrast: ClassVar = "simclr"
    decisions = ("D2",)

    temperature: float = Field(0.05, gt=0, allow_inf_nan=False, description="tau (equation 4)")
    projection: bool = Field(True, description="dense and tanh on the first token, while training alone")
    contrast_group: ContrastGroup = 0

    def expected(self, rows: float, length: float) -> StepSize:
        return StepSize.of(rows, length, views=2)
