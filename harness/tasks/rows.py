"""Rows of text and what they are by content: ids and digests that know no file and no order.

The texts of rows are one UTF-8 buffer, which all row sets that are taken from it share: a million texts of 130 characters take
310 MB as Python strings in tuples and 145 MB here. The id of a row is a 64-bit hash of its texts and its label. Rows that are equal
get different ids by an occurrence number, so they can be counted and drawn, but which of them is which means nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from io import BytesIO
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.specs import KEY_LENGTH, RowSet

Scope = Sequence[str | int]
Ids = NDArray[np.uint64]
Index = NDArray[np.int32]
"""Rows of a buffer."""
Pieces = Callable[[list[bytes], list[int]], list[bytes]]
"""What is hashed of each of some texts, from their bytes and their numbers of characters."""

BLOCK = 2048
"""Rows that are hashed or decoded at a time."""
KEPT_SHARE = 20
"""Rows that are less than one in so many of a buffer get one of their own."""
_DIGESTED = {np.int64: "class", np.float32: "score", np.float64: "score", np.bytes_: "answers"}
"""What a digest says of labels, by their type."""
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


def hashes(texts: Iterable[str]) -> Ids:
    """Hash of each text, uint64 [n]."""
    return hash_each(text.encode("utf-8", "surrogatepass") for text in texts)


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


def counted(texts: list[bytes], characters: list[int]) -> list[bytes]:
    """Each text after its number of characters, so that nothing is lost where several are joined."""
    return [b"%d:%b" % (count, text) for count, text in zip(characters, texts, strict=True)]


def hash_each(contents: Iterable[bytes]) -> Ids:
    """Hash of each content, uint64 [n]."""
    blake2b = hashlib.blake2b
    packed = b"".join([blake2b(content, digest_size=8).digest() for content in contents])
    return np.frombuffer(packed, dtype="<u8").astype(np.uint64)


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

    def characters(self, rows: Index) -> NDArray[np.int64]:
        """Characters of each of `rows`, its texts together."""
        count: NDArray[np.int64] = self._characters.reshape(len(self), max(1, self.columns))[rows].sum(axis=1)
        return count

    def sizes(self, rows: Index) -> NDArray[np.int64]:
        """UTF-8 bytes of each of `rows`, its texts together."""
        sizes: NDArray[np.int64] = np.diff(self._ends).reshape(len(self), max(1, self.columns))[rows].sum(axis=1)
        return sizes

    def contents(self, rows: Index) -> Iterator[list[bytes]]:
        """One string of bytes for each of `rows`, different for different texts; a block of rows at a time."""
        for flat, texts in self._blocks(rows):
            yield self._of_rows(counted(texts, self._characters[flat].tolist()))

    def hashes(self, name: str, rows: Index, pieces: Pieces, each_text: bool = False) -> Ids:
        """Hash of each of `rows`, uint64 [m], by the `pieces` of its texts; with `each_text`, of each of its texts, [m, columns].

        `name` stands for `pieces`: the hash of a row is computed once, whichever row sets ask for it.
        """
        shape = (len(self), self.columns) if each_text else (len(self),)
        if name not in self._hashes:
            self._hashes[name] = np.zeros(shape, dtype=np.uint64), np.zeros(len(self), dtype=np.bool_)
        found, known = self._hashes[name]
        missing = np.zeros(len(self), dtype=np.bool_)
        missing[rows] = True
        new, start = np.flatnonzero(missing & ~known), 0
        for flat, texts in self._blocks(new):
            made = pieces(texts, self._characters[flat].tolist())
            hashed = hash_each(made if each_text else self._of_rows(made)).reshape(-1, *shape[1:])
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


class Rows:
    """`texts`: n rows of 1 or 2 texts; `labels`: int64 [n] (codes), float32 or float64 [n] (regression), bytes [n] (answers) or None; `name`: a label.

    Rows that are taken from others share their text buffer. Raises ValueError when the number of labels or of texts in a row
    does not fit.
    """

    def __init__(
        self,
        texts: TextBuffer | Iterable[tuple[str, ...]],
        labels: NDArray[Any] | None = None,
        name: str = "",
        index: Index | None = None,
    ) -> None:
        """`index`: the rows of a buffer that these are, int32 [n]; None for all of it. `skipped`: the bad rows that were left out where these
        were read. `label_form`: whether their file has classes by name, by number, or by number and a name of each."""
        try:
            self._buffer = texts if isinstance(texts, TextBuffer) else TextBuffer.of(tuple(texts))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        self._index = np.arange(len(self._buffer), dtype=np.int32) if index is None else index
        self.labels, self.name = labels, name
        self.skipped = 0
        self.label_form: Literal["names", "codes", "named codes"] = "names"
        self._labelled: Ids | None = None
        if labels is not None and labels.shape != (len(self),):
            raise ValueError(f"{name}: {len(self)} rows with labels of shape {labels.shape}")
        if labels is not None and labels.dtype.type not in _DIGESTED:
            raise ValueError(f"{name}: labels are int64, float32, float64 or bytes, not {labels.dtype}")

    def __len__(self) -> int:
        return len(self._index)

    @property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        """The texts of each row, decoded anew at each call."""
        return tuple(self._buffer.texts(self._index))

    @property
    def columns(self) -> int:
        """Texts in a row; 0 without rows."""
        return self._buffer.columns if len(self) else 0

    @property
    def gold(self) -> NDArray[Any]:
        """The labels, [n]. Raises ValueError where there are none."""
        if self.labels is None:
            raise ValueError(f"{self.name}: these rows have no labels")
        return self.labels

    def hashes(self, name: str, pieces: Pieces, each_text: bool = False) -> Ids:
        """See `TextBuffer.hashes`."""
        return self._buffer.hashes(name, self._index, pieces, each_text)

    @property
    def text_ids(self) -> Ids:
        """Hash of each row's texts, uint64 [n]: equal for rows with equal texts, whatever their labels."""
        return self.hashes("texts", counted)

    @cached_property
    def ids(self) -> Ids:
        """Identity of each row, uint64 [n], all different: texts, label, and a number for rows equal in both."""
        if self.labels is None:
            return _distinct(self.text_ids)
        if self._labelled is None:
            self._labelled, start = np.empty(len(self), dtype=np.uint64), 0
            for contents in self._buffer.contents(self._index):
                values = self.labels[start : start + len(contents)].tolist()
                if self.labels.dtype == np.float32:  # + 0.0 makes -0.0 plain
                    codes = [f"{value + 0.0:.9g}".encode() for value in values]
                elif self.labels.dtype == np.float64:
                    codes = [repr(value + 0.0).encode() for value in values]
                elif self.labels.dtype == np.int64:
                    codes = [b"%d" % value for value in values]
                else:
                    codes = [b"%d:%b" % (len(value), value) for value in values]
                pairs = zip(codes, contents, strict=True)
                self._labelled[start : start + len(contents)] = hash_each(b"%b|%b" % pair for pair in pairs)
                start += len(contents)
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
        return self._buffer.characters(self._index)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """UTF-8 bytes of each row, its texts together, [n]."""
        return self._buffer.sizes(self._index)

    def row_set(self, name: str = "") -> RowSet:
        """What a stage's spec holds of these rows; `name` defaults to the rows' own."""
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
        """The same rows under another name."""
        other = self.with_labels(self.labels, name)
        other._labelled, other.skipped = self._labelled, self.skipped
        other.__dict__.update({each: self.__dict__[each] for each in ("ids", "digest") if each in self.__dict__})
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
        if np.array_equal(order, np.arange(len(self))):
            return self
        return self.take(order)
