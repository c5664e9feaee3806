"""Laws that every loss holds: its gradient, precision, autocast, no branch on data, no side effect."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from objectives.formulas import integers, leaf, normal
from torch import Tensor

from harness.objectives import losses
from harness.objectives.losses import (
    corrective_lm,
    masked_lm,
    replaced_token_detection,
    sequence_contrastive,
    simclr,
    simsiam,
    supervised_contrastive,
    token_alignment,
)

LABELS = torch.tensor([0, 1, 1, 0, 2, 0])
POSITIVES = torch.tensor([[1, 2, 0, 4, 5, 3], [5, 0, 1, -1, 3, -1]])
NEGATIVES = torch.stack([1 - torch.arange(2)[:, None, None].expand(2, 6, 4), integers(5, 2, 6, 4)], dim=3)
REAL = torch.tensor([[True] * 6, [True] * 5 + [False]])
MASKED = torch.tensor([[True, False, True, True, False, True], [False, True, True, False, False, False]])
CORRUPTED = torch.tensor([[0, 1, 1, 3, 2, 5], [6, 6, 5, 4, 2, 2]])
ORIGINAL = torch.tensor([[0, 1, 4, 3, 2, 6], [6, 5, 5, 4, 2, 3]])


def token_alignment_of(a: Tensor, b: Tensor) -> Tensor:
    positives, negatives, real = (tensor.to(a.device) for tensor in (POSITIVES, NEGATIVES, REAL))
    return token_alignment(a.expand(b.shape), b, positives, negatives, real, temperature=0.3)


def corrective_lm_of(a: Tensor, b: Tensor, **options: Any) -> Tensor:
    masked, original, same = (tensor.to(a.device) for tensor in (MASKED, ORIGINAL, ORIGINAL == CORRUPTED))
    where = (
        torch.arange(masked.numel(), device=a.device)[: len(a)]
        if a.device.type == "meta"
        else masked.flatten().nonzero()[:, 0]
    )
    return corrective_lm(b[:, :, 0].flatten()[where], a, original.flatten()[where], same.flatten()[where], **options)


def replaced_token_detection_of(a: Tensor, b: Tensor) -> Tensor:
    original = torch.arange(a.shape[1], device=a.device).expand(a.shape)
    return replaced_token_detection(a, original, original % 3, original % 5 < 4)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "supervised_contrastive": lambda a, b: supervised_contrastive(a, LABELS.to(a.device), temperature=0.3),
    "masked_lm": lambda a, b: masked_lm(a, LABELS.to(a.device)),
    "simclr": lambda a, b: simclr(a, b, temperature=0.07),
    "sequence_contrastive": lambda a, b: sequence_contrastive(a, b[0], temperature=0.3),
    "token_alignment": token_alignment_of,
    "corrective_lm": corrective_lm_of,
    "corrective_lm, whole gradient": lambda a, b: corrective_lm_of(a, b, stop_gradient=False),
    "replaced_token_detection": replaced_token_detection_of,
    "simsiam": lambda a, b: simsiam(a, b, a * 1.5, b + 1.0),
}


def test_every_loss_is_listed() -> None:
    public = {name for name, f in inspect.getmembers(losses, inspect.isfunction) if f.__module__ == losses.__name__}
    missing = {name for name in public if name[0] != "_"} - {name.partition(",")[0] for name in LOSSES}
    assert not missing, f"LOSSES has no entry that calls {sorted(missing)} of harness/objectives/losses.py"


@pytest.mark.parametrize("name", LOSSES)
class TestEveryLoss:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision_is_computed_in_float32(self, name: str, dtype: torch.dtype) -> None:
        a, b = leaf(normal(6, 32, dtype=dtype)), normal(2, 6, 32, seed=1, dtype=dtype)
        loss = LOSSES[name](a, b)
        assert loss.dtype == torch.float32
        (gradient,) = torch.autograd.grad(loss, (a,))
        assert gradient.dtype == dtype
        assert torch.isfinite(gradient).all()
        if name != "simsiam":  # whose z is built above in half precision
            assert torch.equal(loss, LOSSES[name](a.float(), b.float()))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_autocast_changes_nothing(self, name: str, dtype: torch.dtype) -> None:
        a, b = normal(6, 32, dtype=dtype), normal(2, 6, 32, seed=1, dtype=dtype)
        kept = a.clone(), b.clone()
        expected = LOSSES[name](a, b)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = LOSSES[name](a, b)
        assert loss.dtype == dtype
        assert torch.equal(loss, expected)
        assert torch.equal(a, kept[0]), "inputs are not modified"
        assert torch.equal(b, kept[1])

    def test_runs_without_data(self, name: str) -> None:
        """On the meta device any branch on values would raise."""
        loss = LOSSES[name](torch.empty(6, 8, device="meta"), torch.empty(2, 6, 8, device="meta"))
        assert loss.shape == ()
        assert loss.device.type == "meta"

    def test_gradient(self, name: str) -> None:
        """By differences, but of what stops a gradient."""
        if name in ("simsiam", "token_alignment", "corrective_lm"):
            return  # tests of their own have theirs
        assert torch.autograd.gradcheck(LOSSES[name], (leaf(normal(6, 8)), leaf(normal(2, 6, 8, seed=1))))

    @pytest.mark.parametrize("value", [0.0, 1.0])
    def test_equal_and_zero_vectors_are_finite(self, name: str, value: float) -> None:
        a, b = leaf(torch.full((6, 8), value)), leaf(torch.full((2, 6, 8), value))
        loss = LOSSES[name](a, b)
        assert torch.isfinite(loss)
        assert all(
            each is None or torch.isfinite(each).all() for each in torch.autograd.grad(loss, (a, b), allow_unused=True)
        )

    def test_nan_is_not_hidden(self, name: str) -> None:
        a = normal(6, 8)
        a[0, 0] = math.nan
        assert LOSSES[name](a, normal(2, 6, 8, seed=1)).isnan()
