"""Rows of text and what they are by content: ids and digests that know no file and no order.

The id of a row is a 64-bit hash of its texts and its label. Rows that are equal get different ids by an occurrence number, so they
can be counted and drawn, but which of them is which means nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.specs import KEY_LENGTH, RowSet

Scope = Sequence[str | int]
Ids = NDArray[np.uint64]

_LABELS: dict[type, tuple[str, Callable[[Any], str]]] = {
    np.int64: ("class", str),
    np.float32: ("score", lambda score: f"{score + 0.0:.9g}"),  # + 0.0 makes -0.0 plain
    np.float64: ("score", lambda score: repr(score + 0.0)),
    np.bytes_: ("answers", lambda answers: f"{len(answers)}:{answers.decode('utf-8', 'surrogatepass')}"),
}
"""What a digest says of labels, and an id of one, by their type."""
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
    packed, blake2b = bytearray(), hashlib.blake2b
    for text in texts:
        packed += blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return np.frombuffer(packed, dtype="<u8").astype(np.uint64)


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
    """n rows of 1 or 2 texts; `labels`: int64 [n] (codes), float32 or float64 [n] (regression), bytes [n] (answers) or None.

    `skipped`: the bad rows that were left out where these were read. `label_form`: whether their file has classes by name, by number,
    or by number and a name of each. Raises ValueError when the number of labels or of texts in a row does not fit.
    """

    def __init__(
        self, texts: Iterable[Sequence[str]] | NDArray[np.object_], labels: NDArray[Any] | None = None
    ) -> None:
        """`texts`: those of each row, or strings [n, columns]."""
        if not isinstance(texts, np.ndarray):
            each = list(texts)
            texts = np.array(each, dtype=object) if each else np.empty((0, 0), dtype=object)
        if texts.ndim != 2:
            raise ValueError("rows differ in their number of texts")
        self._texts, self.labels = texts, labels
        self.skipped = 0
        self.label_form: Literal["names", "codes", "named codes"] = "names"
        self._hashes: dict[Hashable, Ids] = {}
        if labels is not None and labels.shape != (len(self),):
            raise ValueError(f"{len(self)} rows with labels of shape {labels.shape}")

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        """The texts of each row."""
        return tuple(map(tuple, self._texts.tolist()))

    @property
    def columns(self) -> int:
        """Texts in a row; 0 without rows."""
        return self._texts.shape[1] if len(self) else 0

    @property
    def gold(self) -> NDArray[Any]:
        if self.labels is None:
            raise ValueError("these rows have no labels")
        return self.labels

    def each(self, of: Callable[[str], Any], dtype: Any = np.int64) -> NDArray[Any]:
        """What `of` says of each text, [n, columns]."""
        return np.fromiter(map(of, self._texts.ravel().tolist()), dtype).reshape(self._texts.shape)

    def hashes(self, form: Callable[[str], str] = str, each_text: bool = False) -> Ids:
        """Hash of each row, uint64 [n], by the `form` of its texts; with `each_text`, of each of its texts, [n, columns]. Rows that are
        taken of these keep it."""
        if (form, each_text) not in self._hashes:
            found = hashes(self._counted(form) if each_text else self._joined(form))
            self._hashes[form, each_text] = found.reshape(self._texts.shape) if each_text else found
        return self._hashes[form, each_text]

    def _counted(self, form: Callable[[str], str]) -> Iterator[str]:
        """The form of each text after its number of characters, so that nothing is lost where several are joined."""
        texts = self._texts.ravel().tolist()
        return (f"{len(text)}:{text}" for text in (texts if form is str else map(form, texts)))

    def _joined(self, form: Callable[[str], str]) -> Iterator[str]:
        each = self._counted(form)
        return each if self.columns == 1 else map("".join, zip(*[each] * self.columns, strict=True))

    @property
    def text_ids(self) -> Ids:
        """Hash of each row's texts, uint64 [n]: equal for rows with equal texts, whatever their labels."""
        return self.hashes()

    @cached_property
    def ids(self) -> Ids:
        """Identity of each row, uint64 [n], all different: texts, label, and a number for rows equal in both."""
        if self.labels is None:
            return _distinct(self.text_ids)
        if "labelled" not in self._hashes:
            codes = map(_LABELS[self.labels.dtype.type][1], self.labels.tolist())
            self._hashes["labelled"] = hashes(map("|".join, zip(codes, self._joined(str), strict=True)))
        return _distinct(self._hashes["labelled"])

    @cached_property
    def digest(self) -> str:
        """Hex digest over the set of ids and the kind of labels; the order of the rows does not enter."""
        kind = "none" if self.labels is None else _LABELS[self.labels.dtype.type][0]
        body = np.sort(self.ids).astype("<u8").tobytes()
        return hashlib.sha256(f"{kind}/{self.columns}/".encode() + body).hexdigest()[:KEY_LENGTH]

    @cached_property
    def mean_chars(self) -> float:
        """Mean number of characters in a row, its texts together; 0 without rows."""
        return int(self.each(len).sum()) / max(1, len(self))

    def row_set(self, name: str) -> RowSet:
        return RowSet(self.digest, name, len(self), round(self.mean_chars, 2))

    def take(self, indices: Sequence[int] | NDArray[Any]) -> Rows:
        """The rows at `indices` (integers [m], or a bool mask [n]), in that order."""
        chosen = np.asarray(indices)
        chosen = chosen if chosen.dtype == np.bool_ else chosen.astype(np.int64)
        taken = Rows(self._texts[chosen], None if self.labels is None else self.labels[chosen])
        taken._hashes = {key: found[chosen] for key, found in self._hashes.items()}
        taken.label_form = self.label_form
        return taken

    def unlabelled(self) -> Rows:
        """The same rows without labels, in canonical order: the digest depends on the texts only."""
        rows = Rows(self._texts)
        rows._hashes = {key: found for key, found in self._hashes.items() if key != "labelled"}
        return rows.sorted()

    def sorted(self) -> Rows:
        """The same rows in canonical order, by mixed id: whatever the order they were read in."""
        order = np.argsort(mix(self.ids), kind="stable")
        return self if np.array_equal(order, np.arange(len(self))) else self.take(order)
