"""Which kernels torch may use while a stage trains on a CUDA device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


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
