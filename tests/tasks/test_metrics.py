"""Metrics agree with scikit-learn and scipy, and are defined where those are not."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from numpy.typing import ArrayLike

from harness.kinds import Predictions
from harness.tasks import metrics as ours


def score(metric: str, gold: ArrayLike, logits: ArrayLike) -> float:
    return ours.score(metric, Predictions({"logits": np.asarray(logits)}, np.asarray(gold)))


def test_metrics_by_hand() -> None:
    """Three right of five: of class 1 two, with one wrongly predicted and one missed. Scores rise together, but not in a line."""
    gold, predicted = [0, 0, 1, 1, 1], [0, 1, 1, 1, 0]
    expected = {"accuracy": 3 / 5, "balanced_accuracy": (1 / 2 + 2 / 3) / 2, "f1": 4 / 6, "mcc": 1 / 6}
    for metric, value in expected.items():
        assert score(metric, gold, np.eye(2)[predicted]) == pytest.approx(value)
    assert score("spearman", [1.0, 2.0, 3.0], [[1], [2], [9]]) == pytest.approx(1)
    assert score("pearson", [1.0, 2.0, 3.0], [[1], [2], [9]]) == pytest.approx(8 / 76**0.5)


def test_a_class_that_nobody_holds_changes_nothing_and_a_collapsed_model_is_no_error() -> None:
    gold = [0, 1, 2, 2]
    for metric in ("f1_macro", "f1_micro", "f1_weighted"):
        assert score(metric, gold, np.eye(6)[[0, 1, 2, 1]]) == score(metric, gold, np.eye(3)[[0, 1, 2, 1]])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert 0 <= score(metric, gold, np.eye(3)[[0] * 4]) < 0.5


@pytest.mark.parametrize("metric", ["spearman", "pearson"])
def test_constant_or_single_scores_are_zero(metric: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert score(metric, [1.0, 2.0, 3.0], np.ones((3, 1))) == 0.0
        assert score(metric, [2.0, 2.0, 2.0], np.arange(3.0)[:, None]) == 0.0
        assert score(metric, [1.0], np.ones((1, 1))) == 0.0


def test_ties_go_to_the_lowest_class() -> None:
    assert score("accuracy", [0, 0], np.zeros((2, 3))) == 1.0


def test_what_has_no_score_is_refused() -> None:
    for metric, gold, logits in [
        ("accuracy", [0], np.array([[np.nan, 0.0]])),
        ("pearson", [0.0, 1.0], np.array([[np.inf], [0.0]])),
        ("accuracy", [0, 1], np.zeros((1, 2))),
        ("accuracy", [], np.zeros((0, 2))),
        ("accuracy", [0], np.zeros(2)),
        ("accuracy", [0], np.zeros((1, 1))),
        ("pearson", [0.0], np.zeros((1, 2))),
        ("f1", [0], np.zeros((1, 3))),
    ]:
        with pytest.raises(ValueError, match=metric):
            score(metric, gold, logits)


def test_averaged_f1_by_hand() -> None:
    """Gold has 4, 3 and 1 rows of its classes. Class 0: 3 right, 1 wrongly predicted, 1 missed; class 1: 2, 1, 1; class 2: 0, 1, 1."""
    gold = [0, 0, 0, 0, 1, 1, 1, 2]
    predicted = [0, 0, 0, 1, 1, 1, 2, 0]
    logits = np.eye(3)[predicted]
    f1 = [2 * 3 / (2 * 3 + 1 + 1), 2 * 2 / (2 * 2 + 1 + 1), 0.0]
    assert score("f1_macro", gold, logits) == pytest.approx(sum(f1) / 3)
    assert score("f1_weighted", gold, logits) == pytest.approx((4 * f1[0] + 3 * f1[1] + 1 * f1[2]) / 8)
    assert score("f1_micro", gold, logits) == pytest.approx(5 / 8)


def test_balanced_accuracy_leaves_out_a_class_without_gold_rows() -> None:
    logits = np.eye(3)[[0, 0, 2, 1]]
    assert score("balanced_accuracy", [0, 0, 0, 1], logits) == pytest.approx((2 / 3 + 1) / 2)
