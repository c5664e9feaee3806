"""How a device computes: kernels that repeat their bits, the precisions of training, and the scale of the loss in fp16, whose smallest gradients would be 0.

Products are computed in half precision (autocast); weights, their gradients and losses are float32. The scale is torch's
`GradScaler` with its defaults: it begins at 2^16, doubles after 2,000 updates in a row, and halves where a gradient is not finite.
Such an update is skipped: weights and AdamW's state stay.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.amp import GradScaler

from harness.errors import DivergedError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The type of products by precision."""
LEAST_SCALE = 1.0
"""Below it gradients overflow without being scaled, and no update can be expected any more."""


def grad_scaler(device: torch.device, precision: str) -> GradScaler:
    """For the updates of one stage. In another precision than fp16 it changes nothing, and has no state."""
    return GradScaler(device.type, enabled=precision == "fp16")


def loss_scale(scaler: GradScaler, optimizer: torch.optim.Optimizer, step: int, steps: int) -> dict[str, float]:
    """Measures of a stage of `steps` updates after `step` of them: the scale, and how many updates were skipped since its start.
    None in another precision than fp16.

    Raises DivergedError where the scale is below LEAST_SCALE, and where all updates of the stage were skipped.
    """
    if not scaler.is_enabled():
        return {}
    # AdamW counts the updates that it makes, for its bias correction. A checkpoint holds that count already.
    made = torch.stack([state["step"] for state in optimizer.state.values()]).max()
    scale, skipped = scaler.get_scale(), step - int(made)
    if scale < LEAST_SCALE or skipped == steps:
        raise DivergedError(
            f"the gradients overflow fp16: {skipped} of {step} updates were skipped, down to a loss scale of {scale:.15g}; "
            "train in bf16 or fp32"
        )
    return {"loss_scale": scale, "skipped_updates": float(skipped)}


@contextmanager
def repeatable_kernels(device: torch.device) -> Iterator[None]:
    """Let torch use only kernels that give the same bits each time, where `device` is a CUDA device; afterwards what was set before.

    Without this the backward pass of attention and sums at repeated indices add in no fixed order. An operation without such a
    kernel raises RuntimeError. cuDNN's attention, which torch prefers in half precision, is left out: it plans anew for each shape of
    a batch, and here nearly every batch has another one (docs/gpu.md).
    """
    if device.type != "cuda":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it torch refuses the products of cuBLAS
    memory: Any = torch.utils.deterministic
    attention: Any = torch.backends.cuda
    deterministic, warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    fills, cudnn = memory.fill_uninitialized_memory, attention.cudnn_sdp_enabled()
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False  # a kernel for each new tensor, for nothing
    attention.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warns)
        memory.fill_uninitialized_memory = fills
        attention.enable_cudnn_sdp(cudnn)
