"""The test examples of a table over its runs, from stored predictions: what most runs predict, which examples flip between replicates, which labels are
doubted; and of the user's own tasks the metrics of each row and the classes of the best one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.errors import UserError
from harness.planning.runs import Plan
from harness.scores import with_records
from harness.store import Store
from harness.store.records import predicted_by
from harness.tasks.metrics import METRICS
from harness.views.cells import Grid
from harness.views.view import DASH, Table, View
from harness.wording import counted, in_points, training_examples

AGREED = 0.9
"""Share of runs that predict the same other class than the label, from which on the label is doubted."""
SHOWN = 20
"""Examples that are printed."""
ABOUT = "Flips: the share of pairs of runs of a row that predict different classes (points, x100)."
HEAD = ("Column", "Size", "Example", "Label", "Consensus", "Right", "Flips", "Text")


def examples(plan: Plan, store: Store, grid: Grid, with_texts: bool = True) -> View:
    """The frame has a row an example of a column at a size, the doubted first, with its texts as 'text.COLUMN' where the data are at hand. Raises
    UserError where no finished run predicts classes."""
    r, counted_runs = grid.resolved, with_records(grid.counted)
    frames, lines, skipped = list[pd.DataFrame](), list[str](), dict[str, None]()
    for size, (name, column) in itertools.product(r.sizes, r.columns.items()):
        data = plan.tasks[column.task]
        if not (names := data.task.kind.names):
            kind = data.task.kind.description
            skipped[f"{column.title} is left out: {kind}, which has no classes to agree on."] = None
            continue
        digest = data.tests[column.evaluation].digest
        counts: dict[str, NDArray[np.int64]] = {}
        gold, shares = np.empty(0, dtype=np.int64), np.zeros(1)
        mine = counted_runs[(counted_runs["size"] == size) & (counted_runs["column"] == name)]
        # two rows may share a run; of a row without seeds each is there once
        for row, key in mine[["row", "key"]].drop_duplicates().itertuples(index=False):
            predicted = predicted_by(store.records([key], predictions=True)[key], digest)
            counts[row] = counts.get(row, 0) + np.eye(len(names), dtype=np.int64)[predicted.decoded]
            gold, shares = np.asarray(predicted.gold), shares + predicted.probabilities
        if not counts:
            continue
        frame = example_frame(counts, gold, names, shares).assign(size=size, column=name)
        if with_texts and (texts := plan.library.get(digest)) is not None:
            columns = zip(*(texts.texts[place] for place in range(len(frame))), strict=True)
            frame = frame.assign(**{f"text.{title}": of for title, of in zip(data.task.columns, columns, strict=True)})
        frames.append(frame)
        wrong, doubts = int(frame["all_rows_wrong"].sum()), int(frame["doubted"].sum())
        lines.append(
            f"{column.title}, {training_examples(size, r.protocol.size_unit)}: the consensus of {'every row' if len(counts) > 1 else 'the row'} is wrong on {wrong:,} of "
            f"{counted(len(frame), 'test example')}; {counted(doubts, 'label')} {'is' if doubts == 1 else 'are'} doubted "
            f"({100 * AGREED:g} % of {frame['runs'].iloc[0]} runs or more agree on one other class)."
        )
    if not frames:
        raise UserError(" ".join(["examples: no finished run of this table predicts classes.", *skipped]))
    found = pd.concat(frames, ignore_index=True)
    order = ["doubted", "gold_probability"]
    found = found.sort_values(order, ascending=[False, True], kind="stable", ignore_index=True)
    found = found[["size", "column", *found.columns.drop(["size", "column"])]]
    shown = found.head(SHOWN).to_dict("records")
    title = f"The {len(shown)} labels that are doubted most, of {counted(len(found), 'example')}"
    width = len(HEAD) - (not any(str(name).startswith("text.") for name in found))
    doubts_table = Table(title, HEAD[:width], [_doubt(grid, each)[:width] for each in shown], {0, 3, 4, 7})
    return View("examples", found, [doubts_table], [*lines, ABOUT, *skipped], about={"table": r.table.name})


def example_frame(
    counts: Mapping[str, NDArray[np.int64]], gold: NDArray[Any], names: Sequence[str], shares: NDArray[np.float64]
) -> pd.DataFrame:
    """One row an example. `counts` [n, C]: how many runs of a row predict each class; `shares` [n, C]: probabilities, summed over all runs."""
    every, place = np.sum([*counts.values()], axis=0), np.arange(len(gold))
    consensus, runs = every.argmax(axis=1), int(every[0].sum())  # of equally many the lowest code
    wrong = sum((of.argmax(axis=1) != gold).astype(int) for of in counts.values())
    pairs = {row: n * (n - 1) for row, of in counts.items() if (n := int(of[0].sum())) > 1}
    flips = [1 - (counts[row] * (counts[row] - 1)).sum(axis=1) / number for row, number in pairs.items()]
    columns = {
        "example": place + 1,
        "gold": [names[code] for code in gold],
        "consensus": [names[code] for code in consensus],
        "runs": runs,
        "agreement": every.max(axis=1) / runs,
        "right": every[place, gold] / runs,
        "gold_probability": shares[place, gold] / runs,
        "flips": np.mean(flips, axis=0) if flips else np.nan,
        "rows_wrong": wrong,
        "all_rows_wrong": wrong == len(counts),
        "doubted": (consensus != gold) & (every.max(axis=1) / runs >= AGREED),
    }
    rights = {f"right.{row}": of[place, gold] / of[0].sum() for row, of in counts.items()}
    return pd.DataFrame(columns | rights)


def _doubt(grid: Grid, each: Mapping[Any, Any]) -> list[str]:
    texts = [str(value) for name, value in each.items() if str(name).startswith("text.") and value == value]
    shares = [DASH if value != value else in_points(value) for value in (each["right"], each["flips"])]
    place = grid.column_name(each["column"]), f"{each['size']:,}" if each["size"] else "full", f"{each['example']:,}"
    return [*place, each["gold"], each["consensus"], *shares, " | ".join(texts)]


COLUMNS = ("column", "size", "row", "class", "gold", "precision", "recall", "f1")
"""Of the frame: `gold`: test rows of the class; the others are means over the runs of the best row, 1 for 100 %."""


def classes_view(plan: Plan, store: Store, grid: Grid) -> View:
    """Of each test set of the user's own tasks with classes, at its largest size: the metrics of the rows whose runs are all done, and the classes of the best
    row."""
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
        where = training_examples(size, r.protocol.size_unit) if size else "the full training set"
        tables += class_tables(f"{column.title}, {where}", means, best, classes)
        found.append(classes.assign(column=column.title, size=size, row=best))
    frame = pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=[*COLUMNS])
    lines = [] if tables else ["No task of your own with classes has a row whose runs are all done."]
    return View("classes", frame[[*COLUMNS]], tables, lines)


def class_scores(classes: Sequence[str], runs: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> pd.DataFrame:
    """A row a class: means over `runs` of (gold [n], predicted [n]); what is undefined is 0. `other`: the class that it is most often taken for, and for how many
    test rows."""
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    codes = range(len(classes))
    scores = [precision_recall_fscore_support(*run, labels=codes, zero_division=0.0)[:3] for run in runs]
    frame = pd.DataFrame(np.mean(scores, axis=0).T, columns=["precision", "recall", "f1"])
    wrong = np.mean([confusion_matrix(*run, labels=codes) for run in runs], axis=0)
    np.fill_diagonal(wrong, 0)
    other = [f"{classes[row.argmax()]} {row.max():.1f}" if row.any() else "" for row in wrong]
    return frame.assign(**{"class": [*classes]}, gold=np.bincount(runs[0][0], minlength=len(classes)), other=other)


def class_tables(place: str, means: pd.DataFrame, best: str, classes: pd.DataFrame) -> list[Table]:
    """`means`: of each row (index) and metric."""
    titles = [METRICS[str(metric)].title for metric in means]
    rows = [[str(row), *map(in_points, values)] for row, *values in means.itertuples()]
    records = classes.to_dict("records")
    shares = [[in_points(each[name]) for name in ("precision", "recall", "f1")] for each in records]
    body = [[e["class"], f"{e['gold']:,}", *of, e["other"]] for e, of in zip(records, shares, strict=True)]
    first = f"{place}: means over the runs on {classes['gold'].sum():,} test examples"
    second = f"{place}: classes under {best}, the highest mean {titles[0]}"
    head = ["Class", "Test", "Precision", "Recall", "F1", "Most often as"]
    return [Table(first, ["Method", *titles], rows), Table(second, head, body)]
