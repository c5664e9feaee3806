"""Clozes: the tokens that a reader would see, cut without the mask or a label word, with a demonstration of each class."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_encoders import SPECIAL, TOKENIZERS, wrapped
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from harness.encoders.tokens import Tokeniser
from harness.encoders.tokens.cloze import ClozeExamples, shortened
from harness.encoders.tokens.reading import Cloze
from harness.errors import UserError
from harness.prompts import Prompt

SINGLE = Prompt("{first} It was [MASK].", ("terrible", "great"))
PAIR = Prompt("{first|chop}? [MASK], {second|lower}", ("Yes", "No"))
TEXTS = ["A fine film It was great.", "A dull film It was terrible.", "Is it so? Yes, it is", "Is it so? No, it is"]
WORDS = ["a", "fine", "dull", "film", "it", "was", "so"]
"""Words of which the tokenizers below know each, and each as one token."""


def unigrams() -> PreTrainedTokenizerFast:
    """SentencePiece's model with whole words: one that is trained on four sentences has none."""
    words = sorted(set(re.findall(r"\w+", " ".join(TEXTS))))
    pieces = [*((token, 0.0) for token in SPECIAL), *((f"▁{word}", -1.0) for word in words)]
    pieces += [(letter, -9.0) for letter in "▁.?,abcdefghijklmnopqrstuvwxyz"]
    made = Tokenizer(models.Unigram(pieces, unk_id=SPECIAL.index("[UNK]")))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return wrapped(made)


@pytest.fixture(scope="module")
def tokenisers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokeniser]:
    root, kept = tmp_path_factory.mktemp("cloze"), dict[str, Tokeniser]()

    def of(kind: str) -> Tokeniser:
        if kind not in kept:
            folder: Path = root / kind.replace(" ", "-")
            trained = unigrams() if kind == "unigrams" else TOKENIZERS[kind](TEXTS * 50)
            trained.save_pretrained(str(folder))
            (folder / "config.json").write_text('{"model_type": "bert"}')
            kept[kind] = Tokeniser(folder)
        return kept[kind]

    return of


def read(tokeniser: Tokeniser, prompt: Prompt, rows: list[tuple[str, ...]], max_length: int = 64) -> ClozeExamples:
    return Cloze(max_length, prompt=prompt).examples(rows, tokeniser)


def shown(tokeniser: Tokeniser, examples: ClozeExamples) -> list[list[str]]:
    """The tokens of each sequence."""
    tokenizer: Any = tokeniser.tokenizer
    tokens = examples.tokens
    return [tokenizer.convert_ids_to_tokens(tokens.take([row]).ids.tolist()) for row in range(len(tokens))]


@pytest.mark.parametrize(
    ("kind", "prompt", "row", "expected"),
    [
        ("word pieces", SINGLE, ("A fine film ",), "a fine film it was [MASK] ."),
        ("byte pairs", SINGLE, ("A fine film ",), "A Ġfine Ġfilm ĠIt Ġwas [MASK] ."),
        ("unigrams", SINGLE, ("A fine film ",), "▁A ▁fine ▁film ▁It ▁was [MASK] ."),
        ("word pieces", PAIR, ("Is it so.", "It is"), "is it so ? [MASK] , it is"),
        ("byte pairs", PAIR, ("Is it so.", "It is"), "Is Ġit Ġso ? [MASK] , Ġit Ġis"),
        ("unigrams", PAIR, ("Is it so.", "It is"), "▁Is ▁it ▁so ? [MASK] , ▁it ▁is"),
    ],
)
def test_tokens_are_those_of_the_whole_text(
    kind: str, prompt: Prompt, row: tuple[str, ...], expected: str, tokenisers: Callable[[str], Tokeniser]
) -> None:
    examples = read(tokenisers(kind), prompt, [row])
    assert shown(tokenisers(kind), examples) == [["[CLS]", *expected.split(), "[SEP]"]]
    text = {token for token in expected.split() if token.strip("Ġ▁").lower() in {*WORDS, "is"}}
    of_rows = [token for token, special in zip(shown(tokenisers(kind), examples)[0], examples.tokens.special, strict=True) if not special]  # fmt: skip
    assert set(of_rows) <= text, "the template's own tokens are marked"


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_label_word_stands_as_it_would_in_the_text(kind: str, tokenisers: Callable[[str], Tokeniser]) -> None:
    """In the middle of a sentence: with the space before it, where the tokenizer keeps that."""
    begun = {"word pieces": "", "byte pairs": "Ġ", "unigrams": "▁"}[kind]
    words = read(tokenisers(kind), SINGLE, [("a",)]).words.tolist()
    tokenizer: Any = tokenisers(kind).tokenizer
    assert tokenizer.convert_ids_to_tokens(words) == [f"{begun}terrible", f"{begun}great"]


