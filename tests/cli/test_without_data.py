"""A store alone gives the numbers of its bench, whatever became of the data and the encoder, and says which texts are missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tiny
from cli.command import write_csv
from cli.conftest import Harness
from cluster import in_process

import harness as api
from harness.cli import main
from harness.store import Store

BENCH = (
    "bench --tasks mood.csv --methods ft,tapt --sizes 20 --subsets 0,1 --seeds 31,42 --encoder enc "
    "--set max_length=8 --set fine_tune.min_steps=4 --set fine_tune.epochs=1 --set post_train.min_steps=2 --set post_train.epochs=1"
)
TRANSLATED = f"{BENCH.replace('ft,tapt', 'ft,cssl')} --translator file:back.csv --store sqlite:///translated.db"
PRINTED = ("report", "report --format csv", "compare", "report --view variance", "report --view notes")
STORE = "sqlite:///.harness/harness.db"


@pytest.fixture(scope="module")
def benched(tmp_path_factory: pytest.TempPathFactory, bert: Path) -> Path:
    """A folder with a file of one's own, translations, an encoder, and the stores of a bench without and of one with back-translation."""
    folder = tmp_path_factory.mktemp("lab") / "here"
    texts, labels = tiny.texts(120, 1)
    rows = [(row[0], ("bad", "good")[label]) for row, label in zip(texts, labels, strict=True)]
    write_csv(folder / "mood.csv", rows, ("text", "mood"))
    views = [(row[0], f"{row[0]} again", f"once {row[0]}") for row in texts]
    write_csv(folder / "back.csv", views, ("text", "view_1", "view_2"))
    shutil.copytree(bert, folder / "enc")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        in_process.patch(patch)
        assert not any(main(line.split()) for line in (TRANSLATED, BENCH))
    return shutil.copytree(folder, folder.with_name("kept"))


@pytest.fixture
def lab(benched: Path, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder as its benches left it, in the place that their stores remember."""
    folder = benched.with_name("here")
    shutil.rmtree(folder)
    shutil.copytree(benched, folder)
    monkeypatch.chdir(folder)
    return folder


def printed(harness: Harness, store: str = "", commands: tuple[str, ...] = PRINTED) -> list[str]:
    found = [harness(f"{words}{store}") for words in commands]
    assert [said.status for said in found] == [0] * len(found), found
    return [said.out for said in found]


def test_the_numbers_are_those_of_the_bench(lab: Path, harness: Harness) -> None:
    before, results = printed(harness), api.results()
    assert harness(BENCH).out == before[0], "what was read is kept with its notes"
    assert "(max_length) and are cut" in before[-1]
    (lab / "enc").rename(lab / "away")
    assert "encoder enc is not at hand" in harness("report --view examples --last").err
    (lab / "mood.csv").unlink()
    assert printed(harness) == before
    assert api.results().equals(results)
    assert "Texts are missing (" not in harness("report").err
    said = harness("report --view examples --last")
    assert "Texts are missing (" in said.err
    assert "tasks: there is no file mood.csv" in said.err
    with pytest.warns(UserWarning, match="Texts are missing"):
        api.report(view="examples")
    part = harness("report --tasks mood --methods ft --format csv --last")
    assert part.out.splitlines() == [row for row in before[1].splitlines() if not row.startswith("TAPT")]


def test_what_the_store_keeps_holds_no_text_and_no_folder(lab: Path) -> None:
    store = Store(STORE)
    (stored,) = store.requests()
    body = store.snapshot_of(stored)
    assert str(lab) not in json.dumps(body)
    texts = [row.partition(",")[0] for row in (lab / "mood.csv").read_text().splitlines()[1:]]
    assert not any(text in json.dumps(body) for text in texts)


def test_a_published_folder_is_enough(
    lab: Path, harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = printed(harness, commands=PRINTED[1:3])
    (lab / "mood.csv").unlink()
    assert harness("publish results").status == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copytree("results", elsewhere / "results")
    monkeypatch.chdir(elsewhere)
    assert printed(harness, " --store results", PRINTED[1:3]) == before
    assert harness("list runs --store results").out.count("done") == 8
    assert harness("merge results").status == 0
    assert printed(harness, commands=PRINTED[1:3]) == before


def test_a_published_folder_has_the_rows_whose_texts_were_back_translated(lab: Path, harness: Harness) -> None:
    """Its keys come from texts that it does not hold, whether or not the originals are at hand."""
    kept = " --store sqlite:///translated.db"
    assert harness(f"publish results{kept}").status == 0
    before = harness(f"report{kept}")
    (lab / "back.csv").rename("away.csv")
    for store in (kept, " --store results"):
        after = harness(f"report{store}")
        assert (after.status, after.out) == (0, before.out)
        assert "Texts are missing (translator 'file:back.csv'" in harness(f"compare --items{store}").err


def test_errors_and_records_have_names_and_row_numbers(lab: Path, harness: Harness) -> None:
    key = next(run["key"] for run in Store(STORE).recorded_runs() if run["row"] == "FT")
    whole = api.misclassified(key)
    assert harness("list runs --tasks mood.csv").out.count("done") == 8, "by a task's file as by its name"
    (lab / "mood.csv").unlink()
    bare = api.misclassified(key)
    assert [*bare["predicted"]] == [*whole["predicted"]]
    assert [*bare["gold"]] == [*whole["gold"]]
    assert len(whole) > 0
    dev = api.record(key).predictions.query("split == 'dev'").reset_index(drop=True)
    assert [*dev["gold"].iloc[bare["row"] - 1]] == [*bare["gold"]]
    said = harness(f"errors {key}")
    assert (said.status, said.out.count("\nrow ")) == (0, min(5, len(bare)))
    assert "Texts are missing (recorded bench, tasks: there is no file mood.csv" in said.out


def test_texts_of_another_file_are_not_those_of_the_bench(lab: Path, harness: Harness) -> None:
    """One more row leaves some of the runs as they are."""
    before = harness("report").out
    (lab / "mood.csv").write_text(f"{(lab / 'mood.csv').read_text()}w21,bad\n")
    assert harness("report").out == before
    said = harness("report --view examples --last").err
    assert "Texts are missing (its data or its encoder changed since then)" in said


def test_what_needs_the_data_is_refused_or_said(lab: Path, harness: Harness) -> None:
    harness("report --format csv --out results.csv")
    (lab / "mood.csv").unlink()
    for words in (BENCH, BENCH.replace("bench", "report", 1).replace("--subsets 0,1", "--subsets 2")):
        said = harness(words)
        assert (said.status, said.out) == (2, "")
        assert "there is no file mood.csv" in said.err
    said = harness("verify results.csv")
    assert said.status == 1
    assert "Differences from what plan and records give: 0." in said.out
    assert "Not confirmed: the data behind the keys, and labels (recorded bench, tasks: there is no file" in said.out
    assert "Confirmed in part, without" in said.out
