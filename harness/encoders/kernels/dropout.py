"""Dropout on a CPU from random integers. torch draws one float per value, which takes three times as long."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def dropout_mask(like: Tensor, probability: float) -> Tensor:
    """The factors of dropout for values of this shape and precision: each 0 with `probability` (to 2^-32), else 1 / (1 -
    `probability`). From torch's own generator. In single precision for values in half, whose products are then rounded once."""
    count = like.numel()
    bits = torch.empty((count + 1) // 2, dtype=torch.int64).random_(-(2**63), None)
    # Integers, and in place: comparisons that make booleans, and products with those, take four times as long.
    kept = bits.view(torch.int32)[:count].ge_(round(probability * 2**32) - 2**31).view(like.shape)
    if like.dtype == torch.float64:
        kept = kept.double()
    return kept * (1 / (1 - probability))


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        mask = dropout_mask(x, probability)
        ctx.save_for_backward(mask)
        return (x * mask).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return (gradients[0] * mask).to(gradients[0].dtype), None


class Dropout(nn.Dropout):
    """torch's layer with these draws."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not 0 < self.p < 1 or input.device.type != "cpu":
            return super().forward(input)
        found: Tensor = _Dropped.apply(input, self.p)  # type: ignore[no-untyped-call]
        return found
