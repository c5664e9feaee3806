"""The padded layout of packed sequences that attention restores in training on a CPU: sequences of similar length together, their heads side by
side. And the few sizes that occur of whatever is padded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SIMILAR = 0.7
"""Sequences at least this long, as a share of the longest, are padded together."""


@dataclass(frozen=True)
class PaddedGroup:
    """b sequences and heads of width L, each with Q queries (L, or 1: its first token's). `queries` and `keys` are their
    rows, `weights` their slice of all attention weights; `bias` [b, 1, L] is -inf at padding, None where there is none."""

    queries: slice
    keys: slice
    weights: slice
    shape: tuple[int, int, int]
    bias: Tensor | None

    def queries_of(self, whole: Tensor) -> Tensor:
        """[rows, D] -> [b, Q, D]."""
        return whole[self.queries].view(self.shape[0], self.shape[1], -1)

    def keys_of(self, whole: Tensor) -> Tensor:
        """[rows, D] -> [b, L, D]."""
        return whole[self.keys].view(self.shape[0], self.shape[2], -1)

    def weights_of(self, whole: Tensor) -> Tensor:
        """[area] -> [b, Q, L]."""
        return whole[self.weights].view(self.shape)


@dataclass(frozen=True)
class PaddedIndex:
    """The map between rows of tokens and heads (H per token) and padded rows: padded row i holds token row `gather[i]` (any
    row at padding). `rows` are the token rows in the layout, None for all of them in order; the t-th of those is padded row
    `slots[t]`."""

    gather: Tensor
    slots: Tensor
    rows: Tensor | None = None

    def padded(self, tokens: Tensor) -> Tensor:
        """[T' H, D] -> [P, D]."""
        return tokens.index_select(0, self.gather)

    def pad_gradient(self, tokens: Tensor) -> Tensor:
        """[T' H, D] -> [P, D], zeros at padding."""
        own = tokens[: len(self.slots)] if self.rows is None else tokens.index_select(0, self.rows)
        return tokens.new_zeros(len(self.gather), tokens.shape[1]).index_copy_(0, self.slots, own)

    def unpad(self, padded: Tensor, count: int) -> Tensor:
        """[P, D] -> [count, D]: rows of tokens, zeros for those that are not in the layout."""
        found = padded.new_zeros(count, padded.shape[1])
        if self.rows is None:
            torch.index_select(padded, 0, self.slots, out=found[: len(self.slots)])
            return found
        return found.index_copy_(0, self.rows, padded.index_select(0, self.slots))


@dataclass(frozen=True)
class PaddedLayout:
    """All groups of a batch, with `area` attention weights in total."""

    groups: tuple[PaddedGroup, ...]
    queries: PaddedIndex
    keys: PaddedIndex
    area: int

    def only_first(self) -> PaddedLayout:
        """The layout with one query per sequence: its first token."""
        groups: list[PaddedGroup] = []
        firsts: list[Tensor] = []
        row = area = 0
        for group in self.groups:
            count, _, width = group.shape
            firsts.append(self.keys.gather[group.keys].view(count, width)[:, 0])
            queries, weights = slice(row, row + count), slice(area, area + count * width)
            groups.append(PaddedGroup(queries, group.keys, weights, (count, 1, width), group.bias))
            row, area = queries.stop, weights.stop
        rows = torch.cat(firsts)
        index = PaddedIndex(rows, torch.arange(row, device=rows.device), rows)
        return PaddedLayout(tuple(groups), index, self.keys, area)


def padded_layout(lengths: NDArray[np.int64], heads: int, device: torch.device) -> PaddedLayout:
    """The layout of sequences of these lengths, with all tokens as queries."""
    order = np.argsort(-lengths, kind="stable")
    starts, sizes = (np.cumsum(lengths) - lengths)[order], lengths[order]
    place = np.empty((int(lengths.sum()), heads), dtype=np.int64)
    gather: list[NDArray[np.int64]] = []
    groups: list[PaddedGroup] = []
    head = np.arange(heads)
    row = area = first = 0
    while first < len(sizes):
        width = int(sizes[first])
        last = int(np.searchsorted(-sizes, -SIMILAR * width, side="right"))
        column, count = np.arange(width), last - first
        real = column < sizes[first:last, None]
        tokens = np.where(real, starts[first:last, None] + column, 0)
        gather.append((tokens[:, None, :] * heads + head[:, None]).ravel())
        rows = row + np.arange(count * heads * width).reshape(count, heads, width)
        place[tokens[real]] = rows.transpose(0, 2, 1)[real]
        bias = None
        if not real.all():
            closed = np.where(real, np.float32(0), np.float32("-inf"))
            bias = torch.from_numpy(np.repeat(closed, heads, axis=0)[:, None, :]).to(device)
        keys = slice(row, row + rows.size)
        weights = slice(area, area + rows.size * width)
        groups.append(PaddedGroup(keys, keys, weights, (count * heads, width, width), bias))
        row, area, first = keys.stop, weights.stop, last
    tokens_of, place_of = (torch.from_numpy(each).to(device) for each in (np.concatenate(gather), place.ravel()))
    whole = PaddedIndex(tokens_of, place_of)
    return PaddedLayout(tuple(groups), whole, whole, area)


WIDTHS = (8, 16, 24, 32, 48, 64, 96, 128)
"""Of blocks; longer ones are multiples of 64."""


def step_size(count: int) -> int:
    """Round up to a multiple of 16, or of 1/16 of the power of two below. Few sizes occur, so each kernel is built once."""
    step = max(16, 1 << max(0, count.bit_length() - 5))
    return -(-count // step) * step


def padded_to_step(tensor: Tensor) -> Tensor:
    """[n] -> the same with its last element repeated up to a rounded number."""
    return torch.cat([tensor, tensor[-1:].expand(step_size(len(tensor)) - len(tensor))])


def block_width(longest: int) -> int:
    """The width of a block: few occur, so that few updates are captured."""
    return next((width for width in WIDTHS if width >= longest), -(-longest // 64) * 64)
