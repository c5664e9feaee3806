"""How rows of texts become sequences of tokens: each text by itself, all of them end to end in blocks, or a question with windows of its
context."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from harness.answers import SQUAD, SpanReading
from harness.encoders.tokens import Examples, Frame, Tokeniser, Tokens, joined
from harness.encoders.tokens.cloze import ClozeExamples, cloze_examples
from harness.errors import UserError
from harness.prompts import Prompt
from harness.specs import Data
from harness.tasks.rows import Rows

MIN_TAIL = 8
"""A shorter last block is kept if it has this many tokens of text."""

Row = tuple[str, ...]


@dataclass(frozen=True)
class Reading:
    """A way to read rows, named by `Data.blocks`: sequences of at most `max_length` tokens. With several `views` a row holds as many texts,
    or pairs, side by side, each of which is a sequence of the same example. A reading defines `sequences` or `examples`."""

    name: ClassVar[str]

    max_length: int
    views: int = 1

    def check(self, rows: Rows, tokeniser: Tokeniser) -> None:
        """Raises UserError where rows cannot be read with this tokenizer."""
        return  # any text can be cut

    def sequences(self, parts: Iterable[Sequence[Row]], tokeniser: Tokeniser) -> Iterator[Tokens]:
        """The sequences of rows that come in parts, one or more at a time."""
        yield from (self.examples(part, tokeniser).tokens for part in parts)

    def examples(self, rows: Sequence[Row], tokeniser: Tokeniser) -> Examples:
        if self.views == 1:
            return Examples(joined(*self.sequences([rows], tokeniser)))
        width = len(rows[0]) // self.views if rows else 0
        views = [row[at : at + width] for row in rows for at in range(0, len(row), width)]
        return Examples(joined(*self.sequences([views], tokeniser)), np.arange(len(rows) + 1) * self.views)


class Plain(Reading):
    """A sequence of each row, of one text or a pair, truncated, the longer text first."""

    name = "text"

    def sequences(self, parts: Iterable[Sequence[Row]], tokeniser: Tokeniser) -> Iterator[Tokens]:
        yield from (tokeniser(part, self.max_length) for part in parts)


class Packed(Reading):
    """The tokens of all texts end to end with a separator between two texts, cut into blocks of exactly `max_length` tokens; each block has
    the first and last token that the tokenizer puts around one text. So a block may hold the end of one text and the beginning of the
    next, as in the papers' own pre-training (docs/papers.md T7), and a long text goes on over many blocks. Only the last block may be
    shorter; it is dropped with fewer than MIN_TAIL tokens of text, unless it is the only one. `special` marks first and last tokens and
    separators."""

    name = "packed"

    def sequences(self, parts: Iterable[Sequence[Row]], tokeniser: Tokeniser) -> Iterator[Tokens]:
        """Raises UserError where `max_length` leaves no room in a block."""
        frame = tokeniser.frame()
        width = self.max_length - frame.size
        if width < 2:  # two, so that no block is a separator alone
            raise UserError(
                f"max_length {self.max_length}: leaves {max(0, width)} tokens of text in a packed block; raise it."
            )
        rest, between, begun, cut = np.zeros(0, np.int32), np.zeros(0, np.bool_), False, False
        for part in parts:
            texts = [ids for ids in tokeniser.whole([text for (text,) in part])["input_ids"] if ids]
            ids = np.fromiter(chain.from_iterable((frame.separator, *each) for each in texts), np.int32)
            separators = np.zeros(len(ids), np.bool_)
            separators[np.cumsum([0, *(len(each) + 1 for each in texts)])[:-1]] = True
            if not begun:  # no separator before the first text
                ids, separators, begun = ids[1:], separators[1:], len(ids) > 0
            rest, between = np.concatenate([rest, ids]), np.concatenate([between, separators])
            whole = len(rest) // width * width
            if whole:
                cut = True
                yield frame.sequences(rest[:whole].reshape(-1, width), special=between[:whole].reshape(-1, width))
                rest, between = rest[whole:], between[whole:]
        if len(rest) and (not cut or int((~between).sum()) >= MIN_TAIL):
            yield frame.sequences(rest[None], special=between[None])


@dataclass(frozen=True)
class Cloze(Reading):
    """A sequence of each row: the cloze that the prompt makes of it, without demonstrations."""

    prompt: Prompt = field(kw_only=True)

    def check(self, rows: Rows, tokeniser: Tokeniser) -> None:
        self.examples([("a",) * rows.columns], tokeniser)

    def examples(self, rows: Sequence[Row], tokeniser: Tokeniser) -> ClozeExamples:
        """Raises UserError for a template or label words that do not fit the encoder."""
        return cloze_examples(rows, tokeniser, self.prompt, self.max_length)


class Untokenised(Reading):
    """The texts themselves, of any length: no token is made of them."""

    name = "whole"

    def examples(self, rows: Sequence[Row], tokeniser: Tokeniser) -> Examples:
        offsets = np.zeros(len(rows) + 1, np.int64)
        none = Tokens(np.zeros(0, np.int32), np.zeros(0, np.int8), np.zeros(0, np.bool_), offsets)
        return Examples(none, texts=tuple(rows))


READINGS: dict[str, type[Reading]] = {reading.name: reading for reading in (Plain, Packed, Untokenised)}


@dataclass(frozen=True)
class Windows(Reading):
    """A question with its context, (question, context) a row: a sequence of the question's first tokens and each window of the context's;
    the windows of a row are one example. A window that is not the last is full."""

    spans: SpanReading = SQUAD

    def check(self, rows: Rows, tokeniser: Tokeniser) -> None:
        """Questions are read only where one could leave too little room."""
        frame = tokeniser.frame(2)
        if self.max_length - frame.size - self.spans.question < 2:
            self._asked([question for question, _ in rows.texts], tokeniser, frame)

    def examples(self, rows: Sequence[Row], tokeniser: Tokeniser) -> Examples:
        """Raises UserError where a question leaves a window no room for an answer."""
        questions, contexts = (list(column) for column in zip(*rows, strict=True))
        frame = tokeniser.frame(2)
        different = list(dict.fromkeys(contexts))  # many questions have one context
        placed = dict(zip(different, tokeniser.placed(different), strict=True))
        windows: list[Tokens] = []
        counts = []
        for question, context in zip(self._asked(questions, tokeniser, frame), contexts, strict=True):
            content, places = placed[context]
            room = self.max_length - frame.size - len(question)
            shared = min(self.spans.stride, room // 2)
            starts = range(0, max(1, len(content) - shared), room - shared)
            for inside in (slice(start, start + room) for start in starts):
                window = frame.sequences(question[None], content[inside][None])
                located = np.full((len(window.ids), 2), -1, dtype=np.int32)
                stop = len(located) - len(frame.around[2])
                located[stop - len(content[inside]) : stop] = places[inside]
                windows.append(replace(window, places=located))
            counts.append(len(starts))
        return Examples(joined(*windows), np.concatenate([[0], np.cumsum(counts)]), tuple(contexts))

    def _asked(self, questions: Sequence[str], tokeniser: Tokeniser, frame: Frame) -> list[NDArray[np.int32]]:
        """The tokens of each question that are read. Raises UserError where they leave a window no room for an answer."""
        cut = [ids[: self.spans.question] for ids, _ in tokeniser.placed(questions)]
        for question, ids in zip(questions, cut, strict=True):
            if self.max_length - frame.size - len(ids) < 2:
                raise UserError(
                    f"max_length {self.max_length}: leaves no room for a context beside the {len(ids)} tokens of the question "
                    f"'{question[:60]}'; raise max_length."
                )
        return cut


def reading_of(data: Data) -> Reading:
    if data.spans:
        return Windows(data.max_length, spans=data.spans)
    if data.prompt:
        return Cloze(data.max_length, prompt=data.prompt)
    return READINGS[data.blocks](data.max_length, data.views)
