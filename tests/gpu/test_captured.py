"""Captured updates: on a GPU with CUDA's graphs, on a CPU with what they do, operators that are repeated on the same tensors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpu.models import BATCH, CPU, SEED, SHAPES, Setting, Trained, built, inputs_of, needs, trained
from gpu.replay import Replay
from torch import Tensor

from harness.commands.contract import a_gpu_may_repeat_its_operators, made
from harness.encoders.models.batch import parts, staged
from harness.errors import StoppedError, UserError
from harness.objectives.base import TrainingObjective
from harness.specs import Optim
from harness.storage import Storage
from harness.training import update
from harness.training.checkpoint import Checkpoints
from harness.training.forward_backward import Placement
from harness.training.loop import Inputs, predict, train

CONFIG = SHAPES["tiny"] | {"initializer_range": 0.1}
CAPTURED = sorted(name for name, what in trained().items() if update.repeatable(built(what, CONFIG)))


ON_CPU = [("ft", "bf16"), *((name, "fp32") for name in ("ft", "cmlm", "taco", "coco_lm"))]
"""What is enough there: one objective of each kind."""


class Counted:
    """A recorder that counts how often something is recorded, and repeated; with `refuses` nothing can be."""

    recorded = replayed = 0

    def __init__(self, inner: Any, refuses: bool = False) -> None:
        self._inner, self._refuses, self.active = inner, refuses, inner.active

    def record(self, function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        losses, replay = self._inner.record(function)
        if self._refuses:
            raise RuntimeError("no memory for it")
        Counted.recorded += 1

        def counted() -> None:
            Counted.replayed += 1
            replay()

        return losses, counted


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "_KEPT", {})
    Counted.recorded = Counted.replayed = 0


def trained_by(
    setting: Setting, what: Trained, *, eager: bool = False, seed: int = SEED, precision: Any = "fp32", **named: Any
) -> tuple[list[Tensor], list[Any], TrainingObjective]:
    """(weights, losses, the objective) after updates with dropout, on batches of several widths of which the last of an epoch is smaller."""
    steps = 20 if setting.cuda else 12
    optim = Optim(1e-3, BATCH, steps, dropout=0.1, precision=precision)
    objective, inputs = (
        built(what, setting.config, optim.dropout),
        inputs_of(what, setting.config, rows=3 * BATCH + 3),
    )
    recorder = update.CudaGraphs if setting.cuda else Replay
    placement = Placement(setting.device, recorder=lambda: Counted(recorder(), eager))
    rows = Inputs(inputs.train, inputs.labels)
    result = train(objective, rows, optim, seed, placement=placement, log_every=steps // 2, **named)
    weights = [each.detach().clone() for _, each in sorted(objective.named_parameters())]
    losses = [{name: value for name, value in entry.items() if name != "measures"} for entry in result.history]
    return weights, losses, objective


def same(one: Any, other: Any) -> None:
    assert one[1] == other[1]
    assert all(torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", CAPTURED)
def test_captured_is_eager(name: str, precision: str, setting: Setting) -> None:
    """Bit for bit, also in a second stage of the process, which records nothing but forms of which there was one batch."""
    if not setting.cuda and (name, precision) not in ON_CPU:
        return  # that their operators may be repeated is a law of the contract
    needs(setting, precision)
    what = trained()[name]
    eager = trained_by(setting, what, eager=True, precision=precision)
    assert Counted.replayed == 0
    update._KEPT.clear()
    same(trained_by(setting, what, precision=precision), eager)
    first, recorded = Counted.replayed, Counted.recorded
    assert first >= 4
    same(trained_by(setting, what, precision=precision), eager)
    assert Counted.replayed >= 2 * first + 2
    assert Counted.recorded <= recorded + 2


def test_a_resumed_stage_is_the_same(setting: Setting, tmp_path: Path) -> None:
    """Stopped after the seventh update, and gone on in a process that has captured updates of it."""
    what, storage = trained()["cmlm"], Storage(str(tmp_path))
    whole = trained_by(setting, what, eager=True)
    update._KEPT.clear()
    asked = iter(range(100))
    kept = {"checkpoints": Checkpoints(storage, "key", 3600), "stopping": lambda: next(asked) == 6}
    with pytest.raises(StoppedError):
        trained_by(setting, what, **kept)
    trained_by(setting, what, seed=SEED + 1)
    resumed = trained_by(setting, what, checkpoints=Checkpoints(storage, "key", 3600))
    same((resumed[0], resumed[1][-1:]), (whole[0], whole[1][-1:]))


@pytest.mark.parametrize("name", ["ft", "coco_lm"])
def test_a_stage_leaves_its_weights_to_no_other(name: str, setting: Setting) -> None:
    """A later stage of another seed writes into the same places: the first one's weights stay."""
    stages = [trained_by(setting, trained()[name], seed=seed) for seed in (1, 2)]
    for weights, _, objective in stages:
        own = [each for _, each in sorted(objective.named_parameters())]
        assert all(torch.equal(a, b) for a, b in zip(own, weights, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(stages[0][0], stages[1][0], strict=True))


def test_what_cannot_be_captured_is_eager_and_said(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        trained_by(setting, trained()["ft"], eager=True)
    assert "is not captured: no memory for it" in caplog.text
    assert not {"mlm-relative", "frozen_head"} & set(CAPTURED)


@pytest.mark.parametrize("name", trained())
def test_a_block_is_the_packed_batch(name: str) -> None:
    """Losses and gradients, of a batch in which tokens, predicted tokens and sequences are filled up."""
    what, found = trained()[name], []
    for block in (False, True):
        objective, inputs = built(what, CONFIG).double(), inputs_of(what, CONFIG)
        objective.take_training_set(inputs.train, inputs.labels)
        batch, labels = inputs.train.take(np.arange(BATCH)), inputs.labels
        views = objective.prepare(
            batch, None if labels is None else labels[:BATCH], lambda *_: np.random.default_rng(3)
        )
        terms = objective(views.on(CPU, block=block))
        objective.loss(terms).backward()
        gradients = {n: p.grad for n, p in objective.named_parameters() if p.grad is not None}
        found.append((terms, gradients))
    (packed, gradients), (padded, others) = found
    for term, value in packed.items():
        torch.testing.assert_close(padded[term], value, rtol=1e-6, atol=1e-9)
    assert gradients.keys() == others.keys()
    for parameter, gradient in gradients.items():
        torch.testing.assert_close(others[parameter], gradient, rtol=1e-6, atol=1e-8, msg=parameter)


@pytest.mark.parametrize("name", ["ft", "prompt"])
def test_predictions_of_blocks_are_those_of_packed_batches(name: str) -> None:
    what = trained()[name]
    objective, inputs = built(what, CONFIG), inputs_of(what, CONFIG, rows=40)
    evaluation = inputs.train, inputs.labels
    packed, padded = (predict(objective, evaluation, "fp32", CPU, block=block)[0].logits for block in (False, True))
    np.testing.assert_allclose(padded, packed, atol=1e-6)


def test_a_buffer_holds_what_was_given() -> None:
    """As one transfer to a GPU brings it: every array at a place of its own, whatever its type and size."""
    generator = np.random.default_rng(0)
    arrays = [generator.random(3), generator.integers(0, 9, (2, 5)), generator.random((3, 3)) < 0.5, np.zeros(0, int)]
    for array, tensor in zip(arrays, parts(staged(arrays, pinned=False), arrays), strict=True):
        assert np.array_equal(tensor.numpy(), array)
        assert tensor.numpy().dtype == array.dtype


@pytest.mark.parametrize("spoiled", ["reads a value", "keeps a number", "keeps a tensor"])
def test_an_objective_that_python_decides_is_told(spoiled: str) -> None:
    """One that reads from the device, and those that remember on the host what they saw in `prepare`."""

    def make(**given: Any) -> Any:
        subject = made(trained()["ft"].spec, 1, **given)
        module: Any = subject.module
        prepare, forward = module.prepare, module.forward

        def looked(examples: Any, *more: Any) -> Any:
            module.seen = float(examples.tokens.ids[1])
            return prepare(examples, *more)

        def decided(batch: Any) -> Any:
            factor = float(batch.ids[1]) if spoiled == "reads a value" else module.seen
            factor = torch.tensor(factor) if spoiled == "keeps a tensor" else factor
            return {name: term * factor for name, term in forward(batch).items()}

        module.prepare, module.forward = looked, decided
        return subject

    with pytest.raises(UserError, match="let forward"):
        a_gpu_may_repeat_its_operators(make)
