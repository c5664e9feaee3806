"""Metrics by name, over gold labels and logits: those of GLUE, and F1 averaged over classes. Higher is better; all are in
[-1, 1]."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness import errors
from harness.errors import UserError

Array = NDArray[Any]


@dataclass(frozen=True)
class Metric:
    """`compute(gold [n], predicted [n])`; `kind` says what is predicted: class codes or a score.

    `binary`: defined for two classes only. `worst`: the lowest value that it can take.
    """

    name: str
    kind: str
    compute: Callable[[Array, Array], float]
    binary: bool = False
    worst: float = 0.0

    def applies(self, num_labels: int) -> bool:
        """Whether it is defined for a head with `num_labels` outputs: 1 for regression, else the number of classes."""
        if self.kind == "score" or num_labels == 1:
            return self.kind == "score" and num_labels == 1
        return num_labels == 2 or not self.binary


def _accuracy(gold: Array, predicted: Array) -> float:
    return float(np.mean(gold == predicted))


def _f1(average: str) -> Callable[[Array, Array], float]:
    """F1 of class 1 ('binary'), or averaged over the classes that gold or predictions hold."""

    def compute(gold: Array, predicted: Array) -> float:
        from sklearn.metrics import f1_score

        return float(f1_score(gold, predicted, pos_label=1, average=average, zero_division=0.0))

    return compute


def _mcc(gold: Array, predicted: Array) -> float:
    from sklearn.metrics import matthews_corrcoef

    if len(np.unique(gold)) < 2 or len(np.unique(predicted)) < 2:
        return 0.0  # scikit-learn says the same, with a warning
    return float(matthews_corrcoef(gold, predicted))


def _correlation(name: str) -> Callable[[Array, Array], float]:
    def compute(gold: Array, predicted: Array) -> float:
        from scipy import stats

        if len(gold) < 2:
            return 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # constant input: NaN, which becomes 0 below
            value = float(getattr(stats, name)(gold.astype(np.float64), predicted.astype(np.float64)).statistic)
        return value if np.isfinite(value) else 0.0

    return compute


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "class", _accuracy),
        Metric("f1", "class", _f1("binary"), binary=True),
        Metric("f1_macro", "class", _f1("macro")),
        Metric("f1_micro", "class", _f1("micro")),
        Metric("f1_weighted", "class", _f1("weighted")),
        Metric("mcc", "class", _mcc, worst=-1.0),
        Metric("spearman", "score", _correlation("spearmanr"), worst=-1.0),
        Metric("pearson", "score", _correlation("pearsonr"), worst=-1.0),
    )
}
"""accuracy; f1 of class 1 (two classes); f1_macro, the mean of the classes' F1; f1_weighted, their mean weighted by the
classes' gold rows; f1_micro, F1 over all decisions (with one label a row it equals accuracy); mcc, Matthews correlation;
spearman and pearson, of a score.

F1 and mcc by scikit-learn, correlations by scipy. A class that neither gold nor predictions hold has no part in f1_macro, as
in scikit-learn. What is undefined is 0.0: the F1 of a class that is never predicted rightly, mcc and correlations when either
side is constant (a collapsed model), correlations of fewer than two rows.
"""


def check_metric(name: str, num_labels: int, task: str) -> None:
    """Raises UserError, with the metrics that apply, where `name` is unknown or undefined for `num_labels` outputs."""
    applying = [metric.name for metric in METRICS.values() if metric.applies(num_labels)]
    if name not in METRICS:
        raise errors.unknown("metric", name, applying)
    if name not in applying:
        kind = "a regression" if num_labels == 1 else f"a classification with {num_labels} classes"
        raise UserError(f"metric '{name}' does not apply to {task}, {kind}; choose from {', '.join(applying)}.")


def score(metric: str, gold: ArrayLike, logits: ArrayLike) -> float:
    """The value of `metric` for `gold` [n] and `logits` [n, c]: argmax (ties: the lowest class), or the score where c = 1.

    Raises UserError for an unknown metric, and ValueError for logits that are not finite (a diverged run has no score), no
    rows, or shapes that do not fit the metric.
    """
    if metric not in METRICS:
        raise errors.unknown("metric", metric, METRICS)
    chosen, truth, values = METRICS[metric], np.asarray(gold), np.asarray(logits)
    if values.ndim != 2 or truth.shape != values.shape[:1] or not len(truth):
        raise ValueError(f"{metric}: gold {truth.shape} and logits {values.shape} should be [n] and [n, c] with n > 0")
    if not np.isfinite(values).all():
        raise ValueError(f"{metric}: logits are not finite")
    if not chosen.applies(values.shape[1]):
        raise ValueError(f"{metric}: does not apply to {values.shape[1]} logit(s) a row")
    return chosen.compute(truth, values[:, 0] if chosen.kind == "score" else values.argmax(axis=1))
