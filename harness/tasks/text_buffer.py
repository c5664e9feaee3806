"""Rows of texts as one UTF-8 buffer, which all row sets that are taken from it share, and the hashes of its rows.

A million texts of 130 characters take 310 MB as Python strings in tuples and 145 MB here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint64]
Index = NDArray[np.int32]
"""Rows of a buffer."""
Pieces = Callable[[list[bytes], list[int]], list[bytes]]
"""What is hashed of each of some texts, from their bytes and their numbers of characters."""

BLOCK = 2048
"""Rows that are hashed or decoded at a time."""


class TextBuffer:
    """n rows of `columns` texts each, row after row: text j is `raw[ends[j]:ends[j + 1]]`; `characters` int32 [n * columns].

    Raises ValueError where the texts are not whole rows.
    """

    def __init__(self, raw: bytes, sizes: NDArray[np.int32], characters: NDArray[np.int32], columns: int) -> None:
        if len(sizes) % max(1, columns):
            raise ValueError(f"{len(sizes)} texts are no rows of {columns}")
        self.columns, self._raw, self._characters = columns, raw, characters
        self._ends = np.zeros(len(sizes) + 1, dtype=np.int64)
        np.cumsum(sizes, out=self._ends[1:])
        self._hashes: dict[str, tuple[Ids, NDArray[np.bool_]]] = {}

    def __len__(self) -> int:
        return (len(self._ends) - 1) // max(1, self.columns)

    @classmethod
    def of(cls, rows: Sequence[tuple[str, ...]]) -> TextBuffer:
        """A buffer of rows. Raises ValueError where they differ in their number of texts."""
        columns = len(rows[0]) if rows else 0
        if any(len(row) != columns for row in rows):
            raise ValueError("rows differ in their number of texts")
        writer = TextWriter(columns)
        for start in range(0, len(rows), BLOCK):
            writer.add(list(chain.from_iterable(rows[start : start + BLOCK])))
        return writer.buffer()

    def texts(self, rows: Index) -> Iterator[tuple[str, ...]]:
        """Each of `rows` as strings."""
        for _, texts in self._blocks(rows):
            decoded = [text.decode("utf-8", "surrogatepass") for text in texts]
            yield from zip(*[iter(decoded)] * self.columns, strict=True)

    def characters(self, rows: Index) -> int:
        """Characters of `rows` in all."""
        return int(self._characters.reshape(len(self), -1)[rows].sum()) if len(rows) else 0

    def contents(self, rows: Index) -> Iterator[list[bytes]]:
        """One string of bytes for each of `rows`, different for different texts; a block of rows at a time."""
        for flat, texts in self._blocks(rows):
            yield self._of_rows(counted(texts, self._characters[flat].tolist()))

    def hashes(self, name: str, rows: Index, pieces: Pieces, each: bool = False) -> Ids:
        """Hash of each of `rows`, uint64 [m], by the `pieces` of its texts; with `each`, of each of its texts, [m, columns].

        `name` stands for `pieces`: the hash of a row is computed once, whichever row sets ask for it.
        """
        shape = (len(self), self.columns) if each else (len(self),)
        if name not in self._hashes:
            self._hashes[name] = np.zeros(shape, dtype=np.uint64), np.zeros(len(self), dtype=np.bool_)
        found, known = self._hashes[name]
        missing = np.zeros(len(self), dtype=np.bool_)
        missing[rows] = True
        new, start = np.flatnonzero(missing & ~known), 0
        for flat, texts in self._blocks(new):
            made = pieces(texts, self._characters[flat].tolist())
            hashed = hash_each(made if each else self._of_rows(made)).reshape(-1, *shape[1:])
            found[new[start : start + len(hashed)]] = hashed
            start += len(hashed)
        known[new] = True
        return found[rows]

    def only(self, rows: Index) -> TextBuffer:
        """A buffer of these rows alone, with their hashes."""
        flat = self._flat(rows)
        raw = b"".join(chain.from_iterable(texts for _, texts in self._blocks(rows)))
        other = TextBuffer(raw, np.diff(self._ends)[flat].astype(np.int32), self._characters[flat], self.columns)
        other._hashes = {name: (found[rows], known[rows]) for name, (found, known) in self._hashes.items()}
        return other

    def _flat(self, rows: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """The texts of rows, [m * columns]."""
        return np.asarray(rows[:, None] * np.int64(self.columns) + np.arange(self.columns)).ravel()

    def _blocks(self, rows: NDArray[np.integer[Any]]) -> Iterator[tuple[NDArray[np.int64], list[bytes]]]:
        """Which texts they are and their bytes, of BLOCK rows at a time."""
        raw = self._raw
        for start in range(0, len(rows), BLOCK):
            flat = self._flat(rows[start : start + BLOCK])
            begins, ends = self._ends[flat].tolist(), self._ends[flat + 1].tolist()
            yield flat, [raw[begin:end] for begin, end in zip(begins, ends, strict=True)]

    def _of_rows(self, pieces: list[bytes]) -> list[bytes]:
        if self.columns == 1:
            return pieces
        return [b"".join(row) for row in zip(*[iter(pieces)] * self.columns, strict=True)]


class TextWriter:
    """Texts added part by part to what becomes a buffer, which is not copied at the end."""

    def __init__(self, columns: int) -> None:
        self._columns, self._raw = columns, BytesIO()
        none = np.zeros(0, dtype=np.int32)
        self._sizes, self._characters = [none], [none]

    def add(self, texts: Sequence[str]) -> None:
        """The texts of whole rows, row after row."""
        joined = "".join(texts)
        raw = joined.encode("utf-8", "surrogatepass")
        characters = np.fromiter(map(len, texts), dtype=np.int32, count=len(texts))
        sizes = characters
        if len(raw) > len(joined):
            sizes = np.array([len(text.encode("utf-8", "surrogatepass")) for text in texts], dtype=np.int32)
        self._raw.write(raw)
        self._sizes.append(sizes)
        self._characters.append(characters)

    def buffer(self) -> TextBuffer:
        sizes, characters = (np.concatenate(parts) for parts in (self._sizes, self._characters))
        return TextBuffer(self._raw.getvalue(), sizes, characters, self._columns)


def counted(texts: list[bytes], characters: list[int]) -> list[bytes]:
    """Each text after its number of characters, so that nothing is lost where several are joined."""
    return [b"%d:%b" % (count, text) for count, text in zip(characters, texts, strict=True)]


def hash_each(contents: Iterable[bytes]) -> Ids:
    """Hash of each content, uint64 [n]."""
    blake2b = hashlib.blake2b
    packed = b"".join([blake2b(content, digest_size=8).digest() for content in contents])
    return np.frombuffer(packed, dtype="<u8").astype(np.uint64)
