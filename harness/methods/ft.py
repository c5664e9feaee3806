"""FT: fine-tuning with cross-entropy.

Deviations. The classification head is RoBERTa's (dropout, dense, tanh, dropout, linear on the first token) for every
encoder, so that encoders differ in their weights alone.
"""

from harness.methods.base import Method
from harness.methods.definition import Definition
from harness.specs import Objective


class CrossEntropy(Definition):
    """Cross-entropy, or squared error for regression."""

    name = "cross_entropy"
    network = "classification:CrossEntropy"
    labelled = True


class FineTuning(Method):
    name = "ft"
    title = "FT"
    full_name = "fine-tuning with cross-entropy"
    citation = "Liu et al., RoBERTa, 2019, as run in Luo et al., CMLM, 2021, section 4.4"
    labelled = True
    decisions = ("D1",)

    def objective(self, batch_size: int = 0) -> Objective:
        return CrossEntropy().objective()
