"""The weights that a stage leaves for later ones: named tensors in one safetensors file, checked by their digest."""

from __future__ import annotations

import hashlib
import json

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from harness.storage import Storage, weights_of


def weights_digest(tensors: dict[str, Tensor]) -> str:
    """Digest of the content of named tensors, independent of the file that holds them."""
    whole = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        whole.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        whole.update(tensor.view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return whole.hexdigest()[:32]


def save_weights(tensors: dict[str, Tensor], storage: Storage, key: str, step: str | int = "last") -> str:
    """Save a stage's weights, its final ones or those after update `step`; returns their digest."""
    digest = weights_digest(tensors)
    storage.write(weights_of(key, step), save(tensors, metadata={"digest": digest}))
    return digest


def checked_weights(storage: Storage, key: str, step: str | int = "last") -> tuple[dict[str, Tensor], str]:
    """A stage's weights and their digest. Raises FileNotFoundError, and SafetensorError for a damaged file: one that cannot be
    read, or whose content does not match its digest."""
    return checked(storage.read(weights_of(key, step)))


def checked(content: bytes) -> tuple[dict[str, Tensor], str]:
    """The weights of a file and their digest. Raises SafetensorError as `checked_weights`."""
    tensors: dict[str, Tensor] = load(content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    kept, digest = header.get("__metadata__", {}).get("digest"), weights_digest(tensors)
    if kept is not None and kept != digest:
        raise SafetensorError("its content does not match its digest")
    return tensors, digest
