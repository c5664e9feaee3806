"""Every value that a caption names is what the stages of its runs hold, and what they hold is named.

Plans read nothing, as those of `tests/test_frozen_keys.py`. What a caption names comes from the functions that it is written from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from requested import located, resolve_table
from views.runs import filled

from harness.methods import definition_of
from harness.planning.recipe import patched, updates_between
from harness.planning.resolved import TASK_RECIPES, ResolvedTable
from harness.planning.runs import Plan, make_plan
from harness.planning.table import Row, load_table, table_names
from harness.specs import Optim, Run, Stage
from harness.tasks.corpora import part_name
from harness.tasks.translation import Translator
from harness.views.settings import grid_points, settings_of
from harness.views.table import Caption, caption_lines

PHASES = {"fine-tune": "fine_tune", "post-train": "post_train", "pre-train": "pre_train"}
MANY = 300
"""Presets with more runs are planned with their first seed, then with their first rows, on their first and last task: what is compared is
said of all alike."""
OVERRIDDEN: list[tuple[str, str, dict[str, Any]]] = [
    ("taco_base", "paper", {"set": ("fine_tune.warmup_steps=50",), "tasks": ("rte", "mnli")}),
    ("taco_base", "seeds", {"set": ("pre_train.precision=fp16",)}),
    ("taco_small", "paper", {"set": ("optim.lr=1e-3", "pre_train.steps=1000")}),
    ("coco_lm_glue", "laptop", {"methods": ("COCO-LM",)}),
    ("few_shot", "laptop", {"set": ("fine_tune.steps=50", "max_length=64"), "seeds": (1, 2)}),
    ("scl_batch_size", "grid", {"set": ("fine_tune.warmup_steps=20",), "seeds": (31,)}),
    ("scl_few_shot", "paper", {"tasks": ("movies",)}),
]


def cases() -> Iterator[Any]:
    for table in table_names():
        for preset in load_table(table).presets:
            yield pytest.param(table, preset, {}, id=f"{table}-{preset}")
    for table, preset, more in OVERRIDDEN:
        yield pytest.param(table, preset, more, id=f"{table}-{preset}-{' '.join(more)}")


def narrowed(table: str, preset: str, more: Mapping[str, Any]) -> ResolvedTable:
    given = dict(more) if load_table(table).tasks else {"tasks": ("sst2",), **more}
    r = resolve_table(table, preset, **given)
    if len(r.places) > MANY:
        r = resolve_table(table, preset, **(given := {**given, "seeds": r.seeds[:1]}))
    if len(r.places) > MANY:
        few = {"methods": tuple(r.printed_rows)[:2], "tasks": tuple(dict.fromkeys((r.tasks[0], r.tasks[-1])))}
        r = resolve_table(table, preset, **{**few, **given})
    return r


def planned(table: str, preset: str, more: Mapping[str, Any]) -> Plan:
    r = narrowed(table, preset, more)
    return make_plan(r, None, located(r.encoder), translator_of=lambda augment: Translator())


def holds(optim: Optim, name: str, value: Any, size: int, rows: int) -> bool:
    """Whether a stage has a value of the recipe, for `rows` examples of which `size` are named (0: all)."""
    if isinstance(value, Mapping):
        value = value.get(size)
    if name == "epochs":
        return bool(value is not None and optim.steps == max(1, round(value * math.ceil(rows / optim.batch_size))))
    if name == "min_steps":
        return bool(optim.steps >= value)
    if name == "warmup_steps":
        return bool(math.ceil(optim.warmup * optim.steps) == min(value, optim.steps))
    return bool(getattr(optim, name) == value)


def named_of_rows(row: Row, task: str, points: Mapping[Any, Any], phase: str) -> list[dict[str, Any]]:
    """What a caption says that a row sets of a phase: the points of its grid, one of which it takes, or its own recipe; and what its method says."""
    zero = {f"{phase}.steps": 0} if row.set.get("zero_shot") else {}
    mine = (found for (title, tasks), found in points.items() if title == row.title and task in tasks)
    of_task = next(mine, [row.recipe.values])
    return [{key: v for key, v in {**each, **zero}.items() if key.startswith(f"{phase}.")} for each in of_task]


@pytest.mark.parametrize(("table", "preset", "more"), [*cases()])
def test_a_caption_names_what_the_stages_hold_and_nothing_else(table: str, preset: str, more: dict[str, Any]) -> None:
    plan = planned(table, preset, more)
    r, rows = plan.resolved, {row.name: row for row in plan.resolved.rows}
    values, points = {use.path: use.value for use in r.uses}, grid_points(r)
    recipes = {use.path: use for use in r.uses if use.path.startswith(("recipe.", TASK_RECIPES))}
    held: set[tuple[str, str]] = set()
    taken: dict[tuple[str, str], set[int]] = {}
    seen: set[tuple[Any, ...]] = set()
    for run in plan.runs:
        row = rows[run.row]
        if definition_of(run.stage.objective).fitted:  # no value of the recipe reaches it, as its row says
            continue
        for stage in run.stage.chain:
            phase = PHASES.get(stage.phase, "")
            count = run.size or stage.data.train.rows
            place = (phase, stage.optim, count, run.size, run.row, run.task)  # all that is asked below
            if not phase or place in seen or (phase == "fine_tune" and stage is not run.stage):
                continue
            seen.add(place)
            paths = {
                ".".join(p.split(".")[-2:]): p for p, u in recipes.items() if f"{phase}." in p and run.task in u.tasks
            }
            general, agreeing = {key: recipes[path].value for key, path in paths.items()}, []
            for index, own in enumerate(named_of_rows(row, run.task, points, phase)):
                named = patched(general, own)
                least = {f"{phase}.min_steps", f"{phase}.epochs"} <= named.keys()
                names = {
                    key.partition(".")[2]: v for key, v in named.items() if not (least and key.endswith(".epochs"))
                }
                if all(holds(stage.optim, name, value, run.size, count) for name, value in names.items()):
                    agreeing.append(index)
                    held |= {(paths[key], run.task) for key in named.keys() & general.keys() - own.keys()}
            assert agreeing, f"{run.row} on {run.task}: the caption names no recipe that is {stage.optim}"
            if phase == "fine_tune" and any(title == row.title for title, _ in points):
                taken.setdefault((row.title, run.task), set()).update(agreeing)
        check_text(r, row, run, values)
    assert all(len(each) <= values.get("draws", len(each)) for each in points.values())
    done = {run.task for run in plan.runs}
    assert held == {(path, task) for path, use in recipes.items() for task in use.tasks if task in done}
    for (title, task), indices in taken.items():
        row = next(row for row in r.rows if row.title == title)
        assert len(indices) == len(named_of_rows(row, task, points, "fine_tune"))
    if plan.runs:
        assert {run.seed for run in plan.runs} == set(values["seeds"])
        assert {run.size for run in plan.runs} == set(values["sizes"])
        subsets = max(len({run.subset for run in plan.runs if run.size == size}) for size in r.sizes)
        assert subsets in (1, values["subsets"])
    if r.table.origin:
        assert all(use.letter or use.instead for use in r.uses)
        names_of_settings = {setting.key.rpartition(".")[2] for setting in settings_of(r)}
        assert {path.rpartition(".")[2] for path in values} - names_of_settings <= {"grids"}


def check_text(r: ResolvedTable, row: Row, run: Run, values: Mapping[str, Any]) -> None:
    """Data, lengths, encoder, corpus and selection of a run's stages."""
    stage = run.stage
    assert stage.encoder.name in (r.encoder, "") or stage.encoder.name.startswith(values["encoder"])
    for name in ("relative_buckets", "relative_distance"):
        expected, buckets = ((values | row.set).get(f"encoder.{key}") for key in (name, "relative_buckets"))
        if expected is not None and (buckets or name == "relative_buckets"):
            assert getattr(stage.encoder, name) == expected
    assert stage.data.max_length == values["max_length"]
    per_epoch = math.ceil((run.size or stage.data.train.rows) / stage.optim.batch_size)
    assert stage.selection is not None
    assert stage.selection.every == updates_between(values["selection_every"], per_epoch)
    for each in stage.chain:
        if each.phase == "pre-train":
            check_corpus(r, row, each, values)


def check_corpus(r: ResolvedTable, row: Row, stage: Stage, values: Mapping[str, Any]) -> None:
    share = row.pre_train_fraction or values.get("pre_train.fraction", 1.0)
    assert stage.data.train.name == part_name(values["pre_train.corpus"], share)
    assert stage.data.blocks == values["pre_train.blocks"]
    assert stage.data.max_length == values["pre_train.max_length"]
    assert stage.seed == values["pre_train.seed"]


def text_of(table: str, preset: str = "paper", **more: Any) -> str:
    return "\n".join(caption_lines(filled(resolve_table(table, preset, **more), []), Caption(1)))


def test_scores_on_the_development_set_are_no_test_scores() -> None:
    assert "Test scores" not in text_of("taco_small", "laptop")
    assert "Test scores" in text_of("few_shot")
