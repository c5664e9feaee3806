"""Texts that stand in two sets of rows: counted and reported, because a score on text seen in training says little."""

from __future__ import annotations

import re
from collections.abc import Callable
from unicodedata import category, normalize

import numpy as np
from numpy.typing import NDArray

from harness.tasks.rows import Ids, Rows, Scope, scoped

VALIDATION_SHARE = 0.25

_DROPPED = re.compile(r"[\W_]+")
_PLAIN = re.compile("[^\u0080-\U0010ffff0-9A-Za-z]+")
"""Those of them that are ASCII, without a look at each."""
_VARIANTS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
"""Variation selectors: how an emoji or a character is drawn."""
_BEYOND_ASCII = re.compile(r"[^\w\s\x00-\x7f\u2044\u2212]")
"""Symbols among other characters; a minus and the line of a fraction have forms in ASCII."""
_SKIN = range(0x1F3FB, 0x1F400)
_DROPPED_ASCII = bytes(code for code in range(128) if not chr(code).isalnum())


def normalised(text: str) -> str:
    """`text` by its letters, with their marks, and digits alone: NFKC, casefold, everything else dropped.

    "It does n't , really ." and "it doesn't, really" are one text: corpora differ in tokenisation, quotes and spacing. A
    text without any letter or digit keeps its characters, spaces excepted.
    """
    if text.isascii() and (form := text.encode().lower().translate(None, _DROPPED_ASCII)):  # a twentieth of the time
        return form.decode()
    folded = normalize("NFKC", text).casefold()
    return _DROPPED.sub(_marks, _PLAIN.sub("", folded)) or "".join(folded.split())


def _marks(dropped: re.Match[str]) -> str:
    """The marks that make letters what they are, as vowel signs do in Devanagari and Thai; Python counts them as no part of a word."""
    return "".join(char for char in dropped[0] if category(char) in ("Mn", "Mc") and not _VARIANTS.match(char))


def count_overlap(a: Rows, b: Rows) -> int:
    """How many rows of `b` (evaluation) have their text in `a` (training text).

    Texts are compared by `same_ids`, and whole: a sentence inside a longer text is not found. Labels are ignored.

    * `a` and `b` with the same number of texts in a row: all texts of the row must stand together in one row of `a`, in
      the same order (a pair that shares one sentence with another pair is not counted).
    * different numbers (a corpus of single texts against a task of pairs, or the reverse): a row of `b` counts when any
      one of its texts is a text of `a`.
    """
    return int(_shared(b, a).sum())


def _shared(rows: Rows, others: Rows, unit: int | None = None) -> NDArray[np.bool_]:
    """Mask [n] of the rows whose text is in `others`, as `count_overlap` compares them; with a `unit`, the text in this column."""
    whole = unit is None and rows.columns == others.columns
    columns = slice(unit, None if unit is None else unit + 1)
    return np.asarray(among(same_ids(rows, whole)[:, columns], same_ids(others, whole)[:, columns]).any(axis=1))


def among(ids: Ids, others: Ids) -> NDArray[np.bool_]:
    """Which `ids` are among `others`: `np.isin`, which sorts both, without sorting the longer of them."""
    few, many = (ids, others) if ids.size < others.size else (others, ids)
    if not few.size:
        return np.zeros(ids.shape, dtype=np.bool_)
    ordered = np.sort(few, axis=None)
    found = ordered[np.minimum(np.searchsorted(ordered, many), ordered.size - 1)] == many
    return np.isin(ids, many[found]) if few is ids else found


def normal_ids(rows: Rows, whole: bool = True) -> Ids:
    """Hashes of the normalised texts, by which rows are drawn: uint64 [n, 1] of whole rows, else [n, columns]."""
    return _ids(rows, normalised, whole)


def same_ids(rows: Rows, whole: bool = True) -> Ids:
    """`normal_ids` that also tell symbols beyond ASCII apart, emojis for example: equal for texts that count as one."""
    return _ids(rows, _with_symbols, whole)


def _ids(rows: Rows, form: Callable[[str], str], whole: bool) -> Ids:
    each_text = not whole and rows.columns > 1
    return rows.hashes(form, each_text).reshape(len(rows), rows.columns if each_text else 1)


def _with_symbols(text: str) -> str:
    """The normalised text, and its symbols beyond ASCII: currency, mathematics, arrows, emojis with the colour of their skin."""
    found = [] if text.isascii() else _BEYOND_ASCII.findall(normalize("NFKC", text))
    symbols = (char for char in found if category(char) in ("So", "Sm", "Sc") or ord(char) in _SKIN)
    return normalised(text) + "".join(symbols)


def parted(rows: Rows, scope: Scope, unit: int | None = None) -> tuple[Rows, Rows]:
    """(train, validation) of rows that have no split of their own, in canonical order: validation is the quarter whose normalised
    text has the lowest hash under `scope`, so the same text is never in both, and more rows move none from one to the other. `unit`: see
    `Kind.unit`.
    """
    held_out = scoped(unit_ids(rows, unit), scope) < np.uint64(int(VALIDATION_SHARE * 2**64))
    return rows.take(~held_out).sorted(), rows.take(held_out).sorted()


def unit_ids(rows: Rows, unit: int | None) -> Ids:
    """Hashes [n] of what splits do not cut (`Kind.unit`): the normalised texts of a row, or that in one of its columns."""
    return normal_ids(rows)[:, 0] if unit is None else normal_ids(rows, whole=False)[:, unit]


def without(rows: Rows, *others: Rows, unit: int | None = None) -> Rows:
    """The rows whose text is in none of `others`, by `same_ids`: of whole rows where both have as many columns, else of
    any one text of a row; with a `unit`, that in this column."""
    kept = np.ones(len(rows), dtype=np.bool_)
    for other in others:
        kept &= ~_shared(rows, other, unit)
    return rows if kept.all() else rows.take(kept)
