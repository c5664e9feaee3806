"""Windows of contexts: each token is in one, none is cut apart, and an answer that fits is whole in one of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from family_encoders import TOKENIZERS
from questions import LENGTH, READING, windows

from harness.answers import SpanReading, of_label, token_span
from harness.encoders.tokens import Tokeniser
from harness.encoders.tokens.reading import Windows
from harness.errors import UserError
from harness.tasks.rows import Rows

TEXT = 'Café Noir (est. 1999) sells 3,000 "tiny" cakes\u00a0a day; naïve 東京 visitors pay €2.50 each 😀 today.'
WORDS = [TEXT, "Who sells tiny cakes?", "antidisestablishmentarianism is one long word, isn't it?"]


@pytest.fixture(scope="module", params=[*TOKENIZERS, "roberta"])
def tokeniser(
    request: pytest.FixtureRequest, folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Tokeniser:
    """The three ways of cutting words, each trained on a few sentences, and RoBERTa's special tokens, two of which stand between texts."""
    if request.param == "roberta":
        return tiny.tokeniser(folders["roberta"])
    folder = tmp_path_factory.mktemp("tokenizer")
    TOKENIZERS[request.param](WORDS).save_pretrained(str(folder))
    return Tokeniser(folder)


def test_a_window_that_holds_all_is_the_tokenizers_own_pair(tokeniser: Tokeniser) -> None:
    whole = tokeniser([(WORDS[1], TEXT)], 512)
    found = Windows(512).examples([(WORDS[1], TEXT)], tokeniser)
    assert len(found.tokens) == 1
    for name in ("ids", "types", "special", "offsets"):
        np.testing.assert_array_equal(getattr(found.tokens, name), getattr(whole, name))
    assert found.contexts == (TEXT,)


@pytest.mark.parametrize(("length", "stride"), [(64, 16), (50, 1), (512, 128)])
def test_windows_are_those_of_transformers(tokeniser: Tokeniser, length: int, stride: int) -> None:
    """As its tokenizer cuts with `return_overflowing_tokens`: its `stride` is what two windows share. (Ours is at most half a window.)"""
    context = f"{TEXT} {WORDS[2]} " * 3
    found = Windows(length, spans=SpanReading(stride=stride)).examples([(WORDS[1], context)], tokeniser).tokens
    theirs = tokeniser.tokenizer(
        WORDS[1],
        context,
        truncation="only_second",
        max_length=length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    assert len(found) == len(theirs["input_ids"]) > (length < 512)
    for window, ids in enumerate(theirs["input_ids"]):
        ours = found.take([window])
        assert ours.places is not None
        assert ours.ids.tolist() == ids
        inside = [part == 1 for part in theirs.sequence_ids(window)]
        assert ours.places[inside].tolist() == np.array(theirs["offset_mapping"][window])[inside].tolist()
        assert (ours.places[:, 0] >= 0).tolist() == inside


def test_windowing_loses_no_answer_that_fits(bert: Path) -> None:
    """One of at most one token more than two windows share is whole in one of them, and its text comes back."""
    examples, labels = windows(bert, 60)
    tokens = examples.tokens
    assert len(tokens) > 60
    assert tokens.lengths.max() == LENGTH
    assert tokens.places is not None
    for example in range(len(examples)):
        answers, held = of_label(labels[example]), []
        assert examples.starts is not None
        for sequence in range(examples.starts[example], examples.starts[example + 1]):
            places = tokens.places[tokens.offsets[sequence] : tokens.offsets[sequence + 1]]
            first, last = token_span(labels[example], places)
            held += [examples.contexts[example][places[first, 0] : places[last, 1]]] if last else []
        assert set(held) == {text for text, _ in answers}


def test_a_long_question_is_cut_and_one_without_room_is_refused(bert: Path) -> None:
    long = ("w1 " * 50, "w2 w3 w4")
    found = Windows(LENGTH, spans=READING).examples([long], tiny.tokeniser(bert))
    assert found.tokens.ids.tolist().count(tiny.tokens(bert, [("w1",)]).ids[1]) == READING.question
    short, tokeniser = ("w1", "w2 w3 w4"), tiny.tokeniser(bert)
    reading = Windows(12, spans=READING)
    for read in (reading.examples, lambda rows, tokeniser: reading.check(Rows(rows), tokeniser)):
        read([short], tokeniser)
        with pytest.raises(
            UserError, match="max_length 12: leaves no room for a context beside the 8 tokens of the question"
        ):
            read([short, long], tokeniser)
    Windows(LENGTH, spans=READING).check(Rows([short, long]), tokeniser)
