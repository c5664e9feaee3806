"""A stage that was interrupted and goes on ends as one that was not, to the last bit."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import questions
import tiny
import torch
from safetensors.torch import save

from harness.encoders.models.weights import checked_weights
from harness.errors import StoppedError
from harness.specs import Record, Stage
from harness.storage import Storage, WorkerSetup, checkpoint_of
from harness.training import forward_backward, loop
from harness.training.loop import Inputs

EVERY = 4
STAGES: dict[str, Callable[[Path], tuple[Stage, Inputs]]] = {
    "fine-tuning": lambda folder: tiny.fine_tuning(folder, tiny.OBJECTIVES["scl"], every=EVERY, steps=22, dropout=0.1),
    "with weight decay": lambda folder: tiny.fine_tuning(folder, every=EVERY, steps=22, weight_decay=0.1),
    "post-training": lambda folder: tiny.post_training(folder, tiny.OBJECTIVES["cmlm-simsiam"], steps=22),
    "pre-training": lambda folder: tiny.post_training(folder, tiny.OBJECTIVES["coco_lm"], steps=22),
    "bf16": lambda folder: tiny.fine_tuning(folder, every=EVERY, steps=22, precision="bf16"),
    "question answering": lambda folder: questions.fine_tuning(folder, every=EVERY, steps=22),
    "fp16, skipped updates": lambda folder: tiny.post_training(
        folder, tiny.OBJECTIVES["coco_lm"], steps=22, precision="fp16"
    ),
}


def run(
    stage: Stage, inputs: Inputs, place: WorkerSetup, die_after: int = 0, stopping: Callable[[], bool] = lambda: False
) -> Record:
    """Run a stage to its end, or until it has reported `die_after` times since it began, or is to stop."""
    reports = itertools.count(1)

    def report(_: Any) -> None:
        if next(reports) == die_after:
            raise tiny.Killed

    return tiny.record_of(stage, inputs, place, report=report, stopping=stopping)


def read(place: WorkerSetup, stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(io.BytesIO(place.storage.read(checkpoint_of(stage.key))), weights_only=True)
    return found


def written(kept: dict[str, Any]) -> bytes:
    torch.save(kept, content := io.BytesIO())
    return content.getvalue()


def numbers(record: Record) -> tuple[Any, ...]:
    predictions = {
        digest: (*(array.tobytes() for _, array in sorted(p.arrays.items())), p.gold.tobytes())
        for digest, p in record.predictions.items()
    }
    found = (record.status, record.selected_step, record.tied, record.dev_scores, record.histogram, record.history)
    return (*found, record.flops, record.weights_digest, predictions)


@pytest.mark.parametrize(
    "name", ["fine-tuning", "with weight decay", "pre-training", "question answering", "fp16, skipped updates"]
)
def test_interrupted_twice_and_resumed(name: str, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LOG_EVERY", EVERY)
    # fp16's scale doubles after five updates, which a checkpoint falls between.
    monkeypatch.setattr(forward_backward, "GradScaler", partial(torch.amp.GradScaler, growth_interval=5))
    stage, inputs = STAGES[name](bert)
    undisturbed = run(stage, inputs, tiny.worker_setup(bert, tmp_path / "undisturbed"))
    assert undisturbed.status == "done", undisturbed.reason
    place = replace(tiny.worker_setup(bert, tmp_path / "killed"), checkpoint_seconds=1e-9)
    for die_after in (2, 3):  # at step 8; then, from the checkpoint of step 7 on, at 16
        with pytest.raises(tiny.Killed):
            run(stage, inputs, place, die_after)
        assert place.storage.exists(checkpoint_of(stage.key))
    resumed = run(stage, inputs, place)
    assert resumed.provenance["resumed_at"] == 15, "checkpoints are written between two evaluations too"
    assert numbers(resumed) == numbers(undisturbed)
    if name.startswith("fp16"):
        measures = [entry["measures"] for entry in resumed.history]
        assert measures[-1]["loss_scale"] > min(each["loss_scale"] for each in measures), "it has grown"
        assert measures[0]["skipped_updates"] > 0 or "skipped" not in name, "before the first checkpoint"
    mine, theirs = (
        checked_weights(Storage(str(tmp_path / where)), stage.key)[0] for where in ("killed", "undisturbed")
    )
    assert all(np.array_equal(mine[tensor].numpy(), theirs[tensor].numpy()) for tensor in theirs)


@pytest.mark.parametrize("name", ["bf16", "post-training"])
def test_stopped_on_request_and_resumed(name: str, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two evaluations, at one, and before the first: no update is lost, none is made twice, and the history is the same."""
    monkeypatch.setattr(loop, "LOG_EVERY", EVERY)
    stage, inputs = STAGES[name](bert)
    undisturbed = run(stage, inputs, tiny.worker_setup(bert, tmp_path / "undisturbed"))
    place = replace(tiny.worker_setup(bert, tmp_path / "stopped"), checkpoint_seconds=1e9)
    at = 0
    for stop in (1, 7, 8, 15):

        def stopping(stop: int = stop) -> bool:
            nonlocal at
            at += 1
            return at >= stop

        with pytest.raises(StoppedError, match=f"^stopped after update {stop} of 22; it goes on from there$"):
            run(stage, inputs, place, stopping=stopping)
        assert at == stop, "each update was made once"
    resumed = run(stage, inputs, place)
    assert resumed.provenance["resumed_at"] == 15
    assert numbers(resumed) == numbers(undisturbed)


