"""Texts as token ids in flat arrays: one row set is tokenised once, and its arrays are shared between workers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError, first_line

EVALUATION_TOKENS = 2048
"""Tokens of a batch without training, padding included."""
CUDA_EVALUATION_TOKENS = 32_768
"""The same on a GPU, which 2,048 leave idle."""


@dataclass(frozen=True)
class Tokens:
    """`n` sequences end to end: `ids`, `types`, `special` [T]; sequence i is `offsets[i]:offsets[i + 1]`, offsets [n + 1].

    `special` marks what the tokenizer added (first token, separators), which is never masked. `places` int32 [T, 2], where answers are
    looked for: of a token of the context its first character there and the one after its last, -1 of any other; else None.
    """

    ids: NDArray[np.int32]
    types: NDArray[np.int8]
    special: NDArray[np.bool_]
    offsets: NDArray[np.int64]
    places: NDArray[np.int32] | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> Tokens:
        """The sequences of `rows`, in that order."""
        index, offsets = _taken(self.offsets, rows)
        places = None if self.places is None else self.places[index]
        return Tokens(self.ids[index], self.types[index], self.special[index], offsets, places=places)


def joined(*parts: Tokens) -> Tokens:
    """The sequences of several, one after another."""
    lengths = np.concatenate([part.lengths for part in parts])
    places = [part.places for part in parts if part.places is not None]
    ids, types, special = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "types", "special")
    )
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Tokens(ids, types, special, offsets, places=np.concatenate(places) if places else None)


def by_length(lengths: NDArray[np.int64], at_once: int = EVALUATION_TOKENS) -> Iterator[NDArray[np.int64]]:
    """Batches of rows, shortest first, of at most `at_once` tokens each, or of one row."""
    order = np.argsort(lengths, kind="stable")
    widths, start = lengths[order], 0
    while start < len(order):
        filled = widths[start : start + at_once]
        filled = filled * np.arange(1, len(filled) + 1)
        stop = start + max(1, int(np.searchsorted(filled, at_once, side="right")))
        yield order[start:stop]
        start = stop


def _taken(
    offsets: NDArray[np.int64], rows: Sequence[int] | NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of runs of elements end to end, that begin and end at `offsets` [n + 1]: the indices of the elements of some runs, and the offsets
    of these."""
    starts = offsets[:-1][rows]
    lengths = offsets[1:][rows] - starts  # not of all runs: there may be 1e8 of them
    taken = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=taken[1:])
    return np.arange(taken[-1]) + np.repeat(starts - taken[:-1], lengths), taken


