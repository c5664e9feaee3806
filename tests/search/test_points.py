"""A point's runs are those of `bench --set`, and what they score on dev counts by one rule, also where a run broke."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.commands.prepare import prepare
from harness.commands.study import prepare_study, shared_weights, starts_from
from harness.planning.request import Request
from harness.planning.resolve import resolve
from harness.planning.runs import Plan
from harness.planning.table import load_table
from harness.search.points import Points, ReplicateOutcome, Trial, best_trial
from harness.search.request import Point, TuneRequest
from harness.search.space import Choice
from harness.specs import SHARED_PHASES, Record, Run
from harness.tasks.metrics import METRICS


def bench(points: Points, point: Point) -> Plan:
    """What `bench --set` would run."""
    return prepare(points.space.bench(Request(), point), train=False).plan


def keys_of(points: Points, point: Point) -> tuple[str, ...]:
    return tuple(run.stage.key for runs in points.runs(point) for run in runs)


@pytest.fixture(scope="module")
def grid(packaged: dict[str, Path]) -> Points:
    """CMLM's alpha x p_c: 30 points."""
    return prepare_study(TuneRequest("cmlm", mode="grid"), train=False).points


# ------------------------------------------------------------------------------------------------------------- runs


def test_a_point_is_the_runs_of_bench_set(grid: Points) -> None:
    every = grid.space.first_points
    assert len({keys_of(grid, point) for point in every}) == len(every) == 30
    for point in every[::9]:
        plan = bench(grid, point)
        assert not plan.skipped
        mine = [run for runs in grid.runs(point) for run in runs]
        assert {run.name: run.stage.key for run in mine} == {run.name: run.stage.key for run in plan.runs}
        assert sorted(keys_of(grid, point)) == sorted(run.stage.key for run in plan.runs)


@pytest.mark.parametrize(
    ("protocol", "sizes", "subsets", "of_full"),
    [
        ("", (0,), [0], lambda subset: 0),
        ("", (20, 0), [0, 1, 2], lambda subset: 0),
        ("own_redrawn", (0,), [0, 1, 2], lambda subset: subset),
        ("own_redrawn", (20, 0), [0, 1, 2], lambda subset: subset),
    ],
)
def test_no_run_counts_as_several_replicates(
    protocol: str, sizes: tuple[int, ...], subsets: list[int], of_full: Callable[[int], int], grid: Points
) -> None:
    """Three subsets are asked for. A full training set is one of them, unless the protocol draws it anew for each."""
    request = Request("own", tasks=("movies",), methods=("cmlm",), sizes=sizes, subsets=(0, 1, 2), seeds=(31, 42))
    base = resolve(load_table("own"), replace(request, protocol=protocol or None))
    runs = [
        replace(grid.runs(grid.space.defaults)[0][0], size=size, subset=subset, seed=seed)
        for size in sizes
        for subset, seed in base.replicates_at(size)
    ]
    points = replace(grid, base=base)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.search.points.runs_of", lambda *_: (runs, []))
        found = points.runs(grid.space.defaults)
    assert points.replicates == tuple((subset, seed) for seed in (31, 42) for subset in subsets)
    assert [{(run.size, run.subset, run.seed) for run in of_replicate} for of_replicate in found] == [
        {(size, subset if size else of_full(subset), seed) for size in sizes} for subset, seed in points.replicates
    ]


def test_what_several_points_start_from_is_kept_until_the_study_ends(grid: Points) -> None:
    """Post-trainings of the default point; of a grid over fine-tuning all."""
    default, *others = (starts_from(grid, point) for point in grid.space.first_points)
    assert shared_weights(grid) == default
    assert default.isdisjoint(set().union(*others))
    rates = Choice(choice=(1e-4, 5e-4))
    fine = grid.space.model_copy(update={"parameters": {**grid.space.parameters, "fine_tune.lr": rates}})
    assert shared_weights(replace(grid, space=fine)) >= set().union(*others)


# ---------------------------------------------------------------------------------------------------------- outcomes


