"""Attention over packed batches: linear layers see the tokens of a batch end to end, attention the padded view.

transformers lets a model run a registered attention function; ours scatters queries, keys and values from [1, T] to
[B, L], runs scaled dot-product attention with the padding masked, and gathers the result back. Nothing else of the
library's model changes, and no padding token is ever computed in a linear layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AttentionInterface

NAME = "harness_packed"


@dataclass(frozen=True)
class Packing:
    """How B sequences of `lengths` [B] lie end to end in T tokens: `slots` [T] are their places in the padded [B * L]
    view, `mask` [B, 1, 1, L] is true at real tokens (None when all have one length), `first` [B] the first tokens.
    `bias` [1 or B, H, L, L] is added to the scores in place of the mask, which it contains."""

    lengths: NDArray[np.int64]
    slots: Tensor
    positions: Tensor
    first: Tensor
    mask: Tensor | None
    bias: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.lengths), int(self.lengths.max())

    def padded(self, tokens: Tensor) -> Tensor:
        """[T, ...] -> [B, L, ...], zeros (False) at padding."""
        rows, width = self.shape
        if self.mask is not None:
            tokens = tokens.new_zeros(rows * width, *tokens.shape[1:]).index_copy(0, self.slots, tokens)
        return tokens.reshape(rows, width, *tokens.shape[1:])

    def with_bias(self, bias: Tensor) -> Packing:
        """With `bias` [1, H, L, L] on the scores; -inf at padding, never in a whole row: every sequence has a token."""
        return replace(self, bias=bias if self.mask is None else bias.masked_fill(~self.mask, float("-inf")))


def packing(lengths: NDArray[np.int64], device: torch.device) -> Packing:
    """The packing of sequences with these lengths, on a device."""
    width = int(lengths.max())
    starts = np.cumsum(lengths) - lengths
    positions = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
    slots = np.repeat(np.arange(len(lengths)) * width, lengths) + positions
    mask = None
    if int(lengths.min()) < width:
        real = np.arange(width)[None, :] < lengths[:, None]
        mask = torch.from_numpy(real[:, None, None, :]).to(device)
    return Packing(
        lengths,
        torch.from_numpy(slots).to(device),
        torch.from_numpy(positions).to(device),
        torch.from_numpy(starts).to(device),
        mask,
    )


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    packing: Packing,
    **unused: Any,
) -> tuple[Tensor, None]:
    """q, k, v [1, H, T, D] -> [1, T, H, D]."""
    rows, width = packing.shape
    _, heads, tokens, depth = query.shape

    def pad(x: Tensor) -> Tensor:
        return packing.padded(x[0].transpose(0, 1)).transpose(1, 2)

    mask = packing.mask if packing.bias is None else packing.bias.to(query.dtype)
    out = nn.functional.scaled_dot_product_attention(
        pad(query), pad(key), pad(value), attn_mask=mask, dropout_p=dropout, scale=scaling
    )
    flat = out.transpose(1, 2).reshape(rows * width, heads, depth)
    if packing.mask is not None:
        flat = flat.index_select(0, packing.slots)
    return flat.reshape(1, tokens, heads, depth), None


AttentionInterface.register(NAME, packed_attention)
