"""What the scores of a user's own task are made of: F1 in its averages for each row, and the classes of the best row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.planning.aggregation import mean
from harness.planning.runs import Plan
from harness.store import Store
from harness.store.rows import predicted_by
from harness.tasks.metrics import METRICS
from harness.views.view import Table, View
from harness.wording import in_points, training_examples

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[Any]
MOST_CONFUSED = 8
"""Classes of which the whole confusion matrix is shown."""


@dataclass(frozen=True)
class ClassScores:
    """One class under the best row, means over its runs, 1 for 100 %. `gold`: its test rows; `predicted`: how many of them each
    class is predicted for, in the order of the classes."""

    name: str
    gold: int
    precision: float
    recall: float
    f1: float
    predicted: tuple[float, ...]


@dataclass(frozen=True)
class ClassReport:
    """A task at its largest size. `rows`: (row, means of `metrics` over its runs) of each row that is done; `best`: the one with the
    highest mean of the first metric, whose `classes` follow."""

    title: str
    size: int
    test_rows: int
    metrics: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float, ...]], ...]
    best: str
    classes: tuple[ClassScores, ...]


def class_reports(plan: Plan, store: Store, results: pd.DataFrame) -> tuple[ClassReport, ...]:
    """A report for each test set of the user's own tasks with classes, from the scores and the recorded predictions of its runs. Rows
    with runs that are not done are left out."""
    reports = []
    sizes = plan.resolved.sizes
    size = 0 if 0 in sizes else max(sizes)
    expected = len(plan.resolved.replicates_at(size))
    done = results[(results["size"] == size) & (results["status"] == "done") & results["test"].notna()]
    for name, column in plan.resolved.columns.items():
        data = plan.tasks[column.task]
        if not data.task.own or not data.task.classes:
            continue
        scores: dict[str, dict[str, list[float]]] = {}
        for (row, metric), runs in done[done["column"] == name].groupby(["row", "metric"], sort=False):
            if len(runs) == expected:
                scores.setdefault(str(row), {})[str(metric)] = runs["test"].tolist()
        rows = {row: tuple(map(mean, each.values())) for row, each in scores.items() if column.metric in each}
        if rows:
            best = max(rows, key=lambda row: rows[row][0])
            runs = done[(done["column"] == name) & (done["row"] == best) & (done["metric"] == column.metric)]
            digest = data.tests[column.evaluation].digest
            predicted = [_predicted(store, key, digest) for key in runs["key"]]
            classes = class_scores(data.task.classes, predicted)
            metrics = tuple(scores[best])
            count = len(predicted[0][0])
            reports.append(ClassReport(column.title, size, count, metrics, tuple(rows.items()), best, classes))
    return tuple(reports)


def _predicted(store: Store, key: str, digest: str) -> tuple[Array, Array]:
    """Gold and predicted classes of a run, [n] each."""
    predictions = predicted_by(store.records([key], predictions=True)[key], digest)
    return np.asarray(predictions.gold), predictions.decoded


def class_scores(classes: Sequence[str], runs: Sequence[tuple[Array, Array]]) -> tuple[ClassScores, ...]:
    """Each class over `runs` of (gold [n], predicted [n]); what is undefined is 0."""
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    codes = list(range(len(classes)))
    matrix = np.mean([confusion_matrix(gold, labels, labels=codes) for gold, labels in runs], axis=0)
    scores = np.mean(
        [precision_recall_fscore_support(gold, labels, labels=codes, zero_division=0.0)[:3] for gold, labels in runs],
        axis=0,
    )
    counts = np.bincount(runs[0][0], minlength=len(codes))
    columns = enumerate(scores.T.tolist())
    return tuple(
        ClassScores(classes[c], int(counts[c]), precision, recall, f1, tuple(matrix[c].tolist()))
        for c, (precision, recall, f1) in columns
    )


def classes_view(reports: Sequence[ClassReport], size_unit: str) -> View:
    """For each of a user's own tasks the scores of each row, and the classes of its best row."""
    import pandas as pd

    tables, found = [], []
    for report in reports:
        size = training_examples(report.size, size_unit) if report.size else "the full training set"
        title = f"{report.title}, {size}: means over the runs on {report.test_rows:,} test examples"
        head = ["Method", *(METRICS[metric].title for metric in report.metrics)]
        tables.append(Table(title, head, [[row, *map(in_points, means)] for row, means in report.rows]))
        names = [each.name for each in report.classes]
        whole = len(names) <= MOST_CONFUSED
        rows = [
            [each.name, f"{each.gold:,}", *map(in_points, (each.precision, each.recall, each.f1))]
            + ([f"{value:.1f}" for value in each.predicted] if whole else [_confused(each, names)])
            for each in report.classes
        ]
        best = (
            f"{report.title}, {size}: classes under {report.best}, the highest mean {METRICS[report.metrics[0]].title}"
        )
        head = [
            "Class",
            "Test",
            "Precision",
            "Recall",
            "F1",
            *([f"as {name}" for name in names] if whole else ["Most often as"]),
        ]
        tables.append(Table(f"{best}; 'as': for how many test examples a class is predicted", head, rows))
        place = {"column": report.title, "size": report.size, "row": report.best}
        found += [{**place, "class": each.name, **{n: getattr(each, n) for n in _SCORES}} for each in report.classes]
    lines = [] if tables else ["No task of your own with classes has a row whose runs are all done."]
    return View("classes", pd.DataFrame(found, columns=["column", "size", "row", "class", *_SCORES]), tables, lines)


_SCORES = ("gold", "precision", "recall", "f1")


def _confused(scores: ClassScores, names: Sequence[str]) -> str:
    """The wrong class that is predicted most often for a class, and for how many examples."""
    wrong = [(count, name) for name, count in zip(names, scores.predicted, strict=True) if name != scores.name]
    count, name = max(wrong, key=lambda pair: pair[0])
    return f"{name} {count:.1f}" if count else ""
