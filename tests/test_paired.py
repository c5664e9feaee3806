"""benchmarks/paired.py: differences between rows of a table, replicate by replicate."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from benchmarks.paired import compared
from harness.statistics.difference import difference


def frame(rows: dict[str, np.ndarray]) -> pd.DataFrame:
    """Test scores [subsets, seeds] of each row."""
    found = [
        {"row": row, "subset": subset, "seed": seed, "test": float(score)}
        for row, scores in rows.items()
        for (subset, seed), score in np.ndenumerate(scores)
    ]
    return pd.DataFrame(found)


def test_differences_are_paired_and_crossed() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(0.6, 0.05, size=(5, 3))
    better = base + 0.02 + rng.normal(0, 0.01, size=(5, 3))
    line = compared(frame({"A": base, "B": better}), "A", "B")
    expected = difference(better - base, 0.01)
    assert line is not None
    assert expected.interval is not None
    assert line[:2] == ["B - A", 15]
    assert float(line[2]) == pytest.approx(100 * expected.mean, abs=0.005)
    half = 50 * (expected.interval.high - expected.interval.low)
    assert float(line[3].split("±")[1]) == pytest.approx(half, abs=0.005)
    assert float(line[4]) == pytest.approx(expected.p, abs=1e-4)


def test_a_missing_run_leaves_out_its_subset() -> None:
    rows = {"A": np.random.default_rng(0).random((5, 3)), "B": np.random.default_rng(1).random((5, 3))}
    line = compared(frame(rows).iloc[1:], "A", "B")
    assert line is not None
    assert line[1] == 12


def test_without_pairs_or_spread_nothing_is_said() -> None:
    one, same = np.full((1, 1), 0.5), np.full((5, 3), 0.5)
    assert compared(frame({"A": one, "B": one}), "A", "B") is None
    assert compared(frame({"A": one}), "A", "B") is None
    assert compared(frame({"A": same, "B": same}), "A", "B") is None
