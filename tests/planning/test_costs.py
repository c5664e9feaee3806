"""Scores beside their cost: oracles, and cells from which nothing can be had."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from requested import resolve_table
from views.runs import filled, result

from harness.views.cells import Grid
from harness.views.cost import OWN, costs

SIZE = 20


def grid(
    subsets: tuple[int, ...], seeds: tuple[int, ...], missing: tuple[int, int] | None = None
) -> tuple[Grid, float]:
    """FT and SCL with random scores that are the same for both, and their mean."""
    r = resolve_table(
        "few_shot", "paper", methods=("FT", "SCL"), tasks=("sst2",), sizes=(SIZE,), subsets=subsets, seeds=seeds
    )
    draw = np.random.default_rng(3)
    scores = {place: draw.uniform(0.6, 0.8) for place in r.replicates if place != missing}
    runs = [
        result(r, row, SIZE, "sst2", *place, score, key="k") for row in ("FT", "SCL") for place, score in scores.items()
    ]
    return filled(r, runs), float(np.mean([*scores.values()]))


def spent(*runs: tuple[Any, ...]) -> pd.DataFrame:
    """Of runs their row, whether they count, and the costs `OWN`."""
    frame = pd.DataFrame(runs, columns=["row", "counts", *OWN]).astype(dict.fromkeys(OWN, float))
    return frame.assign(size=SIZE, task="sst2")


@pytest.mark.parametrize(
    ("subsets", "seeds", "missing"), [((0,), (31,), None), ((0,), (31, 42, 53), None), ((0, 1, 2), (31, 42), (1, 31))]
)
def test_small_and_incomplete_designs_are_never_nan(
    subsets: tuple[int, ...], seeds: tuple[int, ...], missing: tuple[int, int] | None
) -> None:
    of_runs = spent(*((row, True, 5, 1, 0, 0) for row in ("FT", "SCL")))
    for format in ("text", "md", "csv", "json"):
        assert "nan" not in str(costs(grid(subsets, seeds, missing)[0], of_runs).written(format)).lower()


def test_the_cost_of_a_row_is_that_of_a_run_with_its_earlier_stages_and_its_share_of_the_search() -> None:
    made, mean = grid((0, 1, 2, 3, 4), (31, 42, 53))
    scl = ("SCL", True, 10, 2, 90, 4), ("SCL", True, 20, 2, 80, 6), ("SCL", False, 900, 90, 600, 60)
    found = costs(made, spent(*[("FT", True, 10, 2, 0, 0)] * 15, *scl))
    parts = ["fine_tuning", "earlier", "search", "total"]
    assert found.frame[[f"{part}_flops" for part in parts]].to_numpy().tolist() == [[10, 0, 0, 10], [15, 85, 100, 200]]
    assert found.frame[[f"{part}_seconds" for part in parts]].to_numpy().tolist() == [[2, 0, 0, 2], [2, 5, 10, 17]]
    ft = found.frame.iloc[0]
    assert ft["score"] == pytest.approx(mean)
    assert ft["low"] < ft["score"] < ft["high"]
    body = json.loads(str(found.written("json")))
    assert [each["total_flops"] for each in body["costs"]] == [10.0, 200.0]
    assert any(line.startswith("Search: ") for line in body["lines"])
    assert "20.00" in repr(found), "times the first row"
    none = spent(("FT", True, 0, 2, 0, 0), *scl)
    assert "20.00" not in repr(costs(made, none)), "TF-IDF computes no FLOPs that are counted: there is no multiple"
