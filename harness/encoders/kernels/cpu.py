"""CPU kernels for linear layers and dropout. MKL, torch's own, uses AVX2 on processors other than Intel's; oneDNN uses
their widest instructions: 1.6 to 2.3 times as fast on an AMD EPYC with units of 512 bits, as fast as MKL on Zen 4, and
different by rounding. Dropout takes random integers: torch draws one float per value."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from harness.private import linear_pointwise

ONEDNN_FROM = 2**21
"""Multiplications from which a float32 product goes through oneDNN, a call of which costs about 20 microseconds more."""


@cache
def kernels() -> str:
    """Those of this machine's processor, as a stage's provenance names them: 'mkl' on Intel's, where MKL's float32 products are as fast as
    oneDNN's or faster in every shape (measured on Sapphire Rapids), else 'default'. Never a timing, so that the same stage gives the same bits."""
    try:
        intel = "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        intel = False
    return "mkl" if intel else "default"


class _OneDnn(torch.autograd.Function):
    """y = x w^T + b for x [..., k], w [m, k], b [m] or None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        ctx.save_for_backward(flat, weight)
        ctx.shape = x.shape
        return linear_pointwise(flat, weight, bias).view(*x.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, len(weight))
        for_x, for_weight, for_bias = ctx.needs_input_grad
        return (
            linear_pointwise(gradient, weight.t(), None).view(ctx.shape) if for_x else None,
            linear_pointwise(gradient.t(), x.t(), None) if for_weight else None,
            gradient.sum(dim=0) if for_bias else None,
        )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`, through oneDNN where that is faster: [..., k] -> [..., m]."""
    if (
        x.dtype == weight.dtype == torch.float32
        and x.device.type == "cpu"
        and x.numel() * len(weight) >= ONEDNN_FROM
        and kernels() == "default"
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and not torch.is_autocast_enabled("cpu")
    ):
        found: Tensor = _OneDnn.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return found
    return nn.functional.linear(x, weight, bias)


class Linear(nn.Linear):
    """torch's layer with `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


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


class Dropout(nn.Dropout):
    """torch's layer with these draws."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not 0 < self.p < 1 or input.device.type != "cpu":
            return super().forward(input)
        return (input * dropout_mask(input, self.p)).to(input.dtype)


def use_cpu_kernels(model: nn.Module) -> None:
    """Replace the linear and dropout layers of a transformers model by the CPU kernels; its parameters stay the same objects."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear
        if type(module) is nn.Dropout:
            module.__class__ = Dropout
