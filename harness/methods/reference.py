"""Reference rows, which cost seconds: the most frequent class, logistic regression on TF-IDF and on the frozen encoder's states, and the
frozen encoder with a trained head.

Deviations. scikit-learn fits the first three, with its defaults but for what a table's caption names. They draw nothing: all seeds of a training set are one stage, and
no value of the recipe reaches them. The head of the fourth is that of FT, trained by FT's recipe; each text of a stage is encoded once, without dropout.
"""

from __future__ import annotations

from dataclasses import replace

from harness.kinds import Classes, Scores
from harness.methods.base import Method, RunContext
from harness.objectives import definition_of, objective
from harness.objectives.definitions.fitted import FittedDefinition
from harness.specs import Objective, Optim


class _Reference(Method):
    """They have no hyperparameters."""

    kinds = (Classes, Scores)

    def classify(self, context: RunContext) -> Objective:
        return objective(self.name)


class _Fitted(_Reference):
    def adapt(self, context: RunContext) -> RunContext:
        """The context without what a fit does not depend on: seed, recipe, and, where it reads whole texts, their length in tokens. An update
        stands for each candidate that dev selects among."""
        definition = definition_of(objective(self.name))
        assert isinstance(definition, FittedDefinition)
        data = context.data if definition.encoded else replace(context.data, max_length=0, blocks="whole")
        recipe, selection = Optim(0.0, 0, definition.candidates, dropout=0.0), replace(context.selection, every=1)
        return replace(context, seed=0, data=data, fine_tune=recipe, selection=selection)


class Majority(_Fitted):
    """Of a regression the mean."""

    name = "majority"
    title = "Majority"
    full_name = "the most frequent class of the training set"
    citation = "Pedregosa et al., Scikit-learn: Machine Learning in Python, JMLR 2011"


class Tfidf(_Fitted):
    """Words and pairs of words of whole texts, of each text of a pair by itself, sublinear term frequency; of scores ridge with alpha 1/C."""

    name = "tfidf"
    title = "TF-IDF"
    full_name = "logistic regression on TF-IDF"
    citation = "Pedregosa et al., Scikit-learn: Machine Learning in Python, JMLR 2011"


class FrozenStates(_Fitted):
    """Last states averaged over all tokens, standardised by the training set; of scores ridge with alpha 1/C."""

    name = "frozen_states"
    title = "Frozen states"
    full_name = "logistic regression on the frozen encoder's states"
    citation = (
        "Reimers and Gurevych, Sentence-BERT, EMNLP 2019, section 4 (averaged states); Pedregosa et al., JMLR 2011"
    )


class FrozenHead(_Reference):
    name = "frozen_head"
    title = "Frozen head"
    full_name = "the frozen encoder with a trained classification head"
    citation = "Peters, Ruder and Smith, To Tune or Not to Tune? Adapting Pretrained Representations to Diverse Tasks, RepL4NLP 2019"
    decisions = ("D1",)


REFERENCE = tuple(method.name for method in (Majority, Tfidf, FrozenStates, FrozenHead))
"""No candidates, but points that candidates are read beside: their rows come by the flag --reference, and are judged apart from the others."""
