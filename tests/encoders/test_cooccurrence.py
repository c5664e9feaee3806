"""Words that occur in the same sequences, against a count by hand."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from harness.encoders.tokens import Tokeniser, Tokens, cooccurrence


def sequences(seed: int, count: int = 60, vocabulary: int = 12) -> Tokens:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(3, 9, count)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    special = np.isin(np.arange(offsets[-1]), offsets[:-1])
    ids = draw.integers(0, vocabulary, offsets[-1]).astype(np.int32)
    return Tokens(ids, np.zeros(offsets[-1], np.int8), special, offsets)


@pytest.mark.parametrize("seed", range(4))
def test_pairs_are_those_of_a_count_by_hand(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cooccurrence, "LEAST", 3)
    monkeypatch.setattr(cooccurrence, "_ROWS", 7)
    tokens, words = sequences(seed), np.arange(12) % 5 != 0
    held = [
        {int(i) for i, s in zip(tokens.ids[a:b], tokens.special[a:b], strict=True) if words[i] and not s}
        for a, b in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)
    ]
    alone = {word: np.mean([word in each for each in held]) for word in range(12)}
    values = {}
    for one, other in combinations(np.flatnonzero(words).tolist(), 2):
        both = [one in each and other in each for each in held]
        if sum(both) >= 3:
            p = np.mean(both)
            values[one, other] = math.log(p / (alone[one] * alone[other])) / -math.log(p)
    expected = sorted(values, key=lambda pair: -values[pair])[:8]
    found = cooccurrence.cooccurring_words(tokens, words, 8)
    assert sorted(round(values[one, other], 9) for one, other in found.tolist()) == sorted(
        round(values[pair], 9) for pair in expected
    )
    assert np.all(found[:, 0] < found[:, 1])
    monkeypatch.setattr(cooccurrence, "LEAST", 1000)
    assert cooccurrence.cooccurring_words(tokens, words, 8).shape == (0, 2)


def test_words_are_tokens_that_begin_one() -> None:
    for tokens, words in (
        (["[CLS]", "bank", "##er", "of", "1990", "money"], {"bank", "money"}),
        (["<s>", "\u0120bank", "er", "\u0120of", "\u0120money", "bank"], {"\u0120bank", "\u0120money"}),
    ):

        class Words(Tokeniser):
            def __init__(self, tokens: list[str] = tokens) -> None:
                self._tokenizer = type(
                    "Tokenizer",
                    (),
                    {
                        "convert_ids_to_tokens": lambda _, ids: [tokens[i] for i in ids],
                        "__len__": lambda _: len(tokens),
                        "all_special_tokens": tokens[:1],
                    },
                )()

        assert {tokens[i] for i in np.flatnonzero(Words().words)} == words
