"""What a model card says of a score beside the model's own: the number of the table's cell, by the table's rule, and of the set that is scored."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from requested import aggregated, resolve_table
from views.runs import filled, results

from harness.commands import model_card
from harness.commands.model_card import CardScore
from harness.planning.resolved import ResolvedTable
from harness.tasks.task import TASKS
from harness.wording import in_points


def shown(r: ResolvedTable, monkeypatch: pytest.MonkeyPatch) -> tuple[CardScore, Any]:
    """The first row's result on SST-2, and the cell of the table."""
    runs = [replace(run, dev=1 - (run.test or 0)) for run in results(r)]
    first = next(run for run in runs if run.task == "sst2")
    grid = filled(r, runs)
    monkeypatch.setattr(model_card, "grid_of", lambda prepared: grid)
    recorded: Any = SimpleNamespace(record=SimpleNamespace(key=first.key))
    run: Any = SimpleNamespace(row=first.row, size=first.size, task="sst2")
    prepared: Any = SimpleNamespace(resolved=r)
    (result,) = model_card._results(recorded, prepared, run, TASKS["sst2"])
    assert result.own == first.test
    return result, grid.cells[first.size, r.titles[first.row], "sst2"]


@pytest.mark.parametrize(
    ("table", "rule", "of_cell", "place"),
    [
        ("few_shot", {}, "mean of 15 runs", "SST-2 (test)"),
        ("few_shot", {"center": "median", "spread": "none"}, "median of 15 runs", "SST-2 (test)"),
        ("few_shot", {"center": "top_k", "k": 3}, "mean of the 3 runs that are best on dev of 15 runs", "SST-2 (test)"),
        (
            "coco_lm_glue",
            {},
            "median of 5 runs",
            "SST-2 (dev)",
        ),  # selected from grids of up to 64 points; dev is scored
    ],
)
def test_the_recipe_is_the_cell_by_its_rule(
    table: str, rule: dict[str, Any], of_cell: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = resolve_table(table, "paper", tasks=("sst2",))
    result, cell = shown(aggregated(r, **rule) if rule else r, monkeypatch)
    assert (result.dataset, result.value, result.of_cell) == (place, cell.value, of_cell)
    assert result.cell.startswith(in_points(cell.value))
    assert result.cell.endswith(f" ({of_cell})")
    own, whole = model_card._metadata(result, TASKS["sst2"])
    assert (own.metric_value, whole.metric_value) == (round(100 * result.own, 2), round(100 * cell.value, 2))
    assert whole.metric_name == f"accuracy, {of_cell} (subsets and seeds)"


def test_a_table_of_dev_scores_gives_no_number_beside_a_test_score(monkeypatch: pytest.MonkeyPatch) -> None:
    r = aggregated(resolve_table("few_shot", "paper", tasks=("sst2",)), scores="dev")
    result, _ = shown(r, monkeypatch)
    assert (result.value, result.cell) == (None, "the table shows scores on dev")
    assert len([*model_card._metadata(result, TASKS["sst2"])]) == 1


def test_sizes_of_k_shot_are_per_class() -> None:
    r = resolve_table("k_shot", "paper", tasks=("sst2",))
    run: Any = SimpleNamespace(row="FT", size=16)
    prepared: Any = SimpleNamespace(resolved=r)
    stage: Any = SimpleNamespace()
    title = model_card._title(prepared, stage, run, TASKS["sst2"])
    assert title.endswith("FT on SST-2 (16 labelled examples per class)")
