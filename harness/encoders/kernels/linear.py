"""Linear layers in single precision on a CPU go through oneDNN, forward and backward.

torch multiplies float32 matrices with MKL, which uses AVX2 on processors other than Intel's; oneDNN uses the widest
instructions of the processor. On an AMD EPYC with AVX-512 the same product is 1.6 to 2.3 times as fast, and differs by
rounding. On Intel's own processors MKL stays (`processor.py`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from harness.encoders.kernels import processor
from harness.encoders.kernels.dropout import Dropout
from harness.private import linear_pointwise


class _OneDnn(torch.autograd.Function):
    """y = x w^T + b for x [..., k], w [m, k], b [m] or None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        ctx.save_for_backward(flat, weight)
        ctx.shape = x.shape
        return _product(flat, weight, bias).view(*x.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, len(weight))
        for_x, for_weight, for_bias = ctx.needs_input_grad
        return (
            _product(gradient, weight.t(), None).view(ctx.shape) if for_x else None,
            _product(gradient.t(), x.t(), None) if for_weight else None,
            gradient.sum(dim=0) if for_bias else None,
        )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return linear_pointwise(x, weight, bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`, through oneDNN where that is faster: [..., k] -> [..., m]."""
    if (
        x.dtype == weight.dtype == torch.float32
        and x.device.type == "cpu"
        and 0 < processor.kernels().onednn_from <= x.numel() * len(weight)
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


def use_cpu_kernels(model: nn.Module) -> None:
    """Replace the linear and dropout layers of a transformers model by the CPU kernels; its parameters stay the same objects."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear
        if type(module) is nn.Dropout:
            module.__class__ = Dropout
