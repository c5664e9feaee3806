"""Runs that start from a selected run: which one is selected, what is known before, and what happens where there is none."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from requested import UNREAD, request, resolve_table
from views.runs import commit

from harness.commands.prepare import Prepared, prepare
from harness.commands.report import grid_of
from harness.errors import UserError
from harness.planning.resolve import earlier_request
from harness.planning.runs import Plan, make_plan
from harness.planning.starts import selected, start_at
from harness.specs import Parent, Record, Run
from harness.store import Store
from harness.views.notes import start_sentences


@cache
def earlier() -> Plan:
    before = earlier_request(resolve_table("scl_transfer", "paper"), request())
    assert before is not None
    return make_plan(
        resolve_table(before.table, before.preset, methods=before.methods, tasks=before.tasks, sizes=before.sizes),
        None,
        UNREAD,
    )


def plan(place: int | None = None, **fields: object) -> Plan:
    """The paper's table; `place`: each row starts from this run of its row, None: none is selected yet."""
    rows: dict[str, list[Run]] = {}
    for run in earlier().runs if place is not None else ():
        rows.setdefault(run.row, []).append(run)
    starts = {row: start_at(runs[place or 0], head=True) for row, runs in rows.items()}
    return make_plan(resolve_table("scl_transfer", "paper", **fields), None, UNREAD, starts=starts)


def record(run: Run, dev: float | None, status: str = "done") -> Record:
    assert run.stage.selection is not None
    scores = {} if dev is None else {run.stage.selection.metric: dev}
    return Record(run.stage.key, status, "out of memory" * (status != "done"), dev_scores=scores)  # type: ignore[arg-type]


def test_the_paper_has_twenty_runs_and_forty_that_start_from_two_of_them() -> None:
    before, theirs = earlier(), make_plan(resolve_table("scl_full_size", "paper"), None, UNREAD)
    assert {run.stage.key for run in before.runs} < {run.stage.key for run in theirs.runs}, "trained once for both"
    waiting, later = plan(), plan(0)
    assert (len(before.runs), len(waiting.runs), len(later.runs), len(later.stages)) == (20, 40, 40, 42)
    assert all(run.stage.unresolved for run in waiting.runs)
    for run in later.runs:
        stage = next(each.stage for each in before.runs if each.row == run.row)
        assert run.stage.init == Parent(stage, "selected", ("encoder", "classifier"))


def test_a_key_without_a_start_is_no_key_with_one() -> None:
    """So nothing that was trained from another start can stand in a table that waits."""
    seen = {run.stage.key for run in plan().runs}
    for place in range(len(earlier().runs) // 2):
        keys = {run.stage.key for run in plan(place).runs}
        assert len(keys) == 40
        assert not keys & seen
        seen |= keys


@pytest.mark.parametrize("seed", range(20))
def test_the_first_of_the_best_on_dev_is_selected_when_all_have_ended(seed: int) -> None:
    """Against a naive loop, with ties, failures and diverged runs among them."""
    draw = np.random.default_rng(seed)
    runs = [run for run in earlier().runs if run.row == "CE"]
    ends = [draw.choice(["done", "failed", "diverged"], p=[0.6, 0.3, 0.1]) for _ in runs]
    scores = [float(draw.integers(3)) / 4 if end == "done" else None for end in ends]
    records = {run.stage.key: record(run, *each) for run, *each in zip(runs, scores, ends, strict=True)}
    best = None
    for index, score in enumerate(scores):
        if score is not None and (best is None or score > scores[best]):
            best = index
    found = selected(runs, records, head=False)
    assert isinstance(found, str) if best is None else found == Parent(runs[best].stage, "selected", ("encoder",))
    records.popitem()
    assert selected(runs, records, head=False) is None


def test_rows_that_do_more_than_fine_tune_are_refused() -> None:
    with pytest.raises(UserError, match=r"table scl_transfer, key starts_from: row TAPT trains on unlabelled texts"):
        resolve_table("scl_transfer", "paper", methods=("ft", "tapt"))


def test_a_head_of_another_number_of_classes_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"row CE: the head that it starts from has 2 outputs, and task mnli has 3 labels"
    ):
        plan(0, tasks=("mnli",))


# ---------------------------------------------------------------------------------------------------- with a store


def again() -> Prepared:
    return prepare(replace(request("quick"), table="scl_transfer"), train=True)


def test_a_failed_run_is_tried_again_by_the_next_command_and_left_out_of_the_selection(
    workdir: object, packaged: object
) -> None:
    prepared = again()
    assert prepared.undecided
    assert prepared.earlier is not None
    runs = prepared.earlier.plan.runs
    assert {item.stage.key for item in prepared.earlier.items} == {run.stage.key for run in runs}
    for index, run in enumerate(runs):
        commit(Store(prepared.store.url), run.stage, *(("failed", "out of memory") if index == 0 else ()))
    now = again()
    assert now.earlier is not None
    assert [item.stage.key for item in now.earlier.items] == [runs[0].stage.key]
    assert not now.undecided
    start = now.plan.table_data.starts[runs[0].row]
    assert isinstance(start, Parent)
    assert start.stage.key != runs[0].stage.key


def test_where_every_run_failed_the_later_ones_are_skipped_with_the_reason(workdir: object, packaged: object) -> None:
    prepared = again()
    assert prepared.earlier is not None
    for run in prepared.earlier.plan.runs:
        commit(Store(prepared.store.url), run.stage, *(("diverged", "the loss is nan") if run.row == "CE" else ()))
    found = again()
    assert {run.row for run in found.plan.runs} == {"CE + SCL"}
    cells = grid_of(found)[0].cells
    (ce,) = (cell for (_, row, _), cell in cells.items() if row == "CE")
    assert "none of the 3 runs that it could start from was trained" in str(ce)
    assert "the loss is nan" in str(ce)
    assert [each.partition(" starts from ")[0] for each in start_sentences(found.plan)[1:]] == ["CE + SCL"]
