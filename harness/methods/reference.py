"""Reference rows, which cost seconds: the most frequent class, logistic regression on TF-IDF and on the frozen encoder's states, and the
frozen encoder with a trained head.

Deviations. scikit-learn fits the first three, with its defaults but for what a table's caption names. They draw nothing: all seeds of a training set are one stage, and
no value of the recipe reaches them. The head of the fourth is that of FT, trained by FT's recipe; each text of a stage is encoded once, without dropout.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from harness.encoders.flops import forward_flops
from harness.kinds import Classes, Scores
from harness.methods.base import Method, RunContext
from harness.methods.definition import Config, Definition, StepSize
from harness.methods.ft import CrossEntropy
from harness.specs import Optim

STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Inverse strengths of regularisation, scikit-learn's C (of a regression 1 / alpha), the strongest first. The one that is best on dev is
selected, of equal ones the first. Another grid is another version of the objectives."""


class Fitted(Definition, Method):
    """`candidates`: how many fits dev selects among; each stands for an update in the history. None has hyperparameters."""

    kinds = (Classes, Scores)
    labelled = True
    fitted = True
    candidates: ClassVar[int] = len(STRENGTHS)

    def flops(self, config: Config, size: StepSize) -> float:
        """None but those of the states."""
        return 0.0

    def adapt(self, context: RunContext) -> RunContext:
        """The context without what a fit does not depend on: seed, recipe, and, where it reads whole texts, their length in tokens. An update
        stands for each candidate that dev selects among."""
        data = context.data if self.encoded else replace(context.data, max_length=0, blocks="whole")
        recipe, selection = Optim(0.0, 0, self.candidates, dropout=0.0), replace(context.selection, every=1)
        return replace(context, seed=0, data=data, fine_tune=recipe, selection=selection)


class Majority(Fitted):
    """The most frequent class for every row, with the shares of the classes as probabilities; of a regression the mean."""

    name = "majority"
    network = "fitted:Majority"
    encoded = False
    candidates = 1
    title = "Majority"
    full_name = "the most frequent class of the training set"
    citation = "Pedregosa et al., Scikit-learn: Machine Learning in Python, JMLR 2011"


class Tfidf(Fitted):
    """Words and pairs of words of whole texts, of each text of a pair by itself, sublinear term frequency; of scores ridge with alpha 1/C."""

    name = "tfidf"
    network = "fitted:TfidfRegression"
    encoded = False
    title = "TF-IDF"
    full_name = "logistic regression on TF-IDF"
    citation = "Pedregosa et al., Scikit-learn: Machine Learning in Python, JMLR 2011"


class FrozenStates(Fitted):
    """Last states averaged over all tokens, standardised by the training set; of scores ridge with alpha 1/C."""

    name = "frozen_states"
    network = "fitted:StateRegression"
    encodes_once = True
    title = "Frozen states"
    full_name = "logistic regression on the frozen encoder's states"
    citation = (
        "Reimers and Gurevych, Sentence-BERT, EMNLP 2019, section 4 (averaged states); Pedregosa et al., JMLR 2011"
    )


class FrozenHead(CrossEntropy, Method):
    name = "frozen_head"
    network = "classification:FrozenHead"
    encodes_once = True
    kinds = (Classes, Scores)
    title = "Frozen head"
    full_name = "the frozen encoder with a trained classification head"
    citation = "Peters, Ruder and Smith, To Tune or Not to Tune? Adapting Pretrained Representations to Diverse Tasks, RepL4NLP 2019"
    decisions = ("D1",)

    def flops(self, config: Config, size: StepSize) -> float:
        """The head alone is trained: a forward pass."""
        return forward_flops(config, size.encoded, size.encoded_squares)


REFERENCE = tuple(method.name for method in (Majority, Tfidf, FrozenStates, FrozenHead))
"""No candidates, but points that candidates are read beside: their rows come by the flag --reference, and are judged apart from the others."""
