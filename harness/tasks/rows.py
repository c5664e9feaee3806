"""Rows of text and what they are by content: ids and digests that know no file and no order.

The texts of rows are one UTF-8 buffer, which all row sets that are taken from it share: a million texts of 130 characters take
310 MB as Python strings in tuples and 145 MB here. The id of a row is a 64-bit hash of its texts and its label. Rows that are equal
get different ids by an occurrence number, so they can be counted and drawn, but which of them is which means nothing.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import cached_property
from io import BytesIO
from itertools import chain, islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.specs import KEY_LENGTH, RowSet

Scope = Sequence[str | int]
Ids = NDArray[np.uint64]
Index = NDArray[np.int32]
"""Rows of a buffer."""
Pieces = Callable[[list[bytes]], list[bytes]]
"""What is hashed of each of some texts in UTF-8."""

BLOCK = 2048
"""Rows that are read from a buffer at a time."""
KEPT_SHARE = 20
"""Rows that are less than one in so many of a buffer get one of their own."""
_DIGESTED = {np.int64: "class", np.float32: "score", np.float64: "score", np.bytes_: "answers"}
"""What a digest says of labels, by their type."""
_CODES: dict[type, Callable[[Any], bytes]] = {
    np.int64: b"%d".__mod__,
    np.float32: lambda score: f"{score + 0.0:.9g}".encode(),  # + 0.0 makes -0.0 plain
    np.float64: lambda score: repr(score + 0.0).encode(),
    np.bytes_: lambda answers: b"%d:%b" % (len(answers), answers),
}
"""What an id says of a label, by its type."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(ids: Ids) -> Ids:
    """The splitmix64 finaliser on uint64 [n]: a bijection whose values look random, one to one with `ids`.

    Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators".
    """
    z = ids + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def scoped(ids: Ids, scope: Scope) -> Ids:
    """Hashes uint64 [n] of `ids` under a named scope: two scopes give orders that have nothing to do with each other."""
    seed = hashlib.sha256(json.dumps(list(scope)).encode()).digest()
    first, second = np.frombuffer(seed[:16], dtype="<u8").astype(np.uint64)
    return mix(mix(ids ^ first) + second)


def hash_each(contents: Iterable[bytes]) -> Ids:
    """Hash of each content, uint64 [n]."""
    blake2b = hashlib.blake2b
    packed = b"".join([blake2b(content, digest_size=8).digest() for content in contents])
    return np.frombuffer(packed, dtype="<u8").astype(np.uint64)


def _hash_blocks(blocks: Iterable[Iterable[bytes]]) -> Ids:
    """The same of contents in blocks, of which one is held at a time."""
    return np.concatenate([np.zeros(0, dtype=np.uint64), *map(hash_each, blocks)])


def hashes(texts: Iterable[str]) -> Ids:
    """Hash of each text, uint64 [n]."""
    return hash_each(text.encode("utf-8", "surrogatepass") for text in texts)


def counted(texts: list[bytes]) -> list[bytes]:
    """Each text after its number of characters, so that nothing is lost where several are joined."""
    plain = all(map(bytes.isascii, texts))
    decoded = texts if plain else [text.decode("utf-8", "surrogatepass") for text in texts]
    return [b"%d:%b" % pair for pair in zip(map(len, decoded), texts, strict=True)]


def _distinct(base: Ids) -> Ids:
    """`base` with the occurrence number mixed in: the first of equal hashes keeps its own, later ones get new ones."""
    ordered = np.sort(base)
    if (ordered[1:] != ordered[:-1]).all():
        return base
    order = np.argsort(base, kind="stable")
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    occurrence = np.arange(len(base)) - np.repeat(starts, np.diff(np.r_[starts, len(base)]))
    ids = base.copy()
    again = occurrence > 0
    ids[order[again]] = mix(ordered[again] + mix(occurrence[again].astype(np.uint64)))
    return ids


