"""Rows with a recipe of their own, and with more texts in post-training than they have labelled examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from requested import UNREAD, resolve_table

from harness.errors import UserError
from harness.planning.overrides import unreached
from harness.planning.request import parse_override
from harness.planning.resolved import ResolvedTable
from harness.planning.runs import Plan, make_plan
from harness.planning.table import load_table
from harness.planning.task_reader import Translation
from harness.specs import Run
from harness.tasks.sources import open_source


def resolved(table: str, preset: str, *texts: str, **fields: Any) -> ResolvedTable:
    return resolve_table(load_table(table), preset, set=texts, **fields)


def plan_of(table: ResolvedTable, data: Path | None = None, read: bool = False) -> Plan:
    return make_plan(table, open_source(data) if read else None, UNREAD, translation=Translation())


def updates(runs: tuple[Run, ...], row: str, phase: str) -> set[int]:
    return {stage.optim.steps for run in runs if run.row == row for stage in run.stage.chain if stage.phase == phase}


def test_rows_read_their_texts_and_share_all_else(packaged: dict[str, Path]) -> None:
    plan = plan_of(resolved("unlabelled", "quick", methods=("100", "500", "2000"), subsets=(0, 1)), read=True)
    sets = {run.row: run.stage.chain[0].data.train for run in plan.runs if run.subset == 0}
    assert {row: rows.rows for row, rows in sets.items()} == {"100": 100, "500": 500, "2000": 2000}
    texts = {row: set(plan.library[rows.digest].texts) for row, rows in sets.items()}
    assert texts["100"] <= texts["500"] <= texts["2000"]
    assert len({run.stage.data.train.digest for run in plan.runs}) == 2, (
        "a training set a subset, the same for all rows"
    )
    other = plan_of(resolved("few_shot", "quick", methods=("CMLM",), sizes=(100,), subsets=(0, 1)), read=True)
    assert other.stages.keys() <= plan.stages.keys()


TABLE = """
name: mine
title: Mine
protocol: cmlm_few_shot
recipe:
  fine_tune: {lr: 1e-5, batch_size: 16, epochs: 2}
  post_train: {lr: 1e-5, batch_size: 8, epochs: 1}
sizes: [100]
seeds: [1]
tasks: [movies]
columns: {movies: {task: movies, metric: accuracy, title: Movies}}
rows:
  - {name: small, method: ft, recipe: {fine_tune: {batch_size: 10}}}
  - {name: large, method: ft, recipe: {fine_tune: {batch_size: 50, lr: 2e-5}}}
presets:
  quick: {description: quick, encoder: bert-tiny, data: packaged}
"""


@pytest.mark.parametrize(
    ("text", "row", "key"),
    [
        ("fine_tune.lr=3e-5", "large", "fine_tune.lr"),
        ("optim.lr=3e-5", "large", "fine_tune.lr"),
        ("optim.batch_size=50", "small", "fine_tune.batch_size"),
        ("fine_tune.lr=2e-5", "", ""),
        ("fine_tune.clip=2.0", "", ""),
        ("max_length=64", "", ""),
    ],
)
def test_rows_that_keep_a_value_of_their_own_are_named(text: str, row: str, key: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(TABLE)
    found = unreached(resolved(str(path), "quick", text), [parse_override(text, "--set")])
    assert found == ([f"--set {text} has no effect on {row}, which sets {key} itself."] if row else [])


@pytest.mark.parametrize("text", ["scl.lam=0.5", "post_train.lr=1e-5", "scl:fine_tune.lr=1e-5"])
def test_a_setting_that_no_chosen_row_reads_is_told(text: str) -> None:
    override = parse_override(text, "--set")
    for methods, told in ((("ft",), [f"--set {override.text} has no effect: no chosen row reads it"]), (None, [])):
        table = resolve_table("few_shot", methods=methods, set=(text,))
        assert unreached(table, [override]) == [f"{each}." for each in told]


def test_a_row_changes_the_recipe_for_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(TABLE)
    table = resolved(str(path), "quick", "fine_tune.epochs=4")
    runs = plan_of(table).runs
    assert updates(runs, "small", "fine-tune") == {40}
    assert updates(runs, "large", "fine-tune") == {8}
    assert [run.stage.optim.lr for run in runs] == [1e-5, 2e-5]
    assert table.hyperparameters(table.rows[1]) == {"fine_tune.lr": 2e-5, "fine_tune.batch_size": 50}
    with pytest.raises(
        UserError, match=r"fine_tune.batch_size=32: has no effect, each chosen row sets fine_tune.batch_size itself"
    ):
        resolved(str(path), "quick", "fine_tune.batch_size=32")
    assert resolved(str(path), "quick", "fine_tune.lr=3e-5").encoders[0].values["fine_tune.lr"] == 3e-5
    path.write_text(TABLE.replace("batch_size: 10", "batchsize: 10"))
    with pytest.raises(UserError, match=r"line 13.*Did you mean 'batch_size'"):
        load_table(path)
