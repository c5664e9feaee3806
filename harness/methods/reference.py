"""Reference rows, which cost seconds: the most frequent class, logistic regression on TF-IDF and on the frozen encoder's states, and the
frozen encoder with a trained head.

Deviations. scikit-learn fits the first three, with its defaults but for what a table's caption names. They draw nothing: all seeds of a training set are one stage, and
no value of the recipe reaches them. The head of the fourth is that of FT, trained by FT's recipe; each text of a stage is encoded once, without dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from harness.kinds import Classes, Scores
from harness.methods.base import Method, RunContext
from harness.objectives import definition_of, objective
from harness.objectives.definitions.fitted import FittedDefinition
from harness.specs import Objective, Optim
from harness.yaml_files import Strict


class Hyperparameters(Strict):
    """They have none of their own."""


def _fits(name: str) -> Callable[[Any, RunContext], Objective]:
    return lambda h, context: objective(name)


def _fitted(name: str) -> Callable[[Any, RunContext], RunContext]:
    """The context without what a fit does not depend on: seed, recipe, and, where it reads whole texts, their length in tokens. An update
    stands for each candidate that dev selects among."""
    definition = definition_of(objective(name))
    assert isinstance(definition, FittedDefinition)

    def adapt(h: Any, context: RunContext) -> RunContext:
        data = context.data if definition.encoded else replace(context.data, max_length=0, blocks="whole")
        recipe, selection = Optim(0.0, 0, definition.candidates, dropout=0.0), replace(context.selection, every=1)
        return replace(context, seed=0, data=data, fine_tune=recipe, selection=selection)

    return adapt


MAJORITY = Method(
    "majority",
    "Majority",
    "Pedregosa et al., Scikit-learn: Machine Learning in Python, JMLR 2011",
    Hyperparameters,
    classify=_fits("majority"),
    adapt=_fitted("majority"),
    kinds=(Classes, Scores),
    full_name="the most frequent class of the training set",
)

TFIDF = Method(
    "tfidf",
    "TF-IDF",
    "Pedregosa et al., Scikit-learn: Machine Learning in Python, JMLR 2011",
    Hyperparameters,
    classify=_fits("tfidf"),
    adapt=_fitted("tfidf"),
    kinds=(Classes, Scores),
    full_name="logistic regression on TF-IDF",
)

FROZEN_STATES = Method(
    "frozen_states",
    "Frozen states",
    "Reimers and Gurevych, Sentence-BERT, EMNLP 2019, section 4 (averaged states); Pedregosa et al., JMLR 2011",
    Hyperparameters,
    classify=_fits("frozen_states"),
    adapt=_fitted("frozen_states"),
    kinds=(Classes, Scores),
    full_name="logistic regression on the frozen encoder's states",
)

FROZEN_HEAD = Method(
    "frozen_head",
    "Frozen head",
    "Peters, Ruder and Smith, To Tune or Not to Tune? Adapting Pretrained Representations to Diverse Tasks, RepL4NLP 2019",
    Hyperparameters,
    classify=_fits("frozen_head"),
    kinds=(Classes, Scores),
    decisions=("D1",),
    full_name="the frozen encoder with a trained classification head",
)

REFERENCE = tuple(method.name for method in (MAJORITY, TFIDF, FROZEN_STATES, FROZEN_HEAD))
"""No candidates, but points that candidates are read beside: their rows come by the flag --reference, and are judged apart from the others."""
