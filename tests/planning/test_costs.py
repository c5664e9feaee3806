"""Scores beside their cost: oracles, and cells from which nothing can be had."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from requested import resolve_table
from views.runs import filled, result

from harness.planning.resolved import ResolvedTable
from harness.views.cells import Grid
from harness.views.cost import rendered_costs
from harness.views.figures.cost import _figure, drawn, scientific
from harness.views.numbers.cost import Cost, RunCost, cost_frame, costs

SIZE = 20


def resolved(**more: Any) -> ResolvedTable:
    return resolve_table(
        "few_shot", "paper", **{"methods": ("FT", "SCL"), "tasks": ("sst2",), "sizes": (SIZE,), **more}
    )


def grid(r: ResolvedTable, test: Any, rows: tuple[str, ...] = ("FT", "SCL")) -> Grid:
    """`test`: (subset place, seed place) -> score."""
    runs = [
        result(r, row, SIZE, column, subset, seed, test[a, b], key="k")
        for row in rows
        for column in r.columns
        for a, subset in enumerate(r.subsets)
        for b, seed in enumerate(r.seeds)
        if np.isfinite(test[a, b])
    ]
    return filled(r, runs)


@pytest.mark.parametrize(
    ("subsets", "seeds", "missing"), [((0,), (31,), []), ((0,), (31, 42, 53), []), ((0, 1, 2), (31, 42), [(1, 0)])]
)
def test_small_and_incomplete_designs_are_never_nan(
    subsets: tuple[int, ...], seeds: tuple[int, ...], missing: list[tuple[int, int]]
) -> None:
    r = resolved(subsets=subsets, seeds=seeds)
    test = np.random.default_rng(1).normal(0.7, 0.05, (len(subsets), len(seeds)))
    for place in missing:
        test[place] = np.nan
    made = grid(r, test)
    of_runs = {(row, "sst2", SIZE): [RunCost(Cost(5.0, 1.0), Cost())] for row in ("FT", "SCL")}
    for format in ("text", "md", "csv", "json"):
        assert "nan" not in rendered_costs(costs(made, of_runs, {}), made, [], format).lower()


def test_the_cost_of_a_row_is_that_of_a_run_with_its_earlier_stages_and_its_share_of_the_search() -> None:
    r = resolved()
    scores = np.random.default_rng(3).normal(0.7, 0.05, (5, 3))
    made = grid(r, scores)
    of_runs = {
        ("FT", "sst2", SIZE): [RunCost(Cost(10.0, 2.0), Cost())] * 15,
        ("SCL", "sst2", SIZE): [RunCost(Cost(10.0, 2.0), Cost(90.0, 4.0)), RunCost(Cost(20.0, 2.0), Cost(80.0, 6.0))],
    }
    ft, scl = costs(made, of_runs, {"SCL": Cost(1500.0, 150.0)})
    assert (ft.total, ft.beaten) == (Cost(10.0, 2.0), "")
    assert (scl.fine_tuning, scl.earlier, scl.search) == (Cost(15.0, 2.0), Cost(85.0, 5.0), Cost(100.0, 10.0))
    assert scl.total == Cost(200.0, 17.0)
    assert scl.beaten == "FT", "as high for less"
    rejected = [RunCost(Cost(900.0, 90.0), Cost(600.0, 60.0), counts=False)]
    of_runs["SCL", "sst2", SIZE] += rejected
    assert costs(made, of_runs, {})[1] == scl, "a configuration that is not selected is search, shared by the 15 runs"
    means = scores.mean(axis=1)
    assert ft.score == pytest.approx(scores.mean())
    assert ft.low is not None
    assert ft.low < ft.score < means.max() + 1
    body = json.loads(rendered_costs([ft, scl], made, ["Left out: x."], "json"))
    assert [each["total_flops"] for each in body["costs"]] == [10.0, 200.0]
    assert body["notes"][-1] == "Left out: x."
    assert any(note.startswith("Search: ") for note in body["notes"])
    assert cost_frame([ft, scl])["beaten"].tolist() == ["", "FT"]
    text = rendered_costs([ft, scl], made, [], "text")
    assert "20.00" in text, "times the first row"
    dearer = replace(ft, row="SCL", score=ft.score + 0.01, fine_tuning=Cost(11.0, 1.0))
    assert drawn([ft, dearer], "svg", "examples") == drawn([ft, dearer], "svg", "examples")
    assert drawn([ft, scl], "png", "examples").startswith(b"\x89PNG")


@pytest.mark.parametrize("flops", [{"FT": 0.0, "SCL": 3e11}, {"FT": 0.0, "SCL": 0.0}])
def test_a_row_without_flops_is_drawn_at_nought(flops: dict[str, float]) -> None:
    """TF-IDF computes none that are counted, and a logarithmic axis has no nought."""
    scores = np.random.default_rng(6).normal(0.7, 0.05, (5, 3))
    of_runs = {(row, "sst2", SIZE): [RunCost(Cost(cost, 2.0), Cost())] for row, cost in flops.items()}
    canvas = _figure(costs(grid(resolved(), scores), of_runs, {}), "examples")
    canvas.canvas.draw()
    (axes,) = canvas.axes
    low, high = axes.get_xlim()
    points = {line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 1}
    assert all(low < place < high for place in points)
    names = {label.get_text(): label.get_position()[0] for label in axes.get_xticklabels()}
    if flops["SCL"]:
        assert names == {"0": min(points), scientific(3e11, 2): 3e11}


def test_of_equal_cells_none_beats_the_other() -> None:
    r = resolved()
    scores = np.random.default_rng(4).normal(0.7, 0.05, (5, 3))
    of_runs = {(row, "sst2", SIZE): [RunCost(Cost(10.0, 2.0), Cost())] for row in ("FT", "SCL")}
    assert [each.beaten for each in costs(grid(r, scores), of_runs, {})] == ["", ""]
