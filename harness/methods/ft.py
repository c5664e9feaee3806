"""FT: fine-tuning with cross-entropy.

Deviations. The classification head is RoBERTa's (dropout, dense, tanh, dropout, linear on the first token) for every
encoder, so that encoders differ in their weights alone.
"""

from harness.methods.base import Method, RunContext
from harness.objectives import objective
from harness.specs import Objective


class FineTuning(Method):
    name = "ft"
    title = "FT"
    full_name = "fine-tuning with cross-entropy"
    citation = "Liu et al., RoBERTa, 2019, as run in Luo et al., CMLM, 2021, section 4.4"
    decisions = ("D1",)

    def classify(self, context: RunContext) -> Objective:
        return objective("cross_entropy")
