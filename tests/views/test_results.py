"""Test scores come from recorded predictions, after selection and nowhere else."""

from __future__ import annotations

import json
import math
import re
import sqlite3
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from requested import TINY, resolve_table
from views.runs import commit

import harness
from harness.commands.views import example_counts
from harness.kinds import Predictions
from harness.planning.runs import Plan, make_plan
from harness.scores import PLACE, RESULT_DTYPES, counted_records, hardware, results_of
from harness.specs import Record, Stage, starts_elsewhere
from harness.store import Store
from harness.tasks.metrics import score
from harness.tasks.sources import open_source
from harness.tasks.task import Task
from harness.views.cells import own_scores
from harness.views.notes import starts_elsewhere_sentences


@pytest.fixture(scope="module")
def plan() -> Plan:
    """4 rows x (CoLA, MNLI) x 2 seeds: 16 runs, 8 post-trainings, an MLM head; 3 columns."""
    resolved = resolve_table("few_shot", "paper", tasks=("cola", "mnli"), sizes=(20,), subsets=(0,), seeds=(31, 42))
    return make_plan(resolved, None, TINY)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path}/harness.db")


def own_rows(plan: Plan, store: Store) -> list[Any]:
    """The results of each run with its columns' own metrics."""
    columns = plan.resolved.columns
    return [each for each in results_of(plan, store).itertuples() if each.metric == columns[each.column].metric]


def test_scores_are_those_of_the_recorded_predictions(plan: Plan, store: Store) -> None:
    records = {stage.key: commit(store, stage) for stage in plan.stages.values()}
    found = own_rows(plan, store)
    # CoLA is one column, MNLI two: 4 rows x 2 seeds x 3
    assert len(found) == 24
    assert all(r.status == "done" and pd.isna(r.reason) for r in found)
    runs = {(run.row, run.task, run.size, run.subset, run.seed): run for run in plan.runs}
    for each in found:
        column = plan.resolved.columns[each.column]
        run = runs[each.row, column.task, each.size, each.subset, each.seed]
        rows = plan.tasks[column.task].tests[column.evaluation]
        predicted = records[run.stage.key].predictions[rows.digest]
        assert each.test == score(column.metric, predicted)
        assert each.key == run.stage.key
    assert {r.column for r in found} == {"cola", "mnli", "mnli_mm"}
    assert len({r.test for r in found}) > 12


def test_what_was_never_tried_is_left_out(plan: Plan, store: Store) -> None:
    assert own_rows(plan, store) == []
    first = plan.runs[0]
    for ancestor in first.stage.chain:
        commit(store, ancestor)
    # of the runs one is done now
    assert [(r.row, r.column, r.seed) for r in own_rows(plan, store)] == [(first.row, "cola", first.seed)]


@pytest.mark.parametrize("status", ["failed", "diverged"])
def test_a_run_that_ended_badly_gives_its_reason_and_no_score(plan: Plan, store: Store, status: str) -> None:
    """Its own, or that of the earliest stage of its chain that ended badly, which is the reason of every run that starts from it."""
    run, why = next(r for r in plan.runs if r.task == "mnli"), "loss is nan at step 7"
    commit(store, run.stage, status, why)
    found = own_rows(plan, store)
    assert [(r.column, math.isnan(r.test), r.status, r.reason) for r in found] == [
        (column, True, status, why) for column in ("mnli", "mnli_mm")
    ]
    assert not own_scores(plan.resolved, results_of(plan, store))["done"].any()
    run = next(r for r in plan.runs if r.row == "CMLM" and r.task == "cola")
    head, post, leaf = run.stage.chain
    commit(store, post, status, why)
    (only,) = (r for r in own_rows(plan, store) if r.row == "CMLM")
    assert (only.key, only.seed, only.column, math.isnan(only.test)) == (leaf.key, run.seed, "cola", True)
    assert (only.status, only.reason) == (status, f"post-train {status}: {why}")
    commit(store, head, status, why)
    reasons = [r.reason for r in own_rows(plan, store) if r.row in ("TAPT", "CMLM")]
    assert reasons == [f"mlm-head {status}: {why}"] * 12