class TextBuffer:
    """Rows of `columns` texts each, row after row, as UTF-8: text j is `raw[ends[j]:ends[j + 1]]` and has `lengths[j]` characters; and the
    hashes of all rows, computed once for each way to hash."""

    def __init__(self, columns: int, raw: bytes, sizes: NDArray[Any], lengths: NDArray[Any]) -> None:
        self.columns, self._raw = columns, raw
        self._ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self.lengths = lengths.reshape(-1, max(1, columns))
        self._hashes: dict[tuple[Pieces, bool], Ids] = {}

    @classmethod
    def of(cls, rows: Iterable[Sequence[str]], columns: int = 0) -> TextBuffer:
        """Rows of so many texts, by default of as many as the first. Raises ValueError where rows differ in their number of texts."""
        written, sizes, lengths, left = BytesIO(), array("i"), array("i"), iter(rows)
        while block := list(islice(left, BLOCK)):
            columns = columns or len(block[0])
            if set(map(len, block)) != {columns}:
                raise ValueError("rows differ in their number of texts")
            texts = [*chain.from_iterable(block)]
            encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
            written.writelines(encoded)
            sizes.extend(map(len, encoded))
            lengths.extend(map(len, texts))
        return cls(columns, written.getvalue(), np.asarray(sizes), np.asarray(lengths))

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """UTF-8 bytes of each text, [rows, columns]."""
        return np.diff(self._ends).reshape(self.lengths.shape)

    def blocks(self, rows: Index) -> Iterator[list[bytes]]:
        """The texts of `rows`, row after row, of BLOCK rows at a time."""
        for start in range(0, len(rows), BLOCK):
            flat = self._flat(rows[start : start + BLOCK])
            ends = zip(self._ends[flat].tolist(), self._ends[flat + 1].tolist(), strict=True)
            yield [self._raw[begin:end] for begin, end in ends]

    def _flat(self, rows: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        return np.asarray(rows[:, None] * np.int64(self.columns) + np.arange(self.columns)).ravel()

    def contents(self, rows: Index, pieces: Pieces) -> Iterator[list[bytes]]:
        """One string of bytes for each of `rows`, the `pieces` of its texts; in blocks."""
        for made in map(pieces, self.blocks(rows)):
            yield [b"".join(row) for row in zip(*[iter(made)] * self.columns, strict=True)]

    def hashes(self, rows: Index, pieces: Pieces, each_text: bool) -> Ids:
        """See `Rows.hashes`."""
        if (pieces, each_text) not in self._hashes:
            every = np.arange(len(self), dtype=np.int32)
            blocks = map(pieces, self.blocks(every)) if each_text else self.contents(every, pieces)
            shape = (-1, self.columns) if each_text else (-1,)
            self._hashes[pieces, each_text] = _hash_blocks(blocks).reshape(shape)
        return self._hashes[pieces, each_text][rows]

    def only(self, rows: Index) -> TextBuffer:
        raw = b"".join(chain.from_iterable(self.blocks(rows)))
        other = TextBuffer(self.columns, raw, self.sizes[rows].ravel(), self.lengths[rows])
        other._hashes = {name: found[rows] for name, found in self._hashes.items()}
        return other


class Rows:
    """`texts`: n rows of 1 or 2 texts; `labels`: int64 [n] (codes), float32 or float64 [n] (regression), bytes [n] (answers) or None; `name`: a label.

    `skipped`: the bad rows that were left out where these were read. `label_form`: whether their file has classes by name, by number,
    or by number and a name of each. Raises ValueError when the number of labels or of texts in a row does not fit.
    """

    def __init__(
        self,
        texts: TextBuffer | Iterable[tuple[str, ...]],
        labels: NDArray[Any] | None = None,
        name: str = "",
        index: Index | None = None,
    ) -> None:
        """`index`: the rows of a buffer that these are, int32 [n]; None for all of it."""
        self._buffer = texts if isinstance(texts, TextBuffer) else TextBuffer.of(texts)
        self._index = np.arange(len(self._buffer), dtype=np.int32) if index is None else index
        self.labels, self.name = labels, name
        self.skipped = 0
        self.label_form: Literal["names", "codes", "named codes"] = "names"
        self._labelled: Ids | None = None
        if labels is not None and labels.shape != (len(self),):
            raise ValueError(f"{name}: {len(self)} rows with labels of shape {labels.shape}")

    def __len__(self) -> int:
        return len(self._index)

    @property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        """The texts of each row, decoded anew at each call."""
        encoded = chain.from_iterable(self._buffer.blocks(self._index))
        decoded = (text.decode("utf-8", "surrogatepass") for text in encoded)
        return tuple(zip(*[decoded] * self._buffer.columns, strict=True))

    @property
    def columns(self) -> int:
        """Texts in a row; 0 without rows."""
        return self._buffer.columns if len(self) else 0

    @property
    def gold(self) -> NDArray[Any]:
        if self.labels is None:
            raise ValueError(f"{self.name}: these rows have no labels")
        return self.labels

    def hashes(self, pieces: Pieces, each_text: bool = False) -> Ids:
        """Hash of each row, uint64 [n], by the `pieces` of its texts; with `each_text`, of each of its texts, [n, columns]. It is computed once
        for all rows that the texts were read with."""
        return self._buffer.hashes(self._index, pieces, each_text)

    @property
    def text_ids(self) -> Ids:
        """Hash of each row's texts, uint64 [n]: equal for rows with equal texts, whatever their labels."""
        return self.hashes(counted)

    @cached_property
    def ids(self) -> Ids:
        """Identity of each row, uint64 [n], all different: texts, label, and a number for rows equal in both."""
        if self.labels is None:
            return _distinct(self.text_ids)
        if self._labelled is None:
            codes = map(_CODES[self.labels.dtype.type], self.labels.tolist())
            blocks = self._buffer.contents(self._index, counted)
            self._labelled = _hash_blocks([b"%b|%b" % (next(codes), each) for each in block] for block in blocks)
        return _distinct(self._labelled)

    @cached_property
    def digest(self) -> str:
        """Hex digest over the set of ids and the kind of labels; the order of the rows does not enter."""
        kind = "none" if self.labels is None else _DIGESTED[self.labels.dtype.type]
        body = np.sort(self.ids).astype("<u8").tobytes()
        return hashlib.sha256(f"{kind}/{self.columns}/".encode() + body).hexdigest()[:KEY_LENGTH]

    @cached_property
    def mean_chars(self) -> float:
        """Mean number of characters in a row, its texts together; 0 without rows."""
        return int(self.characters.sum()) / max(1, len(self))

    @property
    def characters(self) -> NDArray[np.int64]:
        """Characters of each row, its texts together, [n]."""
        return np.asarray(self._buffer.lengths[self._index].sum(axis=1, dtype=np.int64))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """UTF-8 bytes of each row, its texts together, [n]."""
        return np.asarray(self._buffer.sizes[self._index].sum(axis=1))

    def row_set(self, name: str = "") -> RowSet:
        return RowSet(self.digest, name or self.name, len(self), round(self.mean_chars, 2))

    def take(self, indices: Sequence[int] | NDArray[Any]) -> Rows:
        """The rows at `indices` (integers [m], or a bool mask [n]), in that order."""
        chosen = np.asarray(indices)
        chosen = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen.astype(np.int64)
        index, buffer = self._index[chosen], self._buffer
        if KEPT_SHARE * len(index) < len(buffer):  # a few rows do not keep all others in memory
            buffer, index = buffer.only(index), np.arange(len(index), dtype=np.int32)
        taken = Rows(buffer, None if self.labels is None else self.labels[chosen], self.name, index)
        taken._labelled = None if self._labelled is None else self._labelled[chosen]
        taken.label_form = self.label_form
        return taken

    def named(self, name: str) -> Rows:
        other = copy(self)
        other.name = name
        return other

    def unlabelled(self) -> Rows:
        """The same rows without labels, in canonical order: the digest depends on the texts only."""
        return self.with_labels(None, self.name).sorted()

    def with_labels(self, labels: NDArray[Any] | None, name: str) -> Rows:
        """The same texts with other labels, or with none."""
        rows = Rows(self._buffer, labels, name, self._index)
        rows.label_form = self.label_form
        return rows

    def sorted(self) -> Rows:
        """The same rows in canonical order, by mixed id: whatever the order they were read in."""
        order = np.argsort(mix(self.ids), kind="stable")
        return self if np.array_equal(order, np.arange(len(self))) else self.take(order)
