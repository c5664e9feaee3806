"""Rows as clozes: a text in a template whose mask stands for a label word, with demonstrations of the classes behind it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from typing import Self

import numpy as np
from numpy.typing import NDArray

from harness.encoders.tokens import Examples, Frame, Tokeniser, Tokens, joined
from harness.errors import UserError, quoted
from harness.prompts import MASK, Prompt

_MASKED, _FIXED = -1, -2
"""Parts of a cloze: its mask, and what stands in each; 0 and 1 are the row's texts."""

Body = tuple[NDArray[np.int32], NDArray[np.bool_]]
"""A cloze without special tokens around it: ids [L], and which are not of the row's texts [L]."""


@dataclass(frozen=True, kw_only=True)
class ClozeExamples(Examples):
    """Examples whose sequences are clozes, each with one mask. `special` of a token: it is not of the row's texts.

    `identities` [n]: equal for rows of equal tokens before any was cut; `words` [C]: ids of the label words; `draws`: sequences of an example at evaluation, each with other demonstrations (0: none);
    `max_length`: tokens of a sequence with its demonstrations.
    """

    identities: NDArray[np.int64]
    words: NDArray[np.int64]
    mask_id: int
    frame: Frame
    draws: int
    max_length: int

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> Self:
        return replace(super().take(rows), identities=self.identities[rows])

    def body(self, sequence: int) -> Body:
        """Ids and `special` of a sequence without the frame, [L] each."""
        start, stop = self.tokens.offsets[sequence : sequence + 2]
        inside = slice(start + len(self.frame.around[0]), stop - len(self.frame.around[1]))
        return self.tokens.ids[inside], self.tokens.special[inside]

    def demonstrated(
        self,
        training: ClozeExamples,
        labels: NDArray[np.int64],
        generators: Sequence[np.random.Generator],
        draws: int,
        exclude: bool,
    ) -> ClozeExamples:
        """Each example `draws` times, each time with a `training` example of each class behind it in the order of the codes, the label
        word in the place of its mask. Texts of demonstrations are cut to fit, never the example's own, nor a label word.

        `labels` [n]: of the training examples; `generators` [len(self)]: each example draws from its own; `exclude`: a training example of
        the same tokens is not drawn. Raises ValueError where a class has no example to draw.
        """
        by_class = [np.flatnonzero(labels == code) for code in range(len(self.words))]

        @cache
        def answered(row: int) -> Body:
            """With the label word of its class in the place of the mask."""
            ids, special = training.body(row)
            return np.where(ids == self.mask_id, self.words[labels[row]], ids), special

        parts: list[Body] = []
        for example, generator in enumerate(generators):
            body = self.body(example)
            pools = by_class
            if exclude:
                pools = [rows[training.identities[rows] != self.identities[example]] for rows in by_class]
            if empty := [code for code, rows in enumerate(pools) if not len(rows)]:
                raise ValueError(f"class {empty[0]} has no other training example to demonstrate it")
            for _ in range(draws):
                rows = [int(generator.choice(rows)) for rows in pools]
                parts.append(self._followed(body, [answered(row) for row in rows]))
        starts = None if draws == 1 else np.arange(len(generators) + 1) * draws
        return replace(self, tokens=_sequences(parts, self.frame), starts=starts)

    def _followed(self, body: Body, demonstrations: Sequence[Body]) -> Body:
        """One sequence without its frame. Room that a short demonstration leaves goes to the next ones."""
        ids, special = [body[0]], [body[1]]
        fixed = [int(np.count_nonzero(marks)) + 1 for _, marks in demonstrations]  # with a separator before it
        room = self.max_length - self.frame.size - len(body[0]) - sum(fixed)
        for left, (of_row, marks) in zip(range(len(demonstrations), 0, -1), demonstrations, strict=True):
            kept = _kept(marks, room // left)
            room -= len(kept) - int(np.count_nonzero(marks))
            ids += [np.array([self.frame.separator]), of_row[kept]]
            special += [np.ones(1, np.bool_), marks[kept]]
        return np.concatenate(ids).astype(np.int32), np.concatenate(special)


def _kept(special: NDArray[np.bool_], room: int) -> NDArray[np.int64]:
    """The tokens of a cloze that stay where its texts get `room` tokens: of the longest text the last ones go first."""
    if len(special) - np.count_nonzero(special) <= room:
        return np.arange(len(special))  # as most texts are, and searching for edges is slow
    edges = np.flatnonzero(np.diff(special.astype(np.int8), prepend=1, append=1))
    starts, stops = edges[::2], edges[1::2]
    keep = np.ones(len(special), np.bool_)
    for start, stop, length in zip(starts, stops, shortened(stops - starts, room), strict=True):
        keep[start + length : stop] = False
    return np.flatnonzero(keep)


def shortened(lengths: Sequence[int] | NDArray[np.int64], room: int) -> list[int]:
    """The lengths of texts that together have at most `room` tokens: the longest one loses its last token until they fit, the first one
    of equally long ones."""

    def cut_at(level: int) -> list[int]:
        return [min(int(length), level) for length in lengths]

    level = bisect_right(range(max(lengths, default=0) + 1), room, key=lambda level: sum(cut_at(level))) - 1
    kept = cut_at(max(level, 0))
    longer = [index for index, length in enumerate(lengths) if length > kept[index]]
    for index in longer[len(longer) - max(room - sum(kept), 0) :] if longer else ():
        kept[index] += 1
    return kept


def _sequences(bodies: Sequence[Body], frame: Frame) -> Tokens:
    return joined(*(frame.sequences(ids[None], special=marks[None]) for ids, marks in bodies))


def label_words(prompt: Prompt, tokeniser: Tokeniser) -> NDArray[np.int64]:
    """The ids of the label words as they stand in the template, [C]. Raises UserError for a word that is not one token."""
    ids = []
    for word in prompt.words:
        [(tokens, parts)] = _parts(prompt, [("a", "a")], tokeniser, word)
        there = tokens[parts == _MASKED]
        if len(there) != 1 or there[0] == tokeniser.tokenizer.unk_token_id:
            raise UserError(
                f"label word {quoted(word)}: is not one token of this encoder's vocabulary as it stands in {quoted(prompt.template)}; choose "
                "another word."
            )
        ids.append(int(there[0]))
    if len(set(ids)) < len(ids):
        raise UserError(f"label words {', '.join(prompt.words)}: two of them are the same token; choose other words.")
    return np.array(ids, dtype=np.int64)


def _parts(
    prompt: Prompt, rows: Sequence[Sequence[str]], tokeniser: Tokeniser, word: str
) -> list[tuple[NDArray[np.int32], NDArray[np.int64]]]:
    """Of each row the tokens of its whole cloze with `word` in the place of the mask, and the part of the cloze that each is of: tokens
    are those of the text that a reader would see, whatever the tokenizer makes of spaces."""
    pieces = prompt.pieces
    kinds = np.array([_MASKED if p.mask else _FIXED if p.column is None else p.column for p in pieces])
    texts = [[piece.of(row, word) for piece in pieces] for row in rows]
    tokenised = []
    for written, (ids, offsets) in zip(texts, tokeniser.placed(["".join(text) for text in texts]), strict=True):
        ends = np.cumsum([len(text) for text in written])
        last = np.maximum(offsets[:, 0], offsets[:, 1] - 1)  # a token may begin with the space before its word
        part = kinds[np.minimum(np.searchsorted(ends, last, side="right"), len(kinds) - 1)]
        tokenised.append((ids, part))
    return tokenised


def cloze_examples(
    rows: Sequence[Sequence[str]], tokeniser: Tokeniser, prompt: Prompt, max_length: int
) -> ClozeExamples:
    """The clozes of rows, without demonstrations; texts are cut, the longer one first, so that a demonstration of each class fits behind,
    if without its texts. Raises UserError where a template does not fit, and for label words that are not one token each."""
    words, frame, mask = label_words(prompt, tokeniser), tokeniser.frame(), tokeniser.vocabulary.mask_id
    if mask is None:
        raise UserError(
            "The encoder's tokenizer has no mask token, so it cannot be prompted; take an encoder with an MLM head."
        )
    bodies, identities = [], []
    for row, (ids, parts) in enumerate(_parts(prompt, rows, tokeniser, prompt.words[0])):
        if list(ids[parts == _MASKED]) != [words[0]]:
            raise UserError(
                f"template {quoted(prompt.template)}: in row {row + 1} the label word is not a token of its own; put spaces around {MASK}."
            )
        keep = (parts < 0) | (ids != mask)  # a text may hold the mask token's own name
        ids, parts = np.where(parts == _MASKED, mask, ids)[keep].astype(np.int32), parts[keep]
        identities.append(int.from_bytes(blake2b(ids.tobytes(), digest_size=8).digest(), "little", signed=True))
        fixed = int((parts < 0).sum())
        behind = len(words) * (fixed + 1) if prompt.demonstrations else 0
        room = max_length - frame.size - fixed - behind
        if room < 1:
            raise UserError(
                f"template {quoted(prompt.template)}: leaves no room for texts in max_length {max_length}; raise max_length or shorten it."
            )
        lengths = [int((parts == column).sum()) for column in (0, 1)]
        if prompt.first_length:
            lengths[0] = min(lengths[0], prompt.first_length)
        for column, length in enumerate(shortened(lengths, room)):
            cut = np.flatnonzero(parts == column)[length:]
            ids, parts = np.delete(ids, cut), np.delete(parts, cut)
        bodies.append((ids, parts < 0))
    return ClozeExamples(
        tokens=_sequences(bodies, frame),
        identities=np.array(identities, dtype=np.int64),
        words=words,
        mask_id=mask,
        frame=frame,
        draws=prompt.draws,
        max_length=max_length,
    )
