"""Texts in one buffer: every hash is that of the plain formula, computed once; a file is read once and a part at a time."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tasks.task_files import write_file

import harness
from harness.tasks import Rows, normalised, reading
from harness.tasks import rows as rows_module
from harness.tasks.overlap import normal_ids

ALPHABET = [*"abcXYZ019 .,;:'\"|\n\t\0_-", "é", "ß", "\u0130", "ﬁ", "\u00a0", "漢", "🎈", "\u0301", "\udc80", "\ud83d", "\ude00"]  # fmt: skip


def random_rows(seed: int, columns: int, count: int = 60) -> list[tuple[str, ...]]:
    """Rows of every length from none, some in ASCII alone, some of one text, with separators, NULs and half characters."""
    rng = np.random.default_rng(seed)
    found = []
    for row in range(count):
        letters = ALPHABET[:24] if row % 3 else ALPHABET
        found.append(tuple("".join(rng.choice(letters, int(rng.integers(0, 9)))) for _ in range(columns)))
    return [*found, *found[: count // 4]]


def plain(content: str) -> int:
    digest = hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def content(texts: tuple[str, ...]) -> str:
    return "".join(f"{len(text)}:{text}" for text in texts)


@pytest.fixture(params=[1, 7, 2048])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that end anywhere."""
    monkeypatch.setattr(rows_module, "BLOCK", request.param)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_texts_and_hashes_are_those_of_the_plain_formula(seed: int, columns: int) -> None:
    texts = random_rows(seed, columns)
    codes = np.arange(len(texts)) % 3
    scores = (np.arange(len(texts)) * np.float32(-0.37)).astype(np.float32)
    rows = Rows(texts, codes)
    order = np.random.default_rng(seed).permutation(len(texts))
    for some, chosen in ((rows, range(len(texts))), (rows.take(order), order), (rows.take(order[:3]), order[:3])):
        expected = [texts[index] for index in chosen]
        assert some.texts == tuple(expected)
        assert some.text_ids.tolist() == [plain(content(row)) for row in expected]
        forms = [tuple(map(normalised, row)) for row in expected]
        assert normal_ids(some)[:, 0].tolist() == [plain(content(row)) for row in forms]
        each = [[plain(f"{len(form)}:{form}") for form in row] for row in forms]
        assert normal_ids(some, whole=False).tolist() == each
        assert some.mean_chars == sum(len(text) for row in expected for text in row) / len(expected)
    for labels, shown in ((codes, [str(code) for code in codes]), (scores, [f"{float(s) + 0.0:.9g}" for s in scores])):
        first: dict[int, int] = {}
        for index, row in enumerate(texts):
            first.setdefault(plain(f"{shown[index]}|{content(row)}"), index)
        ids = Rows(texts, labels).ids
        assert {key: int(ids[index]) for key, index in first.items()} == {key: key for key in first}
        assert len(np.unique(ids)) == len(texts)


def test_a_row_is_hashed_once_whichever_rows_are_taken() -> None:
    texts, hashed = random_rows(0, 1, 200), 0

    def piece(text: bytes) -> bytes:
        nonlocal hashed
        hashed += 1
        return text

    rows = Rows(texts)
    half = rows.take(np.arange(len(rows)) % 2 == 0)
    few = rows.take([4, 5])
    for some in (half, rows, half.take(range(60)), rows.take(range(99))):
        some.hashes(piece)
    assert hashed == len(rows)
    few.hashes(piece)  # has left the buffer before
    assert hashed == len(rows) + 2


def test_a_few_rows_do_not_keep_the_others() -> None:
    rows = Rows(random_rows(1, 1, 400))
    assert len(rows.take(range(3))._buffer) == 3
    assert rows.take(range(300))._buffer is rows._buffer


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.usefixtures("packaged")
def test_a_file_is_read_once_and_a_part_at_a_time(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole plan of a file of labelled rows: inference, splits, subsets and overlap."""
    count = 2 * reading.PART + 100
    path = write_file(
        tmp_path / f"many.{ending}", [{"text": f"Text number {i} of some.", "label": "ab"[i % 2]} for i in range(count)]
    )
    read: list[int] = []
    parts_of = reading.parts_of

    def counting(*given: Any, **more: Any) -> Iterator[reading.FileColumns]:
        for part in parts_of(*given, **more):
            read.append(len(part.places))
            yield part

    monkeypatch.setattr(reading, "parts_of", counting)
    made = harness.plan(tasks=str(path), store=f"sqlite:///{tmp_path}/store.sqlite")
    assert len(made.runs)
    assert sum(read) == count
    assert max(read) <= reading.PART


def test_memory_is_that_of_the_text(tmp_path: Path) -> None:
    path = write_file(
        tmp_path / "many.csv", [{"text": f"{i} " + 40 * "word ", "label": "ab"[i % 2]} for i in range(20_000)]
    )
    tracemalloc.start()
    try:
        table = reading.read_labelled(path, ("text",), "label")
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(table.texts) == 20_000
    assert held < 1.3 * path.stat().st_size
    assert peak < 1.6 * path.stat().st_size
