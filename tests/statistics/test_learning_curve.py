"""What more training examples are worth: exact where the curve is known, refused where no curve fits, and covered as docs/statistics.md says."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from simulated_designs import learning_curves

from harness.statistics.difference import difference, mean_interval
from harness.statistics.learning_curve import EXPONENTS, LEVEL, REJECTED, growth, more_examples, score_at, worth

SIZES = (20, 100, 1000)


def curve(exponent: float, noise: float = 0.0, sizes: tuple[int, ...] = SIZES) -> np.ndarray:
    """(sizes, 4 subsets, 3 seeds) around 0.5 + 0.02 g(n)."""
    rng = np.random.default_rng(7)
    mean = 0.5 + 0.02 * growth(sizes, exponent)
    found: np.ndarray = mean[:, None, None] + noise * rng.normal(size=(len(sizes), 4, 3))
    return found


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_the_true_exponent_is_kept_and_its_curve_is_in_the_interval(exponent: float) -> None:
    found = worth(curve(exponent, 1e-5), SIZES, more_examples(1000, 100))
    truth = 0.02 * float(growth([1100], exponent)[0] - growth([1000], exponent)[0])
    assert found.lowest <= exponent <= found.highest
    assert found.low <= truth <= found.high
    assert found.estimate == pytest.approx(truth, abs=1e-4)


def test_with_one_exponent_it_is_the_crossed_interval_of_each_replicates_own_line() -> None:
    """The naive way: a straight line over log n for each replicate, then the mean of what these say."""
    y = curve(0.0, 0.01)
    lines = np.array([[np.polyfit(np.log(SIZES), y[:, s, r], 1) for r in range(3)] for s in range(4)])
    for figure, values in (
        (more_examples(1000, 100), lines[..., 0] * np.log(1.1)),
        (score_at(1100), lines[..., 1] + lines[..., 0] * np.log(1100)),
    ):
        found, naive = worth(y, SIZES, figure, exponents=[0.0]), mean_interval(values, LEVEL + REJECTED)
        assert naive is not None
        assert (found.estimate, found.low, found.high) == pytest.approx((values.mean(), naive.low, naive.high))


def test_what_is_subtracted_is_subtracted_replicate_by_replicate() -> None:
    y = curve(0.0, 0.01)
    less = np.random.default_rng(1).normal(0.01, 0.02, size=(4, 3))
    gain = np.array([[np.polyfit(np.log(SIZES), y[:, s, r], 1)[0] * np.log(1.1) for r in range(3)] for s in range(4)])
    found = worth(y, SIZES, more_examples(1000, 100), less, exponents=[0.0])
    naive = difference(gain - less, 0.01, level=LEVEL + REJECTED)
    assert naive.interval is not None
    assert (found.low, found.high) == pytest.approx((naive.interval.low, naive.interval.high))


def test_the_interval_is_the_hull_over_the_exponents_that_the_sizes_do_not_reject() -> None:
    y = curve(0.0, 0.002)
    whole, each = worth(y, SIZES, score_at(1100)), [worth(y, SIZES, score_at(1100), exponents=[c]) for c in EXPONENTS]
    kept = [one for one in each if not np.isnan(one.estimate)]
    assert 1 < len(kept) < len(each)
    assert whole.low == min(one.low for one in kept)
    assert whole.high == max(one.high for one in kept)
    assert (whole.lowest, whole.highest) == (min(one.lowest for one in kept), max(one.highest for one in kept))


def test_where_no_curve_fits_nothing_is_said() -> None:
    y = curve(0.0, 1e-4)
    y[1] -= 0.2
    found = worth(y, SIZES, score_at(1100))
    assert np.isnan([found.estimate, found.low, found.high, found.lowest, found.highest]).all()


@pytest.fixture(scope="module")
def simulated() -> pd.DataFrame:
    return learning_curves(designs=400, seed=1)


@pytest.mark.slow
def test_intervals_of_more_examples_hold_where_the_curve_is_a_power_law(simulated: pd.DataFrame) -> None:
    print(simulated.round(2).to_string())
    laws = simulated[simulated["law"]]
    assert laws["holds"].min() > 100 * LEVEL - 3 * 100 * np.sqrt(LEVEL * (1 - LEVEL) / 400)
    assert laws["said"].min() > 98
    assert simulated[~simulated["law"]]["holds"].min() < 60, "a curve that has not left chance is not foreseen"