@pytest.mark.parametrize("word", ["magnificently", "two words"])
def test_a_word_of_several_tokens_is_refused(word: str, tokenisers: Callable[[str], Tokeniser]) -> None:
    for kind in TOKENIZERS:
        with pytest.raises(UserError, match="label word") as caught:
            read(tokenisers(kind), replace(SINGLE, words=("great", word)), [("a",)])
        assert word in str(caught.value)


def test_a_mask_token_in_a_text_is_no_mask(tokenisers: Callable[[str], Tokeniser]) -> None:
    examples = read(tokenisers("word pieces"), SINGLE, [("a [MASK] film",)])
    assert shown(tokenisers("word pieces"), examples) == [["[CLS]", "a", "film", "it", "was", "[MASK]", ".", "[SEP]"]]


def test_a_template_without_room_is_refused(tokenisers: Callable[[str], Tokeniser]) -> None:
    with pytest.raises(UserError, match="leaves no room"):
        read(tokenisers("word pieces"), SINGLE, [("a film",)], max_length=16)  # 2 + 4, and 2 x 5 behind it
    assert len(read(tokenisers("word pieces"), SINGLE, [("a film",)], max_length=17).tokens.ids) == 7
    alone = replace(SINGLE, demonstrations=False, draws=0)
    assert len(read(tokenisers("word pieces"), alone, [("a film",)], max_length=8).tokens.ids) == 8


@given(st.lists(st.integers(0, 12), max_size=3), st.integers(-2, 30))
def test_the_longest_text_loses_its_last_token_until_all_fit(lengths: list[int], room: int) -> None:
    naive = list(lengths)
    while sum(naive) > max(room, 0):
        naive[naive.index(max(naive))] -= 1
    assert shortened(lengths, room) == naive


rows = st.lists(st.sampled_from(WORDS), min_size=1, max_size=40).map(" ".join)


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(20, 60), st.integers(0, 5))
def test_no_cut_touches_a_mask_or_a_label_word(
    tokenisers: Callable[[str], Tokeniser], data: st.DataObject, max_length: int, first_length: int
) -> None:
    """Each sequence fits, has one mask, then the words of all classes in the order of the codes; the texts are beginnings of the rows'; a
    query is cut only where demonstrations have no text left."""
    tokeniser = tokenisers("word pieces")
    texts = data.draw(st.lists(rows, min_size=4, max_size=6, unique=True))
    prompt = replace(SINGLE, first_length=first_length, draws=2)
    examples = read(tokeniser, prompt, [(text,) for text in texts], max_length)
    labels = np.arange(len(texts)) % 2
    generators = [np.random.default_rng(row) for row in range(len(texts))]
    made = examples.demonstrated(examples, labels, generators, 2, exclude=True)
    assert len(made) == len(texts)
    for index, tokens in enumerate(shown(tokeniser, made)):
        assert len(tokens) <= max_length
        assert (tokens[0], tokens[-1]) == ("[CLS]", "[SEP]")
        segments = " ".join(tokens[1:-1]).split(" [SEP] ")
        ends = [" it was [MASK] .", " it was terrible .", " it was great ."]
        assert all((" " + segment).endswith(end) for segment, end in zip(segments, ends, strict=True))
        kept = [(" " + segment).removesuffix(end).split() for segment, end in zip(segments, ends, strict=True)]
        own = texts[index // 2].split()
        assert own[: len(kept[0])] == kept[0]
        whole = own[: first_length or len(own)]
        assert len(kept[0]) == len(whole) or len(kept[0]) == max_length - 2 - 4 - 2 * 5
        for code in (0, 1):
            of_class = [text.split() for row, text in enumerate(texts) if labels[row] == code and row != index // 2]
            assert any(text[: len(kept[1 + code])] == kept[1 + code] for text in of_class), "the query shows itself"


def test_a_class_without_another_example(tokenisers: Callable[[str], Tokeniser]) -> None:
    examples = read(tokenisers("word pieces"), SINGLE, [("a film",), ("so dull",)])
    generators = [np.random.default_rng(0)] * 2
    with pytest.raises(ValueError, match="class 0 has no other training example"):
        examples.demonstrated(examples, np.array([0, 1]), generators, 1, exclude=True)
    assert len(examples.demonstrated(examples, np.array([0, 1]), generators, 1, exclude=False)) == 2
