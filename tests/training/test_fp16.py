"""fp16 trains: the loss is scaled, an update whose gradients are not finite is skipped and halves the scale, and what cannot be
trained ends with a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from harness.errors import DivergedError
from harness.training.loop import schedule, train
from harness.training.result import Scoring, TrainingResult

STEPS = 6
SPOILED = 3
SCALE = 2.0**16


@pytest.fixture
def watched() -> Iterator[list[tuple[list[Tensor], list[Tensor], float]]]:
    """After each call of the optimizer: weights, what AdamW keeps of them, and the rate."""
    found = []

    def watch(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        states = [t.clone() for p in parameters for t in optimizer.state[p].values()]
        found.append(([p.detach().clone() for p in parameters], states, optimizer.param_groups[0]["lr"]))

    handle = register_optimizer_step_post_hook(watch)
    yield found
    handle.remove()


def trained(
    folder: Path, spoil: Callable[[int], bool] = lambda step: False, **changes: Any
) -> tuple[Any, TrainingResult]:
    """Fine-tune in fp16, with an infinite gradient of one parameter at the updates that `spoil` names."""
    stage, inputs = tiny.fine_tuning(folder, **{"precision": "fp16", "every": 1, "steps": STEPS, **changes})
    objective = tiny.built(folder, stage.objective, dropout=stage.optim.dropout)
    updates = iter(range(1, 10**6))
    objective.head.out.bias.register_hook(lambda given: given / 0.0 if spoil(next(updates)) else given)
    return objective, train(objective, inputs, stage.optim, stage.seed, scoring=Scoring.of(stage, tiny.METRICS))


def measured(result: TrainingResult, name: str) -> list[float]:
    return [entry["measures"][name] for entry in result.history]


def test_clipping_and_adam_see_unscaled_gradients(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    norms: dict[str, list[float]] = {"fp32": [], "fp16": []}
    clip = torch.nn.utils.clip_grad_norm_
    for precision, found in norms.items():

        def clipped(*given: Any, found: list[float] = found, **named: Any) -> Tensor:
            found.append(float(clip(*given, **named)))
            return torch.tensor(found[-1])

        monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clipped)
        trained(bert, precision=precision)
    np.testing.assert_allclose(norms["fp16"], norms["fp32"], rtol=2e-2)


def test_an_infinite_gradient_skips_that_update_alone(bert: Path, watched: list[Any]) -> None:
    """Weights and AdamW's state stay, and the scale halves. It counts as an update: the next one has its own rate and batch."""
    _, result = trained(bert, lambda step: step == SPOILED)
    for part in (0, 1):
        stays = [all(map(torch.equal, before[part], after[part])) for before, after in pairwise(watched)]
        assert stays == [False, True, False, False, False]
    assert measured(result, "loss_scale") == [SCALE, SCALE, *[SCALE / 2] * 4]
    assert measured(result, "skipped_updates") == [0, 0, 1, 1, 1, 1]
    stage, _ = tiny.fine_tuning(bert, steps=STEPS)
    assert [rate for *_, rate in watched] == [stage.optim.lr * schedule(stage.optim, step) for step in range(STEPS)]
    assert all(np.isfinite(entry["loss"]) for entry in result.history)


@pytest.mark.parametrize(("steps", "every", "ends", "scale"), [(5, 2, 5, "2048"), (40, 8, 24, "0.00390625")])
def test_gradients_that_are_never_finite_end_the_stage(
    steps: int, every: int, ends: int, scale: str, bert: Path
) -> None:
    """At the evaluation that finds the scale below 1, and at the end of a stage that is too short for that."""
    with pytest.raises(DivergedError, match=f"{ends} of {ends} updates were skipped.* {scale}; train in bf16 or fp32"):
        trained(bert, lambda step: True, steps=steps, every=every)
