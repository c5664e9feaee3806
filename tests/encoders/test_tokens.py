"""Flat token arrays: taking rows, truncation, token types and the mask of special tokens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from harness.encoders.sources import locate
from harness.encoders.tokens import Tokeniser, Tokens
from harness.errors import UserError


def lists(tokens: Tokens) -> list[tuple[list[int], list[int], list[bool]]]:
    bounds = zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)
    return [(tokens.ids[a:b].tolist(), tokens.types[a:b].tolist(), tokens.special[a:b].tolist()) for a, b in bounds]


@settings(max_examples=60)
@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=6), data=st.data())
def test_take_is_taking_from_a_list(lengths: list[int], data: st.DataObject) -> None:
    total = sum(lengths)
    tokens = Tokens(
        np.arange(total, dtype=np.int32),
        (np.arange(total) % 2).astype(np.int8),
        np.arange(total) % 3 == 0,
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    )
    rows = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=8))
    for chosen in (rows, np.array(rows, dtype=np.int64)):
        taken = tokens.take(chosen)  # type: ignore[arg-type]
        assert lists(taken) == [lists(tokens)[i] for i in rows]
        assert len(taken) == len(rows)
        assert taken.lengths.tolist() == [lengths[i] for i in rows]


@pytest.mark.parametrize("kind", tiny.KINDS)
class TestTokeniser:
    def test_single_and_pair(self, kind: str, folders: dict[str, Path]) -> None:
        made = tiny.tokenizer(kind)
        word = made.convert_tokens_to_ids
        first, last = made.cls_token_id, made.sep_token_id
        single = tiny.tokens(folders[kind], [("w1 w2",), ("good",)])
        assert lists(single) == [
            ([first, word("w1"), word("w2"), last], [0] * 4, [True, False, False, True]),
            ([first, word("good"), last], [0] * 3, [True, False, True]),
        ]
        (ids, types, special), *rest = lists(tiny.tokens(folders[kind], [("w1", "w2 w3")]))
        between = [last] if made.cls_token == "[CLS]" else [last, last]
        assert not rest
        assert ids == [first, word("w1"), *between, word("w2"), word("w3"), last]
        second = int(made.cls_token == "[CLS]")
        assert types == [0] * (2 + len(between)) + [second] * 3
        assert special == [True, False, *[True] * len(between), False, False, True]

    def test_the_longer_text_is_truncated_first(self, kind: str, folders: dict[str, Path]) -> None:
        words = [f"w{i}" for i in range(20)]
        room = 8 + int(tiny.tokens(folders[kind], [("w1", "w1")]).special.sum())
        for texts, (left, right) in (((words, words[:2]), (6, 2)), ((words[:3], words), (3, 5))):
            tokens = tiny.tokens(folders[kind], [(" ".join(texts[0]), " ".join(texts[1]))], room)
            found = tiny.tokenizer(kind).convert_ids_to_tokens(tokens.ids[~tokens.special].tolist())
            assert found == texts[0][:left] + texts[1][:right]


def test_texts_that_cannot_be_tokenised(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no texts"):
        Tokeniser(bert)([], 16)
    with pytest.raises(UserError, match="has no usable tokenizer"):
        Tokeniser(tmp_path)


@pytest.mark.usefixtures("packaged")
def test_a_tokenizer_of_bert_gives_the_librarys_ids_and_needs_no_torch() -> None:
    folders = [str(locate(encoder).folder) for encoder in ("bert-tiny", "minilm")]
    text = ("A film, unlike others: \u00fcber-good [MASK] don't", "\u7535\u5f71 ok")
    for folder in folders:
        library = AutoTokenizer.from_pretrained(folder)
        assert Tokeniser(Path(folder))([text], 64).ids.tolist() == library(*text)["input_ids"]
    code = "import sys; from pathlib import Path; from harness.encoders.tokens import Tokeniser\n"
    code += "[Tokeniser(Path(folder)) for folder in sys.argv[1:]]; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, *folders], check=True)
