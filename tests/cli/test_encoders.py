"""Several encoders in one table: rows of each, the stages of benches of one encoder, and comparisons within and between encoders."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trained
from cli.command import Said
from cli.conftest import BENCH, Harness
from cluster import in_process

import harness as api
from harness.commands.prepare import Prepared, prepare
from harness.planning.request import Override, Request, from_json, parse_override, to_json
from harness.store import Store

TWO = BENCH.format(encoder="bert,roberta", methods="ft,cmlm")
ROWS = ["FT on bert", "CMLM on bert", "FT on roberta", "CMLM on roberta"]


@pytest.fixture
def folder(workdir: Path, folders: dict[str, Path]) -> Path:
    """Data, and two tiny encoders of different families beside them."""
    trained.sentiment_folder(workdir / "data")
    for kind in ("bert", "roberta"):
        (workdir / kind).symlink_to(folders[kind])
    return workdir


def planned(encoder: str | None, overrides: tuple[Override, ...] = (), **fields: Any) -> Prepared:
    values = {
        "table": "few_shot",
        "tasks": ("sst2",),
        "data": "data",
        "sizes": (20,),
        "subsets": (0,),
        "methods": ("ft", "cmlm"),
    }
    short = (parse_override("max_length=64"), *overrides)
    return prepare(Request(**{**values, "encoder": encoder, "overrides": short, **fields}), train=False)


def of_csv(report: Said) -> list[dict[str, str]]:
    assert report.status == 0, report.err
    return list(csv.DictReader(io.StringIO(report.out)))


def test_its_stages_are_those_of_each_encoder_alone_over_the_same_examples(folder: Path) -> None:
    both, alone = planned("bert,roberta"), [planned(name) for name in ("bert", "roberta")]
    assert list(both.resolved.printed_rows) == ROWS
    assert [run.stage.key for run in both.plan.runs] == [run.stage.key for each in alone for run in each.plan.runs]
    assert both.plan.stages.keys() == alone[0].plan.stages.keys() | alone[1].plan.stages.keys()
    for each in alone:
        for stage in each.plan.stages.values():
            assert both.plan.stage_flops(stage) == each.plan.stage_flops(stage)
    by_place: dict[tuple[int, int], set[str]] = {}
    for run in both.plan.runs:
        by_place.setdefault((run.subset, run.seed), set()).add(run.stage.data.train.digest)
    assert {len(digests) for digests in by_place.values()} == {1}
    assert planned("bert,bert").resolved.rows == alone[0].resolved.rows


def test_what_is_set_for_a_row_reaches_it_under_each_encoder(folder: Path) -> None:
    rate = parse_override("cmlm:fine_tune.lr=0.001")
    resolved = planned("bert,roberta", overrides=(rate,)).resolved
    assert [any(each.row for each in row.overrides) for row in resolved.rows] == [False, True, False, True]
    assert [resolved.optim("fine_tune", 20, 20, row).lr for row in resolved.rows[1::2]] == [0.001, 0.001]


def test_a_bench_trains_what_one_encoder_has_not(
    folder: Path, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process.patch(monkeypatch)
    said = harness(BENCH.format(encoder="bert", methods="ft,cmlm"))
    assert said.status == 0, said.err
    store = Store("sqlite:///.harness/harness.db", create=False)
    first = {label["key"] for label in store.recorded_runs()}
    plan = harness(TWO.replace("bench", "plan", 1))
    assert "bert: 4 runs, 0 stages to train" in plan.out, plan.out
    assert "roberta: 4 runs, 6 stages to train" in plan.out
    said = harness(TWO)
    assert said.status == 0, said.err
    assert all(row in said.out for row in ROWS)
    everything = {label["key"] for label in store.recorded_runs()}
    assert first < everything
    assert len(everything) == 2 * len(first)
    rows = of_csv(harness("report --format csv"))
    assert {(row["row"], row["encoder"]) for row in rows} == {(row, row.rpartition(" ")[2]) for row in ROWS}

    one = next(row for row in rows if row["row"] == "CMLM on roberta")
    shown = harness(f"show {one['key'][:12]}")
    assert shown.status == 0, shown.err
    again = next(line for line in shown.out.splitlines() if "reproduce: " in line).partition("reproduce: harness ")[2]
    assert "--encoder roberta " in again
    alone = harness(*shlex.split(again.replace("bench", "plan", 1)))
    assert "Stages done: 2, failed: 0, diverged: 0, to train: 0." in alone.out, alone.out
    published = folder / "table.csv"
    published.write_text(harness("report --format csv").out, encoding="utf-8")
    verified = harness(f"verify {published}")
    assert verified.status == 0, verified.out + verified.err

    differences = of_csv(harness("compare --format csv"))
    assert {(row["row"], row["against"]) for row in differences} == {
        ("CMLM on bert", "FT on bert"),
        ("CMLM on roberta", "FT on roberta"),
    }
    assert {(row["row"], row["against"]) for row in of_csv(harness("compare --against BERT --format csv"))} == {
        ("FT on roberta", "FT on bert"),
        ("CMLM on roberta", "CMLM on bert"),
    }
    one_row = of_csv(harness("compare", "--against", "cmlm on roberta", "--format", "csv"))
    assert {row["against"] for row in one_row} == {"CMLM on roberta"}
    assert len(one_row) == 3
    body = json.loads(harness("compare --format json").out)
    assert (body["against"], body["family"]) == ("FT on the same encoder", 2)
    cost = of_csv(harness("report --view cost --format csv"))
    assert {row["row"]: float(row["parameters"]) > 0 for row in cost} == dict.fromkeys(ROWS, True)
    harness(BENCH.format(encoder="bert", methods="ft,cmlm"))
    body = json.loads(harness("compare --format json").out)
    assert (body["against"], body["family"]) == ("FT", 1), "a table of one encoder is as it was"
    assert "parameters" not in of_csv(harness("report --view cost --format csv"))[0]


def test_names_that_cannot_be_had_are_told_at_once(refused: Callable[..., str], folder: Path) -> None:
    assert "Did you mean 'bert-tiny'?" in refused("plan --table few_shot --encoder bert-tny,bert-tiny")
    assert "--encoder ./nothing: there is no such folder." in refused(
        "plan --table few_shot --encoder bert-tiny,./nothing"
    )
    assert "a study is of one encoder" in refused("tune cmlm --encoder bert,roberta --tasks sst2 --data data")
    unknown = refused(
        "compare --against robertta --table few_shot --tasks sst2 --sizes 20 --subsets 0 --data data --set max_length=64 --encoder bert,roberta"
    )
    assert "Did you mean 'roberta'?" in unknown


def test_python_takes_a_list_and_a_folder_is_found_from_another_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"tasks": "sst2", "data": "data", "sizes": 20, "methods": "ft", "set": {"max_length": 64}}
    found = api.plan("few_shot", encoder=["bert", Path("roberta")], **values)
    assert set(found.runs["row"]) == {"FT on bert", "FT on roberta"}
    stored = to_json(Request("few_shot", encoder='bert,new:tiny,"new:a,b"'))
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert from_json(stored).encoder == (str(folder / "bert"), "new:tiny", "new:a,b")
