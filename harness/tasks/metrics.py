"""Metrics of GLUE by name, over gold labels and logits. Higher is better; all lie in [-1, 1]."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness import errors

Array = NDArray[Any]


@dataclass(frozen=True)
class Metric:
    """`compute(gold [n], predicted [n])`; `kind` says what is predicted: class codes or a score.

    `binary`: defined for two classes only. `title` is for table heads. `worst`: the lowest value that it can take.
    """

    name: str
    title: str
    kind: str
    compute: Callable[[Array, Array], float]
    binary: bool = False
    worst: float = 0.0


def _accuracy(gold: Array, predicted: Array) -> float:
    return float(np.mean(gold == predicted))


def _f1(gold: Array, predicted: Array) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(gold, predicted, pos_label=1, average="binary", zero_division=0.0))


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
        Metric("accuracy", "acc", "class", _accuracy),
        Metric("f1", "F1", "class", _f1, binary=True),
        Metric("mcc", "MCC", "class", _mcc, worst=-1.0),
        Metric("spearman", "Spearman", "score", _correlation("spearmanr"), worst=-1.0),
        Metric("pearson", "Pearson", "score", _correlation("pearsonr"), worst=-1.0),
    )
}
"""accuracy; f1 of class 1 (two classes); mcc, Matthews correlation; spearman and pearson, of a score.

f1, mcc by scikit-learn, correlations by scipy. What is undefined is 0.0: f1 without a positive in gold or predictions, mcc
and correlations when either side is constant (a collapsed model), correlations of fewer than two rows.
"""


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
    if (chosen.kind == "score") != (values.shape[1] == 1):
        raise ValueError(f"{metric}: does not apply to {values.shape[1]} logit(s) a row")
    if chosen.binary and values.shape[1] != 2:
        raise ValueError(f"{metric}: needs two classes, not {values.shape[1]}")
    return chosen.compute(truth, values[:, 0] if chosen.kind == "score" else values.argmax(axis=1))
