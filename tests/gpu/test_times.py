"""Time per update of the training loop on random weights and tokens, captured and as it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from gpu.models import (
    BATCH,
    FEW_SHOT,
    SEED,
    SHAPES,
    Lengths,
    Setting,
    Trained,
    built,
    inputs_of,
    needs,
    of_method,
    trained,
)

from harness.specs import Optim
from harness.training.forward_backward import Placement, use_repeatable_kernels
from harness.training.loop import _TrainingRun as TrainingRun
from harness.training.update import _KEPT, CudaGraphs

ROWS = 64
"""Sequences that the batches are drawn from, as in few-shot training."""


@dataclass(frozen=True)
class Timed:
    """An objective with its batch size and lengths."""

    what: Trained
    batch: int = BATCH
    lengths: Lengths = FEW_SHOT


TIMED = {
    "ft": Timed(trained()["ft"], 16),
    **{name: Timed(Trained(of_method(name))) for name in ("mlm", "cmlm", "taco", "coco_lm")},
}
"""The few-shot recipe's batches, 16 for fine-tuning and 8 for the others."""
BLOCKS = Timed(trained()["mlm"], 64, Lengths(512, 512))
"""Pre-training on blocks of 512 tokens."""

Measured = Callable[..., None]


def test_an_update_on_a_cpu(cpu: Setting, measured: Measured) -> None:
    values = update(cpu, TIMED["cmlm"], "tiny", "bf16")
    measured(values)
    assert values["milliseconds"] > 0
    assert values["flops"] > 0


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", TIMED)
@pytest.mark.parametrize("shape", ["bert-tiny", "minilm", "roberta-base"])
def test_an_update(name: str, shape: str, precision: str, cuda: Setting, measured: Measured) -> None:
    measured(update(cuda, TIMED[name], shape, precision))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_update_of_long_blocks(precision: str, cuda: Setting, measured: Measured) -> None:
    """And the share of the peak of an H100 or H200 in bf16."""
    values = update(cuda, BLOCKS, "roberta-base", precision)
    measured(values | {"share_of_peak": values["flops_per_second"] / 989e12})


def update(setting: Setting, case: Timed, shape: str, precision: Any) -> dict[str, Any]:
    """Milliseconds per update, captured or compiled on a GPU and eager, FLOPs and FLOP/s."""
    needs(setting, precision)
    try:
        use_repeatable_kernels(setting.device)
        eager, _ = timed(setting, case, shape, precision, eager=True)
        seconds, flops = timed(setting, case, shape, precision)
    except torch.OutOfMemoryError as error:
        pytest.skip(f"does not fit into the memory of this device: {str(error).splitlines()[0][:100]}")
    values: dict[str, Any] = {"milliseconds": 1000 * seconds, "eager_milliseconds": 1000 * eager}
    return values | {"flops": flops, "flops_per_second": flops / seconds}


def timed(setting: Setting, case: Timed, shape: str, precision: Any, *, eager: bool = False) -> tuple[float, float]:
    """(seconds, FLOPs) of an update; on a GPU captured or compiled, but for an `eager` one. Before it starts, every form of a batch was seen twice."""
    _KEPT.clear()  # or a captured one would take over that nothing was captured
    inputs = inputs_of(case.what, SHAPES[shape], max(ROWS, 2 * case.batch), case.lengths)
    optim = Optim(1e-5, case.batch, setting.warm + setting.updates, dropout=0.1, precision=precision)
    placement = Placement(setting.device, recorder=_Eager if eager and setting.cuda else None)
    run = TrainingRun(built(case.what, SHAPES[shape], 0.1), inputs, optim, SEED, None, placement)
    with run.updates.active(), torch.compiler.set_stance("force_eager" if eager else "default"):
        for step in range(1, setting.warm + 1):
            run.update(step)
        before, started = run.result.flops, now(setting)
        for step in range(setting.warm + 1, setting.warm + setting.updates + 1):
            run.update(step)
        seconds = (now(setting) - started) / setting.updates
    return seconds, (run.result.flops - before) / setting.updates


class _Eager(CudaGraphs):
    def record(self, function: Any) -> Any:
        raise RuntimeError("it is timed as it is")


def now(setting: Setting) -> float:
    """The clock, after all work that was given to the device."""
    if setting.cuda:
        torch.cuda.synchronize(setting.device)
    return time.perf_counter()
