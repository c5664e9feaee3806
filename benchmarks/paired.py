"""Paired differences between the rows of a table and its first row, replicate by replicate.

    harness report --format csv | python benchmarks/paired.py [--against FT]

Both rows ran the same training subsets with the same seeds, so they are compared pair by pair: the mean difference of test scores in
points, its 95 % interval from the t distribution over the subsets' means (seeds of one subset are not independent evidence), and
the exact sign-flip test over subsets, whose smallest p with five subsets is 0.0625.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from tabulate import tabulate


def compared(frame: pd.DataFrame, against: str, row: str) -> list[Any] | None:
    """[row, pairs, mean difference, 95 % interval, p]; None where fewer than two subsets have both scores."""
    scores = frame.pivot_table(index=["subset", "seed"], columns="row", values="test")
    if not {row, against} <= set(scores.columns):
        return None
    pairs = 100 * (scores[row] - scores[against]).dropna()
    means = pairs.groupby("subset").mean().to_numpy()
    if len(means) < 2:
        return None
    half = stats.t.ppf(0.975, len(means) - 1) * means.std(ddof=1) / np.sqrt(len(means))
    flips = np.array(np.meshgrid(*[[-1, 1]] * len(means))).reshape(len(means), -1)
    p = float((np.abs(means @ flips) >= abs(means.sum()) - 1e-9).mean())
    return [f"{row} - {against}", len(pairs), f"{means.mean():+.2f}", f"{means.mean():+.2f} ± {half:.2f}", f"{p:.4f}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--against", default="", help="the row that others are compared with (default: the first one)")
    args = parser.parse_args()
    frame = pd.read_csv(sys.stdin)
    frame = frame[frame["status"] == "done"]
    against = args.against or str(frame["row"].iloc[0])
    for (size, column, metric), cell in frame.groupby(["size", "column", "metric"]):
        rows = [compared(cell, against, row) for row in dict.fromkeys(cell["row"]) if row != against]
        print(f"{column}, {metric}, {size} training examples")
        headers = ("difference", "pairs", "points", "95 % interval", "sign-flip p")
        print(tabulate([row for row in rows if row], headers=headers, disable_numparse=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
