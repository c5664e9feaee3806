"""Texts longer than max_length are counted as the encoder's own tokenizer counts them."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny

from harness.planning import runs as module
from harness.planning.runs import Truncation, truncation
from harness.tasks.rows import Rows


@pytest.mark.parametrize("pairs", [False, True], ids=["text", "pair"])
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_the_count_is_a_loop_over_the_texts(kind: str, pairs: bool, folders: dict[str, Path]) -> None:
    texts = [tuple(text * (1 + i % 4) for text in row) for i, row in enumerate(tiny.texts(60, pairs=pairs)[0])]
    lengths = tiny.tokens(folders[kind], texts, 10_000).lengths
    sets = [Rows(tuple(texts[:20])), Rows(tuple(texts[20:]))]
    assert len(set(lengths.tolist())) > 5
    for most in {1, *lengths.tolist(), int(lengths.max()) + 1}:
        assert truncation(folders[kind], sets, most) == Truncation(int((lengths > most).sum()), 60, counted=True)


def test_a_sample_stands_for_many(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLE", 10)
    rows = Rows(tuple(("w1 " * (30 if i % 3 else 10),) for i in range(99)))
    found = truncation(folders["bert"], [rows], 20)
    assert found is not None
    assert (found.rows, found.counted) == (99, False)
    assert abs(found.cut - 66) <= 15


def test_nothing_is_said_without_a_tokenizer_file(tmp_path: Path) -> None:
    rows = [Rows((("a text",),))]
    assert truncation(None, rows, 1) is None
    assert truncation(tmp_path, rows, 1) is None
