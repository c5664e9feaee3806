"""Packed batches: sequences end to end, so that linear layers see no padding; attention restores a padded layout, in
training on a CPU with sequences of similar length together and their heads side by side. A GPU takes blocks, which have
few shapes: there padding costs less than the waits and sums that packing needs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

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
FULL_WIDTH = 256
"""From it on a block without padding has no mask: attention then has its fastest kernels, and is what takes the time."""


@dataclass(frozen=True)
class Packing:
    """B sequences, packed end to end into T tokens; or a block, in which each takes L tokens, the last of them padding (T = B L).

    `shape`: (B, L). Of packed sequences `lengths` [B], and `slots` [T], their positions in the padded [B * L] view; of a block None.
    `positions` [T]; `mask` [B, 1, 1, L]: true at real tokens (None where there is no padding); `first` [B]: the first tokens. `bias`
    [1 or B, H, L, L] is added to the scores instead of the mask, which it contains. `first_tokens_only`: attention computes
    the states of first tokens only. `layouts`: by number of heads, made on first use."""

    shape: tuple[int, int]
    positions: Tensor
    first: Tensor
    mask: Tensor | None
    lengths: NDArray[np.int64] | None = None
    slots: Tensor | None = None
    bias: Tensor | None = None
    first_tokens_only: bool = False
    layouts: dict[int, PaddedLayout] = field(default_factory=dict, compare=False)

    @property
    def real(self) -> Tensor:
        """[B, L]: true at real tokens."""
        if self.mask is None:
            return torch.ones(self.shape, dtype=torch.bool, device=self.first.device)
        return self.mask[:, 0, 0]

    @property
    def real_tokens(self) -> Tensor:
        """[T]: true at all tokens but the padding of a block."""
        if self.slots is not None or self.mask is None:
            return torch.ones_like(self.positions, dtype=torch.bool)
        return self.mask.flatten()

    def padded(self, tokens: Tensor) -> Tensor:
        """[T, ...] -> [B, L, ...]; at padding zeros (False), of a block whatever is there."""
        rows, width = self.shape
        if self.mask is not None and self.slots is not None:
            tokens = tokens.new_zeros(rows * width, *tokens.shape[1:]).index_copy(0, self.slots, tokens)
        return tokens.reshape(rows, width, *tokens.shape[1:])

    def gathered(self, flat: Tensor, tokens: int | None = None) -> Tensor:
        """[B * L, ...] of the padded view -> [`tokens`, ...]: the T tokens (all by default), then arbitrary rows."""
        count = len(self.positions)
        tokens = count if tokens is None else tokens
        if tokens == count and (self.slots is None or self.mask is None):
            return flat
        slots = torch.arange(count, device=flat.device) if self.slots is None else self.slots
        return flat.index_select(0, nn.functional.pad(slots, (0, tokens - count)))

    def layout(self, heads: int) -> PaddedLayout:
        """The padded layout for attention with this number of heads."""
        if heads not in self.layouts:
            assert self.lengths is not None
            self.layouts[heads] = padded_layout(self.lengths, heads, self.first.device)
        return self.layouts[heads].only_first() if self.first_tokens_only else self.layouts[heads]

    def only_first(self) -> Packing:
        """For attention that computes the states of first tokens only; those of other tokens are undefined."""
        return replace(self, first_tokens_only=True)

    def with_bias(self, bias: Tensor) -> Packing:
        """With `bias` [1, H, L, L] on the scores; -inf at padding, but never in a whole row, since every sequence has a token."""
        return replace(self, bias=bias if self.mask is None else bias.masked_fill(~self.mask, float("-inf")))


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


def layout_arrays(lengths: NDArray[np.int64], width: int = 0) -> dict[str, NDArray[Any]]:
    """What a packing of sequences with these lengths holds, by name; of a block with `width` tokens a sequence, where that is above 0."""
    longest, starts = width or int(lengths.max()), np.cumsum(lengths) - lengths
    real = np.arange(longest) < lengths[:, None]
    full = bool(real.all()) and (not width or width >= FULL_WIDTH)
    found: dict[str, NDArray[Any]] = {} if full else {"mask": real[:, None, None, :]}
    if width:
        positions = np.minimum(np.arange(width), lengths[:, None] - 1).ravel()
        return found | {"positions": positions, "first": np.arange(len(lengths)) * width}
    positions = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
    slots = np.repeat(np.arange(len(lengths)) * longest, lengths) + positions
    return found | {"positions": positions, "first": starts, "slots": slots}
