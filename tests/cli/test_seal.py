"""`plan --seal`: what is sealed before the first run is said to be planned by `compare`, travels, and every way around it is named."""

from __future__ import annotations

import io
import json
import re
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import trained
from cli.command import Said, command, record_all
from views.runs import commit

import harness as api
from harness.cli.request import read_words
from harness.commands.prepare import prepare
from harness.store import Store

Harness = Callable[..., Said]
TABLE = (
    "--table few_shot --tasks sst2 --data data --sizes 20 --subsets {} --seeds 31,42 --encoder bert --methods {} --set max_length=64 "
    "--set fine_tune.steps=2 --set post_train.steps=2 --set fine_tune.batch_size=8 --set post_train.batch_size=4"
)
PLANNED = TABLE.format("0,1", "ft,scl,tapt")


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory, folders: dict[str, Path]) -> tuple[Path, str]:
    """A folder with a plan that was sealed and then run, and its digest."""
    folder = tmp_path_factory.mktemp("sealed")
    trained.sentiment_folder(folder / "data")
    shutil.copytree(folders["bert"], folder / "bert")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("harness.commands.train.train", record_all)
        values = {"fine_tune.steps": 2, "post_train.steps": 2, "fine_tune.batch_size": 8, "post_train.batch_size": 4}
        fields = {"tasks": "sst2", "data": "data", "sizes": 20, "seeds": [31, 42], "encoder": "bert", "subsets": [0, 1]}
        plan = {"methods": ["ft", "scl", "tapt"], "set": {"max_length": 64, **values}, **fields}
        digest = api.plan("few_shot", **plan).seal()  # type: ignore[arg-type]
        api.bench("few_shot", **plan)  # type: ignore[arg-type]
    return folder, digest


@pytest.fixture
def harness(
    sealed: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Harness:
    """The command in a copy of that folder."""
    shutil.copytree(sealed[0], tmp_path / "lab")
    monkeypatch.chdir(tmp_path / "lab")
    monkeypatch.setattr("harness.commands.train.train", record_all)
    return lambda *words: command(capsys, *words)


def in_store(statement: str) -> None:
    with sqlite3.connect(".harness/harness.db") as connection:
        connection.execute(statement)


def plans(harness: Harness, words: str) -> list[str]:
    frame = pd.read_csv(io.StringIO(harness(f"compare {words} --format csv").out), keep_default_na=False)
    return [f"{row}: {plan}" for row, plan in zip(frame["row"], frame["plan"], strict=True)]


def test_a_sealed_plan_is_planned_published_verified_and_merged(
    harness: Harness, sealed: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = sealed[1]
    assert plans(harness, "") == ["SCL: planned", "TAPT: planned"]
    said = harness("compare").out
    assert f"Planned: 2 of 2 comparisons, by seal {digest[:12]}" in said
    assert re.search(r"  planned$", said, re.MULTILINE)
    assert harness("publish results").status == 0
    assert f"Plan sealed: {digest}, 20" in Path("results/README.md").read_text()
    checked = harness(f"verify results --seal {digest}")
    assert f"Seal {digest[:12]}" in checked.out
    assert "12 runs sealed, 12 begun after it, 0 before it; 12 of the 12 runs of the file are in it." in checked.out
    assert checked.out.splitlines()[-1] == "Confirmed."
    elsewhere = shutil.copytree("results", tmp_path / "elsewhere" / "results").parent
    shutil.copytree("data", elsewhere / "data")
    monkeypatch.chdir(elsewhere)
    harness("merge results")
    assert plans(harness, "") == ["SCL: planned", "TAPT: planned"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (PLANNED.replace("0,1", "1,2"), "6 of its 12 runs are recorded in sqlite:///.harness/harness.db; seal subsets that no run has used"),
        (PLANNED.replace("--data data ", ""), "is not at hand, and runs have no keys"),
    ],
)  # fmt: skip
def test_what_cannot_be_sealed_is_refused(words: str, says: str, harness: Harness) -> None:
    said = harness(f"plan {words} --seal")
    assert (said.status, said.out) == (2, "")
    assert says in said.err


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--against SCL", ["FT: exploratory", "TAPT: exploratory"]),
        ("--region 3", ["SCL: exploratory", "TAPT: exploratory"]),
        ("--last --subsets 0", ["SCL: exploratory", "TAPT: exploratory"]),
        ("--last --methods ft,scl", ["SCL: planned"]),
    ],
)
def test_another_rule_or_other_runs_make_a_comparison_exploratory(
    words: str, found: list[str], harness: Harness
) -> None:
    assert plans(harness, words) == found


def test_a_row_that_is_dropped_stays_in_the_family(harness: Harness) -> None:
    in_store("delete from requests")
    said = harness(f"compare {TABLE.format('0,1', 'ft,scl')}").out
    assert "the 2 comparisons with FT that the table's benches plan, 1 of them shown" in said


