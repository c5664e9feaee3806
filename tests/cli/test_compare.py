"""`compare` on recorded runs: one subset, two seeds, seven methods; nothing is trained."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from cli.command import command
from cli.conftest import BENCH, METHODS, Benched, Harness
from views.runs import commit

import harness as python
from harness.cli.parser import TABLE_VIEWS
from harness.commands.prepare import prepare
from harness.commands.views import costs_of, grid_of
from harness.planning.request import Request
from harness.store import Store

BENCHED = BENCH.format(encoder="bert-tiny", methods=METHODS)


def test_a_filter_keeps_the_family_of_the_bench(at_bench: Harness) -> None:
    whole = pd.read_csv(io.StringIO(at_bench("compare --format csv").out)).set_index("row")
    said = at_bench("compare --last --methods ft,scl")
    assert f"{len(whole)} comparisons with FT that the table's benches plan, 1 of them shown" in said.out
    assert json.loads(at_bench("compare --last --methods ft,scl --format json").out)["family"] == len(whole)
    alone = pd.read_csv(io.StringIO(at_bench("compare --last --methods ft,scl --format csv").out)).set_index("row")
    assert alone["p"]["SCL"] == whole["p"]["SCL"]
    assert alone["p_holm"]["SCL"] >= whole["p_holm"]["SCL"]


def test_formats_agree(at_bench: Harness) -> None:
    frame = pd.read_csv(io.StringIO(at_bench("compare --items --format csv").out))
    read = json.loads(at_bench("compare --items --format json").out)
    assert [each["row"] for each in read["comparisons"]] == frame["row"].tolist()
    assert [each["difference"] for each in read["comparisons"]] == pytest.approx(frame["difference"].tolist())
    found = python.compare(items=True)
    assert found.frame["row"].tolist() == frame["row"].tolist()
    assert found.frame["p"].tolist() == pytest.approx(frame["p"].tolist(), nan_ok=True)
    assert found.frame["remark"].fillna("").tolist() == [each["remark"] for each in read["comparisons"]]
    assert found.written("md") == at_bench("compare --items --format md").out
    assert found.written("latex") == at_bench("compare --items --format latex").out
    assert repr(python.compare()) == repr(python.report(view="differences"))
    for view in TABLE_VIEWS:
        if view not in ("figure", "results"):
            assert python.report(view=view).written("csv") == at_bench(f"report --view {view} --format csv").out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("compare --against TATP", "--against: unknown row 'TATP'. Did you mean 'TAPT'"),
        ("compare --format glue-submission", "--format: unknown format 'glue-submission'"),
        ("report --view figur", "--view: invalid choice: 'figur'"),
        ("report --view figure --format csv", "table few_shot has no figure"),
        ("report --view settings --format svg", "settings: there is nothing to draw; take another format than svg"),
        ("report --out x.doc", "--out x.doc: no format has the ending '.doc'; add --format"),
        ("report --out nowhere/x.html", "--out nowhere/x.html: there is no folder nowhere; name a file"),
        ("report --out .", "--out .: is a folder; name a file"),
    ],
)
def test_wrong_words_say_what_to_do(words: str, says: str, at_bench: Harness) -> None:
    said = at_bench(words)
    assert (said.status, said.out) == (2, "")
    assert says in said.err


def test_an_empty_figure_has_the_places_of_its_points(harness: Harness) -> None:
    said = harness("report --table views --view figure --format csv")
    assert said.status == 1
    assert pd.read_csv(io.StringIO(said.out))["x"].tolist() == [1, 2, 3, 4, 5]


def test_incomplete_cells_are_said_and_set_the_status(at_bench: Harness) -> None:
    said = at_bench("compare --subsets 0,1")
    assert said.status == 1
    assert "14 of 28 runs of these cells are done" in said.err
    assert "missing or failed: compared over 1 subset x 2 seeds" in said.out


@pytest.mark.parametrize(
    "words", ["few_shot --tasks sst2,cola", "taco_small --tasks mnli,rte", "scl_noisy --preset paper --tasks sst2"]
)
def test_a_run_is_counted_once_whatever_columns_and_rows_show_it(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In Avg, in the two columns of MNLI, and in a row of averages."""
    monkeypatch.chdir(tmp_path)
    planned = re.search(r"Runs: ([\d,]+)", command(capsys, f"plan --table {words}").out)
    assert planned is not None
    assert f"0 of {planned[1].replace(',', '')} runs" in command(capsys, f"compare --table {words}").err


