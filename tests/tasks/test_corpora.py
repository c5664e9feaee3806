"""Corpora as streams: identity by the texts in their order, whatever holds them; the hub by a stand-in on this machine."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub import COMMIT, StandIn, elsewhere, stand_in
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UserError
from harness.specs import KEY_LENGTH, RowSet
from harness.tasks.corpora import CORPORA, open_corpus

REPOSITORY = Path(__file__).resolve().parents[2]
TEXTS = ["One.", "Twö, three.", "One.", "«Four» \u4e94", "five  six", *(f"Sentence {i}." for i in range(3000))]


def lines(path: Path, texts: Sequence[str], end: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    body = end.join(texts).encode()
    path.write_bytes(gzip.compress(body) if path.suffix == ".gz" else body)
    return path


def jsonl(path: Path, texts: Sequence[str | None], column: str = "text") -> Path:
    return lines(path, [json.dumps({"id": i, column: text}) for i, text in enumerate(texts)])


def parquet(path: Path, texts: Sequence[str | None], column: str = "text", kind: Any = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"id": pa.array(range(len(texts))), column: pa.array(texts, kind or pa.string())})
    pq.write_table(table, path, row_group_size=700)
    return path


def shards(folder: Path, write: Callable[[Path, list[str]], Path], ending: str, texts: Sequence[str] = TEXTS) -> Path:
    bounds = [0, 1, 4, 1500, 1500, len(texts)]
    for i, (a, b) in enumerate(itertools.pairwise(bounds)):
        write(folder / f"part-{i}{ending}", list(texts[a:b]))
    return folder


class TestIdentity:
    def test_the_same_texts_in_any_wrapping(self, tmp_path: Path) -> None:
        forms: list[str | Path] = [
            lines(tmp_path / "a.txt", TEXTS),
            lines(tmp_path / "noending", [*TEXTS, ""]),
            lines(tmp_path / "b.txt", ["\ufeff", *(f" {text}\t" for text in TEXTS), " \t", ""], "\r\n\r\n"),
            lines(tmp_path / "c.txt.gz", TEXTS),
            jsonl(tmp_path / "d.jsonl", [*TEXTS, "  ", None]),
            jsonl(tmp_path / "d.jsonl.gz", TEXTS),
            parquet(tmp_path / "e.parquet", [None, *TEXTS, ""]),
            parquet(tmp_path / "f.parquet", TEXTS, kind=pa.large_string()),
            parquet(tmp_path / "g.parquet", TEXTS, kind=pa.dictionary(pa.int32(), pa.string())),
            f"{parquet(tmp_path / 'h.parquet', TEXTS, 'sentence')}:sentence",
            f"{jsonl(tmp_path / 'i.jsonl', TEXTS, 'content')}:content",
            shards(tmp_path / "folder", lines, ".txt"),
            str(shards(tmp_path / "zipped", lines, ".txt.gz")),
            shards(tmp_path / "objects", jsonl, ".jsonl"),  # type: ignore[arg-type]
            shards(tmp_path / "columns", parquet, ".parquet"),  # type: ignore[arg-type]
            str(tmp_path / "folder" / "part-*"),
            f"{tmp_path}/**/part-*.txt",
        ]
        (tmp_path / "columns" / "README.md").write_text("not a text of the corpus")
        found = [open_corpus(form) for form in forms]
        assert len({corpus.digest for corpus in found}) == 1
        for corpus in found:
            assert list(corpus.texts()) == list(corpus.texts()) == TEXTS
            assert corpus.rows == len(TEXTS)
            assert corpus.mean_chars == pytest.approx(sum(map(len, TEXTS)) / len(TEXTS))
        assert [corpus.name for corpus in found] == [
            *("a", "noending", "b", "c", "d", "d", "e", "f", "g", "h", "i", "folder", "zipped", "objects", "columns"),
            *("part-*", "part-*.txt"),
        ]

    @settings(max_examples=10, deadline=None)
    @given(texts=st.lists(st.text(min_size=1).map(str.strip).filter(bool), min_size=1, max_size=5), data=st.data())
    def test_other_texts_or_another_order_are_another_corpus(
        self, texts: list[str], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        other = data.draw(st.permutations(texts) | st.just(["".join(texts)]) | st.just([*texts, texts[0]]))
        path = tmp_path_factory.mktemp("corpora")
        one, two = (
            open_corpus(jsonl(path / f"{len(each)}{name}.jsonl", each)) for name, each in (("a", texts), ("b", other))
        )
        assert list(one.texts()) == texts
        assert (one.digest == two.digest) == (texts == other)

    def test_it_is_frozen_and_the_row_set_says_what_it_is(self, tmp_path: Path) -> None:
        """The digest is part of keys: a change here retrains whatever was pre-trained."""
        corpus = open_corpus(lines(tmp_path / "prose.txt", ["One.", "Twö."]))
        body = "texts in order/1/" + "4:One." + "5:Twö."
        assert corpus.digest == hashlib.sha256(body.encode()).hexdigest()[:KEY_LENGTH]
        assert corpus.row_set() == RowSet(corpus.digest)
        assert (corpus.row_set().name, corpus.row_set().rows, corpus.row_set().mean_chars) == ("prose", 2, 4)
        assert corpus.row_set("mine").name == "mine"

    def test_a_named_corpus_is_its_rows(self, packaged: dict[str, Path], tmp_path: Path) -> None:
        rows, corpus = CORPORA["boolq_prose"](), open_corpus("boolq_prose", memo=tmp_path / "memo")
        assert corpus.row_set() == rows.row_set("boolq_prose")
        assert (corpus.rows, corpus.mean_chars) == (len(rows), rows.mean_chars)
        assert [(text,) for text in corpus.texts()] == list(rows.texts)
        assert not list(tmp_path.iterdir())


class TestMemo:
    def test_files_that_have_not_changed_are_not_read_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        memo, path = tmp_path / "kept" / "memo.json", lines(tmp_path / "prose.txt", TEXTS)
        table = parquet(tmp_path / "p.parquet", TEXTS, "a")
        first = open_corpus(path, memo=memo)
        assert open_corpus(f"{table}:a", memo=memo).digest == first.digest
        with monkeypatch.context() as patched:
            patched.setattr("harness.tasks.corpora._texts", lambda *_: pytest.fail("it is read again"))
            assert open_corpus(path, memo=memo) == first
            assert open_corpus(f"{table}:a", memo=memo).digest == first.digest
        assert [each.name for each in memo.parent.iterdir()] == ["memo.json"]
        with pytest.raises(UserError, match="no column 'b'"):
            open_corpus(f"{table}:b", memo=memo)
        lines(path, TEXTS[::-1])
        os.utime(path, ns=(1, 1))
        assert open_corpus(path, memo=memo).digest == open_corpus(path).digest != first.digest
        for damage in ("", "{", "[]", '{"version": 1}', '{"version": 0, "corpora": 3}'):
            memo.write_text(damage)
            assert open_corpus(path, memo=memo).rows == first.rows
            assert '"digest"' in memo.read_text()

    def test_without_it_nothing_is_written_and_a_change_is_noticed(self, tmp_path: Path) -> None:
        path = lines(tmp_path / "prose.txt", ["a", "b"])
        corpus = open_corpus(path)
        assert [path.name for path in tmp_path.iterdir()] == ["prose.txt"]
        lines(path, ["a", "b", "c"])
        with pytest.raises(UserError, match="has changed while it was in use"):
            list(corpus.texts())


MEMORY = """
import resource, sys
from harness.tasks.corpora import open_corpus
import pyarrow.parquet
open_corpus(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
corpus = open_corpus(sys.argv[2])
assert sum(1 for _ in corpus.texts()) == corpus.rows
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    texts = [f"{i} " + "many words of one text " * 20 for i in range(60_000)]  # 28 MB
    small, large = parquet(tmp_path / "small.parquet", texts[:2000]), parquet(tmp_path / "large.parquet", texts)
    command = [sys.executable, "-c", MEMORY, str(small), str(large)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 12


class TestErrors:
    def test_one_sentence_each(self, tmp_path: Path) -> None:
        blank, latin = lines(tmp_path / "blank.txt", [" ", ""]), tmp_path / "latin.txt"
        latin.write_bytes(b"\xef\xbb\xbffine\n\ncaf\xe9\n")
        cut = tmp_path / "cut.txt.gz"
        cut.write_bytes(lines(tmp_path / "whole.txt.gz", TEXTS).read_bytes()[:-200])
        (tmp_path / "empty").mkdir()
        lines(tmp_path / "mixed" / "a.txt", ["a"])
        jsonl(tmp_path / "mixed" / "b.jsonl", ["a"])
        lines(tmp_path / "other" / "a.md", ["a"])
        whole = parquet(tmp_path / "whole.parquet", ["a"] * 9)
        for name, words in (
            (blank, "blank.txt: there is no text in it"),
            (jsonl(tmp_path / "blank.jsonl", [None, " "]), "blank.jsonl: there is no text in it"),
            (latin, "latin.txt, line 3: byte 0xe9 is not UTF-8"),
            (cut, "cut.txt.gz: cannot be read"),
            (lines(tmp_path / "plain.txt", ["a"]).rename(tmp_path / "plain.gz"), "plain.gz: cannot be read"),
            (f"{whole}:txt", r"no column 'txt'. Did you mean 'text'\? Its columns are id, text; name one by PATH:COL"),
            (f"{whole}:id", "'id' is 0, not text"),
            (parquet(tmp_path / "t.parquet", ["a"], "content"), "no column 'text'"),
            (
                lines(tmp_path / "t.jsonl", ['{"text": "a"}', "", '{"content": "a"}']),
                "line 3: there is no column 'text'",
            ),
            (lines(tmp_path / "w.jsonl", ['{"text": 3}']), "w.jsonl, line 1: 'text' is 3, not text"),
            (lines(tmp_path / "x.jsonl", ['{"text": "a\\ud800"}']), "line 1: 'text' holds half a character"),
            (f"{latin}:text", "latin.txt: is text and has no column 'text'"),
            (lines(tmp_path / "a.csv", ["text", "one"]), "a.csv: is a table, and a corpus is text"),
            (lines(tmp_path / "b.TSV", ["text", "one"]), "b.TSV: is a table, and a corpus is text"),
            (tmp_path / "empty", "holds no .txt, .jsonl or .parquet file"),
            (tmp_path / "other", "name its files by a pattern"),
            (tmp_path / "mixed", "holds jsonl and text files; name those meant"),
            ("none.txt", "no such file"),
            ("boolq_pros", "boolq_pros: there is no such file. Did you mean 'boolq_prose'"),
            ("hub:prose", r"hub:prose: is not a data set of the hub; write hub:OWNER/NAME\[:CONFIG\]\[@REVISION\]"),
        ):
            with pytest.raises(UserError, match=words) as caught:
                open_corpus(name)
            assert "\n" not in str(caught.value)
            assert str(caught.value).endswith(".")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[StandIn]:
    with stand_in(tmp_path / "hub") as made:
        yield made


def opened(tmp_path: Path, *names: str, download: bool = True, **variables: str) -> list[str]:
    """What opening each name in a fresh process says."""
    code = f"""
from harness.errors import UserError
from harness.tasks.corpora import open_corpus
for name in {names!r}:
    try:
        corpus = open_corpus(name, download={download})
        print(corpus.name, corpus.digest, corpus.rows, sum(1 for _ in corpus.texts()))
    except UserError as error:
        print(type(error).__name__, error)
"""
    said = elsewhere(code, tmp_path, **variables).splitlines()
    assert len(said) == len(names)
    return said


def test_a_data_set_of_the_hub_is_the_texts_of_its_train_split(hub: StandIn, tmp_path: Path) -> None:
    """Also by configuration and revision; tests/tasks/test_own_data.py has more of the hub."""
    for path in shards(hub.folder("me/prose") / "data", parquet, ".parquet").iterdir():  # type: ignore[arg-type]
        path.rename(path.with_name(path.name.replace("part", "train")))
    parquet(hub.folder("me/prose") / "data" / "validation-0.parquet", ["not of the train split"])
    parquet(hub.folder("me/wiki") / "2024.en/train-0.parquet", ["english"])
    parquet(hub.folder("me/wiki") / "2024.de/train-0.parquet", ["deutsch"])
    lines(hub.folder("me/old") / "old.py", ["a script, which is not run"])
    lines(hub.folder("me/bare") / "notes.md", ["nothing"])
    parquet(hub.folder("me/test") / "test.parquet", ["a"])
    name, digest = "hub:me/prose", open_corpus(lines(tmp_path / "same.txt", TEXTS)).digest
    english = open_corpus(lines(tmp_path / "en.txt", ["english"])).digest
    (missing,) = opened(tmp_path, name, download=False, HF_ENDPOINT=hub.address)
    assert missing.startswith("NotFetched corpus hub:me/prose: data set me/prose is not in the hub cache")
    assert hub.asked == []
    expected = {
        "prose": f"me/prose@{COMMIT[:7]} {digest} {len(TEXTS)} {len(TEXTS)}",
        "wiki:2024.en": f"me/wiki:2024.en@{COMMIT[:7]} {english} 1",
        f"wiki:2024.en@{COMMIT}": f"me/wiki:2024.en@{COMMIT[:7]} {english} 1",
        "wiki:2024.de@v1.0/x": f"me/wiki:2024.de@{COMMIT[:7]} ",
        "wiki:2024.fr": "holds no files that are read as a table",
        "old": "name its Parquet copy with @refs/convert/parquet",
        "bare": "holds no files that are read as a table",
        "test": "has no split 'train' but test",
    }
    found = opened(tmp_path, *(f"hub:me/{name}" for name in expected), HF_ENDPOINT=hub.address)
    assert [line for line, part in zip(found, expected.values(), strict=True) if part not in line] == []
    assert not [file for file in hub.got() if "validation" in file]
    next((tmp_path / "home").rglob("train-3.parquet")).unlink()
    kept, lacking = opened(tmp_path, "hub:me/wiki:2024.en", name, download=False, HF_HUB_OFFLINE="1")
    assert kept == found[1]
    assert lacking.startswith(
        "NotFetched corpus hub:me/prose: data/train-3.parquet of me/prose is not in the hub cache"
    )


class TestParts:
    """A fraction of a corpus is chosen text by text, by content; several corpora stand one after another."""

    def test_about_the_fraction_in_order_and_a_part_of_each_larger_one(self, tmp_path: Path) -> None:
        path = lines(tmp_path / "a.txt", TEXTS)
        corpus = open_corpus(path)
        found = {fraction: [*corpus.part(fraction).texts()] for fraction in (0.1, 0.25, 0.5, 1.0)}
        for fraction, texts in found.items():
            assert len(texts) / len(TEXTS) == pytest.approx(fraction, abs=0.03)
            kept = set(texts)
            assert texts == [text for text in map(str.strip, TEXTS) if text in kept], "equal texts stay together"
        assert set(found[0.1]) < set(found[0.25]) < set(found[0.5]) < set(found[1.0])

    def test_neither_files_nor_their_order_choose(self, tmp_path: Path) -> None:
        places = lines(tmp_path / "a.txt", TEXTS), shards(tmp_path / "split", lines, ".txt"), tmp_path / "b.txt"
        lines(places[2], TEXTS[::-1])
        one, split, backwards = (open_corpus(path).part(0.25) for path in places)
        assert [*one.texts()] == [*split.texts()] == [*backwards.texts()][::-1]
        assert one.digest == split.digest != backwards.digest, "the order is part of a corpus"
        alone = open_corpus(lines(tmp_path / "part.txt", [*one.texts()]))
        assert (one.digest, one.rows, one.mean_chars, one.name) == (
            *(alone.digest, alone.rows, alone.mean_chars),
            "25 % of a",
        )

    def test_several_are_read_one_after_another(self, tmp_path: Path) -> None:
        a, b = lines(tmp_path / "a.txt", TEXTS[:1000]), jsonl(tmp_path / "b.jsonl", TEXTS[1000:])
        both, whole = open_corpus(f"{a} + {b}"), open_corpus(lines(tmp_path / "c.txt", TEXTS))
        assert [*both.texts()] == [*whole.texts()]
        assert (both.digest, both.rows, both.mean_chars) == (whole.digest, whole.rows, whole.mean_chars)
        assert both.name == "a + b"
        assert both.part(0.25).digest == whole.part(0.25).digest
        assert open_corpus(f"{b} + {a}").digest != both.digest
