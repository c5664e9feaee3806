"""How many texts of a task are longer than `max_length`, and so cut: counted with the encoder's tokenizer.json, which needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from harness.tasks.rows import Rows

SAMPLE = 500
"""Texts that are tokenised at most, evenly spread over those that are long enough to be cut."""


@dataclass(frozen=True)
class Truncation:
    """Of `rows` rows so many are `cut`; `counted`: all that could be were tokenised, else a sample of them."""

    cut: int
    rows: int
    counted: bool


def truncation(folder: Path | None, sets: Sequence[Rows], max_length: int) -> Truncation | None:
    """Of the rows of several sets, at `max_length` tokens with special ones; None where the encoder's folder has no tokenizer.json.

    No token has less than a byte, so a row of fewer bytes is not cut."""
    tokenizer = _tokenizer(folder / "tokenizer.json") if folder else None
    if tokenizer is None:
        return None
    cut, counted = 0.0, True
    for rows in sets:
        sizes = rows.each(lambda text: len(text.encode())).sum(axis=1)
        long = np.flatnonzero(sizes > max_length - tokenizer.num_special_tokens_to_add(rows.columns > 1))
        drawn = long[:: -(-len(long) // SAMPLE)] if len(long) else long
        counted &= len(drawn) == len(long)
        texts = [row[0] if len(row) == 1 else row for row in rows.take(drawn).texts]
        over = sum(len(each) > max_length for each in tokenizer.encode_batch(texts))
        cut += over * len(long) / max(1, len(drawn))
    return Truncation(round(cut), sum(map(len, sets)), counted)


@lru_cache(maxsize=4)
def _tokenizer(path: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        found: Any = Tokenizer.from_file(str(path))
    except Exception:  # of no file and of a damaged one, of which is told where it is used
        return None
    found.no_truncation()
    found.no_padding()
    return found
