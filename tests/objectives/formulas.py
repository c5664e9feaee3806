"""Shared by the tests of the losses: seeded tensors, a cosine in Python floats, and a check for finite values and gradients."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def integers(high: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def chance(probability: float, *shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < probability


def leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_()


def assert_finite_gradients(loss: Tensor, *inputs: Tensor) -> None:
    assert torch.isfinite(loss)
    for gradient in torch.autograd.grad(loss, inputs, retain_graph=True):
        assert torch.isfinite(gradient).all()


def assert_connected_zero(loss: Tensor, *inputs: Tensor) -> None:
    assert loss.item() == 0.0
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way either
        gradients = torch.autograd.grad(loss, inputs, retain_graph=True)
    for gradient, tensor in zip(gradients, inputs, strict=True):
        assert torch.equal(gradient, torch.zeros_like(tensor))


def cosine(a: list[float], b: list[float]) -> float:
    norms = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / norms if norms else 0.0
