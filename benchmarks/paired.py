"""Paired differences between the rows of a published table and its first row, from its CSV alone.

    python benchmarks/paired.py [--against FT] < docs/results/minilm_sst2_100_bf16.csv

`harness compare` says more where the store is at hand. Both rows ran the same training subsets with the same seeds, so they are compared pair
by pair: the mean difference of test scores in points, its 95 % interval for crossed subsets and seeds, and the exact sign-flip test
over subsets, whose smallest p with five subsets is 0.0625.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import pandas as pd
from tabulate import tabulate

from harness.statistics.design import full_grid
from harness.statistics.difference import difference


def compared(frame: pd.DataFrame, against: str, row: str) -> list[Any] | None:
    """[row, pairs, mean difference, 95 % interval, p, sign-flip p]; None where there is no interval."""
    scores = frame.pivot_table(index=["subset", "seed"], columns="row", values="test")
    if not {row, against} <= set(scores.columns):
        return None
    pairs = (scores[row] - scores[against]).dropna()
    subsets, seeds = full_grid(list(pairs.index))
    if not subsets:
        return None
    found = difference(pairs.unstack("seed").loc[subsets, seeds].to_numpy(), region=0.01)
    if found.interval is None or found.flip is None:
        return None
    half = 50 * (found.interval.high - found.interval.low)
    points = f"{100 * found.mean:+.2f}"
    interval = f"{points} ± {half:.2f}"
    return [f"{row} - {against}", len(subsets) * len(seeds), points, interval, f"{found.p:.4f}", f"{found.flip.p:.4f}"]


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
        headers = ("difference", "pairs", "points", "95 % interval", "p", "sign-flip p")
        print(tabulate([row for row in rows if row], headers=headers, disable_numparse=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
