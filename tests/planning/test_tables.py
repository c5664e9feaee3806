"""The packaged tables: the paper's numbers, presets, what the command line may change, and rows with a recipe of their own."""

from __future__ import annotations

import itertools
import math
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from requested import UNREAD, by_letter, resolve_table
from test_answers import predictions as answers

from harness.errors import UserError
from harness.kinds import Predictions
from harness.planning.recipe import MlmHead, Phase, PreTrain, fraction_of
from harness.planning.resolved import ResolvedTable, stated
from harness.planning.runs import Plan, make_plan
from harness.planning.table import Column, Preset, Row, Table, load_table, table_names
from harness.specs import Run
from harness.tasks.metrics import METRICS, score
from harness.tasks.sources import open_source
from harness.tasks.task import TASKS, Task
from harness.tasks.translation import Translator
from harness.yaml_files import MisplacedError


def test_every_preset_resolves_and_only_the_papers_is_comparable() -> None:
    for name in table_names():
        table = load_table(name)
        if not table.tasks:
            continue
        assert table.default_preset == "quick"
        assert {"laptop", "quick"} <= set(table.presets)
        assert "paper" in table.presets or not table.paper
        for preset in table.presets:
            resolved = resolve_table(table, preset)
            theirs = preset in ("paper", "grid", "seeds", "large", "roberta_base", "roberta_large")
            assert resolved.comparable == (theirs and bool(table.paper))
            assert {c.task for c in resolved.columns.values()} == set(resolved.tasks)
            if "paper" in table.presets:
                assert bool(resolved.deviations) == (not theirs)
                assert any(each.startswith("encoder ") for each in resolved.deviations) == (not theirs)
    assert resolve_table(table).preset == "quick"


def test_every_value_of_a_papers_table_has_one_origin() -> None:
    """So a caption never calls a value the paper's because its origin is missing, or a pattern is misspelt."""
    for table in map(load_table, table_names()):
        paths, origin = stated(table, table.presets[table.default_preset]), table.origin if table.source else {}
        given = {path: [pattern for pattern in origin if fnmatchcase(path, pattern)] for path in paths}
        assert {*itertools.chain(*given.values())} == origin.keys(), table.name
        assert {len(patterns) for patterns in given.values()} == {bool(table.source)}, (table.name, given)
    body = load_table("few_shot").model_dump() | {"origin": {}}
    assert by_letter(resolve_table(Table.model_validate(body), "paper")).keys() == {""}


def test_a_value_that_is_changed_is_no_longer_the_papers() -> None:
    theirs = by_letter(resolve_table("few_shot", "paper"))
    assert {"recipe.fine_tune.lr", "encoder", "selection_every", "seeds"} <= theirs["P"].keys()
    assert {"recipe.fine_tune.schedule", "max_length"} <= theirs["C"].keys()
    laptop = resolve_table("few_shot", "laptop", set=("fine_tune.dropout=0.2",), seeds=(31,))
    ours = by_letter(laptop)
    changed = {"recipe.fine_tune.lr", "recipe.fine_tune.dropout", "encoder", "seeds", "subsets"}
    assert changed <= ours[""].keys()
    assert "recipe.fine_tune.batch_size" in ours["P"]
    for text in ("encoder minilm", "fine_tune.lr 5e-05", "fine_tune.dropout 0.2", "seeds 31", "subsets 3"):
        assert any(each.startswith(text) for each in laptop.deviations), text


def test_what_no_chosen_row_uses_is_no_deviation() -> None:
    alone = resolve_table("few_shot", "paper", methods=("ft", "scl"), set=("post_train.lr=1", "cmlm.alpha=1"))
    assert (alone.comparable, alone.deviations) == (True, ())
    assert not resolve_table("few_shot", "paper", methods=("tapt",), set=("post_train.lr=1",)).comparable