def test_costs_are_those_of_the_records(at_bench: Harness, benched: Benched) -> None:
    """Nothing is trained; a run costs what its chain's records say."""
    spent = pd.read_csv(io.StringIO(at_bench("report --view cost --format csv").out), index_col="row")
    store = Store("sqlite:///.harness/harness.db", create=False)
    for row in ("FT", "CMLM"):
        keys = [benched.keys[row, seed] for seed in (31, 42)]
        chains = [[s.key for s in store.stages(keys)[key].chain] for key in keys]
        whole = [sum(each.flops for each in store.records(chain).values()) for chain in chains]
        assert spent.loc[row, "total_flops"] == pytest.approx(sum(whole) / 2)
    assert spent.loc["FT", "earlier_flops"] == 0
    assert spent.loc["CMLM", "earlier_flops"] > 0
    assert (spent["search_flops"] == 0).all()


def test_a_plan_says_what_it_detects(at_bench: Harness) -> None:
    words = BENCHED.removeprefix("bench ")
    said = at_bench(f"plan {words} --detect 6")
    assert said.status == 0
    assert "The cheapest design that detects 6.00 points" in said.out


GRID_TABLE = """
name: two
title: Two
protocol: own
recipe: {fine_tune: {lr: 1e-3, batch_size: 8, epochs: 1}, post_train: {lr: 1e-3, batch_size: 8, epochs: 1}}
max_length: 64
selection_every: 5
sizes: [20]
subsets: 2
seeds: [31, 42]
rows: [{name: FT, method: ft}, {name: SCL, method: scl, grid: {lam: [0.1, 0.9]}}]
aggregate: {center: mean, spread: std, ddof: 1, average: none, select: per_task}
default_preset: quick
encoder_preset: quick
presets: {quick: {description: x, encoder: bert-tiny, data: own}}
"""


@pytest.mark.usefixtures("packaged")
def test_points_of_a_grid_that_are_not_selected_are_search(tmp_path: Path) -> None:
    """A run of a row with a grid costs what a run of the selected point costs; the others are divided among its runs. Whichever it is."""
    (tmp_path / "two.yaml").write_text(GRID_TABLE)
    rows = "".join(f"text {k} of {k % 2},{k % 2}\n" for k in range(120))
    (tmp_path / "mine.csv").write_text(f"text,label\n{rows}")
    request = Request(table=str(tmp_path / "two.yaml"), tasks=(str(tmp_path / "mine.csv"),), encoder="bert-tiny")
    prepared = prepare(replace(request, store=f"sqlite:///{tmp_path}/harness.db"), train=False)
    prepared = replace(prepared, store=Store(f"sqlite:///{tmp_path}/harness.db"))
    flops = {"SCL": {0.1: 7.0, 0.9: 1000.0}}
    for run in prepared.plan.runs:
        cost = flops["SCL"][run.stage.objective.params["lam"]] if run.method == "scl" else 3.0
        commit(prepared.store, run.stage, flops=cost, seconds=cost)
    grid = grid_of(prepared)
    ft, scl = costs_of(prepared, grid).frame.to_dict("records")
    (selected,) = grid.cells[20, "SCL", "mine"].selected
    own, other = (7.0, 1000.0) if "0.1" in selected else (1000.0, 7.0)
    assert (ft["fine_tuning_flops"], ft["search_flops"]) == (3.0, 0.0)
    assert (scl["fine_tuning_flops"], scl["search_flops"]) == (own, other)
