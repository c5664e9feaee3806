"""Tokenised corpora on disk: what lies in a block, what is read of it, and what a killed run leaves."""

from __future__ import annotations

import multiprocessing
import pickle
import re
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.encoders.tokens import Tokeniser, Tokens
from harness.encoders.tokens.corpus_files import BATCH_TEXTS, MappedTokens, open_blocks, tokenise_corpus
from harness.encoders.tokens.reading import MIN_TAIL, Packed, Plain
from harness.errors import UserError

BETWEEN = -1


def sentences(count: int, seed: int = 0) -> list[str]:
    return [text for (text,) in tiny.texts(count, seed)[0]]


def same(one: Tokens, other: Tokens) -> bool:
    return all(np.array_equal(getattr(one, n), getattr(other, n)) for n in ("ids", "types", "special", "offsets"))


def end_to_end(tokeniser: Tokeniser, texts: Sequence[str]) -> list[int]:
    """The oracle: tokens of each text, one text at a time, with BETWEEN between texts that have any."""
    found: list[int] = []
    for text in texts:
        alone = tokeniser([(text,)], 100_000)
        inside = alone.ids[~alone.special].tolist()
        found += [*([BETWEEN] if found and inside else []), *inside]
    return found


def unframed(tokens: Tokens) -> list[int]:
    """Blocks end to end without their first and last token, separators as BETWEEN."""
    found: list[int] = []
    for a, b in zip(tokens.offsets[:-1] + 1, tokens.offsets[1:] - 1, strict=True):
        found += np.where(tokens.special[a:b], BETWEEN, tokens.ids[a:b]).tolist()
    return found


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@settings(max_examples=25)
@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=12), max_length=st.integers(4, 14), data=st.data())
def test_blocks_end_to_end_are_the_texts_end_to_end(
    kind: str,
    folders: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    max_length: int,
    data: st.DataObject,
) -> None:
    tokeniser, made = tiny.tokeniser(folders[kind]), tiny.tokenizer(kind)
    texts = [" ".join(data.draw(st.sampled_from(tiny.WORDS[:5])) for _ in range(count)) for count in counts]
    whole = end_to_end(tokeniser, texts)
    folder = tmp_path_factory.mktemp("blocks") / "b"
    if not whole:
        with pytest.raises(UserError, match="no text"):
            tokenise_corpus(texts, tokeniser, Packed(max_length), folder, "x")
        return
    blocks = tokenise_corpus(texts, tokeniser, Packed(max_length), folder, "x")
    width = max_length - 2
    tail = whole[len(whole) // width * width :]
    kept = len(whole) < width or len(tail) - tail.count(BETWEEN) >= MIN_TAIL
    assert unframed(blocks) == (whole if kept else whole[: len(whole) - len(tail)])
    assert set(blocks.lengths[:-1].tolist()) <= {max_length}
    assert 2 < blocks.lengths[-1] <= max_length
    for a, b in zip(blocks.offsets[:-1], blocks.offsets[1:], strict=True):
        assert (blocks.ids[a], blocks.ids[b - 1]) == (made.cls_token_id, made.sep_token_id)
        assert blocks.special[a]
        assert blocks.special[b - 1]
        assert not blocks.special[a:b].all()
    separators = np.ones(len(blocks.ids), dtype=bool)
    separators[blocks.offsets[:-1]] = separators[blocks.offsets[1:] - 1] = False
    assert set(blocks.ids[separators & blocks.special].tolist()) <= {made.sep_token_id}
    assert not blocks.types.any()
    found = [each.dtype for each in (blocks.ids, blocks.types, blocks.special, blocks.offsets)]
    assert found == [np.int32, np.int8, np.bool_, np.int64]


def test_where_batches_of_texts_end_does_not_matter(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a sequence of each text is what the tokeniser gives."""
    texts, tokeniser = [*sentences(300), "", "w1"], tiny.tokeniser(bert)
    once = tokenise_corpus(texts, tokeniser, Packed(16), tmp_path / "once", "x")
    for limit, most in (("BATCH_TEXTS", 7), ("BATCH_CHARS", 40)):
        monkeypatch.setattr(f"harness.encoders.tokens.corpus_files.{limit}", most)
        assert same(once, tokenise_corpus(iter(texts), tokeniser, Packed(16), tmp_path / limit, "x"))
    alone = tokenise_corpus(texts, tokeniser, Plain(8), tmp_path / "alone", "x")
    assert same(alone, tokeniser([(text,) for text in texts], 8))


def test_taking_rows_copies_those_rows_only(bert: Path, tmp_path: Path) -> None:
    blocks = tokenise_corpus(sentences(500), tiny.tokeniser(bert), Packed(16), tmp_path / "b", "x")
    rows = np.array([3, 0, 3, len(blocks) - 1])
    taken = blocks.take(rows)
    assert type(taken) is Tokens
    assert same(taken, Tokens(blocks.ids, blocks.types, blocks.special, blocks.offsets).take(rows))
    with pytest.raises(ValueError, match=r"read-only"):
        blocks.ids[0] = 1
    taken.ids[0] = 1  # a batch is the caller's own


def test_a_pickle_is_a_path(bert: Path, workdir: Path) -> None:
    blocks = tokenise_corpus(sentences(500), tiny.tokeniser(bert), Packed(16), Path("deep/er/b"), "x")
    body = pickle.dumps(blocks)
    assert len(body) < 2000
    again = pickle.loads(body)
    assert isinstance(again, MappedTokens)
    assert same(again, blocks)
    (workdir / "deep/er/b/ids.bin").unlink()
    with pytest.raises(UserError, match="not there or not whole on this machine"):
        pickle.loads(body)


def untouchable() -> Iterator[str]:
    raise AssertionError("the texts are read")
    yield ""


def test_a_finished_folder_is_opened_again(bert: Path, tmp_path: Path) -> None:
    tokeniser, folder = tiny.tokeniser(bert), tmp_path / "b"
    assert open_blocks(folder) is None
    made = tokenise_corpus(sentences(50), tokeniser, Packed(16), folder, "x")
    assert same(made, tokenise_corpus(untouchable(), tokeniser, Packed(16), folder, "x"))
    assert open_blocks(folder, "another") is None


def test_another_corpus_replaces_it(bert: Path, tmp_path: Path) -> None:
    tokeniser = tiny.tokeniser(bert)
    old = tokenise_corpus(sentences(50), tokeniser, Packed(16), tmp_path / "b", "x")
    kept = old.ids.copy()
    new = tokenise_corpus(sentences(60, 1), tokeniser, Packed(16), tmp_path / "b", "y")
    assert len(new.ids) != len(old.ids)
    assert np.array_equal(old.ids, kept), "whoever has the old one open keeps it"
    assert visible(tmp_path) == ["b"]


@pytest.mark.parametrize(
    ("name", "damage"),
    [("ids.bin", "short"), ("types.bin", "gone"), ("offsets.bin", "nonsense"), ("manifest.json", "short")],
)
def test_a_damaged_folder_is_made_again(name: str, damage: str, bert: Path, tmp_path: Path) -> None:
    folder, texts = tmp_path / "b", sentences(50)
    made = tokenise_corpus(texts, tiny.tokeniser(bert), Packed(16), folder, "x")
    before = made.take(range(len(made)))
    path = folder / name
    body = path.read_bytes()
    path.unlink()  # a mapped file that is cut short takes its reader down, whoever maps it
    if damage != "gone":
        path.write_bytes(body[:-1] if damage == "short" else b"[1, 2]" + body)
    assert open_blocks(folder) is None
    assert same(tokenise_corpus(texts, tiny.tokeniser(bert), Packed(16), folder, "x"), before)
    assert visible(tmp_path) == ["b"]


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_what_fails_half_way_leaves_nothing(bert: Path, tmp_path: Path) -> None:
    def failing() -> Iterator[str]:
        yield from sentences(3000)
        raise UserError("line 3001: broken")

    with pytest.raises(UserError, match="line 3001"):
        tokenise_corpus(failing(), tiny.tokeniser(bert), Packed(16), tmp_path / "b", "x")
    assert visible(tmp_path) == []


def _tokenise(bert: Path, folder: Path, told: Connection) -> None:
    def texts() -> Iterator[str]:
        yield from ["w1 w2 good"] * 5000
        told.send("half")
        told.recv()
        yield from ["bad"] * 20

    made = tokenise_corpus(texts(), tiny.tokeniser(bert), Packed(16), folder, "x")
    told.send((len(made), int(made.ids.sum())))


def started(bert: Path, folder: Path) -> tuple[Any, Connection]:
    """A process that tokenises: what it tells half way, when it waits for a message, and at its end."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_tokenise, args=(bert, folder, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def test_a_killed_run_leaves_nothing_that_passes_for_finished(bert: Path, tmp_path: Path) -> None:
    process, told = started(bert, tmp_path / "b")
    assert told.recv() == "half"
    assert visible(tmp_path) == [".b.part"]
    process.kill()
    process.join()
    assert open_blocks(tmp_path / "b") is None
    tokenise_corpus(["w1 w2 good"] * 9, tiny.tokeniser(bert), Packed(16), tmp_path / "b", "x")
    assert visible(tmp_path) == ["b"]


def test_two_processes_at_once(bert: Path, tmp_path: Path) -> None:
    """The second waits for the first and opens what it has made."""
    _, first = started(bert, tmp_path / "b")
    assert first.recv() == "half"
    _, second = started(bert, tmp_path / "b")
    assert not second.poll(0.5)
    first.send("go")
    assert first.recv() == second.recv(), "only one of them read texts"
    assert visible(tmp_path) == ["b"]


def test_what_cannot_be_packed(bert: Path, tmp_path: Path) -> None:
    tokeniser = tiny.tokeniser(bert)
    with pytest.raises(UserError, match="max_length 3: leaves 1 tokens of text"):
        tokenise_corpus(["w1"], tokeniser, Packed(3), tmp_path / "b", "x")
    for reading in (Packed(16), Plain(16)):
        for texts in ([], ["", " "]):
            with pytest.raises(UserError, match="no text that this encoder's tokenizer makes a token of"):
                tokenise_corpus(texts, tokeniser, reading, tmp_path / "b", "x")
    assert visible(tmp_path) == []


class Counted(Plain):
    """Reads a million tokens from each batch of texts, and counts these."""

    batches: ClassVar[list[int]] = []

    def sequences(self, parts: Iterable[Sequence[tuple[str, ...]]], tokeniser: Tokeniser) -> Iterator[Tokens]:
        for part in parts:
            self.batches.append(len(part))
            offsets = np.arange(0, 1_000_001, 100)
            yield Tokens(np.ones(10**6, np.int32), np.zeros(10**6, np.int8), np.zeros(10**6, np.bool_), offsets)


def mapped_memory() -> float:
    """Megabytes of files in this process's memory."""
    found = re.search(r"RssFile:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's own account of memory")
def test_memory_does_not_grow_with_the_corpus(bert: Path, tmp_path: Path) -> None:
    """A batch of texts is read at a time, and the pages of the files that one batch of rows lies in."""
    made = tokenise_corpus(("w1" for _ in range(20_000)), tiny.tokeniser(bert), Counted(128), tmp_path / "b", "x")
    assert Counted.batches == [BATCH_TEXTS] * 20
    before, order = mapped_memory(), np.random.default_rng(0).permutation(len(made))
    for batch in np.split(order, 100):
        made.take(batch)
    assert mapped_memory() - before < 20, "of 120 MB"
