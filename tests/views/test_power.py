"""What a plan detects: variances from what is recorded, the cost of other designs, the cheapest one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from requested import TINY, resolve_table
from views.runs import filled, result

from harness.planning.resolved import ResolvedTable
from harness.planning.runs import make_plan
from harness.scores import Result
from harness.statistics.power import Components, detectable, precision
from harness.views.power import DEFAULT, cost_of, detections, recorded_components, resolutions


def resolved(**more: Any) -> ResolvedTable:
    return resolve_table(
        "few_shot", "paper", **{"methods": ("FT", "TAPT", "CMLM"), "tasks": ("sst2",), "sizes": (20,), **more}
    )


def runs(r: ResolvedTable, sds: Components, seed: int = 0) -> list[Result]:
    """Scores whose paired differences from FT have these variances."""
    rng = np.random.default_rng(seed)
    found = []
    for row in ("FT", "TAPT", "CMLM"):
        of_subset = {s: rng.normal(0, sds.subset**0.5) for s in r.subsets}
        of_seed = {t: rng.normal(0, sds.seed**0.5) for t in r.seeds}
        for s, t in r.replicates:
            score = 0.7 if row == "FT" else 0.7 + of_subset[s] + of_seed[t] + rng.normal(0, sds.interaction**0.5)
            found.append(result(r, row, 20, "sst2", s, t, score))
    return found


def hours(subsets: int, seeds: int) -> float:
    return 0.1 * subsets * seeds


def test_variances_are_the_recorded_ones_where_there_are_some() -> None:
    r = replace(resolved(), subsets=tuple(range(40)), seeds=tuple(range(40)))
    truth = Components(4e-4, 1e-4, 2e-4)
    known, count = recorded_components(filled(r, runs(r, truth)).scores, (20, "sst2"), [("TAPT", "FT"), ("CMLM", "FT")])
    assert count == 2
    assert (known.subset, known.seed, known.interaction) == pytest.approx((4e-4, 1e-4, 2e-4), rel=0.5)
    few = replace(resolved(), seeds=(31,))
    assert recorded_components(filled(few, runs(few, truth)).scores, (20, "sst2"), [("TAPT", "FT")]) == (DEFAULT, 0)


def test_what_is_detected_is_that_of_the_design_and_its_family() -> None:
    r = resolved()
    grid = filled(r, [])
    (_, comparisons, _), found = resolutions(grid), detections(grid, 0.03, hours)
    assert comparisons == 2
    (only,) = found.frame.to_dict("records")
    assert only["detects"] == pytest.approx(detectable(precision(DEFAULT, 5, 3, 0.025)))
    design = only["enough_subsets"], only["enough_seeds"]
    assert only["enough_hours"] == pytest.approx(hours(*design))
    assert detectable(precision(DEFAULT, *design, 0.025)) <= 0.03
    assert f"The cheapest design that detects 3.00 points in all columns and sizes: {design[0]} x {design[1]}" in repr(
        found
    )


@pytest.mark.parametrize("sizes", [(20,), (20, 0)], ids=["few", "full"])
@pytest.mark.parametrize("design", [(2, 2), (5, 1), (1, 3)])
def test_the_cost_of_another_design_is_that_of_its_plan(design: tuple[int, int], sizes: tuple[int, ...]) -> None:
    """Stages that subsets or seeds share are counted once, as in the plan itself; a full training set is one subset."""
    epochs = ("fine_tune.epochs=3", "post_train.epochs=2")
    r = replace(resolved(tasks=("sst2", "rte"), set=epochs), sizes=sizes)
    cost = cost_of(make_plan(r, None, TINY))
    other = make_plan(replace(r, subsets=r.subsets[: design[0]], seeds=r.seeds[: design[1]]), None, TINY)
    flops, stages = cost(*design)
    assert flops == pytest.approx(sum(map(other.stage_flops, other.stages.values())))
    assert stages == pytest.approx(len(other.stages))


def test_a_full_training_set_has_one_subset() -> None:
    r = resolved(sizes=(20,))
    found = detections(filled(replace(r, sizes=(0,)), []), 0.01, hours)
    assert found.frame["enough_subsets"].isna().all()
    assert "The full training set is one subset" in repr(found)
    assert found.frame["detects"].notna().all()