def test_the_best_is_the_first_of_those_whose_replicates_are_all_done() -> None:
    def trial(number: int, *values: float, status: Any = "done", state: Any = "complete") -> Trial:
        return Trial(number, {}, tuple(ReplicateOutcome(value, status) for value in values), state)

    trials = [trial(0, 0.5, 0.6), trial(1, 0.5, 0.7), trial(2, 0.7, 0.5), trial(3), trial(4, 0.9, status="diverged")]
    trials += [trial(5, 0.9, state=state) for state in ("running", "dropped", "failed")]
    assert best_trial(trials) is best_trial(trials[::-1]) is trials[1]
    assert best_trial(trials[3:]) is None


@pytest.fixture(scope="module")
def two(grid: Points) -> tuple[Run, Run]:
    """One replicate with two runs, as a search over two sizes has them."""
    (run,) = grid.runs(grid.space.defaults)[0]
    return run, replace(run, size=20, stage=replace(run.stage, seed=run.stage.seed + 1))


def records_of(run: Run, status: Any = "done", score: float | None = 0.8, *, early: bool = False) -> dict[str, Record]:
    """Of a run's stages, the last one or, `early`, the one before it with this status."""
    *before, leaf = run.stage.chain
    found = {stage.key: Record(stage.key, "done", flops=100.0, seconds=20.0) for stage in before}
    ended = Record(leaf.key, status, flops=10.0, seconds=2.0, dev_scores={} if score is None else {"accuracy": score})
    if status != "done":
        ended = Record(before[-1].key if early else leaf.key, status, "the loss is not finite at step 3", flops=1.0)
    return found | {ended.key: ended}


def test_an_outcome_is_the_mean_over_its_runs_once_all_have_ended(grid: Points, two: tuple[Run, Run]) -> None:
    records = records_of(two[0], score=0.6) | records_of(two[1], score=0.9)
    found = grid.outcome(two, records)
    assert found is not None
    assert (found.value, found.status, found.reason) == (pytest.approx(0.75), "done", "")
    for run in two:
        assert grid.outcome(two, {key: record for key, record in records.items() if key != run.stage.key}) is None


@pytest.mark.parametrize(
    ("broken", "status", "said"),
    [
        ({"status": "failed"}, "failed", "failed: the loss is not finite at step 3"),
        ({"status": "diverged", "early": True}, "diverged", "diverged: the loss is not finite at step 3"),
        ({"score": math.nan}, "diverged", "its accuracy on dev is not a finite number"),
        ({"score": -math.inf}, "diverged", "its accuracy on dev is not a finite number"),
        ({"score": None}, "diverged", "its accuracy on dev is not a finite number"),
    ],
)
def test_a_broken_run_counts_with_the_metrics_worst_value(
    grid: Points, two: tuple[Run, Run], broken: dict[str, Any], status: str, said: str
) -> None:
    found = grid.outcome(two, records_of(two[1], score=0.9) | records_of(two[0], **broken))
    assert found is not None
    assert (found.value, found.status) == (pytest.approx((METRICS["accuracy"].worst + 0.9) / 2), status)
    assert found.reason.startswith(two[0].name)
    assert said in found.reason


def test_stages_that_many_replicates_share_are_no_replicates_cost(grid: Points, two: tuple[Run, Run]) -> None:
    chain = two[0].stage.chain
    assert {stage.phase for stage in chain} & set(SHARED_PHASES), "post-training of bert-tiny starts from an MLM head"
    records = {
        stage.key: Record(stage.key, "done", flops=10.0**k, seconds=2.0**k, dev_scores={"accuracy": 0.5})
        for k, stage in enumerate(chain)
    }
    own = [records[stage.key] for stage in chain if stage.phase not in SHARED_PHASES]
    found = grid.outcome(two[:1], records)
    assert found is not None
    assert (found.flops, found.seconds) == (sum(end.flops for end in own), sum(end.seconds for end in own))
    assert found.stages == len(own)


def test_a_run_counts_with_what_selects_its_checkpoint(grid: Points, two: tuple[Run, Run]) -> None:
    assert grid.metric == grid.counted(two)[two[0].stage.key] == grid.base.selection_metric(two[0].task)
    f1 = replace(grid, space=grid.space.model_copy(update={"metric": "f1"}))
    assert f1.metric == f1.metric_of(two[0].task) == "f1"
