"""`list runs` and `errors`, and the same from Python: what a store holds, and what a run got wrong."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import tiny
from cli.command import write_csv
from cli.conftest import Benched, Harness
from cluster import in_process

import harness as api
from harness.commands.prepare import prepare
from harness.commands.recorded import recorded
from harness.commands.train import train, unshown
from harness.planning.request import Request, parse_override


def test_the_runs_of_a_store_and_filters(at_bench: Harness, benched: Benched) -> None:
    keys = {key[:12] for key in benched.keys.values()}
    for words, wanted in {
        "": keys,
        "--table few_shot --tasks sst2 --sizes 20 --subsets 0": keys,
        "--methods scl": {key[:12] for (row, _), key in benched.keys.items() if row == "SCL"},
        "--methods TAPT,cmlm --seeds 42": {benched.keys["TAPT", 42][:12], benched.keys["CMLM", 42][:12]},
    }.items():
        said = at_bench(f"list runs {words}")
        assert (said.status, said.err) == (0, "")
        assert {line.split()[0] for line in said.out.splitlines()[2:]} == wanted
        assert all(" s ago" in line or " min ago" in line for line in said.out.splitlines()[2:])
    frame = api.runs()
    assert set(frame["key"]) == set(benched.keys.values())
    assert set(frame["status"]) == {"done"}
    for _, run in frame.iterrows():
        assert run["dev"] == api.record(run["key"]).record.dev_scores["accuracy"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("list runs --store sqlite:///none.db", "There is no store at sqlite:///none.db; run a bench first"),
        ("predict FT --row warm", "its weights are not stored in "),
        ("errors zzz", "has no record whose key begins with 'zzz'"),
        ("errors PARENT", "has no predictions; name a run that ends with fine-tuning"),
        ("errors FT --split tets", "--split: unknown split 'tets'. Did you mean 'test'? Known: dev, test."),
        ("errors FT --output x.xls", "--output x.xls: write .csv"),
        ("errors FT --limit 0", "--limit: should be greater than or equal to 1, not '0'"),
    ],
)
def test_refusals(words: str, said: str, at_bench: Harness, benched: Benched) -> None:
    parent = api.record(benched.keys["TAPT", 31]).stage.parent
    assert parent is not None
    found = at_bench(words.replace(" FT", f" {benched.keys['FT', 31]}").replace("PARENT", parent.key))
    assert (found.status, found.out) == (2, "")
    assert said in found.err, found.err


@pytest.mark.parametrize("split", ["dev", "test"])
def test_errors_are_the_misclassified_examples_with_their_texts(
    split: str, at_bench: Harness, benched: Benched, tmp_path: Path
) -> None:
    key = benched.keys["CMLM", 31]
    record = api.record(key)
    rows = record.predictions[record.predictions["split"] == split]
    wrong = rows[rows["gold"] != rows["predicted"]]
    found = api.misclassified(key, split=split)
    assert sorted(found["sentence"]) == sorted(wrong["sentence"])
    assert (found.attrs["rows"], found.attrs["wrong"]) == (len(rows), len(wrong))
    assert (np.diff(found["confidence"]) <= 0).all()
    assert (found["confidence"] >= 0.5).all()
    said = at_bench("errors", key[:12], "--split", split, "--limit", "2")
    assert said.status == 0
    assert said.out.startswith(
        f"{len(wrong)} of {len(rows)} examples of {split} are misclassified; the 2 of the highest confidence:"
    )
    assert all(text in said.out for text in found["sentence"][:2])
    assert said.out.count(" predicted as ") == 2
    said = at_bench("errors", key, "--split", split, "--output", str(tmp_path / "wrong.csv"))
    assert (
        said.out
        == f"{len(wrong)} of {len(rows)} examples of {split} are misclassified; written to {tmp_path}/wrong.csv.\n"
    )
    with (tmp_path / "wrong.csv").open(newline="") as file:
        assert [row["sentence"] for row in csv.DictReader(file)] == found["sentence"].tolist()


def test_the_test_examples_of_a_table(at_bench: Harness, benched: Benched, tmp_path: Path) -> None:
    """All rows and seeds of the bench, from the command and from Python, with the texts."""
    said = at_bench("report", "--view", "examples", "--out", str(tmp_path / "examples.csv"))
    assert said.status == 0, said.err
    found = api.report(view="examples")
    rows = {name.removeprefix("right.") for name in found.frame if name.startswith("right.")}
    assert rows == {"FT", "SCL", "TAPT", "CMLM", "TACO", "ELECTRA", "COCO-LM"}
    with (tmp_path / "examples.csv").open(newline="") as file:
        assert [row["text.sentence"] for row in csv.DictReader(file)] == found.frame["text.sentence"].tolist()
    one = api.record(benched.keys["SCL", 42]).predictions.query("split == 'test'").reset_index(drop=True)
    shown = found.frame.sort_values("example")
    assert shown["text.sentence"].tolist() == one["sentence"].tolist()
    assert shown["gold"].tolist() == one["gold"].tolist()


@pytest.mark.parametrize("protocol", ["k_shot", "own_cross_validated"])
def test_a_run_of_a_later_subset_knows_its_task(
    protocol: str, bert: Path, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each subset has a dev set of its own: its texts, all metrics of its task, and the classes of its model."""
    texts, labels = tiny.texts(120, 1)
    rows = [(text, ("bad", "good")[label]) for (text,), label in zip(texts, labels, strict=True)]
    write_csv(workdir / "films.csv", rows, ("text", "label"))
    request = Request(
        "own",
        tasks=("films.csv",),
        methods=("ft",),
        protocol=protocol,
        sizes=(10,),
        subsets=(0, 1),
        seeds=(31,),
        encoder=str(bert),
        overrides=(parse_override("fine_tune.steps=2"), parse_override("max_length=32")),
    )
    in_process.patch(monkeypatch)
    prepared = train(prepare(request, train=True), unshown)
    (run,) = [run for run in prepared.plan.runs if run.subset == 1]
    record = api.record(run.stage.key)
    assert record.textless == ""
    assert record.predictions["text"].isin([text for text, _ in rows]).all()
    assert set(record.record.dev_scores) == set(prepared.plan.tasks["films"].task.metrics)
    again = recorded(None, run.stage.key).prepare()
    task = again.plan.task_of.get(run.stage.key)
    assert task is not None
    assert task.classes == ("bad", "good")
