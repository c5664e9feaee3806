"""Texts as token ids in flat arrays: one row set is tokenised once, and its arrays are shared between workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError


@dataclass(frozen=True)
class Tokens:
    """`n` sequences end to end: `ids`, `types`, `special` [T]; sequence i is `offsets[i]:offsets[i + 1]`, offsets [n + 1].

    `special` marks what the tokenizer added (first token, separators), which is never masked.
    """

    ids: NDArray[np.int32]
    types: NDArray[np.int8]
    special: NDArray[np.bool_]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> Tokens:
        """The sequences of `rows`, in that order."""
        lengths = self.lengths[rows]
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        starts = self.offsets[:-1][rows]
        index = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Tokens(self.ids[index], self.types[index], self.special[index], offsets)


@dataclass(frozen=True)
class Vocabulary:
    """What masking needs of a tokenizer."""

    size: int
    mask_id: int | None
    pad_id: int


class Tokeniser:
    """The tokenizer of an encoder folder."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
        except (OSError, ValueError) as error:
            first = str(error).strip().splitlines()[0]
            raise UserError(f"The encoder folder {folder} has no usable tokenizer: {first}") from None

    @property
    def vocabulary(self) -> Vocabulary:
        tokenizer = self._tokenizer
        return Vocabulary(len(tokenizer), tokenizer.mask_token_id, tokenizer.pad_token_id or 0)

    def __call__(self, texts: Sequence[tuple[str, ...]], max_length: int) -> Tokens:
        """Tokenise rows of one or two texts, truncated to `max_length` tokens, the longer text first."""
        if not texts:
            raise UserError("There are no texts to tokenise.")
        columns = [list(column) for column in zip(*texts, strict=True)]
        encoded = self._tokenizer(
            *columns,
            truncation=True,
            max_length=max_length,
            return_token_type_ids=True,
            return_special_tokens_mask=True,
            return_attention_mask=False,
        )
        lengths = [len(ids) for ids in encoded["input_ids"]]
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return Tokens(
            np.concatenate([np.asarray(x, dtype=np.int32) for x in encoded["input_ids"]]),
            np.concatenate([np.asarray(x, dtype=np.int8) for x in encoded["token_type_ids"]]),
            np.concatenate([np.asarray(x, dtype=np.bool_) for x in encoded["special_tokens_mask"]]),
            offsets,
        )
