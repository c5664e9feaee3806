"""What the scores of a user's own task are made of: its metrics for each row, and the classes of the best row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.planning.runs import Plan
from harness.scores import with_records
from harness.store import Store
from harness.store.rows import predicted_by
from harness.tasks.metrics import METRICS
from harness.views.cells import Grid
from harness.views.view import Table, View
from harness.wording import in_points, training_examples

if TYPE_CHECKING:
    import pandas as pd

MOST_CONFUSED = 8
"""Classes of which the whole confusion matrix is shown."""
COLUMNS = ("column", "size", "row", "class", "gold", "precision", "recall", "f1")
"""Of the frame: `gold`: test rows of the class; the others are means over the runs of the best row, 1 for 100 %."""


def classes_view(plan: Plan, store: Store, grid: Grid) -> View:
    """Of each test set of the user's own tasks with classes, at its largest size: the metrics of the rows whose runs are all done, and the classes of the best
    row."""
    import pandas as pd

    r, tables, found = grid.resolved, list[Table](), list[pd.DataFrame]()
    size = 0 if 0 in r.sizes else max(r.sizes)
    results = with_records(grid.results)
    done = results[(results["size"] == size) & (results["status"] == "done") & results["test"].notna()]
    for name, column in r.columns.items():
        data = plan.tasks[column.task]
        mine = done[done["column"] == name]
        by_row = mine.groupby(["row", "metric"], sort=False)["test"].agg(["mean", "size"])
        means = by_row.loc[by_row["size"] == len(r.replicates_at(size)), "mean"].unstack(sort=False)
        if not data.task.own or not data.task.classes or column.metric not in means:
            continue
        best, digest = str(means[column.metric].idxmax()), data.tests[column.evaluation].digest
        keys = mine.loc[(mine["row"] == best) & (mine["metric"] == column.metric), "key"]
        runs = (predicted_by(store.records([key], predictions=True)[key], digest) for key in keys)
        classes = class_scores(data.task.classes, [(np.asarray(each.gold), each.decoded) for each in runs])
        where = training_examples(size, r.size_unit) if size else "the full training set"
        tables += class_tables(f"{column.title}, {where}", means, best, classes)
        found.append(classes.assign(column=column.title, size=size, row=best))
    frame = pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=[*COLUMNS])
    lines = [] if tables else ["No task of your own with classes has a row whose runs are all done."]
    return View("classes", frame[[*COLUMNS]], tables, lines)


def class_scores(classes: Sequence[str], runs: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> pd.DataFrame:
    """A row a class: means over `runs` of (gold [n], predicted [n]); what is undefined is 0. In `as`, for how many test rows of a class each is predicted."""
    import pandas as pd
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    codes = range(len(classes))
    scores = [precision_recall_fscore_support(*run, labels=codes, zero_division=0.0)[:3] for run in runs]
    frame = pd.DataFrame(np.mean(scores, axis=0).T, columns=["precision", "recall", "f1"])
    confused = np.mean([confusion_matrix(*run, labels=codes) for run in runs], axis=0)
    gold = np.bincount(runs[0][0], minlength=len(classes))
    return frame.assign(**{"class": [*classes], "gold": gold, "as": confused.tolist()})


def class_tables(place: str, means: pd.DataFrame, best: str, classes: pd.DataFrame) -> list[Table]:
    """`means`: of each row (index) and metric."""
    titles, names = [METRICS[str(metric)].title for metric in means], classes["class"].tolist()
    rows = [[str(row), *map(in_points, values)] for row, *values in means.itertuples()]
    whole = len(names) <= MOST_CONFUSED
    body = []
    for each in classes.to_dict("records"):
        wrong, other = max(
            (count, name) for count, name in zip(each["as"], names, strict=True) if name != each["class"]
        )
        confused = [f"{count:.1f}" for count in each["as"]] if whole else [f"{other} {wrong:.1f}" if wrong else ""]
        scores = map(in_points, (each["precision"], each["recall"], each["f1"]))
        body.append([each["class"], f"{each['gold']:,}", *scores, *confused])
    head = ["Class", "Test", "Precision", "Recall", "F1"]
    head += [f"as {name}" for name in names] if whole else ["Most often as"]
    first = f"{place}: means over the runs on {classes['gold'].sum():,} test examples"
    second = f"{place}: classes under {best}, the highest mean {titles[0]}; 'as': for how many test examples a class is predicted"
    return [Table(first, ["Method", *titles], rows), Table(second, head, body)]
