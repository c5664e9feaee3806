"""Packed batches: sequences end to end. Linear layers see tokens and no padding; attention restores the padded layout."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.encoders.kernels.padded_layout import PaddedLayout, padded_layout


@dataclass(frozen=True)
class Packing:
    """B sequences of `lengths` [B], packed end to end into T tokens. `slots` [T]: their positions in the padded [B * L] view;
    `mask` [B, 1, 1, L]: true at real tokens (None when all sequences have one length); `first` [B]: the first tokens. `bias`
    [1 or B, H, L, L] is added to the scores instead of the mask, which it contains. `first_tokens_only`: attention computes
    the states of first tokens only. `layouts`: by number of heads, made on first use."""

    lengths: NDArray[np.int64]
    slots: Tensor
    positions: Tensor
    first: Tensor
    mask: Tensor | None
    bias: Tensor | None = None
    first_tokens_only: bool = False
    layouts: dict[int, PaddedLayout] = field(default_factory=dict, compare=False)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.lengths), int(self.lengths.max())

    def padded(self, tokens: Tensor) -> Tensor:
        """[T, ...] -> [B, L, ...], zeros (False) at padding."""
        rows, width = self.shape
        if self.mask is not None:
            tokens = tokens.new_zeros(rows * width, *tokens.shape[1:]).index_copy(0, self.slots, tokens)
        return tokens.reshape(rows, width, *tokens.shape[1:])

    def gathered(self, flat: Tensor, tokens: int) -> Tensor:
        """[B * L, ...] of the padded view -> [tokens, ...]: the T tokens, then arbitrary rows."""
        if self.mask is None and tokens == len(self.slots):
            return flat
        return flat.index_select(0, nn.functional.pad(self.slots, (0, tokens - len(self.slots))))

    def layout(self, heads: int) -> PaddedLayout:
        """The padded layout for attention with this number of heads."""
        if heads not in self.layouts:
            self.layouts[heads] = padded_layout(self.lengths, heads, self.slots.device)
        return self.layouts[heads].only_first() if self.first_tokens_only else self.layouts[heads]

    def first_layout(self, heads: int) -> PaddedLayout:
        """The same with first tokens alone as queries, and rows of them alone."""
        return self.layout(heads).only_first(self.first)

    def only_first(self) -> Packing:
        """For attention that computes the states of first tokens only; those of other tokens are undefined."""
        return replace(self, first_tokens_only=True)

    def with_bias(self, bias: Tensor) -> Packing:
        """With `bias` [1, H, L, L] on the scores; -inf at padding, but never in a whole row, since every sequence has a token."""
        return replace(self, bias=bias if self.mask is None else bias.masked_fill(~self.mask, float("-inf")))


def rounded(count: int) -> int:
    """Round up to a multiple of 16, or of 1/16 of the power of two below. Few sizes occur, so each kernel is built once."""
    step = max(16, 1 << max(0, count.bit_length() - 5))
    return -(-count // step) * step


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