def test_narrowing_keeps_the_comparison_and_fewer_replicates_end_it() -> None:
    narrow = resolve_table("few_shot", "paper", methods=("cmlm", "FT"), tasks=("mnli",), sizes=(100,))
    assert narrow.comparable
    assert [row.name for row in narrow.rows] == ["FT", "CMLM"]
    assert list(narrow.columns) == ["mnli", "mnli_mm"]
    fewer = resolve_table("few_shot", "paper", subsets=(0, 2), seeds=(42, 31, 42))
    assert not fewer.comparable
    assert (fewer.subsets, fewer.seeds) == ((0, 2), (42, 31))
    assert fewer.replicates == ((0, 42), (0, 31), (2, 42), (2, 31))
    own = resolve_table("few_shot", "paper", tasks=("cola", "stsb"))
    assert list(own.columns) == ["cola", "stsb"]
    assert own.columns["stsb"].metric == "spearman"
    assert not own.comparable


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ({"methods": ("CMML",)}, ["--methods", "Did you mean 'cmlm'?"]),
        ({"sizes": (200,)}, ["--sizes", "100"]),
        ({"set": ("optim.lrr=1",)}, ["Did you mean 'optim.lr'?"]),
        ({"set": ("optim.lr=fast",)}, ["--set optim.lr=fast", "number"]),
        ({"set": ("fine_tune.lr=1e-320",)}, ["should be greater than or equal to 0.000000000001, not "]),
        ({"set": ("optim.schedule=cosine",)}, ["'linear' or 'constant'"]),
        ({"set": ("optim",)}, ["KEY=VALUE"]),
        ({"set": ("optim=3",)}, ["unknown key 'optim'", "optim.*"]),
    ],
)
def test_wrong_overrides_get_a_sentence(overrides: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        resolve_table("few_shot", "quick", **overrides)
    assert all(part in str(caught.value) for part in parts), caught.value


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("    CMLM:\n", "    CMLN:\n", ["key paper.20.CMLN", "Did you mean 'CMLM'?"]),
        ("epochs: {20: 350", "epochs: {20: x", ["key recipe.fine_tune.epochs.20", "'x'"]),
        ("{name: TAPT, method: tapt}", "{name: FT, method: tapt}", ["key rows.3.name", "is given twice"]),
        (
            "sst2, metric: accuracy",
            "sst2, metric: pearson",
            ["key columns.sst2.metric", "choose from accuracy", "f1_macro"],
        ),
        ("evaluation: matched", "evaluation: matchd", ["key columns.mnli.evaluation", "Did you mean 'matched'?"]),
        ("  max_length: C", "  max_length: D 256", ["key origin.max_length", "'D 256'"]),
    ],
)
def test_a_users_own_table_with_a_mistake(tmp_path: Path, old: str, new: str, parts: list[str]) -> None:
    text = (Path(__file__).parents[2] / "benchmarks" / "few_shot.yaml").read_text()
    assert old in text
    changed = text.replace(old, new, 1)
    path = tmp_path / "own.yaml"
    path.write_text(changed)
    line = 1 + changed[: changed.index(new)].count("\n")
    with pytest.raises(UserError) as caught:
        load_table(path)
    message = str(caught.value).split("\n")[0]
    assert message.startswith(f"{path}, line {line}, ")
    for part in parts:
        assert part in str(caught.value)


def test_warm_up_in_updates_becomes_the_fraction_that_the_loop_reads_as_so_many() -> None:
    resolved = resolve_table("full_size", "paper", set=("fine_tune.warmup_steps=200",))
    for rows in (16 * 67, 3 * 1000 + 1, 64):
        optim = resolved.optim("fine_tune", 0, rows)
        assert math.ceil(optim.warmup * optim.steps) == min(200, optim.steps)
    assert resolved.optim("fine_tune", 0, 64).warmup == 1
    assert "fine_tune.warmup_steps 200 instead of warmup 0" in resolved.deviations
    assert not any("fine_tune.warmup " in text for text in resolved.deviations)
    back = resolve_table("full_size", "paper", set=("fine_tune.warmup_steps=200", "fine_tune.warmup=0"))
    assert back.comparable
    with pytest.raises(ValueError, match="warmup and warmup_steps are both given"):
        Phase(warmup=0.1, warmup_steps=5)
    for steps in range(1, 300):
        for updates in range(1, steps + 3):
            assert math.ceil(fraction_of(updates, steps) * steps) == min(updates, steps)


def test_a_column_takes_a_metric_exactly_when_the_metric_scores_the_tasks_predictions() -> None:
    """What a table may say is what the training loop can compute on dev."""
    gold, draw = np.arange(12), np.random.default_rng(0)
    kinds = {(type(known.kind), known.kind.outputs): known for known in TASKS.values()}
    for known, metric in itertools.product(kinds.values(), METRICS):
        column = Column(task=known.name, metric=metric, evaluation=next(iter(known.tests)), title="")
        logits, outputs = draw.normal(size=(12, known.kind.outputs)), known.kind.outputs
        predicted = Predictions({"logits": logits}, gold % outputs if known.classes else gold / 2)
        try:
            score(metric, answers(["x"] * 12, [["x"], []] * 6) if known.spans else predicted)
        except ValueError:
            with pytest.raises(MisplacedError, match=f"'{metric}' does not apply to task {known.name}"):
                column.check(known)
        else:
            column.check(known)


