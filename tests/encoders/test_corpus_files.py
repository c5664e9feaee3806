"""Tokenised corpora on disk: what lies in a block, what is read of it, and what a killed run leaves."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.encoders.tokens import Packed, Plain, Tokeniser, Tokens
from harness.encoders.tokens.corpus_files import MappedTokens, open_blocks, tokenise_corpus
from harness.encoders.tokens.reading import MIN_TAIL, READINGS
from harness.errors import UserError

REPOSITORY = Path(__file__).resolve().parents[2]
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


@pytest.mark.parametrize("kind", tiny.KINDS)
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
            tokenise_corpus(texts, tokeniser, Packed(max_length), folder)
        return
    blocks = tokenise_corpus(texts, tokeniser, Packed(max_length), folder)
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
    assert [each.dtype for each in (blocks.ids, blocks.types, blocks.special, blocks.offsets)] == [
        np.int32,
        np.int8,
        np.bool_,
        np.int64,
    ]


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_text_blocks_are_what_the_tokeniser_gives(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    texts, tokeniser = [*sentences(2500), "", "w1"], tiny.tokeniser(folders[kind])
    found = tokenise_corpus(texts, tokeniser, Plain(8), tmp_path / "b")
    assert same(found, tokeniser([(text,) for text in texts], 8))


def test_where_batches_of_texts_end_does_not_matter(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, tokeniser = sentences(300), tiny.tokeniser(bert)
    once = tokenise_corpus(texts, tokeniser, Packed(16), tmp_path / "once")
    monkeypatch.setattr("harness.encoders.tokens.corpus_files.BATCH_TEXTS", 7)
    assert same(once, tokenise_corpus(iter(texts), tokeniser, Packed(16), tmp_path / "sevens"))
    monkeypatch.setattr("harness.encoders.tokens.corpus_files.BATCH_CHARS", 40)
    assert same(once, tokenise_corpus(iter(texts), tokeniser, Packed(16), tmp_path / "chars"))


def test_taking_rows_copies_those_rows_only(bert: Path, tmp_path: Path) -> None:
    blocks = tokenise_corpus(sentences(500), tiny.tokeniser(bert), Packed(16), tmp_path / "b")
    rows = np.array([3, 0, 3, len(blocks) - 1])
    taken = blocks.take(rows)
    assert type(taken) is Tokens
    assert [taken.ids[a:b].tolist() for a, b in zip(taken.offsets[:-1], taken.offsets[1:], strict=True)] == [
        blocks.ids[blocks.offsets[row] : blocks.offsets[row + 1]].tolist() for row in rows
    ]
    for name in ("ids", "types", "special", "offsets"):
        assert getattr(taken, name).base is None or not np.shares_memory(getattr(taken, name), getattr(blocks, name))
    with pytest.raises(ValueError, match=r"read-only"):
        blocks.ids[0] = 1
    taken.ids[0] = 1  # a batch is the caller's own


def test_a_pickle_is_a_path(bert: Path, workdir: Path) -> None:
    blocks = tokenise_corpus(sentences(500), tiny.tokeniser(bert), Packed(16), Path("deep/er/b"))
    body = pickle.dumps(blocks)
    assert len(body) < 2000
    code = "import pickle, sys; t = pickle.load(sys.stdin.buffer); print(len(t), t.ids.sum(), type(t).__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], input=body, cwd=REPOSITORY, capture_output=True, check=True, timeout=120
    )
    assert done.stdout.decode().split() == [str(len(blocks)), str(blocks.ids.sum()), "MappedTokens"]
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
    made = tokenise_corpus(sentences(50), tokeniser, Packed(16), folder, identity="corpus+tokenizer")
    again = tokenise_corpus(untouchable(), tokeniser, Packed(16), folder, identity="corpus+tokenizer")
    assert same(made, again)
    for found in (open_blocks(folder), open_blocks(folder, identity="corpus+tokenizer", max_length=16)):
        assert found is not None
        assert same(found, made)
    assert open_blocks(folder, identity="another") is None
    assert sorted(path.name for path in folder.iterdir()) == [
        "ids.bin",
        "manifest.json",
        "offsets.bin",
        "special.bin",
        "types.bin",
    ]


@pytest.mark.parametrize("change", [{"identity": "other"}, {"max_length": 12}, {"blocks": "text"}, {"identity": ""}])
def test_another_corpus_replaces_it(change: dict[str, Any], bert: Path, tmp_path: Path) -> None:

    def made(texts: list[str], blocks: str = "packed", max_length: int = 16, identity: str = "one") -> MappedTokens:
        return tokenise_corpus(
            texts, tiny.tokeniser(bert), READINGS[blocks](max_length), tmp_path / "b", identity=identity
        )

    old = made(sentences(50))
    kept = old.ids.copy()
    for _ in range(2):
        new = made(sentences(60, 1), **change)
        assert len(new.ids) != len(old.ids)
        assert np.array_equal(old.ids, kept), "whoever has the old one open keeps it"
    assert visible(tmp_path) == ["b"]


@pytest.mark.parametrize("name", ["ids.bin", "types.bin", "special.bin", "offsets.bin", "manifest.json"])
@pytest.mark.parametrize("damage", ["short", "gone", "nonsense"])
def test_a_damaged_folder_is_made_again(name: str, damage: str, bert: Path, tmp_path: Path) -> None:
    folder, texts = tmp_path / "b", sentences(50)
    made = tokenise_corpus(texts, tiny.tokeniser(bert), Packed(16), folder, identity="x")
    before = {each: getattr(made, each).copy() for each in ("ids", "types", "special", "offsets")}
    path = folder / name
    if damage == "gone":
        path.unlink()
    else:
        body = path.read_bytes()
        path.unlink()  # a mapped file that is cut short takes its reader down, whoever maps it
        path.write_bytes(body[:-1] if damage == "short" else b"[1, 2]" + body)
    assert open_blocks(folder) is None
    assert same(tokenise_corpus(texts, tiny.tokeniser(bert), Packed(16), folder, identity="x"), Tokens(**before))
    assert visible(tmp_path) == ["b"]


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_what_fails_half_way_leaves_nothing(bert: Path, tmp_path: Path) -> None:
    def failing() -> Iterator[str]:
        yield from sentences(3000)
        raise UserError("line 3001: broken")

    with pytest.raises(UserError, match="line 3001"):
        tokenise_corpus(failing(), tiny.tokeniser(bert), Packed(16), tmp_path / "b")
    assert visible(tmp_path) == []


def test_a_killed_run_leaves_nothing_that_passes_for_finished(bert: Path, tmp_path: Path) -> None:
    code = f"""
