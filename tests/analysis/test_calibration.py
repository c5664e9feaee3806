"""Temperature and threshold from dev, against what made the logits and against a loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.analysis.calibration import Calibration, calibration_of
from harness.kinds import Classes, Predictions
from harness.objectives import objective
from harness.specs import Data, Encoder, Optim, Record, RowSet, Selection, Stage
from harness.tasks import METRICS


def of(logits: Any, gold: Any, metric: str = "accuracy") -> Calibration | None:
    data = Data(RowSet("t"), logits.shape[1], dev=RowSet("d"))
    stage = Stage(objective("cross_entropy"), data, Optim(1e-3, 8, 10), 1, Encoder("e"), Selection(metric), "fine-tune")
    return calibration_of(
        stage, Record(stage.key, "done", predictions={"d": Predictions({"logits": logits.astype(np.float32)}, gold)})
    )


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_the_temperature_is_what_the_logits_were_multiplied_by(factor: float) -> None:
    draw = np.random.default_rng(0)
    logits = draw.normal(size=(4000, 3))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    gold = np.array([draw.choice(3, p=share) for share in shares])
    found = of(factor * logits, gold)
    assert found is not None
    assert found.temperature == pytest.approx(factor, rel=0.1)
    assert (found.threshold, found.rows) == (None, 4000)


@pytest.mark.parametrize("metric", ["accuracy", "f1", "mcc"])
@pytest.mark.parametrize("seed", range(3))
def test_no_other_threshold_scores_more_on_dev(metric: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    gold = (draw.random(40) < 0.3).astype(np.int64)
    logits = np.stack([np.zeros(40), gold + draw.normal(size=40) - 1.5], axis=1)
    found = of(logits, gold, metric)
    assert found is not None
    assert found.threshold is not None
    second = 1 / (1 + np.exp(-logits[:, 1].astype(np.float32) / found.temperature))
    best = max(METRICS[metric].compute(gold, (second >= least).astype(int)) for least in [*second, 1.1])
    kind = Classes(("no", "yes"))
    said = found.columns(kind, Predictions({"logits": logits.astype(np.float32)}, gold))
    codes = np.array([kind.names.index(name) for name in said["predicted"]])
    assert METRICS[metric].compute(gold, codes) >= best - 1e-12
    assert said["probability.yes"] == pytest.approx(second.tolist(), rel=1e-5)


def test_what_has_no_classes_has_none() -> None:
    assert of(np.zeros((5, 1)), np.zeros(5), "pearson") is None
