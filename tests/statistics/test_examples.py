"""What runs agree on and how calibrated they are, against loops; and, simulated, the bias of the calibration error, how often its interval is right, and how many
of the doubted labels are wrong.

pytest tests/statistics -m slow -k examples -rP      # the full size, with the tables of docs/statistics.md
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.special import expit, ndtri

from harness.statistics.agreement import AGREED, doubted, flip_rates, if_wrong, votes
from harness.statistics.calibration import BINS, binned, brier, calibrated_error, calibration_error
from harness.statistics.difference import mean_interval

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


def test_the_calibration_error_and_the_brier_score_are_their_definitions() -> None:
    draw = np.random.default_rng(1)
    logits = draw.normal(size=(103, 4))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    gold = draw.integers(0, 4, 103)
    highest, right = shares.max(axis=1), shares.argmax(axis=1) == gold
    bins = binned(highest, right)
    assert (bins.count.sum(), len(bins.count)) == (103, BINS)
    assert bins.count.max() - bins.count.min() <= 1, "equal mass"
    order, total, start = np.argsort(highest), 0.0, 0
    for count in bins.count.astype(int):
        part = order[start : start + count]
        total += abs(sum(highest[part]) - sum(right[part])) / 103
        start += count
    assert calibration_error(bins) == pytest.approx(total)
    found = brier(shares, gold)
    assert found.score == pytest.approx(
        sum(sum((shares[i, c] - (gold[i] == c)) ** 2 for c in range(4)) for i in range(103)) / 103
    )
    assert found.score == pytest.approx(found.reliability - found.resolution + found.uncertainty + found.within)
    few = brier(np.eye(2)[[0, 1, 1, 0]], [0, 1, 1, 0])
    assert (few.score, few.reliability, few.within) == (0.0, 0.0, 0.0)
    assert few.resolution == few.uncertainty == 0.5


# ---------------------------------------------------------------------------------------------------------- simulations


def confident(factor: float, count: int, draw: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Predicted probabilities of two classes whose logits are `factor` times the true ones, labels, and the true probabilities of the second."""
    logits = draw.normal(0, 1.5, count)
    second = expit(factor * logits)
    return np.stack([1 - second, second], axis=1), (draw.random(count) < expit(logits)).astype(int), expit(logits)


def true_error(factor: float) -> float:
    shares, _, second = confident(factor, 400_000, np.random.default_rng(7))
    right = np.where(shares[:, 1] > 0.5, second, 1 - second)
    return float(np.abs(shares.max(axis=1) - right).mean())


@pytest.mark.parametrize("repeats", REPEATS)
def test_examples_the_calibration_error_is_too_large_by_what_is_printed_beside_it(repeats: int) -> None:
    draw, rows = np.random.default_rng(0), []
    for count, factor in itertools.product((100, 372, 1000), (1.0, 0.5, 2.0, 4.0)):
        found = []
        for _ in range(repeats):
            shares, gold, _ = confident(factor, count, draw)
            bins, parts = binned(shares.max(axis=1), shares.argmax(axis=1) == gold), brier(shares, gold)
            found.append((calibration_error(bins), calibrated_error(bins), parts.reliability, parts.resolution))
        rows.append((count, factor, true_error(factor), *np.mean(found, axis=0)))
    table = pd.DataFrame(rows, columns=["examples", "logits", "true", "ECE", "calibrated", "reliability", "resolution"])
    print(table.assign(bias=table["ECE"] - table["true"]).round(4).to_string())
    sound = table[table["logits"] == 1.0]
    assert sound["ECE"].to_numpy() == pytest.approx(sound["calibrated"].to_numpy(), rel=0.08)
    off = table[table["logits"] != 1.0]
    assert (off["ECE"] > off["true"] - 0.003).all()
    assert (off["ECE"] - off["true"] < off["calibrated"]).all(), "the bias is smaller where probabilities are wrong"


def errors_of(
    logits: NDArray[Any], gold: NDArray[Any], factors: NDArray[Any], draw: np.random.Generator
) -> NDArray[np.float64]:
    """The calibration error of a run for each place of `factors`, by which its logits are too large; with noise of their own."""
    second = expit(factors[..., None] * (logits + 0.5 * draw.normal(size=(*factors.shape, len(logits)))))
    highest, right = np.maximum(second, 1 - second), (second > 0.5) == gold
    order = highest.argsort(axis=-1)
    gaps = np.take_along_axis(right, order, axis=-1) - np.take_along_axis(highest, order, axis=-1)
    cuts = np.linspace(0, len(logits), BINS + 1).round().astype(int)[:-1]
    found = np.abs(np.add.reduceat(gaps, cuts, axis=-1)).sum(axis=-1) / len(logits)
    assert found.flat[0] == pytest.approx(calibration_error(binned(highest[0, 0], right[0, 0])))
    return np.asarray(found)


@pytest.mark.parametrize("repeats", REPEATS)
def test_examples_the_interval_of_a_calibration_error_holds_its_mean(repeats: int) -> None:
    """Runs on one test set of 372, whose logits differ by subset, seed and run; the mean over further subsets and seeds is that of 30 x 30."""
    draw = np.random.default_rng(3)
    for subsets, seeds in ((3, 3), (5, 3), (10, 3)):
        for by_subset, by_seed in ((0.0, 0.0), (0.4, 0.1), (0.1, 0.4)):

            def factors(a: int, b: int, x: float = by_subset, y: float = by_seed) -> NDArray[Any]:
                return np.asarray(np.exp(0.6 + x * draw.normal(size=(a, 1)) + y * draw.normal(size=(1, b))))

            held = []
            for _ in range(repeats // 10):
                logits = draw.normal(0, 1.5, 372)
                gold = draw.random(372) < expit(logits)
                truth = errors_of(logits, gold, factors(30, 30), draw).mean()
                for _ in range(10):
                    interval = mean_interval(errors_of(logits, gold, factors(subsets, seeds), draw))
                    assert interval is not None
                    held.append(interval.low <= truth <= interval.high)
            share = float(np.mean(held))
            print(f"{subsets}x{seeds}, sd {by_subset} by subset and {by_seed} by seed: {100 * share:.1f} % hold it")
            assert share > 0.93 - 3 * math.sqrt(0.05 * 0.95 / len(held))


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
