"""Compact embeddings: fine-tuning trains only the embedding rows that occur in the training set. Without weight decay
the others would not move; the optimizer and the copies of the best state skip them. Evaluation reads the full table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class CompactEmbedding(nn.Module):
    """Replaces an embedding [V, d]: `rows` [U, d] are trained, the embedding itself is read in evaluation."""

    used: Tensor
    place: Tensor

    def __init__(self, embedding: nn.Embedding, used: Tensor) -> None:
        super().__init__()
        self._full = (embedding,)  # in a tuple, where nn.Module does not look for submodules
        self.register_buffer("used", used)
        place = torch.full((embedding.num_embeddings,), -1, dtype=torch.long, device=used.device)
        self.register_buffer("place", place.index_copy(0, used, torch.arange(len(used), device=used.device)))
        self.rows = nn.Parameter(embedding.weight.detach()[used].clone())

    def forward(self, ids: Tensor) -> Tensor:
        if self.training:
            return nn.functional.embedding(self.place[ids], self.rows)
        return nn.functional.embedding(ids, self._full[0].weight.detach())

    def train(self, mode: bool = True) -> CompactEmbedding:
        if not mode:
            self.write()
        super().train(mode)
        return self

    def write(self) -> None:
        """Copy the trained rows into the full table."""
        with torch.no_grad():
            self._full[0].weight.index_copy_(0, self.used, self.rows)


def compact(base: Any, ids: Tensor) -> Callable[[], None]:
    """Replace the word embeddings of an encoder by a compact table of the ids [T] in the training set. Returns a
    function that restores the original embedding, with the trained rows in it."""
    original = base.get_input_embeddings()
    replacement = CompactEmbedding(original, torch.unique(ids))
    base.set_input_embeddings(replacement)

    def restore() -> None:
        replacement.write()  # into the original's own storage
        base.set_input_embeddings(original)

    return restore
