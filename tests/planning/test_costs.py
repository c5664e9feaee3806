"""Scores beside their cost: oracles, and cells from which nothing can be had."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from requested import resolve_table
from views.runs import filled, result

from harness.planning.resolved import ResolvedTable
from harness.views.cells import Grid
from harness.views.cost import Cost, RunCost, costs

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
        assert "nan" not in str(costs(made, of_runs).written(format)).lower()


def test_the_cost_of_a_row_is_that_of_a_run_with_its_earlier_stages_and_its_share_of_the_search() -> None:
    r = resolved()
    scores = np.random.default_rng(3).normal(0.7, 0.05, (5, 3))
    made = grid(r, scores)
    of_runs = {
        ("FT", "sst2", SIZE): [RunCost(Cost(10.0, 2.0), Cost())] * 15,
        ("SCL", "sst2", SIZE): [RunCost(Cost(10.0, 2.0), Cost(90.0, 4.0)), RunCost(Cost(20.0, 2.0), Cost(80.0, 6.0))],
    }
    of_runs["SCL", "sst2", SIZE] += [RunCost(Cost(900.0, 90.0), Cost(600.0, 60.0), counts=False)]
    found = costs(made, of_runs)
    parts = ["fine_tuning", "earlier", "search", "total"]
    assert found.frame[[f"{part}_flops" for part in parts]].to_numpy().tolist() == [[10, 0, 0, 10], [15, 85, 100, 200]]
    assert found.frame[[f"{part}_seconds" for part in parts]].to_numpy().tolist() == [[2, 0, 0, 2], [2, 5, 10, 17]]
    ft = found.frame.iloc[0]
    assert ft["score"] == pytest.approx(scores.mean())
    assert ft["low"] < ft["score"] < ft["high"]
    body = json.loads(str(found.written("json")))
    assert [each["total_flops"] for each in body["costs"]] == [10.0, 200.0]
    assert any(line.startswith("Search: ") for line in body["lines"])
    assert "20.00" in repr(found), "times the first row"


def test_a_row_without_flops_has_no_multiple() -> None:
    """TF-IDF computes none that are counted."""
    scores = np.random.default_rng(6).normal(0.7, 0.05, (5, 3))
    of_runs = {(row, "sst2", SIZE): [RunCost(Cost(cost, 2.0), Cost())] for row, cost in (("FT", 0.0), ("SCL", 3e11))}
    assert "3e+11      —" in repr(costs(grid(resolved(), scores), of_runs))
