"""Trials: means and spreads so far, which one is the best, and which are on the front."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.search.trials import Direction, ReplicateOutcome, Trial, best_trial, pareto_front

REPLICATES = ((0, 31), (1, 31), (2, 31), (0, 42), (1, 42), (2, 42))
SCORES = st.floats(0, 1, allow_nan=False)


def trial(number: int, *values: float, **others: object) -> Trial:
    state = others.pop("state", "complete")
    return Trial(number, {"alpha": number}, tuple(ReplicateOutcome((v,)) for v in values), state, **others)  # type: ignore[arg-type]


def test_the_spread_is_that_of_the_subsets_means() -> None:
    found = trial(0, 0.1, 0.2, 0.6, 0.3, 0.4, 0.8)
    assert found.mean() == pytest.approx(0.4)
    assert found.spread(REPLICATES) == pytest.approx(statistics.stdev([0.2, 0.3, 0.7]))
    assert found.spread(((0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6))) == pytest.approx(
        statistics.stdev(found.values())
    )
    partly = trial(0, 0.1, 0.2, 0.6, 0.3)
    assert partly.spread(REPLICATES) == pytest.approx(statistics.stdev([0.2, 0.2, 0.6]))
    assert trial(0, 0.1).spread(REPLICATES) is None
    assert (trial(0).mean(), trial(0).spread(REPLICATES)) == (None, None)


@pytest.mark.parametrize("values", [(), (float("nan"),), (0.5, float("inf"))])
def test_a_replicate_without_finite_values_is_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="finite"):
        ReplicateOutcome(values)


def test_only_a_trial_with_all_replicates_trained_is_sound() -> None:
    assert trial(0, 0.5).eligible
    assert not trial(0).eligible
    assert not any(trial(0, 0.5, state=state).eligible for state in ("running", "dropped", "failed"))
    failed = replace(
        trial(0, 0.5, 0.6), outcomes=(ReplicateOutcome((0.5,)), ReplicateOutcome((0.6,), status="diverged"))
    )
    assert not failed.eligible


@given(st.lists(st.tuples(SCORES, st.booleans()), max_size=8), st.sampled_from(["maximize", "minimize"]), st.randoms())
def test_the_best_is_the_first_sound_trial_that_no_sound_one_beats(
    points: list[tuple[float, bool]], direction: Direction, shuffle: random.Random
) -> None:
    trials = [
        trial(n, value, state="complete" if eligible else "dropped") for n, (value, eligible) in enumerate(points)
    ]
    values = [value for value, eligible in points if eligible]
    shuffled = list(trials)
    shuffle.shuffle(shuffled)
    best = best_trial(shuffled, direction)
    if not values:
        assert best is None
        return
    top = max(values) if direction == "maximize" else min(values)
    assert best == next(t for t in trials if t.eligible and t.mean() == top)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8), st.randoms())
def test_the_front_against_a_naive_loop(points: list[tuple[int, int]], shuffle: random.Random) -> None:
    trials = [Trial(n, {}, (ReplicateOutcome((float(a), float(b))),), "complete") for n, (a, b) in enumerate(points)]
    trials.append(Trial(99, {}, (ReplicateOutcome((9.0, -9.0)),), "dropped"))
    shuffle.shuffle(trials)
    front = pareto_front(trials, ("maximize", "minimize"))
    expected = [
        n for n, (a, b) in enumerate(points) if not any((c > a and d <= b) or (c >= a and d < b) for c, d in points)
    ]
    assert sorted(t.number for t in front) == expected
    assert [(-t.values(0)[0], t.number) for t in front] == sorted((-t.values(0)[0], t.number) for t in front)


def test_the_best_of_another_metric() -> None:
    trials = [Trial(n, {}, (ReplicateOutcome((0.5 + n / 10, 1e12 * n)),), "complete") for n in range(3)]
    assert best_trial(trials, "minimize", 1) == trials[0]
    assert best_trial(trials, "maximize") == trials[2]
