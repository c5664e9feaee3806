"""What dev says of a classifier beside its weights: a temperature for its probabilities and, of two classes, the probability from which the
second is predicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.kinds import Kind, Predictions
from harness.specs import Record, Stage
from harness.tasks import METRICS

TEMPERATURES = np.geomspace(0.25, 8.0, 161)
"""Those that are tried; bounded, since a small dev set without a mistake would ask for 0."""


@dataclass(frozen=True)
class Calibration:
    """`temperature`: by which logits are divided, that of the least cross-entropy on dev (Guo et al. 2017, section 4.2). `threshold`: of two
    classes, the probability at that temperature from which the second is predicted, that of the highest `metric` on dev, of equal ones the
    nearest to one half; None with more classes. `rows`: of dev."""

    temperature: float
    threshold: float | None
    metric: str
    rows: int

    def columns(self, kind: Kind, predictions: Predictions) -> dict[str, list[Any]]:
        """`Kind.columns` of predictions at the temperature and the threshold."""
        tempered = Predictions({"logits": predictions.logits / self.temperature}, predictions.gold)
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
    rows, metric = np.arange(len(dev.gold)), METRICS[stage.selection.metric]

    def at(temperature: float) -> Predictions:
        return Predictions({"logits": dev.logits / temperature}, dev.gold)

    def surprise(temperature: float) -> float:
        shares = at(temperature).probabilities[rows, dev.gold]
        return -float(np.log(np.maximum(shares, np.finfo(np.float64).tiny)).sum())

    temperature = float(min(TEMPERATURES, key=surprise))
    threshold = None
    if len(dev.kind.names) == 2:
        second = at(temperature).probabilities[:, 1]
        distinct = np.unique(second)
        tried = [0.5, *((distinct[:-1] + distinct[1:]) / 2).tolist()]
        threshold = max(
            tried, key=lambda least: (metric.compute(dev.gold, (second >= least).astype(np.int64)), -abs(least - 0.5))
        )
    return Calibration(temperature, threshold, metric.name, len(rows))
