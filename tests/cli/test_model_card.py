"""What a model card says of a score beside the model's own: the number of the table's cell, by the table's rule, and of the set that is scored."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from requested import aggregated, resolve_table
from views.runs import filled, results

from harness.commands import export
from harness.planning.resolved import ResolvedTable
from harness.tasks.task import TASKS
from harness.wording import in_points


def shown(r: ResolvedTable) -> tuple[dict[str, Any], Any]:
    """The first row's scores on SST-2, and the cell of the table."""
    runs = [replace(run, dev=1 - (run.test or 0)) for run in results(r)]
    first, grid = next(run for run in runs if run.task == "sst2"), filled(r, runs)
    run: Any = SimpleNamespace(row=first.row, size=first.size, task="sst2")
    (found,) = export.scores_of(first.key, run, TASKS["sst2"], grid)
    assert found["own"] == first.test
    return found, grid.cells[first.size, r.titles[first.row], "sst2"]


@pytest.mark.parametrize(
    ("table", "rule", "of_cell", "place"),
    [
        ("few_shot", {}, "mean of 15 runs", "SST-2 (test)"),
        ("few_shot", {"center": "median", "spread": "none"}, "median of 15 runs", "SST-2 (test)"),
        ("few_shot", {"center": "top_k", "k": 3}, "mean of the 3 runs that are best on dev of 15 runs", "SST-2 (test)"),
        ("coco_lm_glue", {}, "median of 5 runs", "SST-2 (dev)"),  # of grids of up to 64 points; dev is scored
    ],
)
def test_the_recipe_is_the_cell_by_its_rule(table: str, rule: dict[str, Any], of_cell: str, place: str) -> None:
    r = resolve_table(table, "paper", tasks=("sst2",))
    found, cell = shown(aggregated(r, **rule) if rule else r)
    assert found["dataset"] == place
    assert found["cell"].startswith(in_points(cell.value))
    assert found["cell"].endswith(f" ({of_cell})")


def test_a_table_of_dev_scores_gives_no_number_beside_a_test_score() -> None:
    r = aggregated(resolve_table("few_shot", "paper", tasks=("sst2",)), scores="dev")
    found, _ = shown(r)
    assert found["cell"] == "the table shows scores on dev"


def test_sizes_of_k_shot_are_per_class() -> None:
    plan: Any = SimpleNamespace(resolved=resolve_table("k_shot", "paper", tasks=("sst2",)))
    run: Any = SimpleNamespace(row="FT", size=16)
    title = export._title(plan, SimpleNamespace(), run, TASKS["sst2"])  # type: ignore[arg-type]
    assert title.endswith("FT on SST-2 (16 labelled examples per class)")
