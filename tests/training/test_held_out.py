"""The loss on held-out texts: logged beside the history, the same draws each time, and nothing that is trained changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from harness.encoders.tokens import Examples
from harness.running import run_stage
from harness.training import loop
from harness.training.loop import held_out_terms

CPU = torch.device("cpu")
UNLABELLED = {spec.name: name for name, spec in tiny.OBJECTIVES.items() if name not in tiny.SUPERVISED}.values()
"""A setting of each objective without labels."""


@pytest.mark.parametrize("name", UNLABELLED)
def test_it_changes_nothing_that_is_trained(
    name: str, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "LOG_EVERY", 2)
    stage, inputs = tiny.post_training(bert, tiny.OBJECTIVES[name], steps=4)
    records = []
    for held_out in (None, inputs.train):
        given = replace(inputs, held_out=held_out)
        setup = tiny.worker_setup(bert, tmp_path)
        records.append(run_stage(stage, given, tiny.vocabulary(bert), tiny.METRICS, setup, keep_weights=True))
    without, with_it = records
    assert with_it.status == "done", with_it.reason
    assert with_it.weights_digest == without.weights_digest
    logged = [entry.pop("held_out") for entry in with_it.history]
    assert with_it.history == without.history
    assert [sorted(each) for each in logged] == [sorted(each) for each in logged[:1]] * 2
    assert all(np.isfinite(value) for each in logged for value in each.values())


def test_it_is_the_mean_over_predicted_positions_whatever_the_batches(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand from each batch: an MLM term is a mean over its masked positions, which weigh it."""
    stage, inputs = tiny.post_training(bert, steps=2)
    objective = tiny.built(bert, stage.objective)
    monkeypatch.setattr(loop, "HELD_OUT_BATCH", 7)
    found = held_out_terms(objective, inputs.train, 1, stage.optim, CPU)
    assert objective.training
    again = held_out_terms(objective, inputs.train, 1, stage.optim, CPU)
    assert found == again
    parts = []
    whole = objective.forward

    def kept(*given: Any) -> dict[str, torch.Tensor]:
        terms: dict[str, torch.Tensor] = whole(*given)
        (term,) = terms.values()
        parts.append((float(term), len(given[0]["where"])))
        return terms

    monkeypatch.setattr(objective, "forward", kept)
    held_out_terms(objective, inputs.train, 1, stage.optim, CPU)
    assert len(parts) == 3
    values, weights = zip(*parts, strict=True)
    assert [*found.values()] == pytest.approx([np.average(values, weights=weights)] * 2), "the loss and its only term"


def test_training_on_other_texts_lowers_it(bert: Path) -> None:
    stage, inputs = tiny.post_training(bert, steps=60, lr=5e-3)
    other, _ = tiny.texts(20, 77)
    objective = tiny.built(bert, stage.objective)
    held_out = Examples(tiny.tokens(bert, other))
    result = loop.train(objective, replace(inputs, held_out=held_out), stage.optim, 1, log_every=20)
    losses = [entry["held_out"]["loss"] for entry in result.history]
    assert losses[-1] < losses[0]
