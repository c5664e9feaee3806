"""The temperature from dev, against what made the logits and against others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.kinds import Predictions
from harness.methods import objective
from harness.specs import Data, Encoder, Optim, Record, RowSet, Selection, Stage
from harness.views.calibration import BOUNDS, temperature_of, tempered


def of(dev: Predictions, outputs: int) -> float | None:
    data = Data(RowSet("t"), outputs, dev=RowSet("d"))
    encoder, chosen = Encoder("e"), Selection("accuracy")
    stage = Stage(objective("cross_entropy"), data, Optim(1e-3, 8, 10), 1, encoder, chosen, "fine-tune")
    return temperature_of(stage, Record(stage.key, "done", predictions={"d": dev}))


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_the_temperature_is_what_the_logits_were_multiplied_by(factor: float) -> None:
    draw = np.random.default_rng(0)
    logits = draw.normal(size=(4000, 3))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    gold = np.array([draw.choice(3, p=share) for share in shares])
    dev = Predictions({"logits": (factor * logits).astype(np.float32)}, gold)
    found = of(dev, 3)
    assert found == pytest.approx(factor, rel=0.1)

    def surprise(temperature: Any) -> float:
        return -float(np.log(tempered(dev, temperature).probabilities[np.arange(4000), gold]).mean())

    assert surprise(found) <= min(map(surprise, np.geomspace(*BOUNDS, 257))) + 1e-9


def test_what_has_no_classes_has_none() -> None:
    assert of(Predictions({"logits": np.zeros((5, 1), np.float32)}, np.zeros(5)), 1) is None
