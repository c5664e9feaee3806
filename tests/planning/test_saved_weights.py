"""Rows that start from an update of a longer pre-training run: one stage for all of them, and what of it is stored, trained and
made again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from requested import BERT_TINY, resolve_table
from views.runs import filled, result, rows_of

from harness.encoders import Located
from harness.errors import UserError
from harness.planning.runs import Plan, make_plan
from harness.planning.table import HOURS, Figure, Table, load_table
from harness.planning.work import Item, work
from harness.specs import Encoder, Parent, Stage, Status
from harness.storage import weights_of
from harness.views.cost import cost_before
from harness.views.figures import figure_view, points_of

FULL = load_table("pretraining")
SMALL: dict[str, Any] = {"tasks": ("cola",), "sizes": (100,), "subsets": (0,), "seeds": (31,)}


def table_of(
    *save_at: int, steps: tuple[int | None, ...] = (50_000, None), pre_train: str = "taco", **of: Any
) -> Table:
    """The pre-training table with a row for each of `steps`."""
    rows = [
        {"name": f"row {step}", "pre_train": pre_train, "pre_train_step": step, "method": "ft"} | of for step in steps
    ]
    text = FULL.model_dump(mode="json", exclude={"rows", "presets", "paper"})
    text["pre_train"]["save_at"] = save_at
    presets = {name: preset.model_dump(mode="json") for name, preset in FULL.presets.items()}
    return Table.model_validate({**text, "rows": rows, "presets": presets})


def plan_of(table: Table, preset: str = "paper", **fields: Any) -> Plan:
    resolved = resolve_table(table, preset, **{**SMALL, **fields})
    return make_plan(resolved, None, Located(Encoder("7" * 32, "tiny"), None, BERT_TINY, None))


def pre_training(plan: Plan) -> list[Stage]:
    return [stage for stage in plan.stages.values() if stage.phase == "pre-train"]


def starts(plan: Plan) -> dict[str, Any]:
    return {run.row: run.stage.init.step for run in plan.runs if isinstance(run.stage.init, Parent)}


def to_do(plan: Plan, done: Sequence[Stage] = (), stored: Iterable[str] = ()) -> dict[str, Item]:
    statuses: dict[str, tuple[Status, int]] = {stage.key: ("done", 1) for stage in done}
    return {item.stage.key: item for item in work(plan, statuses, set(stored).__contains__, False)[0]}


def test_one_run_serves_all_rows_whatever_is_saved() -> None:
    several = plan_of(table_of(steps=(50_000, 100_000, 250_000, None)))
    (stage,) = pre_training(several)
    assert starts(several) == {"row 50000": 50_000, "row 100000": 100_000, "row 250000": "last", "row None": "last"}
    assert len(several.stages) == 1 + 3, "the last update is the end"
    for plan in (plan_of(FULL, methods=("TACO",)), plan_of(table_of(10, 20)), plan_of(table_of(steps=(5,)))):
        assert [same.key for same in pre_training(plan)] == [stage.key]


def test_what_is_made_again() -> None:
    """Only what a stage needs that is still to be trained, and no update more than that."""
    plan = plan_of(table_of(10_000))
    (stage,) = pre_training(plan)
    (early_leaf,) = (run.stage for run in plan.runs if run.row == "row 50000")
    final, early = weights_of(stage.key), weights_of(stage.key, 50_000)
    assert stage.key not in to_do(plan, [stage], {final, early})
    assert stage.key not in to_do(plan, [stage, early_leaf], {final})
    for stored, save_at, keep, until in (
        ({final}, (50_000,), False, 50_000),
        ({early}, (), True, 0),
        ((), (50_000,), True, 0),
    ):
        again = to_do(plan, [stage], stored)[stage.key]
        assert (again.remake, again.save_at, again.keep_weights, again.until) == (True, save_at, keep, until)
        assert again.cost == pytest.approx(plan.stage_flops(stage) / (5 if until else 1))


def test_a_shorter_run_is_read_at_the_same_share() -> None:
    table = table_of(10_000, 250_000)
    short = plan_of(table, set=("pre_train.steps=1000",))
    (stage,) = pre_training(short)
    assert starts(short) == {"row 50000": 200, "row None": "last"}
    assert to_do(short)[stage.key].save_at == (40, 200)
    quick = plan_of(table, "quick", tasks=("movies",), sizes=(1000,))  # its own pre_train saves nothing
    (stage,) = pre_training(quick)
    assert starts(quick) == {"row 50000": 8, "row None": "last"}
    assert to_do(quick)[stage.key].save_at == (8,)
    longer = plan_of(table_of(steps=(50_000,), recipe={"pre_train": {"steps": 500_000}}))
    assert starts(longer) == {"row 50000": 50_000}, "of the row's own recipe"


def test_of_two_pre_training_stages_the_last_is_saved() -> None:
    plan = plan_of(table_of(10_000, pre_train="coco_lm", set={"coco_lm.replacements": "converged"}))
    auxiliary, main = pre_training(plan)
    assert main.parent is not None
    assert main.parent.key == auxiliary.key
    items = to_do(plan)
    assert (items[auxiliary.key].save_at, items[main.key].save_at) == ((), (10_000, 50_000))


def test_rows_on_fractions_of_the_corpus() -> None:
    """A run for each fraction; all of it is the run of a table that says nothing of fractions."""
    rows = [{"pre_train_fraction": fraction} for fraction in (None, 0.25, 1.0)]
    table = table_of(steps=(None,))
    several = [table_of(steps=(None,), **row).rows[0].model_copy(update={"name": str(row)}) for row in rows]
    plan = plan_of(table.model_copy(update={"rows": tuple(several)}))
    (whole,) = pre_training(plan_of(table))
    assert len(pre_training(plan)) == 2
    assert {stage.data.train.name.partition(" of ")[0] for stage in pre_training(plan)} == {
        "25 %",
        whole.data.train.name,
    }
    part = plan_of(table, set=("pre_train.fraction=0.25",))
    assert {stage.key for stage in pre_training(plan)} == {whole.key, pre_training(part)[0].key}
    assert "pre_train.fraction 0.25 instead of none" in part.resolved.deviations


@pytest.mark.parametrize(
    ("row", "save_at", "said"),
    [
        ({"pre_train_step": 250_001}, (), "250001 is not among the 250000 updates"),
        ({"pre_train_step": 0}, (), "pre_train_step"),
        ({"pre_train": "", "pre_train_step": 5}, (), "the row has no pre_train to start from"),
        ({}, (5, 300_000), "300000 is not among the 250000 updates of recipe.pre_train.steps"),
    ],
)
def test_wrong_updates_are_refused(row: dict[str, Any], save_at: tuple[int, ...], said: str) -> None:
    with pytest.raises((ValueError, UserError), match=said):
        to_do(plan_of(table_of(*save_at, steps=(None,), **row)))


def test_a_row_without_pre_training_is_a_line_of_reference() -> None:
    """It has no place on the axis of updates, keeps its own name, and is drawn with the curves of all four objectives."""
    r = resolve_table(load_table("learning_curves"), "laptop")
    runs = [
        result(r, row, size, column, subset, seed, 0.7, dev=0.5)
        for size, row, column, subset, seed in r.places
        if row != "COCO-LM-320"
    ]
    grid = filled(r, runs, rows_of(r))
    first, *curves = points_of(grid).itertuples()
    assert (first.row, first.series, first.x) == ("No further pre-training", first.row, None)
    assert first.value == pytest.approx(70)
    updates = [20, 40, 80, 160, 320]
    for series in ("MLM", "TACO", "ELECTRA", "COCO-LM"):
        assert [point.x for point in curves if point.series == series] == updates
    picture = figure_view(grid).written("svg").decode()
    for words in (first.row, "MLM", "TACO", "ELECTRA", "COCO-LM", *updates):
        assert f"<!-- {words} -->" in picture, "the legend's words and, on a logarithmic axis, a tick at each update"


def test_the_cost_before_a_row_is_that_of_the_updates_it_starts_after() -> None:
    plan = plan_of(table_of(steps=(50_000, 250_000)))
    (stage,) = pre_training(plan)
    known = {stage.key: np.array([1000.0, 7200.0])}
    found = {run.row: [*cost_before(run.stage, known)] for run in plan.runs}
    assert found == {"row 50000": [200.0, 1440.0], "row 250000": [1000.0, 7200.0]}
    (leaf,) = (run.stage for run in plan.runs if run.row == "row 50000")
    whole = cost_before(replace(leaf, init=Parent(leaf, "selected")), known | {leaf.key: np.array([1.0, 2.0])})
    assert [*whole] == [201.0, 1442.0]
    assert [*cost_before(stage, {})] == [0.0, 0.0]


def test_points_over_hours_stand_where_the_records_say() -> None:
    """A row without pre-training is a line of reference, and one whose hours are not known yet stands nowhere."""
    table = load_table("learning_curves")
    shown = Figure(x=HOURS, label="hours")
    r = resolve_table(table.model_copy(update={"figure": shown}), "laptop")
    runs = [result(r, row, size, column, s, seed, 0.7, dev=0.5) for size, row, column, s, seed in r.places]
    hours = {row.title: 0.25 * index for index, row in enumerate(r.rows) if index}
    points = [*points_of(replace(filled(r, runs, rows_of(r)), hours=hours)).itertuples()]
    assert {point.row: point.x for point in points} == {row.title: hours.get(row.title) for row in r.rows}
    (reference,) = (point for point in points if point.x is None)
    assert reference.series == reference.row == "No further pre-training"
    for series in ("MLM", "TACO", "ELECTRA", "COCO-LM"):
        line = [point.x for point in points if point.series == series]
        assert line == sorted(line)
        assert len(line) == 5
    assert {*points_of(filled(r, [], rows_of(r)))["x"]} == {None}
