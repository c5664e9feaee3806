"""Dropout on a CPU from integers: torch's own draws a float a value, which takes three times as long."""

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


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        keep = drawn(x, probability)
        ctx.save_for_backward(keep)
        ctx.scale = 1 / (1 - probability)
        return torch.mul(x, keep).mul_(ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return torch.mul(gradients[0], keep).mul_(ctx.scale), None


class Dropout(nn.Dropout):
    """The library's layer with these draws."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not 0 < self.p < 1 or input.device.type != "cpu":
            return super().forward(input)
        found: Tensor = _Dropped.apply(input, self.p)  # type: ignore[no-untyped-call]
        return found
