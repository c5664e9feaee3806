"""The temperature that dev chooses for the probabilities of a classifier."""

from __future__ import annotations

import numpy as np

from harness.kinds import Predictions
from harness.specs import Record, Stage

BOUNDS = (0.25, 64.0)
"""A small dev set without a mistake would ask for 0, and one at chance for infinity. Few-shot runs with a high learning rate ask for more than 8."""


def tempered(predictions: Predictions, temperature: float) -> Predictions:
    """The same predictions with their logits divided by `temperature`."""
    return Predictions({"logits": predictions.logits / temperature}, predictions.gold)


def temperature_of(stage: Stage, record: Record) -> float | None:
    """That of the least cross-entropy on a run's recorded predictions of dev, within `BOUNDS`; None where it predicts no classes, or has none of dev.

    Source: Guo et al., ICML 2017, section 4.2.
    """
    from scipy.optimize import minimize_scalar

    dev = record.predictions.get(stage.data.dev.digest) if stage.data.dev else None
    if dev is None or not dev.kind.names:
        return None
    rows = np.arange(len(dev.gold))

    def surprise(log_temperature: float) -> float:
        shares = tempered(dev, float(np.exp(log_temperature))).probabilities[rows, dev.gold]
        return -float(np.log(np.maximum(shares, np.finfo(np.float64).tiny)).mean())

    return float(np.exp(minimize_scalar(surprise, bounds=np.log(BOUNDS), method="bounded").x))
