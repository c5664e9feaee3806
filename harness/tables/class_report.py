"""What the scores of a user's own task are made of: F1 in its averages for each row, and the classes of the best row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.specs import Record, Run
from harness.store import Store
from harness.tables.plan import Plan
from harness.tasks import METRICS, Task, score

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
    """A task at its largest size. `rows`: (row, runs, means of `metrics`) of each row that is done; `best`: the one with the highest
    mean of the first metric, whose `classes` follow."""

    title: str
    size: int
    test_rows: int
    metrics: tuple[str, ...]
    rows: tuple[tuple[str, int, tuple[float, ...]], ...]
    best: str
    classes: tuple[ClassScores, ...]


def class_reports(plan: Plan, store: Store) -> tuple[ClassReport, ...]:
    """A report for each test set of the user's own tasks with classes, from recorded predictions; rows with runs that are not done
    are left out."""
    return tuple(_reports(plan, store))


def _reports(plan: Plan, store: Store) -> Iterator[ClassReport]:
    sizes = plan.resolved.sizes
    size = 0 if 0 in sizes else max(sizes)
    for name, data in plan.tasks.items():
        if not data.task.own or data.task.regression:
            continue
        runs = [run for run in plan.runs if run.task == name and run.size == size]
        columns = {c.evaluation: c for c in plan.resolved.columns.values() if c.task == name}
        for evaluation, column in columns.items():
            digest = data.tests[evaluation].digest
            found = {
                row: each
                for row, each in _predictions(store, runs, digest).items()
                if len(each) == sum(run.row == row for run in runs)
            }
            if found:
                metrics = dict.fromkeys((column.metric, *data.task.metrics))
                yield _report(column.title, size, data.task, tuple(metrics), found)


def _predictions(store: Store, runs: Sequence[Run], digest: str) -> dict[str, list[tuple[Array, Array]]]:
    """(gold [n], logits [n, c]) of each finished run by row."""
    found: dict[str, list[tuple[Array, Array]]] = {}
    for run in runs:
        record: Record | None = store.records([run.stage.key], predictions=True).get(run.stage.key)
        if record and record.status == "done":
            predicted = record.predictions[digest]
            found.setdefault(run.row, []).append((np.asarray(predicted.gold), predicted.logits))
    return found


def _report(
    title: str, size: int, task: Task, metrics: tuple[str, ...], found: dict[str, list[tuple[Array, Array]]]
) -> ClassReport:
    shown = tuple(metric for metric in metrics if METRICS[metric].applies(task.num_labels))
    rows = []
    for row, runs in found.items():
        means = tuple(float(np.mean([score(metric, gold, logits) for gold, logits in runs])) for metric in shown)
        rows.append((row, len(runs), means))
    best = max(rows, key=lambda each: each[2][0])[0]
    gold = found[best][0][0]
    return ClassReport(title, size, len(gold), shown, tuple(rows), best, _classes(task, found[best]))


def _classes(task: Task, runs: Sequence[tuple[Array, Array]]) -> tuple[ClassScores, ...]:
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    codes = list(range(len(task.classes)))
    predicted = [(gold, logits.argmax(axis=1)) for gold, logits in runs]
    matrix = np.mean([confusion_matrix(gold, labels, labels=codes) for gold, labels in predicted], axis=0)
    scores = np.mean(
        [
            precision_recall_fscore_support(gold, labels, labels=codes, zero_division=0.0)[:3]
            for gold, labels in predicted
        ],
        axis=0,
    )
    counts = np.bincount(runs[0][0], minlength=len(codes))
    columns = enumerate(scores.T.tolist())
    return tuple(
        ClassScores(task.classes[c], int(counts[c]), precision, recall, f1, tuple(matrix[c].tolist()))
        for c, (precision, recall, f1) in columns
    )
