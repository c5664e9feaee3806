"""Trials: means and spreads so far, and which one is the best."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.search.trials import ReplicateOutcome, Trial, best_trial

SCORES = st.floats(0, 1, allow_nan=False)


def trial(number: int, *values: float, **others: object) -> Trial:
    state = others.pop("state", "complete")
    return Trial(number, {"alpha": number}, tuple(ReplicateOutcome(v) for v in values), state, **others)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_replicate_without_a_finite_value_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        ReplicateOutcome(value)


def test_only_a_trial_with_all_replicates_trained_is_sound() -> None:
    assert trial(0, 0.5).eligible
    assert not trial(0).eligible
    assert not any(trial(0, 0.5, state=state).eligible for state in ("running", "dropped", "failed"))
    failed = replace(trial(0, 0.5, 0.6), outcomes=(ReplicateOutcome(0.5), ReplicateOutcome(0.6, status="diverged")))
    assert not failed.eligible


@given(st.lists(st.tuples(SCORES, st.booleans()), max_size=8), st.randoms())
def test_the_best_is_the_first_sound_trial_that_no_sound_one_beats(
    points: list[tuple[float, bool]], shuffle: random.Random
) -> None:
    trials = [
        trial(n, value, state="complete" if eligible else "dropped") for n, (value, eligible) in enumerate(points)
    ]
    values = [value for value, eligible in points if eligible]
    shuffled = list(trials)
    shuffle.shuffle(shuffled)
    best = best_trial(shuffled)
    if not values:
        assert best is None
        return
    assert best == next(t for t in trials if t.eligible and t.mean() == max(values))
