"""The packaged tables: numbers and columns; grids over the recipe, what is selected, and figures of the pre-training papers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from requested import located, resolve_table
from views.runs import filled, result, rows_of

from harness.errors import UserError
from harness.planning.recipe import updates_between
from harness.planning.runs import Plan, make_plan
from harness.planning.table import Row, load_table, table_names
from harness.views.figures import points_of

FROZEN: dict[str, str] = json.loads((Path(__file__).parent / "tables.json").read_text())
"""Digests of each table's numbers, rows, columns and origins."""


def plan(table: str, preset: str = "paper", **fields: Any) -> Plan:
    return make_plan(resolve_table(table, preset, **fields), None, located("new:tiny"))


@pytest.mark.parametrize("name", table_names())
def test_the_papers_numbers_rows_and_columns_are_frozen(name: str) -> None:
    """As they were checked against the papers' texts; a printed Avg is that of our groups, to the rounding of the printed numbers."""
    table = load_table(name)
    columns = [[name, each.task, each.metric, each.evaluation, each.title] for name, each in table.columns.items()]
    content = json.dumps([table.paper, [row.title for row in table.rows], columns, table.origin])
    assert hashlib.sha256(content.encode()).hexdigest()[:10] == FROZEN[name]
    if table.tasks and "paper" in table.presets:
        over = resolve_table(table, "paper").average_over
        for cells in (cells for rows in table.paper.values() for cells in rows.values() if "avg" in cells):
            means = [sum(cells[column][0] for column in group) / len(group) for group in over]
            assert abs(sum(means) / len(over) - cells["avg"][0]) < 0.1001


def test_a_task_that_grids_lack_is_run_at_the_points_of_the_last() -> None:
    """As the table's own task of that group is, and not at those of all groups."""
    for table in ("taco_base", "coco_lm_glue"):
        r = resolve_table(table, "paper", tasks=("movies",))
        for title, rows in r.printed_rows.items():
            last = [row.tasks for row in r.table.rows if row.title == title][-1]
            assert [row.own for row in rows if row.tasks] == [row.own for row in rows if row.own.tasks == last]


def test_a_figure_over_sizes_has_a_line_for_each_row_and_bars_from_the_lowest_run_to_the_highest() -> None:
    r, scores = resolve_table("coco_lm_fractions", "paper"), {31: 0.5, 42: 0.7, 53: 0.6, 64: 0.9, 75: 0.8}
    runs = [
        result(r, row, size, column, subset, seed, scores[seed], dev=0.1)
        for size, row, column, subset, seed in r.places
        if (row, size, seed) != ("w/o SCL", 3927, 31)
    ]
    points = [point for point in points_of(filled(r, runs, rows_of(r))).itertuples() if point.column == "MNLI"]
    assert {point.series for point in points} == {"COCO-LM", "w/o SCL"}
    for point in points:
        missing = point.series == "w/o SCL" and point.x == 3927
        found = (point.x, point.value, point.low, point.high)
        assert found == (point.size, *([None] * 3 if missing else map(pytest.approx, (70, 50, 90))))


@pytest.mark.parametrize(("table", "decayed"), [("coco_lm_glue", True), ("scl_full_size", True), ("taco_small", False)])
def test_what_weight_decay_is_of_is_what_each_papers_library_does(table: str, decayed: bool) -> None:
    """Fairseq decays biases and norms, Hugging Face's Trainer does not; without weight decay it changes no key."""
    few: dict[str, Any] = {"seeds": (31,), "tasks": ("rte",)}

    def decays(*changes: str) -> set[bool]:
        stages = plan(table, set=changes, **few).stages.values()
        return {stage.optim.decay_biases_and_norms for stage in stages if stage.optim.weight_decay}

    assert decays() == {decayed}
    other = tuple(f"{phase}.decay_biases_and_norms={not decayed}" for phase in ("fine_tune", "pre_train"))
    assert decays(*other) == {not decayed}
    none = ("fine_tune.weight_decay=0", "pre_train.weight_decay=0")
    assert plan(table, set=none, **few).stages.keys() == plan(table, set=(*none, *other), **few).stages.keys()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"grid": [{"tasks": ["rte"], "grid": {"fine_tune.lr": (2.0,)}}]}, "less than or equal to 1"),
        ({"grid": [{"tasks": [], "grid": {"fine_tune.lr": (1e-5,)}}] * 2}, "tasks"),
        ({"grid": [{"tasks": ["rte"], "grid": {"fine_tune.lr": (1e-5,)}}], "tasks": ["rte"]}, "leave tasks out"),
        ({"grid": {"fine_tune.lr": (2.0,)}}, "less than or equal to 1"),
        ({"grid": {"fine_tune.rate": (0.1,)}}, "rate"),
        ({"draws": 3}, "no grid to draw from"),
        ({"set": {"encoder.relative.buckets": 32}}, "unknown key 'relative.buckets'"),
    ],
)
def test_a_wrong_row_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises((ValidationError, UserError), match=said):
        Row(name="A", method="ft", **wrong)


def test_updates_between_two_evaluations() -> None:
    every = {100: 100, "last": 10**9, "0.5 epochs": 78, "1 epoch": 156, "0.001 epochs": 1}
    assert {each: updates_between(each, 156) for each in every} == every
