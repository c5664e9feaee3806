"""Metrics agree with scikit-learn and scipy, and are defined where those are not."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy import stats
from sklearn import metrics

from harness.errors import UserError
from harness.kinds import Predictions
from harness.tasks import metrics as ours


def score(metric: str, gold: ArrayLike, logits: ArrayLike) -> float:
    return ours.score(metric, Predictions({"logits": np.asarray(logits)}, np.asarray(gold)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("classes", [2, 3])
def test_class_metrics_agree_with_scikit_learn(seed: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(50, classes)).astype(np.float32)
    gold = rng.integers(0, classes, 50)
    predicted = logits.argmax(1)
    assert score("accuracy", gold, logits) == pytest.approx(metrics.accuracy_score(gold, predicted))
    assert score("balanced_accuracy", gold, logits) == pytest.approx(metrics.balanced_accuracy_score(gold, predicted))
    assert score("mcc", gold, logits) == pytest.approx(metrics.matthews_corrcoef(gold, predicted))
    if classes == 2:
        assert score("f1", gold, logits) == pytest.approx(metrics.f1_score(gold, predicted))


@pytest.mark.parametrize("seed", range(5))
def test_correlations_agree_with_scipy_with_ties(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, 6, 40).astype(np.float32)
    logits = np.round(rng.normal(size=(40, 1)), 1).astype(np.float32)
    assert score("spearman", gold, logits) == pytest.approx(stats.spearmanr(gold, logits[:, 0])[0])
    assert score("pearson", gold, logits) == pytest.approx(stats.pearsonr(gold, logits[:, 0])[0], rel=1e-5)


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
    with pytest.raises(UserError, match=r"unknown metric 'acuracy'. Did you mean 'accuracy'"):
        score("acuracy", [0], np.zeros((1, 2)))
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


@pytest.mark.parametrize("metric", ["f1_macro", "f1_micro", "f1_weighted"])
def test_averaged_f1_ignores_the_names_of_the_classes(metric: str) -> None:
    """Renumbering the classes changes nothing; a class that nobody holds changes nothing; a collapsed model is no error."""
    rng = np.random.default_rng(0)
    gold, predicted = rng.integers(0, 4, 60), rng.integers(0, 4, 60)
    renumbered = np.array([2, 0, 3, 1])
    value = score(metric, gold, np.eye(4)[predicted])
    assert score(metric, renumbered[gold], np.eye(4)[renumbered[predicted]]) == pytest.approx(value)
    assert score(metric, gold, np.eye(6)[predicted]) == pytest.approx(value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert 0 <= score(metric, gold, np.tile([1.0, 0, 0, 0], (60, 1))) < 0.5


def test_balanced_accuracy_leaves_out_a_class_without_gold_rows() -> None:
    logits = np.eye(3)[[0, 0, 2, 1]]
    assert score("balanced_accuracy", [0, 0, 0, 1], logits) == pytest.approx((2 / 3 + 1) / 2)
