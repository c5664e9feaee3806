"""Replicates added until an interval is narrow enough: the path of grids, the width at a look, and how often the last interval is right."""

from __future__ import annotations

import numpy as np
import pytest
import simulated_designs
from scipy import stats

from harness.statistics.sequential import LOOK_LEVEL, look_width, path


def test_the_path_contains_each_grid_before_it() -> None:
    assert list(path(3, 1, 50)) == [(5, 3), (6, 4), (7, 5), (8, 6)]
    assert list(path(10, 3, 60)) == [(10, 3), (11, 4), (12, 5)]
    assert list(path(1, 3, 5, 1)) == [(1, 3), (1, 4), (1, 5)], "one training set: seeds alone"
    assert list(path(5, 3, 30, 5)) == [(5, 3), (5, 4), (5, 5), (5, 6)], "five folds"
    assert list(path(5, 3, 14)) == []


def test_the_width_of_one_seed_is_that_of_the_t_interval_over_subsets() -> None:
    d = np.random.default_rng(0).normal(size=(7, 1))
    low, high = stats.t.interval(LOOK_LEVEL, 6, d.mean(), stats.sem(d.ravel()))
    assert look_width(d) == pytest.approx((high - low) / 2)
    assert look_width(d.T) == pytest.approx((high - low) / 2)


def test_a_single_run_has_no_width_and_equal_ones_have_none_to_narrow() -> None:
    assert look_width([[0.1]]) is None
    assert look_width(np.full((5, 3), 0.25)) == 0.0
    assert look_width([[1.0, -1.0], [-1.0, 1.0]]) is None, "interaction alone: the means do not vary"


def test_after_stopping_the_interval_holds_the_truth() -> None:
    """A plain 95 % interval holds it less often."""
    error = 100 * 3 * np.sqrt(0.95 * 0.05 / 2000)
    found = simulated_designs.sequential(2000, 0, [50])
    print(found.round(1).to_string())
    assert len(found) == len(simulated_designs.WORLDS) + 1, "one more of seeds alone"
    assert found["holds"].min() > 95 - error
    assert found["95 % interval holds"].min() < found["holds"].min()
