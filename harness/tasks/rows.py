"""Rows of text and what they are by content: ids and digests that know no file and no order.

The id of a row is a 64-bit hash of its texts and its label. Rows that are equal get different ids by an occurrence number,
so they can be counted and drawn, but which of them is which means nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.specs import KEY_LENGTH, RowSet
from harness.tasks.text_buffer import Ids, Index, Pieces, TextBuffer, counted, hash_each

Scope = Sequence[str | int]

KEPT_SHARE = 20
"""Rows that are less than one in so many of a buffer get one of their own."""
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


class Rows:
    """`texts`: n rows of 1 or 2 texts; `labels`: int64 [n] (codes), float32 [n] (regression) or None; `name`: a label.

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
        """`index`: the rows of a buffer that these are, int32 [n]; None for all of it."""
        try:
            self._buffer = texts if isinstance(texts, TextBuffer) else TextBuffer.of(tuple(texts))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        self._index = np.arange(len(self._buffer), dtype=np.int32) if index is None else index
        self.labels, self.name = labels, name
        self._labelled: Ids | None = None
        if labels is not None and labels.shape != (len(self),):
            raise ValueError(f"{name}: {len(self)} rows with labels of shape {labels.shape}")
        if labels is not None and labels.dtype not in (np.dtype(np.int64), np.dtype(np.float32)):
            raise ValueError(f"{name}: labels are int64 or float32, not {labels.dtype}")

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

    def hashes(self, name: str, pieces: Pieces, each: bool = False) -> Ids:
        """See `TextBuffer.hashes`."""
        return self._buffer.hashes(name, self._index, pieces, each)

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
                else:
                    codes = [b"%d" % value for value in values]
                pairs = zip(codes, contents, strict=True)
                self._labelled[start : start + len(contents)] = hash_each(b"%b|%b" % pair for pair in pairs)
                start += len(contents)
        return _distinct(self._labelled)

    @cached_property
    def digest(self) -> str:
        """Hex digest over the set of ids and the kind of labels; the order of the rows does not enter."""
        kind = "none" if self.labels is None else "score" if self.labels.dtype == np.float32 else "class"
        body = np.sort(self.ids).astype("<u8").tobytes()
        return hashlib.sha256(f"{kind}/{self.columns}/".encode() + body).hexdigest()[:KEY_LENGTH]

    @cached_property
    def mean_chars(self) -> float:
        """Mean number of characters in a row, its texts together; 0 without rows."""
        return self._buffer.characters(self._index) / max(1, len(self))

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
        return taken

    def named(self, name: str) -> Rows:
        """The same rows under another name."""
        other = self.with_labels(self.labels, name)
        other._labelled = self._labelled
        other.__dict__.update({each: self.__dict__[each] for each in ("ids", "digest") if each in self.__dict__})
        return other

    def unlabelled(self) -> Rows:
        """The same rows without labels, in canonical order: the digest depends on the texts only."""
        return self.with_labels(None, self.name).sorted()

    def with_labels(self, labels: NDArray[Any] | None, name: str) -> Rows:
        """The same texts with other labels, or with none."""
        return Rows(self._buffer, labels, name, self._index)

    def sorted(self) -> Rows:
        """The same rows in canonical order, by mixed id: whatever the order they were read in."""
        order = np.argsort(mix(self.ids), kind="stable")
        if np.array_equal(order, np.arange(len(self))):
            return self
        return self.take(order)