import time
from pathlib import Path
from typing import Any
from harness.encoders.tokens.corpus_files import tokenise_corpus
from harness.encoders.tokens import Packed, Tokeniser
def texts():
    for i in range(5000):
        yield 'w1 w2 good'
    print('half', flush=True)
    time.sleep(60)
tokenise_corpus(texts(), Tokeniser(Path({str(bert)!r})), Packed(16), Path({str(tmp_path / "b")!r}), identity='x')
"""
    with subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"half\n"
        assert visible(tmp_path) == [".b.part"]
        os.kill(child.pid, signal.SIGKILL)
    assert open_blocks(tmp_path / "b") is None
    tokenise_corpus(["w1 w2 good"] * 9, tiny.tokeniser(bert), Packed(16), tmp_path / "b", identity="x")
    assert visible(tmp_path) == ["b"]


def test_two_processes_at_once(bert: Path, tmp_path: Path) -> None:
    """The second waits for the first and opens what it has made."""
    code = f"""
import sys, time
from pathlib import Path
from typing import Any
from harness.encoders.tokens.corpus_files import tokenise_corpus
from harness.encoders.tokens import Packed, Tokeniser
def texts():
    yield from ['w1 w2 good'] * 2000
    print('half', flush=True)
    sys.stdin.readline()
    yield from ['bad'] * 20
print('begins', flush=True)
made = tokenise_corpus(texts(), Tokeniser(Path({str(bert)!r})), Packed(16), Path({str(tmp_path / "b")!r}), identity='x')
print(len(made), made.ids.sum(), flush=True)
"""
    start = [sys.executable, "-c", code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": REPOSITORY}
    children = [subprocess.Popen(start, **pipes) for _ in range(2)]  # type: ignore[call-overload]
    for child in children:
        assert child.stdout.readline() == "begins\n"
        child.stdin.write("go\n")
        child.stdin.flush()
    printed = sorted((child.communicate(timeout=60)[0].split("\n") for child in children), key=len)
    assert [len(lines) for lines in printed] == [2, 3], "one of them read texts"
    assert printed[0][-2] == printed[1][-2] != ""
    assert visible(tmp_path) == ["b"]


def test_what_cannot_be_packed(bert: Path, tmp_path: Path) -> None:
    tokeniser = tiny.tokeniser(bert)
    with pytest.raises(UserError, match="max_length 3: leaves 1 tokens of text"):
        tokenise_corpus(["w1"], tokeniser, Packed(3), tmp_path / "b")
    for reading in (Packed(16), Plain(16)):
        for texts in ([], ["", " "]):
            with pytest.raises(UserError, match="no text that this encoder's tokenizer makes a token of"):
                tokenise_corpus(texts, tokeniser, reading, tmp_path / "b")
    assert visible(tmp_path) == []


MEMORY = """
import sys, time
from pathlib import Path
from typing import Any
import numpy as np
from harness.encoders.tokens.corpus_files import tokenise_corpus
from harness.encoders.tokens import Packed, Tokeniser

def memory(field):
    lines = Path('/proc/self/status').read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ':')) / 1024

tokeniser = Tokeniser(Path(sys.argv[1]))
words = np.array(['w%d' % i for i in range(40)])
def texts(megabytes):
    generator, done = np.random.default_rng(0), 0
    while done < megabytes * 1e6:
        text = ' '.join(words[generator.integers(0, 40, 120)])
        done += len(text) + 1
        yield text
tokenise_corpus(texts(1), tokeniser, Packed(128), Path(sys.argv[2] + '-before'))
before, start = memory('VmHWM'), time.perf_counter()
made = tokenise_corpus(texts(float(sys.argv[3])), tokeniser, Packed(128), Path(sys.argv[2]))
seconds, tokenised = time.perf_counter() - start, memory('VmHWM')
order = np.random.default_rng(1).permutation(len(made))
for batch in range(0, len(made), 256):
    made.take(order[batch:batch + 256])
files = sum(path.stat().st_size for path in Path(sys.argv[2]).iterdir()) / 2**20
print(tokenised - before, memory('VmHWM') - before, memory('RssAnon'), seconds, files)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's own account of memory")
@pytest.mark.parametrize("megabytes", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_corpus(megabytes: int, bert: Path, tmp_path: Path) -> None:
    """Beyond what 1 MB took: a batch of texts, and the pages of the files that one batch of blocks lies in."""
    command = [sys.executable, "-c", MEMORY, str(bert), str(tmp_path / "b"), str(megabytes)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    tokenised, taken, *_ = map(float, done.stdout.split())
    assert tokenised < 30
    assert taken < 40
