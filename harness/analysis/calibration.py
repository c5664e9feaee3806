"""What dev says of a classifier beside its weights: a temperature for its probabilities and, of two classes, the probability from which the
second is predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.kinds import Kind, Predictions
from harness.specs import Record, Stage

TEMPERATURES = np.geomspace(0.25, 64.0, 257)
"""Those that are tried; bounded, since a small dev set without a mistake would ask for 0, and one at chance for infinity. Few-shot runs with a high learning
rate ask for more than 8."""


@dataclass(frozen=True)
class Calibration:
    """`temperature`: by which logits are divided, that of the least cross-entropy on dev (Guo et al. 2017, section 4.2). `threshold`: of two
    classes, the probability at that temperature from which the second is predicted, that of the highest `metric` on dev, of equal ones the
    nearest to one half; None with more classes. `rows`: of dev."""

    temperature: float
    threshold: float | None
    metric: str
    rows: int

    def tempered(self, predictions: Predictions) -> Predictions:
        return Predictions({"logits": predictions.logits / self.temperature}, predictions.gold)

    def columns(self, kind: Kind, predictions: Predictions) -> dict[str, list[Any]]:
        """`Kind.columns` of predictions at the temperature and the threshold."""
        tempered = self.tempered(predictions)
        columns = kind.columns(tempered)
        if self.threshold is not None:
            second = tempered.probabilities[:, 1] >= self.threshold
            columns["predicted"] = [*kind.named(second.astype(np.int64))]
        return columns


def calibration_of(stage: Stage, record: Record) -> Calibration | None:
    """From a run's recorded predictions of dev; None where it predicts no classes, or has none of dev."""
    dev = record.predictions.get(stage.data.dev.digest) if stage.data.dev else None
    if dev is None or stage.selection is None or not dev.kind.names:
        return None
    rows, metric = np.arange(len(dev.gold)), stage.selection.metric

    def at(temperature: float) -> Predictions:
        return Predictions({"logits": dev.logits / temperature}, dev.gold)

    def surprise(temperature: float) -> float:
        shares = at(temperature).probabilities[rows, dev.gold]
        return -float(np.log(np.maximum(shares, np.finfo(np.float64).tiny)).sum())

    low, high = 0, len(TEMPERATURES) - 1
    while low < high:  # cross-entropy is convex in 1 / temperature: it falls, then rises
        middle = (low + high) // 2
        rises = surprise(TEMPERATURES[middle]) <= surprise(TEMPERATURES[middle + 1])
        low, high = (low, middle) if rises else (middle + 1, high)
    temperature = float(TEMPERATURES[low])
    threshold = None
    if len(dev.kind.names) == 2:
        tried, values = thresholds(at(temperature).probabilities[:, 1], dev.gold, metric)
        best = np.flatnonzero(values == values.max())
        threshold = float(tried[best[np.abs(tried[best] - 0.5).argmin()]])
    return Calibration(temperature, threshold, metric, len(rows))


Counts = NDArray[np.float64]


def thresholds(second: Counts, gold: NDArray[Any], metric: str) -> tuple[Counts, Counts]:
    """Thresholds, one half and the middles between the distinct probabilities [n] of the second of two classes, and what `metric` is at each, to 12
    digits, where the second is predicted from it on. By cumulative counts: a metric of scikit-learn takes a millisecond a threshold."""
    distinct = np.unique(second)
    tried = np.array([0.5, *((distinct[:-1] + distinct[1:]) / 2)])
    order = np.argsort(second, kind="stable")
    below = np.searchsorted(second[order], tried)
    positive = np.concatenate([[0], np.cumsum(gold[order] == 1)])
    fn, positives = positive[below].astype(np.float64), float(positive[-1])
    tn = below - fn
    tp, fp = positives - fn, len(gold) - positives - tn
    return tried, OF_COUNTS[metric](tp, fp, fn, tn).round(12)


def _share(part: Counts, whole: Counts) -> Counts:
    """0 of nothing."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def _both(tp: Counts, fp: Counts, fn: Counts, tn: Counts) -> tuple[Counts, Counts]:
    """F1 of the second class and of the first."""
    return _share(2 * tp, 2 * tp + fp + fn), _share(2 * tn, 2 * tn + fp + fn)


def _macro(tp: Counts, fp: Counts, fn: Counts, tn: Counts) -> Counts:
    """Of the classes that gold or predictions hold."""
    held = (tp + fp + fn > 0).astype(np.float64) + (tn + fp + fn > 0)
    return np.asarray(sum(_both(tp, fp, fn, tn)) / held)


def _weighted(tp: Counts, fp: Counts, fn: Counts, tn: Counts) -> Counts:
    second, first = _both(tp, fp, fn, tn)
    return np.asarray((second * (tp + fn) + first * (tn + fp)) / (tp + fp + fn + tn))


def _balanced(tp: Counts, fp: Counts, fn: Counts, tn: Counts) -> Counts:
    held = (tp + fn > 0).astype(np.float64) + (tn + fp > 0)
    return np.asarray((_share(tp, tp + fn) + _share(tn, tn + fp)) / held)


def _accuracy(tp: Counts, fp: Counts, fn: Counts, tn: Counts) -> Counts:
    return np.asarray((tp + tn) / (tp + fp + fn + tn))


def _mcc(tp: Counts, fp: Counts, fn: Counts, tn: Counts) -> Counts:
    return _share(tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))


OF_COUNTS: Mapping[str, Callable[[Counts, Counts, Counts, Counts], Counts]] = {
    **{"accuracy": _accuracy, "f1_micro": _accuracy, "balanced_accuracy": _balanced, "mcc": _mcc},
    **{"f1": lambda *counts: _both(*counts)[0], "f1_macro": _macro, "f1_weighted": _weighted},
}
"""The metrics of two classes, of right and wrong predictions of the second class and of the first: (tp, fp, fn, tn). A test holds each to `METRICS`."""
