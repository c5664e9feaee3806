"""Captured updates: on a GPU with CUDA's graphs, on a CPU with what they do, operators that are repeated on the same tensors. And compiled full blocks, on
a CPU, where no run compiles anything, by torch's own operators in the graphs that it traces."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpu.models import BATCH, CPU, FEW_SHOT, SEED, SHAPES, Lengths, Setting, Trained, built, inputs_of, needs, trained
from gpu.replay import Replay
from torch import Tensor
from torch._dynamo.utils import counters

from harness.commands.contract import a_gpu_may_repeat_its_operators, made
from harness.encoders.models import text_encoder
from harness.encoders.models.batch import parts, staged
from harness.errors import StoppedError, UserError
from harness.objectives.base import TrainingObjective
from harness.specs import Optim
from harness.storage import Storage
from harness.training import forward_backward, update
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
    setting: Setting,
    what: Trained,
    *,
    eager: bool = False,
    seed: int = SEED,
    lengths: Lengths = FEW_SHOT,
    kept: Any = None,
    **optim: Any,
) -> tuple[list[Tensor], list[Any], TrainingObjective, str]:
    """(weights, losses, the objective, its kernels' name) after updates with dropout, on batches of several widths of which the last of an epoch is smaller."""
    recipe = Optim(**{"lr": 1e-3, "batch_size": BATCH, "steps": 20 if setting.cuda else 12, "dropout": 0.1} | optim)
    config = setting.config | {"max_position_embeddings": lengths.longest + 2}
    objective, inputs = built(what, config, recipe.dropout), inputs_of(what, config, 3 * BATCH + 3, lengths)
    recorder = update.CudaGraphs if setting.cuda else Replay
    placement = Placement(setting.device, recorder=lambda: Counted(recorder(), eager))
    rows = Inputs(inputs.train, inputs.labels)
    with torch.compiler.set_stance("force_eager" if eager else "default"):
        result = train(objective, rows, recipe, seed, placement=placement, log_every=recipe.steps // 2, **(kept or {}))
    weights = [each.detach().clone() for _, each in sorted(objective.named_parameters())]
    losses = [{name: value for name, value in entry.items() if name != "measures"} for entry in result.history]
    return weights, losses, objective, result.provenance.get("kernels", "")


def same(one: Any, other: Any) -> None:
    assert one[1] == other[1]
    assert all(torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", trained())
def test_captured_is_eager(name: str, precision: str, setting: Setting) -> None:
    """Bit for bit, also in a second stage of the process, which records only forms of which there was one batch. What is not captured repeats its bits."""
    if not setting.cuda and (name, precision) not in ON_CPU:
        return  # that their operators may be repeated is a law of the contract
    needs(setting, precision)
    what = trained()[name]
    eager = trained_by(setting, what, eager=True, precision=precision)
    assert Counted.replayed == 0
    update._KEPT.clear()
    same(trained_by(setting, what, precision=precision), eager)
    first, recorded = Counted.replayed, Counted.recorded
    assert (first >= 4) == (name in CAPTURED)
    same(trained_by(setting, what, precision=precision), eager)
    assert Counted.replayed >= 2 * first + 2 or name not in CAPTURED
    assert Counted.recorded <= recorded + 2


def test_a_resumed_stage_is_the_same(setting: Setting, tmp_path: Path) -> None:
    """Stopped after the seventh update, and gone on in a process that has captured updates of it."""
    what, storage = trained()["cmlm"], Storage(str(tmp_path))
    whole = trained_by(setting, what, eager=True)
    update._KEPT.clear()
    asked = iter(range(100))
    kept = {"checkpoints": Checkpoints(storage, "key", 3600), "stopping": lambda: next(asked) == 6}
    with pytest.raises(StoppedError):
        trained_by(setting, what, kept=kept)
    trained_by(setting, what, seed=SEED + 1)
    resumed = trained_by(setting, what, kept={"checkpoints": Checkpoints(storage, "key", 3600)})
    same((resumed[0], resumed[1][-1:]), (whole[0], whole[1][-1:]))


@pytest.mark.parametrize("name", ["ft", "coco_lm"])
def test_a_stage_leaves_its_weights_to_no_other(name: str, setting: Setting) -> None:
    """A later stage of another seed writes into the same places: the first one's weights stay."""
    stages = [trained_by(setting, trained()[name], seed=seed) for seed in (1, 2)]
    for weights, _, objective, _ in stages:
        own = [each for _, each in sorted(objective.named_parameters())]
        assert all(torch.equal(a, b) for a, b in zip(own, weights, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(stages[0][0], stages[1][0], strict=True))


def test_what_cannot_be_captured_is_eager_and_said(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        trained_by(setting, trained()["ft"], eager=True)
    assert "is not captured: no memory for it" in caplog.text
    assert not {"mlm-relative", "frozen_head"} & set(CAPTURED)


FULL = {"lengths": Lengths(400, 256), "batch_size": 9, "steps": 3}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_compiled_blocks_are_blocks(precision: str, setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the same bits each time: in a second stage, which compiles nothing, and in a process that compiled another form before. Not with padding."""
    needs(setting, precision)
    what, named, stats = trained()["mlm"], {"precision": precision, **FULL}, counters["stats"]
    for forget in (torch.compiler.reset, stats.clear, forward_backward.compiled.cache_clear):
        forget()
    tolerance = {"fp32": 1e-3, "bf16": 5e-2}[precision] if setting.cuda else 1e-6
    if not setting.cuda:
        monkeypatch.setattr(torch, "compile", partial(torch.compile, options=None, backend="eager"))
        monkeypatch.setattr(text_encoder, "use_cpu_kernels", lambda _: None)
    eager, padded = trained_by(setting, what, eager=True, dropout=0.0, **named), trained_by(setting, what, steps=2)
    assert (stats["unique_graphs"], padded[3]) == (0, "")
    compiled = trained_by(setting, what, dropout=0.0, **named)
    torch.testing.assert_close(compiled[0], eager[0], rtol=tolerance, atol=tolerance)
    assert (stats["unique_graphs"], compiled[3]) == (2, "compiled"), "a layer and the loss"
    dropped, graphs = trained_by(setting, what, **named), stats["unique_graphs"]
    same(trained_by(setting, what, **named), dropped)
    assert stats["unique_graphs"] == graphs
    torch.compiler.reset()
    trained_by(setting, what, **{**named, "lengths": Lengths(400, 320)})
    same(trained_by(setting, what, **named), dropped)


def test_without_a_compiler_blocks_are_as_before(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no Triton")

    eager = trained_by(setting, trained()["mlm"], eager=True, **FULL)
    monkeypatch.setattr(forward_backward, "compiled", lambda _: broken)
    with caplog.at_level(logging.WARNING):
        found = trained_by(setting, trained()["mlm"], **FULL)
    same(found, eager)
    assert (found[3], caplog.messages) == ("", ["blocks of 9 x 256 tokens are not compiled: no Triton"])


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
