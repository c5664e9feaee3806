"""Time per update: the harness's training loop against Hugging Face's Trainer with dynamic padding, on random weights and tokens.

Both get the same sequences, batch sizes, dropout, clipping and precision, AdamW and a linear schedule. The Trainer's models are
those of `plain.py`; its batches are padded by a collator of ours, which costs less than the library's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from gpu.models import (
    BATCH,
    CPU,
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
from gpu.plain import plain

from harness.objectives.base import TrainingObjective
from harness.specs import Optim
from harness.streams import stream
from harness.training.forward_backward import Placement, use_repeatable_kernels
from harness.training.loop import _TrainingRun as TrainingRun
from harness.training.update import CudaGraphs

ROWS = 64
"""Sequences that the batches are drawn from, as in few-shot training."""


@dataclass(frozen=True)
class Timed:
    """An objective with its batch size and lengths. `against`: its time is compared with a Trainer's."""

    what: Trained
    batch: int = BATCH
    lengths: Lengths = FEW_SHOT
    against: bool = True


TIMED = {
    "ft": Timed(trained()["ft"], 16),
    **{name: Timed(Trained(of_method(name)), against=name != "taco") for name in ("mlm", "cmlm", "taco", "coco_lm")},
}
"""The few-shot recipe's batches, 16 for fine-tuning and 8 for the others."""
BLOCKS = Timed(trained()["mlm"], 32, Lengths(512, 512), against=False)
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
    measured(update(cuda, BLOCKS, "roberta-base", precision))


def update(setting: Setting, case: Timed, shape: str, precision: str) -> dict[str, Any]:
    """Milliseconds per update, FLOPs and FLOP/s; where it is installed, the Trainer's milliseconds and the ratio to them."""
    needs(setting, precision)
    try:
        use_repeatable_kernels(setting.device)
        objective = built(case.what, SHAPES[shape], 0.1)
        eager, _ = _ours(setting, case, built(case.what, SHAPES[shape], 0.1), shape, precision, eager=True)
        seconds, flops = _ours(setting, case, objective, shape, precision)
        theirs = _trainer(setting, case, objective.cpu(), shape, precision) if case.against else None
    except torch.OutOfMemoryError as error:
        pytest.skip(f"does not fit into the memory of this device: {str(error).splitlines()[0][:100]}")
    values: dict[str, Any] = {"milliseconds": 1000 * seconds, "eager_milliseconds": 1000 * eager}
    values |= {"flops": flops, "flops_per_second": flops / seconds}
    if theirs is not None:
        values |= {"trainer_milliseconds": 1000 * theirs, "speed_up": theirs / seconds}
    elif case.against:
        values["trainer"] = "accelerate is not installed (pip install -c constraints.txt -e '.[speed]')"
    return values


def _optim(setting: Setting, case: Timed, precision: Any) -> Optim:
    return Optim(1e-5, case.batch, setting.warm + setting.updates, dropout=0.1, precision=precision)


def _ours(
    setting: Setting,
    case: Timed,
    objective: TrainingObjective,
    shape: str,
    precision: str,
    *,
    eager: bool = False,
) -> tuple[float, float]:
    """(seconds, FLOPs) of an update; on a GPU captured, but for an `eager` one. Before it starts, every form of a batch was seen twice."""
    inputs = inputs_of(case.what, SHAPES[shape], max(ROWS, 2 * case.batch), case.lengths)
    placement = Placement(setting.device, recorder=_Eager if eager and setting.cuda else None)
    run = TrainingRun(objective, inputs, _optim(setting, case, precision), SEED, None, placement)
    with run.updates.active():
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


def _trainer(setting: Setting, case: Timed, objective: TrainingObjective, shape: str, precision: str) -> float | None:
    """Seconds of an update of Hugging Face's Trainer; None where it is not installed."""
    if not find_spec("accelerate"):
        return None
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.utils import logging

    logging.set_verbosity_error()
    marks: dict[int, float] = {}

    class Clock(TrainerCallback):  # type: ignore[misc]  # of a library without types
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step in (setting.warm, setting.warm + setting.updates):
                marks[state.global_step] = now(setting)

    inputs = inputs_of(case.what, SHAPES[shape], ROWS, case.lengths)
    model, collate = plain(objective, SHAPES[shape], inputs)
    optim = _optim(setting, case, precision)
    arguments = TrainingArguments(
        output_dir=str(setting.folder / "trainer"),
        max_steps=optim.steps,
        per_device_train_batch_size=optim.batch_size,
        learning_rate=optim.lr,
        max_grad_norm=optim.clip,
        bf16=precision == "bf16",
        use_cpu=not setting.cuda,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        seed=SEED,
    )
    rows: Any = list(range(ROWS))
    Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collate, callbacks=[Clock()]).train()
    return (marks[optim.steps] - marks[setting.warm]) / setting.updates


# ---------------------------------------------------------------------------------------------- what is timed and against what


@pytest.mark.parametrize("name", ["mlm", "cmlm"])
def test_the_trainer_trains_the_same_loss(name: str, cpu: Setting) -> None:
    """The models that the Trainer is timed with compute the objective's own loss. (FT has another head there, and COCO-LM
    another draw.)"""
    what, config = TIMED[name].what, cpu.config
    inputs, objective = inputs_of(what, config), built(what, config)
    model: Any
    model, collate = plain(objective, config, inputs)
    getattr(model, "model", model).load_state_dict(objective.encoder.model.state_dict())
    if name == "cmlm":
        model.contrast.load_state_dict(objective.contrast.state_dict())
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    rows = list(range(BATCH))
    views = objective.prepare(inputs.train.take(rows), None, lambda p, *m: stream(SEED, p, 1, *m))
    ours = objective.loss(objective(views.on(CPU)))
    theirs = model(**collate(rows))["loss"]
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-5)
