"""Where the queries, keys and values of a packed batch lie while attention is computed: sequences of similar length padded
together, so that little padding is multiplied, with their heads side by side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SIMILAR = 0.7
"""Sequences at least this long, as a share of the longest, are padded together."""


@dataclass(frozen=True)
class Group:
    """b sequences and heads of width L, each with Q queries (L, or 1: its first token's). `queries` and `keys` are their
    rows, `weights` their place among all weights; `bias` [b, 1, L] is -inf at padding, None where there is none."""

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
    """Rows of tokens and heads, H a token, in a padded order: row i of that shows token row `gather[i]` (any at padding).
    `rows` are the token rows that have a place, None for all of them in their order; row t of those lies at `place[t]`."""

    gather: Tensor
    place: Tensor
    rows: Tensor | None = None

    def padded(self, tokens: Tensor) -> Tensor:
        """[T' H, D] -> [P, D]."""
        return tokens.index_select(0, self.gather)

    def scattered(self, tokens: Tensor) -> Tensor:
        """[T' H, D] -> [P, D], zeros at padding."""
        own = tokens[: len(self.place)] if self.rows is None else tokens.index_select(0, self.rows)
        return tokens.new_zeros(len(self.gather), tokens.shape[1]).index_copy_(0, self.place, own)

    def taken(self, padded: Tensor, count: int) -> Tensor:
        """[P, D] -> [count, D]: the rows of tokens, zeros where one has no place."""
        found = padded.new_zeros(count, padded.shape[1])
        if self.rows is None:
            torch.index_select(padded, 0, self.place, out=found[: len(self.place)])
            return found
        return found.index_copy_(0, self.rows, padded.index_select(0, self.place))


@dataclass(frozen=True)
class Layout:
    """All groups of a batch; `area` weights in all."""

    groups: tuple[Group, ...]
    queries: PaddedIndex
    keys: PaddedIndex
    area: int

    def only_first(self) -> Layout:
        """Each sequence asks for its first token alone."""
        groups: list[Group] = []
        firsts: list[Tensor] = []
        row = area = 0
        for group in self.groups:
            count, _, width = group.shape
            firsts.append(self.keys.gather[group.keys].view(count, width)[:, 0])
            queries, weights = slice(row, row + count), slice(area, area + count * width)
            groups.append(Group(queries, group.keys, weights, (count, 1, width), group.bias))
            row, area = queries.stop, weights.stop
        rows = torch.cat(firsts)
        return Layout(tuple(groups), PaddedIndex(rows, torch.arange(row, device=rows.device), rows), self.keys, area)


def layout(lengths: NDArray[np.int64], heads: int, device: torch.device) -> Layout:
    """The layout of sequences with these lengths that ask for all their tokens."""
    order = np.argsort(-lengths, kind="stable")
    starts, sizes = (np.cumsum(lengths) - lengths)[order], lengths[order]
    place = np.empty((int(lengths.sum()), heads), dtype=np.int64)
    gather: list[NDArray[np.int64]] = []
    groups: list[Group] = []
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
        groups.append(Group(keys, keys, weights, (count * heads, width, width), bias))
        row, area, first = keys.stop, weights.stop, last
    tokens_of, place_of = (torch.from_numpy(each).to(device) for each in (np.concatenate(gather), place.ravel()))
    whole = PaddedIndex(tokens_of, place_of)
    return Layout(tuple(groups), whole, whole, area)