def test_a_stage_without_checkpoints_says_that_it_begins_again(bert: Path, tmp_path: Path) -> None:
    stage, inputs = tiny.fine_tuning(bert, every=EVERY)
    place = replace(tiny.worker_setup(bert, tmp_path), checkpoint_seconds=0.0)
    with pytest.raises(StoppedError, match="it begins again: it keeps no checkpoints"):
        run(stage, inputs, place, stopping=lambda: True)
    assert not place.storage.exists(checkpoint_of(stage.key))


def test_the_seconds_of_a_resumed_stage_count_those_before_its_checkpoint(bert: Path, tmp_path: Path) -> None:
    """A cost would be too low otherwise."""
    stage, inputs = tiny.fine_tuning(bert, every=EVERY, steps=22)
    place = replace(tiny.worker_setup(bert, tmp_path), checkpoint_seconds=1e-9)
    with pytest.raises(tiny.Killed):
        run(stage, inputs, place, 2)
    kept = read(place, stage)
    assert kept["seconds"] > 0
    of_before = {"curve": [], "result": kept["result"] | {"speed": None}}  # what an older harness kept as well
    place.storage.write(checkpoint_of(stage.key), written(kept | of_before | {"seconds": 1000.0}))
    record = run(stage, inputs, replace(place, checkpoint_seconds=1e9))
    assert record.provenance["resumed_at"] == 7
    assert record.seconds > 1000


def test_a_checkpoint_that_cannot_be_read_is_none(bert: Path, tmp_path: Path) -> None:
    """One that was cut, and those of older harnesses, in another format or with another name of a part of the model: the stage begins again, with the
    numbers of an undisturbed one."""
    stage, inputs = STAGES["fine-tuning"](bert)
    undisturbed = numbers(run(stage, inputs, tiny.worker_setup(bert, tmp_path / "undisturbed")))
    place = replace(tiny.worker_setup(bert, tmp_path), checkpoint_seconds=1e-9)
    with pytest.raises(tiny.Killed):
        run(stage, inputs, place, 2)
    content = place.storage.read(checkpoint_of(stage.key))
    kept = read(place, stage)
    renamed = {name.removeprefix("head."): tensor for name, tensor in kept["weights"].items()}
    cut = (content[: len(content) // 2], content[:5000], b"")  # each another error of torch's
    for damaged in (*cut, save(kept["best"]), written(kept | {"weights": renamed})):
        place.storage.write(checkpoint_of(stage.key), damaged)
        again = run(stage, inputs, replace(place, checkpoint_seconds=1e9))
        assert "resumed_at" not in again.provenance
        assert numbers(again) == undisturbed


def test_one_that_cannot_be_written_ends_no_stage(bert: Path, tmp_path: Path) -> None:
    stage, inputs = tiny.fine_tuning(bert, every=EVERY)
    place = replace(tiny.worker_setup(bert, tmp_path), checkpoint_seconds=1e-9)

    def block(_: Any) -> None:  # a folder where the file should go: no rename replaces it
        path = tmp_path / checkpoint_of(stage.key)
        if path.is_file():
            path.unlink()
        (path / "full").mkdir(parents=True, exist_ok=True)

    record = tiny.record_of(stage, inputs, place, report=block)
    assert record.status == "done", record.reason
    assert record.provenance["checkpoint_failed"].startswith("at step 11: ")
    assert numbers(record) == numbers(run(stage, inputs, tiny.worker_setup(bert, tmp_path / "undisturbed")))
