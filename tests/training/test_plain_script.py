"""scripts/measure/plain_loop.py: it computes what the harness computes, from equal heads in the same order without dropout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch

from harness.tasks.metrics import score
from harness.training.loop import batch_order, train
from harness.training.result import Scoring
from scripts.measure import plain_loop


def test_the_same_selection_and_scores(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, inputs = tiny.fine_tuning(bert, every=10, steps=40, dropout=0.0, lr=2e-3)
    objective = tiny.built(bert, stage.objective, seed=stage.seed)

    class SameHead(plain_loop.Classifier):
        def __init__(self, folder: Path, labels: int, dropout: float) -> None:
            super().__init__(folder, labels, dropout)
            self.dense.load_state_dict(objective.head.dense.state_dict())
            self.out.load_state_dict(objective.head.out.state_dict())

    def same_order(size: int, batch_size: int) -> Iterator[list[int]]:
        yield from (rows.tolist() for rows in batch_order(size, batch_size, stage.seed))

    monkeypatch.setattr(plain_loop, "Classifier", SameHead)
    monkeypatch.setattr(plain_loop, "order", same_order)
    sets = {"train": tiny.texts(20, 1), "dev": tiny.texts(30, 2), "test": tiny.texts(25, 3)}
    library = {name: SimpleNamespace(texts=texts, labels=labels) for name, (texts, labels) in sets.items()}
    with torch.random.fork_rng():
        plain = plain_loop.train(stage, bert, library)
    outcome = train(objective, inputs, stage.optim, stage.seed, scoring=Scoring.of(stage, tiny.METRICS))
    assert plain["curve"] == [entry["dev"]["accuracy"] for entry in outcome.history]
    assert len(set(plain["curve"])) > 1, "nothing was learned"
    tested = outcome.predictions["test"]
    expected = {"dev": outcome.dev_scores["accuracy"], "test": score("accuracy", tested)}
    assert {name: plain[name] for name in expected} == expected
    assert plain["selected"] == outcome.selected_step
