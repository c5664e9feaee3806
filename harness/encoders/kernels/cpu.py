"""CPU kernels for linear layers and dropout, and which of them a kind of processor runs. MKL, torch's own, uses AVX2 on
processors other than Intel's; oneDNN uses their widest instructions: 1.6 to 2.3 times as fast on an AMD EPYC with
AVX-512, and different by rounding. Dropout takes random integers: torch draws one float per value, which takes three
times as long."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from harness.private import linear_pointwise


@dataclass(frozen=True)
class Kernels:
    """`name` is recorded in a stage's provenance. `onednn_from`: multiplications from which a float32 product goes through oneDNN and
    not through MKL (0: none does)."""

    name: str
    onednn_from: int


DEFAULT = Kernels("default", 2**21)
"""Measured on AMD's Zen 4. MKL keeps to AVX2 on processors that are not Intel's; a call of oneDNN costs about 20 microseconds more."""
INTEL = Kernels("mkl", 0)
"""Measured on Sapphire Rapids: MKL's float32 products are as fast as oneDNN's or faster in every shape."""


@cache
def kernels() -> Kernels:
    """Those of this machine's processor: a fixed choice, never a timing, so that the same stage gives the same bits."""
    try:
        intel = "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        intel = False
    return INTEL if intel else DEFAULT


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
        and 0 < kernels().onednn_from <= x.numel() * len(weight)
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


def use_cpu_kernels(model: nn.Module) -> None:
    """Replace the linear and dropout layers of a transformers model by the CPU kernels; its parameters stay the same objects."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear
        if type(module) is nn.Dropout:
            module.__class__ = Dropout