def test_runs_that_were_added_after_looking_make_a_comparison_exploratory(harness: Harness) -> None:
    assert harness(f"bench {PLANNED.replace('0,1', '0,1,2')}").status == 0
    assert plans(harness, "") == ["SCL: exploratory", "TAPT: exploratory"]
    assert plans(harness, "--last --subsets 0,1") == ["SCL: planned", "TAPT: planned"]


def test_runs_before_the_seal_by_the_clock_are_named(harness: Harness, sealed: tuple[Path, str]) -> None:
    harness("publish results")
    in_store(f"update seals set sealed_at = {time.time() + 3600}")
    assert plans(harness, "") == ["SCL: exploratory", "TAPT: exploratory"]
    store = Store("sqlite:///.harness/harness.db")
    (seal,) = store.seals("few_shot")
    early = [[*run[:-1], [run[-1], "other"]] for run in seal.plan["runs"]]  # a seal that names several keys of a run
    store.keep_seal("few_shot", {**seal.plan, "runs": early}, [])
    checked = harness("verify results --store sqlite:///.harness/harness.db").out
    assert checked.count(" sealed, ") == 2
    assert re.search(rf"the run FT, sst2, .* began [\d.]+ minutes before seal {sealed[1][:12]}", checked)
    assert checked.splitlines()[-1] == "NOT confirmed."


def test_a_changed_or_deleted_seal_counts_for_nothing(harness: Harness, sealed: tuple[Path, str]) -> None:
    harness("publish results")
    verify = f"verify results --store sqlite:///.harness/harness.db --seal {sealed[1]}"
    in_store("update seals set body = replace(body, '\"region\": 0.01', '\"region\": 0.02')")
    assert "is not as it was sealed and counts for nothing." in harness("compare").out
    assert f"seal {sealed[1][:12]} is not as it was sealed" in harness(verify).out
    in_store("delete from seals")
    assert "Exploratory: no plan of this table was sealed before its runs" in harness("compare").out
    assert f"the store has no seal {sealed[1]} of this table" in harness(verify).out
    assert harness(f"plan {PLANNED} --seal").status == 2, "nor is it made again after the runs"
    shutil.rmtree(".harness")
    assert harness(f"plan {PLANNED} --seal").status == 0
    in_store("update seals set body = '{}'")
    assert "has this seal, but not as it was sealed" in harness(f"plan {PLANNED} --seal").err


def test_whoever_has_the_data_gets_the_same_digest_and_of_several_seals_the_one_that_is_followed_counts(
    harness: Harness, sealed: tuple[Path, str]
) -> None:
    shutil.rmtree(".harness")
    for words in ("", " --against SCL", " --region 3", ""):
        said = harness(f"plan {PLANNED} --seal{words}")
        assert said.status == 0
        assert (sealed[1] in said.out) == (not words), "sealing again changes nothing"
    assert (
        "Decision: each difference from FT, crossed t, two-sided, over subsets and seeds; 5 % by Holm over 2"
        in said.out
    )
    assert plans(harness, PLANNED) == ["SCL: exploratory", "TAPT: exploratory"]
    harness(f"bench {PLANNED}")
    assert "Planned: 2 of 2" in harness("compare").out


def test_a_full_training_set_is_one_subset(harness: Harness) -> None:
    own = "plan --tasks data/sst2/train.csv --encoder bert --methods ft,tapt --subsets 0,1,2 --seeds 31,42 --set max_length=64 --seal"
    said = harness(f"{own} --sizes 0")
    assert "= 2 cells, each from 1 subset x 2 seeds.\n" in said.out, said.err
    assert "; sizes 0; subsets 0; seeds 31 and 42: 4 runs.\n" in said.out


def test_a_run_whose_earlier_stage_diverged_was_run(harness: Harness) -> None:
    shutil.rmtree(".harness")
    planned = TABLE.format("0,1", "ft,tapt")
    assert harness(f"plan {planned} --seal").status == 0
    prepared = prepare(read_words(["bench", *planned.split()]), train=False)
    lost = next(stage for stage in prepared.plan.stages.values() if stage.phase == "post-train")
    for stage in prepared.plan.stages.values():
        if lost.key not in {each.key for each in stage.chain[:-1]}:
            commit(prepared.store, stage, "diverged" if stage is lost else "done", "NaN" if stage is lost else "")
    assert plans(harness, planned) == ["TAPT: planned"]


@pytest.mark.parametrize(
    ("sealed_for", "shown_for", "family"), [("bert", "bert,roberta", 4), ("bert,roberta", "bert", 2)]
)
def test_a_seal_of_other_encoders_is_in_no_family(
    harness: Harness, folders: dict[str, Path], sealed_for: str, shown_for: str, family: int
) -> None:
    shutil.rmtree(".harness")
    shutil.copytree(folders["roberta"], "roberta")
    words = [PLANNED.replace("--encoder bert", f"--encoder {names}") for names in (sealed_for, shown_for)]
    assert harness(f"plan {words[0]} --seal").status == 0
    said = harness(f"compare {words[1]} --format json")
    assert said.status == 1, "no run is there"
    assert json.loads(said.out)["family"] == family
