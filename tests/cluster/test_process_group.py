"""One worker and two over the same batches train the same. Without dropout: its draws are anew for each worker.

Two processes train all stages together, and this one alone; how Ray Train starts them: test_worker_group.py.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from numpy.typing import NDArray
from torch import distributed, multiprocessing

from harness.encoders.models.weights import weights_digest
from harness.errors import StoppedError
from harness.specs import Record
from harness.training import loop
from harness.training.forward_backward import Placement
from harness.training.loop import train
from harness.training.process_group import ProcessGroup
from harness.training.result import Scoring
from harness.training.update import trainable

STEPS = 6
DTYPES = {"float64": (1e-8, 1e-9), "float16": (1e-2, 5e-2)}
"""Adam's eps and the largest difference allowed. Adam divides a gradient by its own size: one that is zero but for
rounding (a key's bias) moves a weight by a whole learning rate unless eps is above what rounding leaves. float16: products under
autocast, weights in float32, and an update that is skipped because of one rank's gradient; a sum over fewer rows may overflow an update
later or earlier than the whole batch's, and then one run has skipped one more."""
SPOILED = 3
"""The update at which the last rank's gradient is infinite, under fp16."""
MICRO_BATCH = 3
RESUMED = 8
"""The step of the last checkpoint of a stage of twice as many steps."""


@dataclass
class Trained:
    """What one stage came to: loss by step, weights by name; under fp16 each rank's scale and skipped updates by step, with a digest
    of its weights."""

    losses: list[float]
    weights: dict[str, NDArray[Any]]
    ranks: list[Any]


def trained(folder: Path, name: str, dtype: str, process_group: ProcessGroup, micro_batch: int = 0) -> Trained:
    spec, supervised = tiny.OBJECTIVES[name], name in tiny.SUPERVISED
    make = tiny.fine_tuning if supervised else tiny.post_training
    precision = "fp16" if dtype == "float16" else "fp32"
    stage, inputs = make(folder, spec, dropout=0.0, steps=STEPS, eps=DTYPES[dtype][0], precision=precision)
    module = tiny.built(folder, spec).to(torch.float64 if dtype == "float64" else torch.float32)
    if precision == "fp16" and process_group.rank == process_group.size - 1:
        updates = itertools.count(1)
        norm = next(p for n, p in trainable(module).items() if n.endswith("LayerNorm.bias"))
        norm.register_hook(lambda given: given / 0.0 if next(updates) == SPOILED else given)
    outcome = train(
        module,
        inputs,
        stage.optim,
        stage.seed,
        scoring=Scoring(replace(stage.selection, every=1), "dev", tiny.METRICS) if stage.selection else None,
        log_every=1,
        placement=Placement(process_group=process_group, micro_batch=micro_batch),
    )
    weights = {n: p.detach().numpy().copy() for n, p in module.named_parameters()}
    scales = [entry["measures"] for entry in outcome.history] if precision == "fp16" else []
    scales = [(each["loss_scale"], each["skipped_updates"]) for each in scales]
    digest = weights_digest({n: torch.from_numpy(w) for n, w in weights.items()})
    return Trained(
        [entry["loss"] for entry in outcome.history], weights, process_group.all_gather_object((scales, digest))
    )


def resumed(how: str, folder: Path, artifacts: Path, process_group: ProcessGroup) -> tuple[Record, Record]:
    """A stage with dropout as it ends undisturbed, and resumed after all workers were interrupted, or after the last one alone was asked to
    stop, between two evaluations."""
    interrupted = how == "interrupted"
    every, steps = (4, 2 * RESUMED) if interrupted else (5, 12)
    stage, inputs = tiny.fine_tuning(folder, tiny.OBJECTIVES["scl"], every=every, steps=steps, dropout=0.1)

    def run(name: str, **options: Any) -> Record:
        seconds = 1e-9 if interrupted else 1e9
        place = replace(tiny.worker_setup(folder, artifacts / how / name), checkpoint_seconds=seconds)
        return tiny.record_of(stage, inputs, place, process_group=process_group, **options)

    def interrupt(entry: dict[str, Any]) -> None:
        if entry["step"] == RESUMED + 4:
            raise InterruptedError

    undisturbed = run("undisturbed")
    with suppress(InterruptedError, StoppedError):
        last = process_group.rank == process_group.size - 1
        run("disturbed", **{"report": interrupt} if interrupted else {"stopping": lambda: last})
    process_group.all_gather_object("here")  # the first worker has written before the others read
    return undisturbed, run("disturbed")


def all_stages(folder: Path, process_group: ProcessGroup) -> dict[Any, Any]:
    """What they came to, on one worker of the group."""
    torch.set_num_threads(1)
    results: dict[Any, Any] = {(n, "float64", 0): trained(folder, n, "float64", process_group) for n in SOME}
    results |= {(n, "float16", 0): trained(folder, n, "float16", process_group) for n in HALF}
    if process_group.size > 1:
        for name in BATCH_SPLIT:
            results[name, "float64", MICRO_BATCH] = trained(folder, name, "float64", process_group, MICRO_BATCH)
        for how in HOW:
            results[how] = resumed(how, folder, folder.parent / "artifacts", process_group)
    return results


def rank_of_two(rank: int, folder: Path) -> None:
    """The first one writes down what the stages came to."""
    distributed.init_process_group("gloo", init_method=f"file://{folder.parent}/meet", rank=rank, world_size=2)
    results = all_stages(folder, ProcessGroup.current())
    if rank == 0:
        torch.save(results, folder.parent / "two.pt")
    distributed.destroy_process_group()


SOME = ("cross_entropy", "scl", "mlm", "cmlm-simclr", "cssl-simsiam", "taco", "electra-narrow", "coco_lm")
"""One of each kind; tests/training/test_batch_split.py has every objective on one worker, in micro-batches."""
BATCH_SPLIT = ("scl", "coco_lm")
HOW = ("interrupted", "stopped")
"""On one worker: tests/training/test_checkpoint.py."""
HALF = ("cross_entropy", "cmlm-simclr", "coco_lm")
"""In fp16, which a CPU computes slowly: with labels, with a contrast over the whole batch, and the one that skips most updates."""


ByWorkers = dict[int, dict[Any, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.encoder_folder(tmp_path_factory.mktemp("process_group"), "bert")


@pytest.fixture(scope="module")
def by_workers(folder: Path) -> ByWorkers:
    """By world size, what every stage came to."""
    multiprocessing.spawn(rank_of_two, (folder,), nprocs=2)
    two = torch.load(folder.parent / "two.pt", weights_only=False)
    return {1: all_stages(folder, ProcessGroup.current()), 2: two}


def difference(one: Trained, other: Trained) -> tuple[float, float]:
    """The largest between losses, as a share of the loss, and between weights."""
    losses = max(abs(a - b) / max(1.0, abs(a)) for a, b in zip(one.losses, other.losses, strict=True))
    assert one.weights.keys() == other.weights.keys()
    return losses, max(float(np.abs(one.weights[n] - other.weights[n]).max()) for n in one.weights)


@pytest.mark.parametrize(("dtype", "names"), [("float64", SOME), ("float16", HALF)])
def test_losses_and_weights_do_not_depend_on_the_number_of_workers(
    dtype: str, names: tuple[str, ...], by_workers: ByWorkers
) -> None:
    for name in names:
        one, two = (by_workers[size][name, dtype, 0] for size in (1, 2))
        assert len(one.losses) == STEPS
        assert max(difference(one, two)) <= DTYPES[dtype][1], name


def test_all_ranks_skip_the_update_that_one_of_them_cannot_make(by_workers: ByWorkers) -> None:
    """Its gradient is everyone's before anyone looks whether it is finite."""
    for workers, name in itertools.product(by_workers, HALF):
        ranks = by_workers[workers][name, "float16", 0].ranks
        assert len(ranks) == workers
        assert all(each == ranks[0] for each in ranks), name
        scales, skipped = zip(*ranks[0][0], strict=True)
        assert skipped[SPOILED - 1] == skipped[SPOILED - 2] + 1, name
        assert scales[SPOILED - 1] == scales[SPOILED - 2] / 2, name


def test_nor_on_micro_batches(by_workers: ByWorkers) -> None:
    for name in BATCH_SPLIT:
        one, two = by_workers[1][name, "float64", 0], by_workers[2][name, "float64", MICRO_BATCH]
        assert max(difference(one, two)) <= 1e-9, name


@pytest.mark.parametrize("how", HOW)
def test_interrupted_and_resumed(how: str, by_workers: ByWorkers) -> None:
    undisturbed, resumed = by_workers[2][how]
    assert undisturbed.status == "done", undisturbed.reason
    assert resumed.provenance["resumed_at"] == (RESUMED if how == "interrupted" else loop.ASK_EVERY)
    assert resumed.provenance["workers"] == 2
    assert (resumed.weights_digest, resumed.history, resumed.dev_scores) == (
        undisturbed.weights_digest,
        undisturbed.history,
        undisturbed.dev_scores,
    )
    for digest, predicted in undisturbed.predictions.items():
        assert predicted.logits.tobytes() == resumed.predictions[digest].logits.tobytes()


def test_training_moved_the_weights(by_workers: ByWorkers, folder: Path) -> None:
    """So that equal means something: every objective moves its weights by far more than it may differ."""
    for name in SOME:
        begun = tiny.built(folder, tiny.OBJECTIVES[name])
        ended = by_workers[1][name, "float64", 0].weights
        moved = max(float(np.abs(ended[n] - p.detach().numpy()).max()) for n, p in begun.named_parameters())
        assert moved > 9e-4, name  # one update of Adam, where dev is best after the first
