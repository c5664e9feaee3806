"""The classes of the best row against a naive count."""

from __future__ import annotations

import numpy as np
import pytest

from harness.tasks.metrics import METRICS, Metric
from harness.views.classes import ClassReport, class_scores, classes_view

CLASSES = ("a", "b", "c")


def test_precision_recall_f1_and_confusion_are_means_over_runs() -> None:
    generator = np.random.default_rng(1)
    gold = generator.integers(0, 3, 40)
    runs = [(gold, generator.integers(0, 3, 40)) for _ in range(3)]
    for code, each in enumerate(class_scores(CLASSES, runs)):
        precision, recall, f1, confusion = [], [], [], np.zeros(3)
        for _, predicted in runs:
            hits = int(((gold == code) & (predicted == code)).sum())
            precision.append(hits / int((predicted == code).sum()))
            recall.append(hits / int((gold == code).sum()))
            f1.append(2 * hits / int((predicted == code).sum() + (gold == code).sum()))
            for other in range(3):
                confusion[other] += ((gold == code) & (predicted == other)).sum() / 3
        expected = (np.mean(precision), np.mean(recall), np.mean(f1))
        assert (each.precision, each.recall, each.f1) == pytest.approx(expected)
        assert each.predicted == pytest.approx(tuple(confusion))
        assert (each.name, each.gold) == (CLASSES[code], int((gold == code).sum()))


def test_a_class_that_is_never_predicted_has_zeros() -> None:
    gold = np.array([0, 0, 1])
    never = class_scores(CLASSES, [(gold, np.zeros(3, dtype=int))])
    assert [(each.precision, each.recall, each.f1) for each in never[1:]] == [(0, 0, 0), (0, 0, 0)]
    assert (never[0].recall, never[1].predicted) == (1, (1.0, 0.0, 0.0))


def test_many_classes_show_the_most_frequent_confusion() -> None:
    gold = np.arange(12).repeat(2)
    classes = class_scores([f"c{i}" for i in range(12)], [(gold, np.where(gold == 3, 7, gold))])
    report = ClassReport("Mine", 50, 24, ("accuracy",), (("FT", (0.91666,)),), "FT", classes)
    scores, confusions = classes_view([report], "training examples").tables
    title, head, body = confusions.title, confusions.head, confusions.rows
    assert scores.rows == [["FT", "91.67"]]
    assert "50 training examples: classes under FT" in title
    assert head[-1] == "Most often as"
    assert body[3][-1] == "c7 2.0"
    assert body[0] == ["c0", "2", "100.00", "100.00", "100.00", ""]


@pytest.mark.parametrize("format", ["text", "md", "latex"])
def test_a_metric_that_is_added_needs_no_second_list(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, "hits", Metric("hits", "number of hits", "class", lambda gold, predicted: 1.0))
    classes = class_scores(CLASSES, [(np.arange(3), np.arange(3))])
    report = ClassReport("Mine", 0, 3, ("hits", "accuracy"), (("FT", (1.0, 1.0)),), "FT", classes)
    view = classes_view([report], "training examples")
    scores, confusions = view.tables
    assert scores.head == ["Method", "number of hits", "accuracy"]
    assert "number of hits" in confusions.title
    assert "number of hits" in str(view.written(format))
    assert view.frame["class"].tolist() == ["a", "b", "c"]
