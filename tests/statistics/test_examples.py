"""What runs agree on, against loops; and, simulated, how many of the doubted labels are wrong.

pytest tests/statistics -m slow -k examples -rP      # the full size, with the table of docs/statistics.md
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtri

from harness.statistics.agreement import AGREED, doubted, flip_rates, if_wrong, votes

REPEATS = [60, pytest.param(400, marks=pytest.mark.slow)]


def test_flips_are_shares_of_pairs_of_runs() -> None:
    codes = np.random.default_rng(0).integers(0, 3, (3, 2, 11))
    runs = [*itertools.product(range(3), range(2))]
    pairs = [*itertools.combinations(runs, 2)]

    def share(some: list[Any]) -> float:
        return float(np.mean([codes[a] != codes[b] for a, b in some]))

    found = flip_rates(codes, 3)
    assert found.all == pytest.approx(share(pairs))
    assert found.by_seed == pytest.approx(share([(a, b) for a, b in pairs if a[0] == b[0]]))
    assert found.by_subset == pytest.approx(share([(a, b) for a, b in pairs if a[1] == b[1]]))
    every = votes(codes.reshape(6, -1), 3)
    assert every.flips == pytest.approx(np.mean([codes[a] != codes[b] for a, b in pairs], axis=0))
    alone = flip_rates(codes[:, :1], 3)
    assert math.isnan(alone.by_seed)
    assert alone.by_subset == pytest.approx(alone.all)


def test_a_label_is_doubted_where_the_runs_agree_on_one_other_class() -> None:
    codes = np.array([[0] * 9 + [1], [1] * 9 + [0], [1] * 8 + [0] * 2, [1, 2] * 5]).T
    assert doubted(votes(codes, 3), np.zeros(4)).tolist() == [False, True, False, False]


@pytest.mark.parametrize("repeats", REPEATS)
def test_examples_the_stated_precision_of_doubted_labels_is_the_simulated_one(repeats: int) -> None:
    """20 runs, right by a probit of their skill, the example's ease (share `ease` of the variance) and noise; 5 % of 372 labels are planted wrong."""
    draw, rows = np.random.default_rng(5), []
    for skill, ease, classes in itertools.product((0.6, 0.7, 0.8, 0.9, 0.95), (0.3, 0.6, 0.9), (2,)):
        sums, stated = np.zeros(4), []
        for _ in range(repeats):
            easy = draw.normal(0, math.sqrt(ease), 372)
            right = ndtri(skill) + easy + draw.normal(0, math.sqrt(1 - ease), (20, 372)) > 0
            truth = draw.integers(0, classes, 372)
            wrong = draw.random(372) < 0.05
            gold = np.where(wrong, 1 - truth, truth)
            runs = votes(np.where(right, truth, 1 - truth), classes)
            on_list, good = doubted(runs, gold), if_wrong(runs, gold)
            sums += [on_list.sum(), (on_list & wrong).sum(), wrong.sum(), runs.flips.mean()]
            stated.append((good.precision, good.recall))
        listed, hits, planted, flips = sums
        rows.append((skill, ease, flips / len(stated), listed / len(stated), hits / listed, hits / planted))
        rows[-1] += tuple(np.nanmean(stated, axis=0))
    names = ["accuracy", "ease", "flips", "list", "precision", "recall", "stated precision", "stated recall"]
    table = pd.DataFrame(rows, columns=names)
    print(f"agreed {AGREED}\n{table.round(3).to_string()}")
    slack = 0.5 / math.sqrt(repeats)
    assert (table["stated precision"] - table["precision"]).abs().max() < 0.1 + slack
    assert (table["stated recall"] - table["recall"]).abs().max() < 0.02 + slack