def test_a_column_of_a_users_task_is_checked_when_the_task_is_known(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "benchmarks" / "few_shot.yaml").read_text()
    for old, new in (
        ("task: sst2, metric: accuracy", "task: mine, metric: f1"),
        ("tasks: [cola, sst2", "tasks: [cola, mine"),
        ("tasks: [sst2]", "tasks: [mine]"),
    ):
        text = text.replace(old, new)
    (tmp_path / "own.yaml").write_text(text)
    table, mine = (
        load_table(tmp_path / "own.yaml"),
        Task(name="mine", title="Mine", columns=("text",), classes=("a", "b", "c"), metrics=("accuracy",)),
    )
    with pytest.raises(UserError, match=r"table few_shot, key columns\.sst2\.metric: metric 'f1' does not apply"):
        resolve_table(table, "paper", {"mine": mine}, tasks=("mine",))
    two = mine.model_copy(update={"classes": ("a", "b")})
    assert resolve_table(table, "paper", {"mine": two}, tasks=("mine",)).selection_metric("mine") == "f1"
    with pytest.raises(UserError, match=r"key columns\.sst2\.task: unknown task 'mine'\. .*of your own in --tasks\."):
        resolve_table(table, "paper", TASKS, tasks=("mine",))


def test_the_page_on_tables_names_every_key() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
    section = page[page.index("\n## A table\n") : page.index("\n## A method in a file of your own\n")]
    named = {*re.findall(r"\w+", section)}
    keys = {*Table.model_fields, *Row.model_fields, *Preset.model_fields, *PreTrain.model_fields, *MlmHead.model_fields}
    assert keys - named == {"configuration_of"}, "which the rows of a grid get"


def plan_of(table: ResolvedTable, data: Path | None = None, read: bool = False) -> Plan:
    return make_plan(table, open_source(data) if read else None, UNREAD, translator_of=lambda augment: Translator())


def updates(runs: tuple[Run, ...], row: str, phase: str) -> set[int]:
    return {stage.optim.steps for run in runs if run.row == row for stage in run.stage.chain if stage.phase == phase}


def test_rows_read_their_texts_and_share_all_else(packaged: dict[str, Path]) -> None:
    plan = plan_of(resolve_table("unlabelled", "quick", methods=("100", "500", "2000"), subsets=(0, 1)), read=True)
    sets = {run.row: run.stage.chain[0].data.train for run in plan.runs if run.subset == 0}
    assert {row: rows.rows for row, rows in sets.items()} == {"100": 100, "500": 500, "2000": 2000}
    texts = {row: set(plan.library[rows.digest].texts) for row, rows in sets.items()}
    assert texts["100"] <= texts["500"] <= texts["2000"]
    assert len({run.stage.data.train.digest for run in plan.runs}) == 2, (
        "a training set a subset, the same for all rows"
    )
    other = plan_of(resolve_table("few_shot", "quick", methods=("CMLM",), sizes=(100,), subsets=(0, 1)), read=True)
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
    found = resolve_table(load_table(path), "quick", set=(text,)).unreached
    assert found == ((f"--set {text} has no effect on {row}, which sets {key} itself.",) if row else ())


@pytest.mark.parametrize("text", ["scl.lam=0.5", "post_train.lr=1e-5", "scl:fine_tune.lr=1e-5"])
def test_a_setting_that_no_chosen_row_reads_is_told(text: str) -> None:
    assert resolve_table("few_shot", methods=("ft",), set=(text,)).unreached == (
        f"--set {text} has no effect: no chosen row reads it.",
    )
    assert resolve_table("few_shot", set=(text,)).unreached == ()


def test_a_row_changes_the_recipe_for_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(TABLE)
    table = resolve_table(load_table(path), "quick", set=("fine_tune.epochs=4",))
    runs = plan_of(table).runs
    assert updates(runs, "small", "fine-tune") == {40}
    assert updates(runs, "large", "fine-tune") == {8}
    assert [run.stage.optim.lr for run in runs] == [1e-5, 2e-5]
    assert table.hyperparameters(table.rows[1]) == {"fine_tune.lr": 2e-5, "fine_tune.batch_size": 50}
    with pytest.raises(
        UserError, match=r"fine_tune.batch_size=32: has no effect, each chosen row sets fine_tune.batch_size itself"
    ):
        resolve_table(load_table(path), "quick", set=("fine_tune.batch_size=32",))
    assert resolve_table(load_table(path), "quick", set=("fine_tune.lr=3e-5",)).under[""]["fine_tune.lr"] == 3e-5