@dataclass(frozen=True)
class Examples:
    """`n` examples of one or more sequences each: those of example i are `starts[i]:starts[i + 1]` of `tokens`, starts [n + 1]; None where
    each has one. The views of a text are sequences of one example, and so are the windows of a context. `contexts` [n]: the texts that
    answers are taken from, where any are. `texts` [n]: the row of each where none has tokens."""

    tokens: Tokens
    starts: NDArray[np.int64] | None = None
    contexts: tuple[str, ...] = ()
    texts: tuple[tuple[str, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.tokens if self.starts is None else self.starts[1:])

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> Self:
        """The examples of `rows`, in that order."""
        if self.starts is None:
            return replace(self, tokens=self.tokens.take(rows))
        sequences, starts = _taken(self.starts, rows)
        contexts = tuple(self.contexts[row] for row in rows) if self.contexts else ()
        return replace(self, tokens=self.tokens.take(sequences), starts=starts, contexts=contexts)

    @property
    def owner(self) -> NDArray[np.int64]:
        """The example of each sequence, [S]."""
        return np.arange(len(self)) if self.starts is None else np.repeat(np.arange(len(self)), np.diff(self.starts))

    def side_by_side(self) -> tuple[Tokens, NDArray[np.int64]]:
        """The first sequences of all examples, then their second ones, and so on; and the example of each, [S]."""
        if self.starts is None:
            return self.tokens, self.owner
        place = np.arange(len(self.tokens)) - self.starts[self.owner]
        order = np.argsort(place, kind="stable")
        return self.tokens.take(order), self.owner[order]


@dataclass(frozen=True)
class Vocabulary:
    """The numbers of a tokenizer that masking needs."""

    size: int
    mask_id: int | None


@dataclass(frozen=True)
class Frame:
    """The special tokens of a sequence of one or two texts: `around[i]`, ids and types [k, 2], stands before text i, the last one behind all.
    `types` of the texts; `separator`: the id that goes between two texts which share a place."""

    around: tuple[NDArray[np.int64], ...]
    types: tuple[int, ...]
    separator: int

    @property
    def size(self) -> int:
        """The number of special tokens."""
        return sum(map(len, self.around))

    def sequences(self, *texts: NDArray[Any], special: NDArray[np.bool_] | None = None) -> Tokens:
        """`n` sequences of equal length of the tokens of their texts, [n, L] each; `special` [n, L]: tokens of the last text that count as such."""
        count, parts = len(texts[0]), list[tuple[Any, Any, Any]]()
        marks = [np.False_] * (len(texts) - 1) + [np.False_ if special is None else special]
        for around, text, kind, marked in zip(self.around, texts, self.types, marks, strict=False):
            parts += [(around[:, 0], around[:, 1], np.True_), (text, kind, marked)]
        parts.append((self.around[-1][:, 0], self.around[-1][:, 1], np.True_))
        widths = [ids.shape[-1] for ids, _, _ in parts]

        def flat(place: int, dtype: Any) -> NDArray[Any]:
            of = zip(parts, widths, strict=True)
            return np.hstack([np.broadcast_to(part[place], (count, width)) for part, width in of]).astype(dtype).ravel()

        offsets = np.arange(count + 1, dtype=np.int64) * sum(widths)
        return Tokens(flat(0, np.int32), flat(1, np.int8), flat(2, np.bool_), offsets)


class Tokeniser:
    """The tokenizer of an encoder folder; `tokenizer` is transformers' own."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = pretrained_tokenizer(folder)

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(len(self.tokenizer), self.tokenizer.mask_token_id)

    def __call__(self, texts: Sequence[tuple[str, ...]], max_length: int) -> Tokens:
        """Tokenise rows of one or two texts, truncated to `max_length` tokens, the longer text first."""
        if not texts:
            raise UserError("There are no texts to tokenise.")
        columns = [list(column) for column in zip(*texts, strict=True)]
        encoded = self.tokenizer(
            *columns,
            truncation=True,
            max_length=max_length,
            return_token_type_ids=True,
            return_special_tokens_mask=True,
            return_attention_mask=False,
        )
        ids, types, special = (
            np.concatenate([np.asarray(row, dtype) for row in encoded[name]])
            for name, dtype in (("input_ids", np.int32), ("token_type_ids", np.int8), ("special_tokens_mask", np.bool_))
        )
        return Tokens(ids, types, special, np.cumsum([0, *map(len, encoded["input_ids"])], dtype=np.int64))

    def whole(self, texts: Sequence[str], **settings: Any) -> Any:
        """What transformers' tokenizer says of whole texts, without special tokens and truncation."""
        settings |= {"return_token_type_ids": False, "return_attention_mask": False}
        # No warning that a text is longer than the encoder's sequences.
        return self.tokenizer(list(texts), add_special_tokens=False, truncation=False, verbose=False, **settings)

    def placed(self, texts: Sequence[str]) -> list[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Of each whole text: (ids [L], first character of each token and the one after its last [L, 2]).
        Raises UserError for a tokenizer that does not say where its tokens are."""
        if not self.tokenizer.is_fast:
            raise UserError(
                f"The tokenizer ({type(self.tokenizer).__name__}) does not say where in a text its tokens are, which answers are found by; "
                "name an encoder with a tokenizer.json."
            )
        encoded = self.whole(texts, return_offsets_mapping=True)
        return [
            (np.array(ids, dtype=np.int32), np.array(places, dtype=np.int32).reshape(-1, 2))
            for ids, places in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
        ]

    def frame(self, texts: int = 1) -> Frame:
        """That of a sequence of so many texts, derived from one. Raises UserError where the tokenizer puts no token after each text."""
        probe = self([("a",) * texts], 512)  # which is one token, at least the unknown one
        placed, inside = np.stack([probe.ids, probe.types], axis=1).astype(np.int64), np.flatnonzero(~probe.special)
        own = inside.reshape(texts, -1)  # the places of each text's tokens
        edges = zip([0, *(own[:, -1:].ravel() + 1)], [*own[:, :1].ravel(), len(placed)], strict=True)
        around = tuple(placed[start:stop] for start, stop in edges)
        if not own.size or not all(map(len, around[1:])):
            kind = type(self.tokenizer).__name__
            raise UserError(
                f"The tokenizer ({kind}) puts no special token after each text; name an encoder of a BERT-like kind."
            )
        separator = self.tokenizer.sep_token_id
        separator = int(around[-1][0, 0] if separator is None else separator)
        return Frame(around, tuple(int(kind) for kind in placed[own[:, 0], 1]), separator)


_BERT = {("bert", "BertTokenizer"), ("bert", "BertTokenizerFast")}
"""(model_type, tokenizer_class) for which `AutoTokenizer` loads `BertTokenizer`."""


def pretrained_tokenizer(folder: Path, **settings: Any) -> Any:
    """What tokenizer.json describes, as it stands, with the special tokens and limits of transformers' class; without that file the class's
    own tokenizer. `settings` are transformers'.

    transformers builds the tokenizers of many model types from the vocabulary in tokenizer.json alone, without its normalizer,
    pre-tokenizer and post-processor, so that a cased encoder may be lower-cased without a word. Raises UserError for files that cannot be used.
    """
    try:
        loaded = _class_of(folder).from_pretrained(str(folder), trust_remote_code=False, **settings)
        if not (folder / "tokenizer.json").exists():
            return loaded
        from tokenizers import Tokenizer
        from transformers import PreTrainedTokenizerFast

        file: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        file.no_truncation()
        file.no_padding()
        if file.post_processor is None:  # the file leaves special tokens to the class
            file.post_processor = loaded.backend_tokenizer.post_processor
        roles = {role: token for role, token in loaded.special_tokens_map.items() if isinstance(token, str)}
        kept = {name: getattr(loaded, name) for name in ("model_max_length", "model_input_names", "truncation_side")}
        return PreTrainedTokenizerFast(tokenizer_object=file, **roles, **kept)
    except Exception as error:  # whatever a damaged file leads the library to
        raise UserError(f"The encoder folder {folder} has no usable tokenizer: {first_line(error)}") from None


def _class_of(folder: Path) -> Any:
    """The class that `AutoTokenizer` would load. BERT's is imported by name: `AutoTokenizer` imports torch, a second and a half of a
    command's start that nothing else in the driver needs."""
    paths = (folder / "config.json", folder / "tokenizer_config.json")
    config, configured = (json.loads(path.read_text(encoding="utf-8")) if path.exists() else {} for path in paths)
    if (config.get("model_type"), configured.get("tokenizer_class")) in _BERT:
        from transformers import BertTokenizer

        return BertTokenizer
    from transformers import AutoTokenizer

    return AutoTokenizer
