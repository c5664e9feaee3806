"""A batch: what an encoder and a loss read of some examples, as arrays on the host and then as tensors on a device.

Shapes: S sequences, T tokens in all, of a block of width W padding included (T = S W), M predicted tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.encoders.kernels.packing import Packing, block_width, layout_arrays
from harness.encoders.tokens import Tokens

ALIGNED = 16
"""Bytes to which each array of a buffer begins."""
Gather = Callable[[Tensor], Tensor]
"""[n, ...] of the rows (or tokens) of one micro-batch -> [N, ...] of the whole batch, with gradient to the own ones."""


@dataclass(frozen=True)
class Batch:
    """`arrays` by name: `ids`, `types` [T], those of the packing, and what an objective adds. `shape`: sequences, and tokens of the longest one or
    the width of a block; `lengths` [S] on the host, None of a block. `main`: other sequences that the encoder reads instead. `whole`, `gather`: in a
    micro-batch whose contrast group is cut, the whole batch, and what a forward pass calls at most once for the states of the others. `buffer`: the bytes of all arrays, on a GPU."""

    arrays: Mapping[str, Any]
    shape: tuple[int, int]
    lengths: NDArray[np.int64] | None = None
    main: Batch | None = None
    whole: Batch | None = None
    gather: Gather | None = None
    buffer: Tensor | None = None

    @classmethod
    def of(cls, tokens: Tokens, device: torch.device, *, block: bool = False) -> Batch:
        return cls.on_host(tokens, width_of(tokens) if block else 0).to(device)

    @classmethod
    def on_host(cls, tokens: Tokens, width: int = 0) -> Batch:
        """The same on the host; a block where `width` is above 0."""
        lengths = tokens.lengths
        arrays: dict[str, Any] = {"ids": tokens.ids.astype(np.int64), "types": tokens.types.astype(np.int64)}
        if tokens.places is not None:
            allowed = tokens.places[:, 0] >= 0
            allowed[tokens.offsets[:-1]] = True
            arrays["answers"] = allowed
        if width:
            slots = slots_of(tokens, width)
            for name, array in arrays.items():
                # At padding a token that an embedding of trained words alone has.
                arrays[name] = np.full(len(lengths) * width, array[0])
                arrays[name][slots] = array
        shape = len(lengths), width or int(lengths.max())
        return cls(arrays | layout_arrays(lengths, width), shape, None if width else lengths)

    def __getitem__(self, name: str) -> Tensor:
        found: Tensor = self.arrays[name]
        return found

    @property
    def ids(self) -> Tensor:
        return self["ids"]

    @property
    def types(self) -> Tensor:
        return self["types"]

    @property
    def counted(self) -> Tensor | None:
        """[M]: which of the predicted tokens there are, in a block, where their number is rounded up; None where all are."""
        return self.arrays.get("counted")

    @cached_property
    def packing(self) -> Packing:
        mask, slots = self.arrays.get("mask"), self.arrays.get("slots")
        return Packing(self.shape, self["positions"], self["first"], mask, self.lengths, slots)

    def with_ids(self, ids: Tensor) -> Batch:
        return replace(self, arrays={**self.arrays, "ids": ids})

    def to(self, device: torch.device) -> Batch:
        """On a device: to a GPU in one transfer, for which nothing waits."""
        if device.type != "cuda":
            return self._read(iter([torch.from_numpy(array).to(device) for array in self.every]))
        buffer = staged(self.every, pinned=True).to(device, non_blocking=True)
        return replace(self._read(iter(parts(buffer, self.every))), buffer=buffer)

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


def width_of(tokens: Tokens) -> int:
    """Of a block with these tokens; 0 where answers are looked for, whose places are those of packed tokens."""
    return 0 if tokens.places is not None else block_width(int(tokens.lengths.max()))


def slots_of(tokens: Tokens, width: int) -> NDArray[np.int64]:
    """[T]: the place of each token in a block."""
    starts = np.arange(len(tokens)) * width - tokens.offsets[:-1]
    return np.arange(len(tokens.ids)) + np.repeat(starts, tokens.lengths)


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
