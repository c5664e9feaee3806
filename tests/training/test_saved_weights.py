"""Weights that a stage saves on its way: those of that update, whatever interrupts the stage, and no number changes for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from harness.encoders.models.weights import checked_weights
from harness.specs import Parent, Record, Stage
from harness.storage import Storage, WorkerSetup, checkpoint_of, weights_of
from harness.training import loop
from harness.training.loop import Inputs

STEPS, SAVED = 12, (3, 8)


def run(stage: Stage, inputs: Inputs, place: WorkerSetup, *save_at: int, **options: Any) -> Record:
    return tiny.record_of(stage, inputs, place, save_at=save_at, **options)


def weights(place: WorkerSetup, stage: Stage, step: int | str = "last") -> dict[str, bytes]:
    return {name: each.numpy().tobytes() for name, each in checked_weights(place.storage, stage.key, step)[0].items()}


def long_run(bert: Path, name: str = "mlm", **changes: Any) -> tuple[Stage, Inputs]:
    return tiny.post_training(bert, tiny.OBJECTIVES[name], **{"steps": STEPS, "dropout": 0.1, **changes})


@pytest.mark.parametrize(("name", "schedule"), [("coco_lm", "constant"), ("mlm", "linear")])
def test_they_are_the_final_weights_of_a_run_that_ends_there(
    name: str, schedule: str, bert: Path, tmp_path: Path
) -> None:
    """Under a constant learning rate, that is. Under a linear schedule a long run is at another rate by then."""
    place = tiny.worker_setup(bert, tmp_path)
    stage, inputs = long_run(bert, name, schedule=schedule)
    assert run(stage, inputs, place, *SAVED).status == "done"
    for step in SAVED:
        short, inputs = long_run(bert, name, schedule=schedule, steps=step)
        assert run(short, inputs, place).status == "done"
        assert (weights(place, stage, step) == weights(place, short)) == (schedule == "constant")


def test_interrupted_and_resumed_they_are_those_of_the_straight_run(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In micro-batches that cut contrast groups. A stage that saves nothing on its way has the same numbers."""
    monkeypatch.setattr(loop, "LOG_EVERY", 2)
    stage, inputs = long_run(bert, "coco_lm")
    straight = replace(tiny.worker_setup(bert, tmp_path / "straight"), micro_batch=3)
    first = run(stage, inputs, straight, *SAVED)
    place = replace(straight, storage=Storage(str(tmp_path / "killed")), checkpoint_seconds=1e-9)
    for updates in (4, 10):  # each time the last checkpoint is of the update before

        def die(entry: dict[str, Any], at: int = updates) -> None:
            if entry["step"] == at:
                raise tiny.Killed

        with pytest.raises(tiny.Killed):
            run(stage, inputs, place, *SAVED, report=die)
    resumed = run(stage, inputs, place, *SAVED)
    assert resumed.provenance["resumed_at"] == 9
    assert resumed.history == first.history
    assert resumed.provenance["saved_digests"] == first.provenance["saved_digests"]
    assert first.provenance["saved_digests"].keys() == set(map(str, SAVED))
    for step in (*SAVED, "last"):
        assert weights(place, stage, step) == weights(straight, stage, step)
    without = run(stage, inputs, replace(straight, storage=Storage(str(tmp_path / "without"))))
    assert (first.weights_digest, first.history, first.flops) == (
        without.weights_digest,
        without.history,
        without.flops,
    )
    assert "saved_digests" not in without.provenance


def test_a_later_stage_starts_from_them(bert: Path, tmp_path: Path) -> None:
    """With a learning rate of almost nothing the child's weights are the parent's after that update."""
    place = tiny.worker_setup(bert, tmp_path)
    parent, inputs = long_run(bert)
    run(parent, inputs, place, *SAVED)
    for step in (*SAVED, STEPS):
        start = Parent(parent, step, parts=("encoder", "mlm_head"))
        child, inputs = long_run(bert, steps=1, lr=1e-30)
        child = replace(child, init=start, seed=9)
        record = run(child, inputs, place)
        assert record.status == "done", record.reason
        assert weights(place, child) == weights(place, parent, start.step)


def test_a_run_for_them_alone_ends_with_the_last_one(bert: Path, tmp_path: Path) -> None:
    stage, inputs = long_run(bert)
    straight, again = (tiny.worker_setup(bert, tmp_path / name) for name in ("straight", "again"))
    whole = run(stage, inputs, straight, *SAVED)
    record = run(stage, inputs, again, 3, until=3, keep_weights=False)
    assert record.status == "done"
    assert record.flops < whole.flops / 2
    assert [path.name for path in (tmp_path / "again").iterdir()] == [weights_of(stage.key, 3)]
    assert weights(again, stage, 3) == weights(straight, stage, 3)


def test_a_checkpoint_after_an_update_whose_weights_are_missing_is_not_resumed(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that saved nothing on the way was killed; the next one needs weights from before its checkpoint."""
    monkeypatch.setattr(loop, "LOG_EVERY", 2)
    stage, inputs = long_run(bert)
    place = replace(tiny.worker_setup(bert, tmp_path / "killed"), checkpoint_seconds=1e-9)

    def die(entry: dict[str, Any]) -> None:
        if entry["step"] == 8:
            raise tiny.Killed

    with pytest.raises(tiny.Killed):
        run(stage, inputs, place, report=die)
    assert place.storage.exists(checkpoint_of(stage.key))
    record = run(stage, inputs, place, 3)
    assert "resumed_at" not in record.provenance
    straight = tiny.worker_setup(bert, tmp_path / "straight")
    run(stage, inputs, straight, 3)
    for step in (3, "last"):
        assert weights(place, stage, step) == weights(straight, stage, step)


def test_weights_that_are_not_finite_are_not_saved(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, inputs = long_run(bert, lr=1.0)
    place = tiny.worker_setup(bert, tmp_path)
    update = loop._TrainingRun.update

    def spoiled(self: Any, step: int) -> None:
        update(self, step)
        if step == 3:
            with torch.no_grad():
                next(iter(self.updates.trained.values())).fill_(float("nan"))

    monkeypatch.setattr(loop._TrainingRun, "update", spoiled)
    record = run(stage, inputs, place, *SAVED)
    assert record.status == "diverged"
    assert record.reason.endswith("after step 3")
    assert list(tmp_path.iterdir()) == []