def test_a_done_run_counts_whatever_became_of_its_parent(plan: Plan, store: Store) -> None:
    """Weights that could not be made again do not take back numbers that are recorded."""
    run = next(r for r in plan.runs if r.row == "TAPT" and r.task == "cola")
    commit(store, run.stage.chain[1], "failed", "disk is full")
    commit(store, run.stage)
    found = own_rows(plan, store)
    assert [r.status for r in found] == ["done"]


def test_two_rows_of_one_computation_share_a_record(store: Store) -> None:
    fields = {"tasks": ("cola",), "sizes": (20,), "subsets": (0,), "seeds": (31,), "set": ("cmlm.alpha=0",)}
    made = make_plan(resolve_table("few_shot", "paper", **fields), None, TINY)
    commit(store, next(r.stage for r in made.runs if r.row == "TAPT"))
    found = own_rows(made, store)
    assert [r.row for r in found] == ["TAPT", "CMLM"]
    assert len({(r.key, r.test) for r in found}) == 1


# ----------------------------------------------------------------------------------- law 3: after selection only


def test_nothing_of_the_test_sets_is_committed_but_predictions(plan: Plan, store: Store, tmp_path: Path) -> None:
    """A record has no place for a test score; its JSON names no test set and holds no number that was computed from one."""
    assert [each.name for each in fields(Record) if "test" in each.name or "score" in each.name] == ["dev_scores"]
    run = next(r for r in plan.runs if r.task == "mnli")
    record = commit(store, run.stage)
    (each, other) = (r.test for r in own_rows(plan, store))
    with sqlite3.connect(tmp_path / "harness.db") as connection:
        (body,) = connection.execute("select record from records where key = ?", (record.key,)).fetchone()
    connection.close()
    assert "test" not in body
    assert not any(rows.digest in body or rows.name in body for rows in run.stage.data.tests)
    assert str(each) not in body
    assert str(other) not in body
    assert json.loads(body)["predictions"] == {}
    assert json.loads(body)["dev_scores"] == {"accuracy": 0.5}


def test_where_scores_are_computed() -> None:
    """`score` is called in `training` (of dev, to select) and in `scores` (of the tests, after selection); of recorded
    predictions also for trackers."""
    package, called = Path(harness.__file__).parent, re.compile(r"(?<!\w)(?<!def )score\(")
    users = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if called.search(path.read_text())}
    assert users == {"scores.py", "training/loop.py", "training/result.py", "commands/tracking.py"}


# ------------------------------------------------------------------------------------------------------ hardware


def test_hardware_lists_each_kind_once() -> None:
    def record(device: str, threads: int, started: float = 1.0, status: Any = "done") -> Record:
        origin = {"device": device, "threads": threads, "torch": "2.9", "started_at": started}
        return Record("", status, provenance=origin)

    kinds = [record("CPU x", 1), record("CPU x", 1, 2.0), record("CPU x", 4), record("H100", 1)]
    assert hardware([*kinds, record("abacus", 1, status="failed")]) == (
        "CPU x, 1 thread a run, torch 2.9",
        "CPU x, 4 threads a run, torch 2.9",
        "H100, 1 thread a run, torch 2.9",
    )


def test_runs_from_weights_that_came_out_otherwise_are_counted(plan: Plan, store: Store) -> None:
    """A stage that was trained again for its weights has a record that its later children did not start from."""
    parents = {stage.parent.key: stage.parent for stage in plan.stages.values() if stage.parent}
    for parent in parents.values():
        commit(store, parent, weights_digest="a" * 64)
    children = [stage for stage in plan.stages.values() if stage.parent and stage.key not in parents]
    for stage, start in zip(children, ["a" * 64, "b" * 64, "b" * 64], strict=False):
        commit(store, stage, provenance={"parent_product": start})
    records = store.records(plan.stages)
    changed = [stage for stage in children if starts_elsewhere(stage, records)]
    sentences = [*starts_elsewhere_sentences(plan, records)]
    assert len(changed) == 2
    runs = {run.stage.key for run in plan.runs if {stage.key for stage in run.stage.chain} & {s.key for s in changed}}
    assert f"{len(runs)} come from weights of {changed[0].parent.phase} that were made again" in sentences[0]
    assert not [*starts_elsewhere_sentences(plan, {})]


# ------------------------------------------------------------------------------------------------------ examples


