"""The heads of classifiers: what they read of a batch, and their outputs. A head knows its layers; a loss does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from harness.encoders.models.text_encoder import Batch, TextEncoder
from harness.objectives.base import draw_linear
from harness.objectives.definitions import HEAD


class HeadOutputs(NamedTuple):
    """By row: `state` [B, d] of the encoder as the head reads it, `pooled` [B, d] before the head's last layer, `logits` [B, C]."""

    state: Tensor
    pooled: Tensor
    logits: Tensor


class RowHead(nn.Module):
    """One vector of outputs a row, from its first token: dropout, dense, tanh, dropout, linear (RoBERTa's own head, for every
    encoder: docs/papers.md D1)."""

    def __init__(self, encoder: TextEncoder, outputs: int, dropout: float, seed: int) -> None:
        super().__init__()
        size, spread = encoder.hidden_size, encoder.config.initializer_range
        self.drop = nn.Dropout(dropout)
        self.dense = draw_linear(nn.Linear(size, size), spread, seed, "classification_dense")
        self.out = draw_linear(nn.Linear(size, outputs), spread, seed, "classification_out")

    def forward(self, encoder: TextEncoder, batch: Batch) -> HeadOutputs:
        first = encoder(batch, batch.packing.first)
        pooled = torch.tanh(self.dense(self.drop(first)))
        return HeadOutputs(first, pooled, self.out(self.drop(pooled)))

    def parts(self) -> dict[str, Tensor]:
        """Its weights as 'classifier/name' on the CPU, that a later stage can start from."""
        return {f"{HEAD}/{name}": tensor.to("cpu", copy=True) for name, tensor in self.state_dict().items()}

    def load_parts(self, tensors: Mapping[str, Tensor]) -> None:
        """Raises KeyError where the weights have no head."""
        self.load_state_dict({name: tensors[f"{HEAD}/{name}"] for name in self.state_dict()})
