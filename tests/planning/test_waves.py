"""Runs that start from a selected run: which one is selected, what is known before, and what happens where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from analysis.runs import commit
from requested import request, resolve_table

from harness.commands.prepare import Prepared, prepare
from harness.commands.report import grid_of
from harness.encoders import Located
from harness.errors import UserError
from harness.planning.runs import Plan, make_plan
from harness.planning.waves import Start, selected
from harness.report.notes import start_sentences
from harness.specs import Encoder, Parent, Record, Run
from harness.store import Store

ENCODER = {"hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 16, "vocab_size": 50, "model_type": "roberta"}
LOCATED = Located(Encoder("7" * 32), None, ENCODER, None)


def plan(preset: str = "paper", select: object = None, **fields: object) -> Plan:
    resolved = resolve_table("scl_transfer", preset, **fields)
    return make_plan(resolved, None, LOCATED, **({"select": select} if select else {}))


def first(runs: Sequence[Run]) -> Start:
    return Start(runs[0], 0.5)


def record(run: Run, dev: float | None, status: str = "done") -> Record:
    assert run.stage.selection is not None
    scores = {} if dev is None else {run.stage.selection.metric: dev}
    return Record(run.stage.key, status, "out of memory" * (status != "done"), dev_scores=scores)  # type: ignore[arg-type]


def test_the_paper_has_twenty_runs_and_forty_that_start_from_two_of_them() -> None:
    made = plan()
    assert made.earlier is not None
    assert (len(made.earlier.runs), len(made.runs), len(made.stages)) == (20, 40, 60)
    assert len(made.waiting) == 40
    theirs = make_plan(resolve_table("scl_full_size", "paper"), None, LOCATED)
    assert {run.stage.key for run in made.earlier.runs} < {run.stage.key for run in theirs.runs}, (
        "trained once for both"
    )
    later = plan(select=first)
    assert later.earlier is not None
    for run in later.runs:
        stage = next(each.stage for each in later.earlier.runs if each.row == run.row)
        assert run.stage.init == Parent(stage, "selected", ("encoder", "classifier"))
    assert (len(later.stages), later.waiting) == (60, {})


def test_a_key_without_a_start_is_no_key_with_one() -> None:
    """So nothing that was trained from another start can stand in a table that waits."""
    made = plan()
    assert made.earlier is not None
    count = len(made.earlier.runs) // 2
    seen = {run.stage.key for run in made.runs}
    for index in range(count):
        keys = {run.stage.key for run in plan(select=lambda runs, k=index: Start(runs[k], 0.5)).runs}
        assert len(keys) == 40
        assert not keys & seen
        seen |= keys


@pytest.mark.parametrize("seed", range(20))
def test_the_first_of_the_best_on_dev_is_selected(seed: int) -> None:
    """Against a naive loop, with ties, failures and diverged runs among them."""
    draw = np.random.default_rng(seed)
    earlier = plan().earlier
    assert earlier is not None
    runs = [run for run in earlier.runs if run.row == "CE"]
    ends = [draw.choice(["done", "failed", "diverged"], p=[0.6, 0.3, 0.1]) for _ in runs]
    scores = [float(draw.integers(3)) / 4 if end == "done" else None for end in ends]
    found = selected(runs, {run.stage.key: record(run, *each) for run, *each in zip(runs, scores, ends, strict=True)})
    best = None
    for index, score in enumerate(scores):
        if score is not None and (best is None or score > scores[best]):
            best = index
    assert found.selected == (None if best is None else runs[best])
    assert bool(found.reason) == (best is None)


def test_nothing_is_selected_before_all_have_ended() -> None:
    earlier = plan().earlier
    assert earlier is not None
    runs = [run for run in earlier.runs if run.row == "CE"]
    ended = {run.stage.key: record(run, 0.5) for run in runs}
    for run in runs:
        assert selected(runs, {key: each for key, each in ended.items() if key != run.stage.key}) == Start()
    assert selected(runs, ended).selected == runs[0]


def test_rows_that_do_more_than_fine_tune_are_refused() -> None:
    with pytest.raises(UserError, match=r"table scl_transfer, key starts_from: row TAPT trains on unlabelled texts"):
        resolve_table("scl_transfer", "paper", methods=("ft", "tapt"))


def test_a_head_of_another_number_of_classes_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"row CE: the head that it starts from has 2 outputs, and task mnli has 3 labels"
    ):
        plan(select=first, tasks=("mnli",))


# ---------------------------------------------------------------------------------------------------- with a store


@pytest.fixture
def prepared(workdir: object, packaged: object) -> Prepared:
    """The quick table before anything is trained."""
    return again(train=True)


def again(**more: object) -> Prepared:
    return prepare(replace(request("quick"), table="scl_transfer"), **more)  # type: ignore[arg-type]


def test_only_the_runs_that_others_start_from_can_be_trained_at_first(prepared: Prepared) -> None:
    earlier = prepared.plan.earlier
    assert earlier is not None
    assert {item.stage.key for item in prepared.wave} == {run.stage.key for run in earlier.runs}
    assert all(item.keep_weights for item in prepared.wave)
    assert len(prepared.items) == len(prepared.wave) + len(prepared.plan.runs)


def test_a_failed_run_is_tried_again_by_the_next_command_and_left_out_by_this_one(prepared: Prepared) -> None:
    earlier = prepared.plan.earlier
    assert earlier is not None
    store = Store(prepared.store.url)
    for index, run in enumerate(earlier.runs):
        commit(store, run.stage, *(("failed", "out of memory") if index == 0 else ()))
    failed = earlier.runs[0]
    next_command = again(train=True)
    assert [item.stage.key for item in next_command.wave if item.keep_weights and not item.remake] == [failed.stage.key]
    this = again(train=True, tried=[run.stage.key for run in earlier.runs])
    assert this.plan.waiting == {}
    assert failed.stage.key not in {item.stage.key for item in this.items}
    assert this.plan.starts[failed.row].selected not in (None, failed)


def test_where_every_run_failed_the_later_ones_are_not_run_with_the_reason(prepared: Prepared) -> None:
    earlier = prepared.plan.earlier
    assert earlier is not None
    store = Store(prepared.store.url)
    for run in earlier.runs:
        commit(store, run.stage, *(("diverged", "the loss is nan") if run.row == "CE" else ()))
    found = again(train=True)
    later = {run.stage.key for run in found.plan.runs if run.row == "CE"}
    assert not later & {item.stage.key for item in found.items}
    assert any(
        "CE is not run: none of the 3 runs that it could start from was trained" in each
        for each in start_sentences(found.plan)
    )
    cells = grid_of(found)[0].cells
    (ce,) = (cell for (_, row, _), cell in cells.items() if row == "CE")
    assert (ce.done, ce.expected) == (0, 10)
    assert {note.kind for note in ce.notes} == {"failed"}
    assert all("the loss is nan" in note.reason for note in ce.notes)
    assert found.plan.waiting.keys() == later