def predictions_on_dev(store: Store, stage: Stage) -> Predictions:
    assert stage.data.dev
    return store.records([stage.key], predictions=True)[stage.key].predictions[stage.data.dev.digest]


def test_a_metric_that_is_newer_than_a_record_is_computed_from_its_predictions(plan: Plan, store: Store) -> None:
    """A task's YAML may name another metric after its runs were recorded; a search then computes it."""
    run = next(r for r in plan.runs if r.task == "cola" and len(r.stage.chain) > 1)
    commit(store, run.stage)
    record = store.records([run.stage.key])[run.stage.key]
    parent = run.stage.chain[0]
    commit(store, parent, dev_scores={})
    found = counted_records(store, {run.stage.key: "f1_macro", parent.key: "mcc"})
    newer = score("f1_macro", predictions_on_dev(store, run.stage))
    assert found[run.stage.key].dev_scores == {**record.dev_scores, "f1_macro": newer}
    assert found[parent.key].dev_scores == {}
    assert counted_records(store, {run.stage.key: ""})[run.stage.key].dev_scores == record.dev_scores


def test_a_run_has_a_row_for_each_metric_of_its_task_with_its_checkpoint(plan: Plan, store: Store) -> None:
    run = next(r for r in plan.runs if r.task == "cola")
    origin = {"device": "CPU x", "workers": 2}
    commit(store, run.stage, selected_step=300, tied=2, seconds=1.5, flops=1e9, provenance=origin)
    found = results_of(plan, store)
    assert found["metric"].tolist() == ["mcc", "accuracy"]
    on_dev = predictions_on_dev(store, run.stage)
    assert found["dev"].tolist() == [0.5, score("accuracy", on_dev)]
    same = {
        "method": "ft",
        "selected_step": 300,
        "tied": 2,
        "seconds": 1.5,
        "flops": 1e9,
        "workers": 2,
        "hardware": "CPU x",
    }
    assert found[list(same)].to_dict("records") == [same, same]
    failed = next(r for r in plan.runs if r.task == "mnli")
    commit(store, failed.stage, "failed", "no memory")
    rows = results_of(plan, store).query("status == 'failed'")
    assert rows[["column", "metric"]].to_numpy().tolist() == [["mnli", "accuracy"], ["mnli_mm", "accuracy"]]
    assert (
        rows[["dev", "test", "selected_step", "tied", "seconds", "flops", "workers", "hardware"]].isna().all(axis=None)
    )


def test_results_are_in_the_order_of_the_table_and_have_its_dtypes_also_without_rows(plan: Plan, store: Store) -> None:
    assert results_of(plan, store).dtypes.astype(str).to_dict() == RESULT_DTYPES
    for stage in reversed(plan.stages.values()):
        commit(store, stage)
    found = results_of(plan, store)
    assert found.dtypes.astype(str).to_dict() == RESULT_DTYPES
    places = list(dict.fromkeys(zip(*(found[name] for name in PLACE), strict=True)))
    assert places == [place for place in plan.resolved.places if place[1] != "CSSL"]


def test_numbers_of_examples_are_those_of_sets_that_are_at_hand(tmp_path: Path, plan: Plan) -> None:
    assert example_counts(plan) == []  # a plan without data has none
    task = Task(name="reviews", title="Reviews", columns=("text",), classes=("no", "yes"), metrics=("accuracy",))
    for split, count in (("train", 60), ("validation", 100)):
        lines = [f"{split} {i},{'yes' if i % 4 else 'no'}" for i in range(count)]
        (tmp_path / "reviews").mkdir(exist_ok=True)
        (tmp_path / "reviews" / f"{split}.csv").write_text("\n".join(["text,label", *lines, ""]))
    table = resolve_table("full_size", "quick", {"reviews": task}, tasks=("reviews",))
    made = make_plan(table, open_source(tmp_path), TINY, user_tasks={"reviews": task})
    (found,) = example_counts(made)
    shares = r"\(no (\d+) %, yes \d+ %\)"
    said = re.fullmatch(rf"Reviews train 60, dev 72 {shares}, test 28 {shares}", found)
    assert said
    assert 0.72 * int(said[1]) + 0.28 * int(said[2]) == pytest.approx(25, abs=0.5), "of 100, with rounded shares"
