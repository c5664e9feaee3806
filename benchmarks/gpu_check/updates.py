"""Time per update: the harness's training loop against Hugging Face's Trainer with dynamic padding, on random weights and tokens.

Both get the same sequences, batch sizes, dropout, clipping and precision, AdamW and a linear schedule. The Trainer's models are
those of `plain.py`; its batches are padded by a collator of ours, which costs less than the library's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from benchmarks.gpu_check.models import (
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
from benchmarks.gpu_check.peaks import peak
from benchmarks.gpu_check.plain import plain
from benchmarks.gpu_check.rows import Finding, SkippedError
from harness.objectives.base import TrainingObjective
from harness.running import cpu_name
from harness.specs import Optim
from harness.training.loop import Placement
from harness.training.loop import _TrainingRun as TrainingRun

ROWS = 64
"""Sequences that the batches are drawn from, as in few-shot training."""


@dataclass(frozen=True)
class Timed:
    """An objective with its batch size and lengths. `against`: its time is compared with a Trainer's."""

    what: Trained
    batch: int = BATCH
    lengths: Lengths = FEW_SHOT
    against: bool = True


def timed() -> dict[str, Timed]:
    """The few-shot recipe's batches, 16 for fine-tuning and 8 for the others; and pre-training on blocks of 512 tokens."""
    return {
        "ft": Timed(trained()["ft"], 16),
        **{name: Timed(Trained(of_method(name))) for name in ("mlm", "cmlm", "taco", "coco_lm")},
        "mlm-512": Timed(trained()["mlm"], 32, Lengths(512, 512), against=False),
    }


def update(setting: Setting, name: str, shape: str, precision: str) -> Finding:
    """Milliseconds per update, the ratio to the Trainer's, and the share of the device's peak."""
    needs(setting, precision)
    case = timed()[name]
    try:
        objective = built(case.what, SHAPES[shape], 0.1)
        seconds, flops = _ours(setting, case, objective, shape, precision)
        theirs = _trainer(setting, case, objective.cpu(), shape, precision) if case.against else None
    except torch.OutOfMemoryError as error:
        raise SkippedError(f"does not fit into the memory of this device: {str(error).splitlines()[0][:100]}") from None
    device = torch.cuda.get_device_name(setting.device) if setting.cuda else cpu_name()
    limit = peak(device, precision)
    values = {
        "milliseconds": 1000 * seconds,
        "trainer_milliseconds": None if theirs is None else 1000 * theirs,
        "speed_up": None if theirs is None else theirs / seconds,
        "flops": flops,
        "share_of_peak": None if limit is None else flops / seconds / limit,
    }
    shown = [f"{1000 * seconds:.1f} ms", f"{flops / seconds / 1e12:.2f} TFLOP/s"]
    shown.append("- of peak" if limit is None else f"{flops / seconds / limit:.1%} of peak")
    shown.append("no Trainer" if theirs is None else f"Trainer {1000 * theirs:.1f} ms, {theirs / seconds:.2f} x")
    missing = "" if theirs is not None or not case.against else f"no Trainer: {_missing()}"
    return Finding(seconds > 0, ", ".join(shown), "-", values, missing)


def _missing() -> str:
    """Why there is no Trainer; '' where there is one."""
    return (
        "" if find_spec("accelerate") else "accelerate is not installed (pip install -c constraints.txt -e '.[speed]')"
    )


def _optim(setting: Setting, case: Timed, precision: Any) -> Optim:
    return Optim(1e-5, case.batch, setting.warm + setting.updates, dropout=0.1, precision=precision)


def _ours(
    setting: Setting, case: Timed, objective: TrainingObjective, shape: str, precision: str
) -> tuple[float, float]:
    """(seconds, FLOPs) of an update."""
    inputs = inputs_of(case.what, SHAPES[shape], max(ROWS, 2 * case.batch), case.lengths)
    run = TrainingRun(objective, inputs, _optim(setting, case, precision), SEED, None, Placement(setting.device))
    for step in range(1, setting.warm + 1):
        run.update(step)
    before, started = run.result.flops, now(setting)
    for step in range(setting.warm + 1, setting.warm + setting.updates + 1):
        run.update(step)
    seconds = (now(setting) - started) / setting.updates
    return seconds, (run.result.flops - before) / setting.updates


def now(setting: Setting) -> float:
    """The clock, after all work that was given to the device."""
    if setting.cuda:
        torch.cuda.synchronize(setting.device)
    return time.perf_counter()


def _trainer(setting: Setting, case: Timed, objective: TrainingObjective, shape: str, precision: str) -> float | None:
    """Seconds of an update of Hugging Face's Trainer; None where it is not installed."""
    if _missing():
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
