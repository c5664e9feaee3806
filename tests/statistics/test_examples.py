"""What runs agree on, against loops; and, simulated, how many of the doubted labels are wrong.

pytest tests/statistics -m slow -k examples -rP      # the full size, with the table of docs/statistics.md
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from harness.statistics.agreement import doubted, flip_rates, votes

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
