"""The classes of the best row against a naive count."""

from __future__ import annotations

import numpy as np
import pytest

from harness.views.examples import class_scores

CLASSES = ("a", "b", "c")


def test_precision_recall_f1_and_confusion_are_means_over_runs() -> None:
    generator = np.random.default_rng(1)
    gold = generator.integers(0, 3, 40)
    runs = [(gold, generator.integers(0, 3, 40)) for _ in range(3)]
    for code, each in enumerate(class_scores(CLASSES, runs).to_dict("records")):
        precision, recall, f1, confusion = [], [], [], np.zeros(3)
        for _, predicted in runs:
            hits = int(((gold == code) & (predicted == code)).sum())
            precision.append(hits / int((predicted == code).sum()))
            recall.append(hits / int((gold == code).sum()))
            f1.append(2 * hits / int((predicted == code).sum() + (gold == code).sum()))
            for other in {0, 1, 2} - {code}:
                confusion[other] += ((gold == code) & (predicted == other)).sum() / 3
        expected = (np.mean(precision), np.mean(recall), np.mean(f1))
        assert (each["precision"], each["recall"], each["f1"]) == pytest.approx(expected)
        assert each["other"] == f"{CLASSES[int(confusion.argmax())]} {confusion.max():.1f}"
        assert (each["class"], each["gold"]) == (CLASSES[code], int((gold == code).sum()))


def test_a_class_that_is_never_predicted_has_zeros() -> None:
    gold = np.array([0, 0, 1])
    never = class_scores(CLASSES, [(gold, np.zeros(3, dtype=int))])
    assert (never.loc[1:, ["precision", "recall", "f1"]] == 0).all(axis=None)
    assert (never["recall"][0], never["other"].tolist()) == (1, ["", "a 1.0", ""])
