"""Classifiers that scikit-learn fits, beside which trained ones are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from harness.objectives.definitions.base import Config, Definition, StepSize

STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Inverse strengths of regularisation, scikit-learn's C (of a regression 1 / alpha), the strongest first. The one that is best on dev is
selected, of equal ones the first. Another grid is another version of the objectives."""


@dataclass(frozen=True, kw_only=True)
class FittedDefinition(Definition):
    """`candidates`: how many fits dev selects among; each stands for an update in the history."""

    labelled = True
    fitted = True
    candidates: ClassVar[int] = len(STRENGTHS)

    def flops(self, config: Config, size: StepSize) -> float:
        """None but those of the states."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class MajorityDefinition(FittedDefinition):
    """The most frequent class of the training set for every row, with the shares of the classes as probabilities; of a regression the mean."""

    name = "majority"
    version = 1
    module = "Majority"
    encoded = False
    candidates = 1


@dataclass(frozen=True, kw_only=True)
class TfidfDefinition(FittedDefinition):
    """Logistic regression (of a regression ridge) on TF-IDF."""

    name = "tfidf"
    version = 1
    module = "TfidfRegression"
    encoded = False


@dataclass(frozen=True, kw_only=True)
class FrozenStatesDefinition(FittedDefinition):
    """The same on the encoder's last states, averaged over the tokens of a row."""

    name = "frozen_states"
    version = 1
    module = "StateRegression"
    encodes_once = True
