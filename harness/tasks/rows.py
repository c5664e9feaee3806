"""Rows of text and what they are by content: ids and digests that know no file and no order.

The id of a row is a 64-bit hash of its texts and its label. Rows that are equal get different ids by an occurrence number,
so they can be counted and drawn, but which of them is which means nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.specs import KEY_LENGTH, RowSet

Ids = NDArray[np.uint64]
Scope = Sequence[str | int]

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


def hashes(contents: Iterable[str]) -> Ids:
    """Hash of each content, uint64 [n]."""
    blake2b = hashlib.blake2b
    packed = b"".join([blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in contents])
    return np.frombuffer(packed, dtype="<u8").astype(np.uint64)


def content(texts: tuple[str, ...]) -> str:
    """One string for a row's texts, different for different texts."""
    return "".join(f"{len(text)}:{text}" for text in texts)


def contents(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """`content` of each row; of rows of one text without a call for each."""
    if rows and len(rows[0]) == 1:
        return (f"{len(text)}:{text}" for (text,) in rows)
    return map(content, rows)


def _distinct(base: Ids) -> Ids:
    """`base` with the occurrence number mixed in: the first of equal hashes keeps its own, later ones get new ones."""
    order = np.argsort(base, kind="stable")
    ordered = base[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(base) else np.zeros(0, dtype=np.int64)
    if len(starts) == len(base):
        return base
    occurrence = np.arange(len(base)) - np.repeat(starts, np.diff(np.r_[starts, len(base)]))
    ids = base.copy()
    again = occurrence > 0
    ids[order[again]] = mix(ordered[again] + mix(occurrence[again].astype(np.uint64)))
    return ids


@dataclass(frozen=True, eq=False)
class Rows:
    """`texts`: n rows of 1 or 2 texts; `labels`: int64 [n] (codes), float32 [n] (regression) or None; `name`: a label.

    Raises ValueError when the number of labels or of texts in a row does not fit.
    """

    texts: tuple[tuple[str, ...], ...]
    labels: NDArray[Any] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if self.labels is not None and self.labels.shape != (len(self.texts),):
            raise ValueError(f"{self.name}: {len(self.texts)} rows with labels of shape {self.labels.shape}")
        if self.labels is not None and self.labels.dtype not in (np.dtype(np.int64), np.dtype(np.float32)):
            raise ValueError(f"{self.name}: labels are int64 or float32, not {self.labels.dtype}")
        if len(set(map(len, self.texts))) > 1:
            raise ValueError(f"{self.name}: rows differ in their number of texts")

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def columns(self) -> int:
        """Texts in a row; 0 without rows."""
        return len(self.texts[0]) if self.texts else 0

    @property
    def gold(self) -> NDArray[Any]:
        """The labels, [n]. Raises ValueError where there are none."""
        if self.labels is None:
            raise ValueError(f"{self.name}: these rows have no labels")
        return self.labels

    @cached_property
    def per_row(self) -> dict[str, Ids]:
        """Hashes and length of each row's content by name, uint64 [n, ...]: worked out once, and kept for the rows that `take` takes."""
        return {}

    @property
    def text_ids(self) -> Ids:
        """Hash of each row's texts, uint64 [n]: equal for rows with equal texts, whatever their labels."""
        if "texts" not in self.per_row:
            self.per_row["texts"] = hashes(contents(self.texts))
        return self.per_row["texts"]

    @cached_property
    def ids(self) -> Ids:
        """Identity of each row, uint64 [n], all different: texts, label, and a number for rows equal in both."""
        if self.labels is None:
            return _distinct(self.text_ids)
        if "labelled" not in self.per_row:
            if self.labels.dtype == np.float32:
                codes = [f"{float(value) + 0.0:.9g}" for value in self.labels]  # + 0.0 makes -0.0 plain
            else:
                codes = [str(code) for code in self.labels.tolist()]
            whole = zip(codes, contents(self.texts), strict=True)
            self.per_row["labelled"] = hashes(f"{code}|{texts}" for code, texts in whole)
        return _distinct(self.per_row["labelled"])

    @cached_property
    def digest(self) -> str:
        """Hex digest over the set of ids and the kind of labels; the order of the rows does not enter."""
        kind = "none" if self.labels is None else "score" if self.labels.dtype == np.float32 else "class"
        body = np.sort(self.ids).astype("<u8").tobytes()
        return hashlib.sha256(f"{kind}/{self.columns}/".encode() + body).hexdigest()[:KEY_LENGTH]

    @cached_property
    def mean_chars(self) -> float:
        """Mean number of characters in a row, its texts together; 0 without rows."""
        if "characters" not in self.per_row:
            counts = map(len, chain.from_iterable(self.texts))
            every = np.fromiter(counts, dtype=np.uint64, count=len(self) * self.columns)
            self.per_row["characters"] = every.reshape(len(self), -1 if len(self) else 1).sum(axis=1)
        return int(self.per_row["characters"].sum()) / max(1, len(self))

    def row_set(self, name: str = "") -> RowSet:
        """What a stage's spec holds of these rows; `name` defaults to the rows' own."""
        return RowSet(self.digest, name or self.name, len(self), round(self.mean_chars, 2))

    def take(self, indices: Sequence[int] | NDArray[Any]) -> Rows:
        """The rows at `indices` (integers [m], or a bool mask [n]), in that order."""
        chosen = np.asarray(indices)
        chosen = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen.astype(np.int64)
        labels = None if self.labels is None else self.labels[chosen]
        taken = Rows(tuple(map(self.texts.__getitem__, chosen.tolist())), labels, self.name)
        taken.per_row.update({name: ids[chosen] for name, ids in self.per_row.items()})
        return taken

    def named(self, name: str) -> Rows:
        """The same rows under another name."""
        return self._with(self.labels, name)

    def unlabelled(self) -> Rows:
        """The same rows without labels, in canonical order: the digest depends on the texts only."""
        return self._with(None, self.name).sorted()

    def _with(self, labels: NDArray[Any] | None, name: str) -> Rows:
        other = Rows(self.texts, labels, name)
        other.per_row.update(
            {key: ids for key, ids in self.per_row.items() if key != "labelled" or labels is self.labels}
        )
        return other

    def sorted(self) -> Rows:
        """The same rows in canonical order, by mixed id: whatever the order they were read in."""
        order = np.argsort(mix(self.ids), kind="stable")
        if np.array_equal(order, np.arange(len(self))):
            return self
        return self.take(order)
