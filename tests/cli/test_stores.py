"""`publish` and `merge`: what one store holds is checked, printed and continued elsewhere, without training again and without a path of its owner."""

from __future__ import annotations

import lzma
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cli.command import Said, command
from cli.conftest import Benched
from cluster import in_process

import harness as api
from harness.store import Store

Harness = Callable[..., Said]


@pytest.fixture
def harness(
    benched: Benched, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Harness:
    """The command in a copy of that bench's folder, with its encoder beside it."""
    shutil.copytree(benched.folder, tmp_path / "lab")
    shutil.copytree(bert, tmp_path / "lab" / bert.name)
    monkeypatch.chdir(tmp_path / "lab")
    return lambda *words: command(capsys, *words)


@pytest.fixture
def elsewhere(harness: Harness, bert: Path, tmp_path: Path) -> Path:
    """Another folder with the data and the encoder alone."""
    for name in ("data", bert.name):
        shutil.copytree(name, tmp_path / "elsewhere" / name)
    return tmp_path / "elsewhere"


def content(folder: str = "results") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_a_published_table_is_verified_printed_trained_again_and_continued_elsewhere(
    harness: Harness, elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = harness("publish results")
    assert published.status == 0, published
    assert "'harness merge results' takes it over" in published.out
    files = content()
    assert sorted(files) == ["README.md", "records.db.xz", "results.csv"]
    plain = files | {"records.db.xz": lzma.decompress(files["records.db.xz"])}
    assert [name for name, each in plain.items() if str(tmp_path).encode() in each] == []
    table = harness("report").out
    assert table.split("\n\n")[0] in harness("report --store results").out
    merged = api.merge("results", store="sqlite:///mine.db")
    assert (merged.added > 0, merged.agrees) == (True, True)
    assert api.merge("results", store="sqlite:///mine.db").added == 0
    in_process.patch(monkeypatch)
    confirmed = harness("verify results --rerun 1")
    assert (confirmed.status, confirmed.out.splitlines()[-1]) == (0, "Confirmed.")
    assert "Stages trained again: 1, of which 1 agree with their records." in confirmed.out
    assert content() == files, "it is only read"
    monkeypatch.chdir(elsewhere)
    merged = harness("merge ../lab/results")
    assert merged.status == 0
    assert "0 in place of a failed one; 0 were there already." in merged.out
    assert harness("report").out.split("\n\n")[0] == table.split("\n\n")[0]
    assert harness("report --format csv").out == harness("report --store ../lab/results --format csv").out


def test_publishing_again_writes_the_same_and_never_drops_a_record(harness: Harness) -> None:
    harness("publish results")
    Path("results/.DS_Store").touch()  # the Finder's
    before = content()
    assert harness("publish results").status == 0
    assert content() == before
    other = "publish results --last --methods ft --seeds 31 --store sqlite:///part.db"
    shutil.copyfile(".harness/harness.db", "part.db")
    with Store("sqlite:///part.db")._write() as connection:
        connection.exec_driver_sql("delete from records where key in (select key from runs where row = 'SCL')")
    refused = harness(other)
    assert refused.status == 2
    assert " records that would be lost, since sqlite:///part.db lacks them or" in refused.err
    assert harness("merge results --store sqlite:///part.db").status == 0
    assert harness("publish results --store sqlite:///part.db").status == 0
    before = content()
    narrower = harness("publish results --last --methods ft")
    assert (narrower.status, "this plan does not make them" in narrower.err) == (2, True)
    assert content() == before


def test_records_are_taken_over_from_a_file_or_an_url(harness: Harness, tmp_path: Path) -> None:
    """Where the folder has none: `verify` refuses the table until its records are in the store."""
    csv = harness("report --format csv").out
    harness("publish results")
    served = tmp_path / "served"
    served.mkdir()
    Path("results/records.db.xz").rename(served / "few_shot-records.db.xz")
    Path(".harness").rename("of_the_bench")
    refused = harness("verify results")
    assert (refused.status, "harness merge RECORDS" in refused.err) == (2, True)
    with serving(served) as url:
        assert harness(f"merge {url}/few_shot-records.db.xz").status == 0
        gone = harness(f"merge {url}/other-records.db.xz")
        assert (gone.status, "other-records.db.xz: cannot be read" in gone.err) == (2, True)
    assert harness("report --format csv").out == csv
    assert harness("verify results").status == 0
    assert harness(f"merge {served}/few_shot-records.db.xz").status == 0


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The URL of a server of these files on loopback."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("publish data", "data: holds sst2, which is of no published table; name another folder."),
        ("publish data/sst2/train.csv", "train.csv: is no folder that can be read (Not a directory)."),
        ("publish results --table few_shot --preset paper", "none of the"),
        ("merge nowhere", "store 'nowhere' is not a store's URL; write"),
        ("merge sqlite:///nowhere.db", "There is no store at sqlite:///nowhere.db"),
    ],
)
def test_what_cannot_be_published_or_merged_is_one_sentence(harness: Harness, words: str, sentence: str) -> None:
    said = harness(words)
    assert said.status == 2
    assert sentence in said.err
    assert not Path("results").exists()


def test_without_labels_a_table_is_continued_from_its_data(
    harness: Harness, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert harness("publish results").status == 0
    assert harness("publish results --without-labels").status == 0
    assert sorted(content()) == ["README.md", "records-without-labels.db.xz", "results.csv"]
    Path("open.db").write_bytes(lzma.decompress(content()["records-without-labels.db.xz"]))
    opened = Store("sqlite:///open.db")
    kept = opened.records(opened.keys(), predictions=True).values()
    predicted = [predictions for record in kept for predictions in record.predictions.values()]
    assert predicted
    assert all(len(predictions.gold) == 0 < len(predictions.logits) for predictions in predicted)
    csv = harness("report --format csv").out
    monkeypatch.chdir(elsewhere)
    refused = harness("report --store ../lab/results")
    assert (refused.status, "complete it from its data in a store of yours" in refused.err) == (2, True)
    Path("data").rename("glue")
    for path in Path(shutil.copytree("glue", "wrong")).rglob("*.csv"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:-1]))
    refused = harness("merge ../lab/results --data wrong")
    assert (refused.status, "which wrong does not hold" in refused.err) == (2, True)
    assert not Path(".harness").exists(), "nothing was taken"
    assert harness("merge ../lab/results --data glue").status == 0
    assert harness("report --data glue --format csv").out == csv
    Path("glue").rename("data")
    verified = harness("verify ../lab/results")
    assert (verified.status, "Confirmed" in verified.out) == (0, True), "by the store that took it over"
