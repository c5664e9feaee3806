"""A batch: what a step reads of some examples, from `prepare` to the loss. On the host it is cut into micro-batches; on a device it has tensors by name.

On a CPU sequences are packed end to end, so that linear layers see no padding; attention restores a padded layout. A GPU takes blocks, which have
few shapes: there padding costs less than the waits and sums that packing needs. Shapes: B examples, S sequences, T tokens in all, of a block of width L
padding included (T = S L), M predicted tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.encoders.kernels.packing import PaddedLayout, block_width, padded_layout
from harness.encoders.tokens import Tokens

ALIGNED = 16
"""Bytes to which each array of a buffer begins."""
FULL_WIDTH = 256
"""From it on a block without padding has no mask: attention then has its fastest kernels, and is what takes the time."""
Arrays = Mapping[str, NDArray[Any]]
Gather = Callable[[Tensor], Tensor]
"""[n, ...] of the rows (or tokens) of one micro-batch -> [N, ...] of the whole batch, with gradient to the own ones."""


@dataclass(frozen=True)
class Batch:
    """`tokens`: the sequences that the encoder reads, in its order, with their (corrupted) ids, and `owner` [S] the example of each. `sequences` [S, ...]: of
    each sequence. `placed`: of each token of the examples' first sequences, which stand before all others, so that those of some examples are one slice; where
    tokens are predicted, booleans `predicted` and `targets` among them. `main`: other sequences that the encoder reads instead. `whole`, `gather`: in a
    micro-batch whose contrast group is cut, the whole batch, and what a forward pass calls at most once for the states of the others.

    `arrays`, once it is laid out: all of these by name; `ids`, `types`, `positions` [T], `first` [S], the places of first tokens, and `mask` [S, 1, 1, L], true
    at real tokens, where there is padding; `where` [M], the places of predicted tokens, ascending; of packed sequences `slots` [T], their places in the padded [S * L] view. `width` L of a block, else 0. `buffer`:
    the bytes of all arrays, on a GPU. `bias` [1 or S, H, L, L] is added to the scores of attention instead of the mask, which it contains.
    `first_tokens_only`: attention computes the states of first tokens only. `layouts`: by number of heads, made on first use.
    """

    tokens: Tokens
    owner: NDArray[np.int64]
    sequences: Arrays = field(default_factory=dict)
    placed: Arrays = field(default_factory=dict)
    main: Batch | None = None
    whole: Batch | None = None
    gather: Gather | None = None
    arrays: Mapping[str, Any] = field(default_factory=dict)
    width: int = 0
    buffer: Tensor | None = None
    bias: Tensor | None = None
    first_tokens_only: bool = False
    layouts: dict[int, PaddedLayout] = field(default_factory=dict)

    @classmethod
    def of(cls, tokens: Tokens, device: torch.device, *, block: bool = False) -> Batch:
        """Sequences alone, on a device."""
        return cls(tokens, np.arange(len(tokens))).on(device, block=block)

    # ------------------------------------------------------------ on the host

    @property
    def size(self) -> int:
        """The number of examples."""
        return int(self.owner[-1]) + 1

    @property
    def num_predicted(self) -> int:
        return int(np.count_nonzero(self.placed.get("predicted", ())))

    def micro_batch(self, rows: slice, gather: Gather | None = None) -> Batch:
        """Some of the examples, with all sequences of each: whole contrast groups, or else with what gathers the others."""
        own = np.flatnonzero((self.owner >= rows.start) & (self.owner < rows.stop))
        first = slice(self.tokens.offsets[rows.start], self.tokens.offsets[rows.stop])
        return Batch(
            self.tokens.take(own),
            self.owner[own] - rows.start,
            sequences={name: array[own] for name, array in self.sequences.items()},
            placed={name: array[first] for name, array in self.placed.items()},
            main=self.main and self.main.micro_batch(rows),
            whole=self if gather else None,
            gather=gather,
        )

    def on(self, device: torch.device, *, block: bool = False) -> Batch:
        """On a device, as an objective reads it: on a GPU in one transfer, for which nothing waits."""
        laid_out = self.laid_out(block=block)
        if device.type != "cuda":
            return laid_out._read(iter([torch.from_numpy(array).to(device) for array in laid_out.every]))
        buffer = staged(laid_out.every, pinned=True).to(device, non_blocking=True)
        return replace(laid_out._read(iter(parts(buffer, laid_out.every))), buffer=buffer)

    def laid_out(self, *, block: bool = False) -> Batch:
        """With its arrays. In a block the number of predicted tokens is rounded up too, so that few shapes occur."""
        if self.arrays:
            return self
        whole = self.whole and self.whole.laid_out(block=block)
        width = 0
        if block and self.tokens.places is None:  # answers are places of packed tokens
            width = whole.width if whole else block_width(int(self.tokens.lengths.max()))
        main = self.main and replace(self.main, arrays=self.main._arranged(width), width=width)
        return replace(self, arrays=self._arranged(width), width=width, main=main, whole=whole)

    def _arranged(self, width: int) -> dict[str, NDArray[Any]]:
        tokens, lengths = self.tokens, self.tokens.lengths
        count, longest, starts = len(lengths), width or int(lengths.max()), tokens.offsets[:-1]
        positions = np.arange(len(tokens.ids)) - np.repeat(starts, lengths)
        slots = np.repeat(np.arange(count) * longest, lengths) + positions
        arrays: dict[str, Any] = {
            "ids": tokens.ids.astype(np.int64),
            "types": tokens.types.astype(np.int64),
            **self.placed,
        }
        if tokens.places is not None:
            arrays["answers"] = tokens.places[:, 0] >= 0
            arrays["answers"][starts] = True
        if width:
            for name, array in arrays.items():
                # At padding zeros, and a token that an embedding of trained words alone has.
                missing = array[0] if name == "ids" else 0
                arrays[name] = np.full((count * width, *array.shape[1:]), missing, array.dtype)
                arrays[name][slots[: len(array)]] = array
            arrays["positions"] = np.minimum(np.arange(width), lengths[:, None] - 1).ravel()
            arrays["first"] = np.arange(count) * width
        else:
            arrays |= {"positions": positions, "first": starts, "slots": slots}
        if "predicted" in arrays:
            arrays["where"] = where = np.flatnonzero(arrays.pop("predicted"))
            if width:
                step = max(16, 1 << max(0, len(where).bit_length() - 2))
                filled = max(step, -(-len(where) // step) * step)
                arrays |= {"where": np.pad(where, (0, filled - len(where))), "counted": np.arange(filled) < len(where)}
        real = np.arange(longest) < lengths[:, None]
        if 0 < width < FULL_WIDTH or not real.all():
            arrays["mask"] = real[:, None, None, :]
        return arrays | dict(self.sequences)

    # ------------------------------------------------------------ on a device

    def fill(self, host: Batch) -> None:
        """Take the values of a batch of the same form, in place."""
        if self.buffer is not None:
            self.buffer.copy_(staged(host.every, pinned=True), non_blocking=True)
            return
        for tensor, array in zip(self.every, host.every, strict=True):
            tensor.copy_(torch.from_numpy(array))

    @property
    def every(self) -> list[Any]:
        """All arrays, also those of other batches in it, in one order."""
        inner = [each.every for each in (self.main, self.whole) if each]
        return [*self.arrays.values(), *(array for arrays in inner for array in arrays)]

    @property
    def form(self) -> tuple[Any, ...]:
        """What is equal for two batches that one captured update takes."""
        return (*self.arrays, *(array.shape for array in self.every))

    def _read(self, tensors: Iterator[Tensor]) -> Batch:
        """The same with other arrays, in the order of `every`."""
        arrays = {name: next(tensors) for name in self.arrays}
        main, whole = (each and each._read(tensors) for each in (self.main, self.whole))
        return replace(self, arrays=arrays, main=main, whole=whole)

    def __getitem__(self, name: str) -> Tensor:
        found: Tensor = self.arrays[name]
        return found

    def at_predicted(self, name: str) -> Tensor:
        """[M, ...]: what is `placed` under a name, of the predicted tokens."""
        return self[name].index_select(0, self["where"])

    @property
    def ids(self) -> Tensor:
        return self["ids"]

    @property
    def first(self) -> Tensor:
        return self["first"]

    @property
    def counted(self) -> Tensor | None:
        """[M]: which of the predicted tokens there are, in a block, where their number is rounded up; None where all are."""
        return self.arrays.get("counted")

    @property
    def mask(self) -> Tensor | None:
        return self.arrays.get("mask")

    @property
    def shape(self) -> tuple[int, int]:
        """(S, L)."""
        return len(self.first), self.width or int(self.tokens.lengths.max())

    @property
    def real(self) -> Tensor:
        """[S, L]: true at real tokens."""
        if self.mask is None:
            return torch.ones(self.shape, dtype=torch.bool, device=self.first.device)
        return self.mask[:, 0, 0]

    @property
    def real_tokens(self) -> Tensor:
        """[T]: true at all tokens but the padding of a block."""
        if not self.width or self.mask is None:
            return torch.ones_like(self.ids, dtype=torch.bool)
        return self.mask.flatten()

    def padded(self, tokens: Tensor) -> Tensor:
        """[T, ...] -> [S, L, ...]; at padding zeros (False), of a block whatever is there."""
        rows, width = self.shape
        if self.mask is not None and not self.width:
            tokens = tokens.new_zeros(rows * width, *tokens.shape[1:]).index_copy(0, self["slots"], tokens)
        return tokens.reshape(rows, width, *tokens.shape[1:])

    def gathered(self, flat: Tensor, tokens: int | None = None) -> Tensor:
        """[S * L, ...] of the padded view -> [`tokens`, ...]: the T tokens (all by default), then arbitrary rows."""
        count = len(self.ids)
        tokens = count if tokens is None else tokens
        if tokens == count and (self.width or self.mask is None):
            return flat
        slots = torch.arange(count, device=flat.device) if self.width else self["slots"]
        return flat.index_select(0, nn.functional.pad(slots, (0, tokens - count)))

    def layout(self, heads: int) -> PaddedLayout:
        """The padded layout of packed sequences for attention with this number of heads."""
        if heads not in self.layouts:
            self.layouts[heads] = padded_layout(self.tokens.lengths, heads, self.first.device)
        return self.layouts[heads].only_first() if self.first_tokens_only else self.layouts[heads]

    def only_first(self) -> Batch:
        """For attention that computes the states of first tokens only; those of other tokens are undefined."""
        return replace(self, first_tokens_only=True)

    def with_bias(self, bias: Tensor) -> Batch:
        """With `bias` [1, H, L, L] on the scores; -inf at padding, but never in a whole row, since every sequence has a token."""
        return replace(self, bias=bias if self.mask is None else bias.masked_fill(~self.mask, float("-inf")))


def _places(arrays: list[Any]) -> Iterator[tuple[Any, slice]]:
    """Of each array its bytes in a buffer of all."""
    at = 0
    for array in arrays:
        yield array, slice(at, at + array.nbytes)
        at += -(-array.nbytes // ALIGNED) * ALIGNED


def staged(arrays: list[NDArray[Any]], *, pinned: bool) -> Tensor:
    """Arrays on the host as one buffer of bytes, in memory that a GPU reads by itself where it is `pinned`."""
    places = list(_places(arrays))
    size = -(-places[-1][1].stop // ALIGNED) * ALIGNED
    buffer = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    for array, place in places:
        buffer.numpy()[place].view(array.dtype).reshape(array.shape)[...] = array
    return buffer


def parts(buffer: Tensor, arrays: list[NDArray[Any]]) -> list[Tensor]:
    """The tensors in a buffer of these arrays: views of it."""
    return [buffer[place].view(torch.from_numpy(array[:0]).dtype).view(array.shape) for array, place in _places(arrays)]
