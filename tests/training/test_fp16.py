"""fp16 trains: the loss is scaled, an update whose gradients are not finite is skipped and halves the scale, and what cannot be
trained ends with a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from harness.encoders.models.weights import weights_digest
from harness.errors import DivergedError
from harness.training.loop import schedule, train
from harness.training.result import Scoring, TrainingResult

STEPS = 6
SPOILED = 3
SCALE = 2.0**16


@dataclass
class Watched:
    """After each call of the optimizer: weights, what AdamW keeps of them, and the rate."""

    weights: list[list[Tensor]] = field(default_factory=list)
    states: list[list[Tensor]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.weights.append([p.detach().clone() for p in parameters])
        self.states.append([t.clone() for p in parameters for t in optimizer.state[p].values()])
        self.rates.append(optimizer.param_groups[0]["lr"])

    def moved(self, which: str, step: int) -> bool:
        before, after = getattr(self, which)[step - 2], getattr(self, which)[step - 1]
        return not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.fixture
def watched() -> Iterator[Watched]:
    watch = Watched()
    handle = register_optimizer_step_post_hook(watch)
    yield watch
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


@pytest.mark.parametrize("name", ["cross_entropy", "coco_lm"])
def test_it_trains_and_repeats_to_the_bit(name: str, bert: Path) -> None:
    spec, supervised = tiny.OBJECTIVES[name], name in tiny.SUPERVISED
    make = tiny.fine_tuning if supervised else tiny.post_training
    stage, inputs = make(bert, spec, precision="fp16", steps=30, lr=4e-3)
    ended = []
    for _ in range(2):
        objective = tiny.built(bert, spec, dropout=0.1)
        scoring = Scoring.of(stage, tiny.METRICS)
        result = train(objective, inputs, stage.optim, stage.seed, scoring=scoring, log_every=10)
        assert {p.dtype for p in objective.parameters()} == {torch.float32}
        ended.append((result.history, weights_digest({**objective.encoder.parts(), **objective.parts()})))
    assert ended[0] == ended[1]
    losses = [entry["loss"] for entry in ended[0][0]]
    assert losses[-1] < 0.9 * losses[0]


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


def test_an_infinite_gradient_skips_that_update_alone(bert: Path, watched: Watched) -> None:
    """Weights and AdamW's state stay, and the scale halves. It counts as an update: the next one has its own rate and batch."""
    _, result = trained(bert, lambda step: step == SPOILED)
    for which in ("weights", "states"):
        assert [watched.moved(which, step) for step in range(2, STEPS + 1)] == [True, False, True, True, True]
    assert measured(result, "loss_scale") == [SCALE, SCALE, *[SCALE / 2] * 4]
    assert measured(result, "skipped_updates") == [0, 0, 1, 1, 1, 1]
    stage, _ = tiny.fine_tuning(bert, steps=STEPS)
    assert watched.rates == [stage.optim.lr * schedule(stage.optim, step) for step in range(STEPS)]
    assert all(np.isfinite(entry["loss"]) for entry in result.history)


@pytest.mark.parametrize(("steps", "every", "ends", "scale"), [(5, 2, 5, "2048"), (40, 8, 24, "0.00390625")])
def test_gradients_that_are_never_finite_end_the_stage(
    steps: int, every: int, ends: int, scale: str, bert: Path
) -> None:
    """At the evaluation that finds the scale below 1, and at the end of a stage that is too short for that."""
    with pytest.raises(DivergedError, match=f"{ends} of {ends} updates were skipped.* {scale}; train in bf16 or fp32"):
        trained(bert, lambda step: True, steps=steps, every=every)
