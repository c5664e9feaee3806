"""Dropout on a CPU from random integers. torch draws one float per value, which takes three times as long."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def drawn(like: Tensor, probability: float) -> Tensor:
    """Booleans of the shape of `like`, each false with `probability` (to 2^-32), from torch's own generator."""
    count = like.numel()
    bits = torch.empty((count + 1) // 2, dtype=torch.int64).random_(-(2**63), None)
    threshold = round(probability * 2**32) - 2**31
    return (bits.view(torch.int32)[:count] >= threshold).view(like.shape)


def rescaled(values: Tensor, keep: Tensor, probability: float) -> Tensor:
    """The kept values (or their gradient), scaled so that the expectation stays the same."""
    return torch.mul(values, keep).mul_(1 / (1 - probability))


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        keep = drawn(x, probability)
        ctx.save_for_backward(keep)
        ctx.probability = probability
        return rescaled(x, keep, probability)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return rescaled(gradients[0], keep, ctx.probability), None


class Dropout(nn.Dropout):
    """torch's layer with these draws."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not 0 < self.p < 1 or input.device.type != "cpu":
            return super().forward(input)
        found: Tensor = _Dropped.apply(input, self.p)  # type: ignore[no-untyped-call]
        return found
