"""Metrics by name, of predictions: those of GLUE, and F1 averaged over classes. Higher is better; all are in
[-1, 1]."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import errors
from harness.answers import answer_f1, answerable, best_over_thresholds, exact_match
from harness.errors import UserError
from harness.kinds import Kind, Predictions, Spans

Array = NDArray[Any]


@dataclass(frozen=True)
class Metric:
    """`kind` says what is predicted: class codes, a score or a span.

    `title`: how tables print it; `abbreviation`: beside the title of a column, the name where left out. `binary`: defined for two
    classes only. `worst`: the lowest value that it can take. `per_item(gold [n], predicted [n])`: values [n] that it is the mean of, where it is one.
    """

    name: str
    title: str
    kind: str
    compute: Callable[[Predictions], float]
    binary: bool = False
    worst: float = 0.0
    abbreviation: str = ""
    per_item: Callable[[Array, Array], Array] | None = None

    @property
    def short(self) -> str:
        return self.abbreviation or self.name

    def applies(self, kind: Kind) -> bool:
        return self.kind == kind.answer and (kind.outputs == 2 or not self.binary)


def _mean(per_item: Callable[[Array, Array], Array], answered: bool | None = None) -> Callable[[Predictions], float]:
    """The mean over all examples, or over the questions with an answer or without; 0 where there are none."""

    def compute(predictions: Predictions) -> float:
        gold, predicted = predictions.gold, predictions.decoded
        chosen = slice(None) if answered is None else answerable(gold) == answered
        values = per_item(gold[chosen], predicted[chosen])
        return float(values.mean()) if len(values) else 0.0

    return compute


def _library(module: str, name: str, **settings: Any) -> Callable[[Predictions], float]:
    """A function of scikit-learn or scipy; 0 where that is undefined, which they say by a warning."""

    def compute(predictions: Predictions) -> float:
        gold, predicted = predictions.gold, predictions.decoded
        if gold.dtype.kind == "f":
            gold, predicted = gold.astype(np.float64), predicted.astype(np.float64)
            if len(gold) < 2:
                return 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = getattr(importlib.import_module(module), name)(gold, predicted, **settings)
        value = float(getattr(found, "statistic", found))
        return value if np.isfinite(value) else 0.0

    return compute


_sklearn = partial(_library, "sklearn.metrics")
_f1 = partial(_sklearn, "f1_score", zero_division=0.0)


def _best_f1(predictions: Predictions) -> float:
    """At the threshold on null scores that makes it largest on these very examples: too high by that choice."""
    gold, spans = predictions.gold, Spans()
    answered = answer_f1(gold, spans.texts(predictions.arrays))
    return best_over_thresholds(answered, answer_f1(gold, [""] * len(gold)), spans.margins(predictions.arrays))


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy", "class", _mean(np.equal), abbreviation="acc", per_item=np.equal),
        Metric(
            "balanced_accuracy",
            "balanced accuracy",
            "class",
            _sklearn("balanced_accuracy_score"),
            abbreviation="bal. acc",
        ),
        Metric("f1", "F1", "class", _f1(pos_label=1), binary=True),  # of class 1
        Metric("f1_macro", "macro F1", "class", _f1(average="macro")),
        Metric("f1_micro", "micro F1", "class", _f1(average="micro")),
        Metric("f1_weighted", "weighted F1", "class", _f1(average="weighted")),
        Metric("mcc", "MCC", "class", _sklearn("matthews_corrcoef"), worst=-1.0),
        Metric("spearman", "Spearman correlation", "score", _library("scipy.stats", "spearmanr"), worst=-1.0),
        Metric("pearson", "Pearson correlation", "score", _library("scipy.stats", "pearsonr"), worst=-1.0),
        Metric("exact_match", "EM", "span", _mean(exact_match), abbreviation="EM", per_item=exact_match),
        Metric("answer_f1", "answer F1", "span", _mean(answer_f1), abbreviation="F1", per_item=answer_f1),
        Metric("hasans_exact", "HasAns EM", "span", _mean(exact_match, True)),
        Metric("hasans_f1", "HasAns F1", "span", _mean(answer_f1, True)),
        Metric("noans_accuracy", "NoAns accuracy", "span", _mean(exact_match, False)),
        Metric("best_f1", "answer F1 at the best threshold", "span", _best_f1),
    )
}
"""Those of classes by scikit-learn, correlations by scipy, those of questions by SQuAD's official definitions. balanced_accuracy is the mean recall of the
classes that gold holds. A class that neither gold nor
predictions hold has no part in f1_macro. What is undefined is 0.0: the F1 of a class that is never predicted rightly, mcc and correlations
when either side is constant (a collapsed model), correlations of fewer than two rows."""


def check_metric(name: str, kind: Kind, task: str) -> None:
    """Raises UserError, with the metrics that apply, where `name` is unknown or undefined for answers of that kind."""
    applying = [metric.name for metric in METRICS.values() if metric.applies(kind)]
    if name not in METRICS:
        raise errors.unknown("metric", name, applying)
    if name not in applying:
        raise UserError(
            f"metric '{name}' does not apply to {task}, {kind.description}; choose from {', '.join(applying)}."
        )


def score(metric: str, predictions: Predictions) -> float:
    """The value of `metric`. Raises ValueError for predictions that are not finite (a diverged run has no score), of no rows, or of another
    kind than the metric's."""
    if problem := predictions.problem:
        raise ValueError(f"{metric}: the predictions {problem}")
    if not METRICS[metric].applies(predictions.kind):
        raise ValueError(f"{metric}: does not apply to predictions of {predictions.kind.description}")
    return METRICS[metric].compute(predictions)
