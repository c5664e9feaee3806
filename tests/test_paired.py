"""benchmarks/paired.py: differences between rows of a table, replicate by replicate."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from benchmarks.paired import compared


def frame(rows: dict[str, np.ndarray]) -> pd.DataFrame:
    """Test scores [subsets, seeds] of each row."""
    found = [
        {"row": row, "subset": subset, "seed": seed, "test": float(score)}
        for row, scores in rows.items()
        for (subset, seed), score in np.ndenumerate(scores)
    ]
    return pd.DataFrame(found)


def test_differences_are_paired_and_subsets_are_the_evidence() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(0.6, 0.05, size=(5, 3))
    better = base + 0.02 + rng.normal(0, 0.01, size=(5, 3))
    line = compared(frame({"A": base, "B": better}), "A", "B")
    means = 100 * (better - base).mean(axis=1)
    low, high = stats.ttest_1samp(means, 0).confidence_interval(0.95)
    assert line is not None
    assert line[:2] == ["B - A", 15]
    assert float(line[2]) == pytest.approx(means.mean(), abs=0.005)
    assert float(line[3].split("±")[1]) == pytest.approx((high - low) / 2, abs=0.005)
    expected = stats.permutation_test((means,), np.mean, permutation_type="samples", n_resamples=np.inf).pvalue
    assert float(line[4]) == pytest.approx(expected, abs=1e-4)


def test_equal_rows_do_not_differ_and_five_subsets_have_a_floor() -> None:
    base = np.arange(15.0).reshape(5, 3) / 100
    same, shifted = (compared(frame({"A": base, "B": base + shift}), "A", "B") for shift in (0.0, 0.1))
    assert same is not None
    assert shifted is not None
    assert (same[2], same[4]) == ("+0.00", "1.0000")
    assert (shifted[2], shifted[4]) == ("+10.00", "0.0625")


def test_without_pairs_or_with_one_subset_nothing_is_said() -> None:
    one = np.full((1, 3), 0.5)
    assert compared(frame({"A": one, "B": one}), "A", "B") is None
    assert compared(frame({"A": one}), "A", "B") is None
