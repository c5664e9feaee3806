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

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[Any]


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
