"""The test examples of a table over its runs: what most runs predict, which examples flip between replicates, which labels are doubted. Of tasks with
classes, from stored predictions."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.planning.runs import Plan
from harness.scores import with_records
from harness.store import Store
from harness.store.rows import predicted_by
from harness.views.cells import Grid
from harness.views.runs import column_name, no_runs, runs_of
from harness.views.view import DASH, Table, View
from harness.wording import counted, in_points, training_examples

if TYPE_CHECKING:
    import pandas as pd

AGREED = 0.9
"""Share of runs that predict the same other class than the label, from which on the label is doubted."""
SHOWN = 20
"""Examples that are printed."""
ABOUT = "Flips: the share of pairs of runs of a row that predict different classes (points, x100)."
HEAD = ("Column", "Size", "Example", "Label", "Consensus", "Right", "Flips", "Text")


def examples(plan: Plan, store: Store, grid: Grid, with_texts: bool = True) -> View:
    """The frame has a row an example of a column at a size, the doubted first, with its texts as 'text.COLUMN' where the data are at hand. Raises
    UserError where no finished run predicts classes."""
    import pandas as pd

    grid, r = replace(grid, results=with_records(grid.results)), grid.resolved
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
        for row, key in _keys(grid, size, name):
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
        lines.append(_line(f"{column.title}, {training_examples(size, r.size_unit)}", frame, len(counts)))
    if not frames:
        raise UserError(" ".join(["examples: no finished run of this table predicts classes.", *skipped]))
    found = pd.concat(frames, ignore_index=True)
    order = ["doubted", "gold_probability"]
    found = found.sort_values(order, ascending=[False, True], kind="stable", ignore_index=True)
    found = found[["size", "column", *found.columns.drop(["size", "column"])]]
    shown = found.head(SHOWN).to_dict("records")
    title = f"The {len(shown)} labels that are doubted most, of {counted(len(found), 'example')}"
    width = len(HEAD) - (not any(str(name).startswith("text.") for name in found))
    doubts = Table(title, HEAD[:width], [_doubt(grid, each)[:width] for each in shown], {0, 3, 4, 7})
    return View("examples", found, [doubts], [*lines, ABOUT, *skipped], about={"table": r.table.name})


def _keys(grid: Grid, size: int, column: str) -> list[tuple[str, str]]:
    """(row as printed, key) of each run that counts, in the order of the table. Two rows may share a run; of a row without seeds each is there once."""
    results: Any = grid.results[(grid.results["size"] == size) & (grid.results["column"] == column)]
    known = {(each.row, each.subset, each.seed): each.key for each in results.itertuples() if each.status == "done"}
    found = dict[tuple[str, str], None]()
    for row in grid.resolved.printed_rows:
        runs: Any = runs_of(grid).get((size, row, column), no_runs())
        for place, configuration in runs["configuration"].items():
            if configuration:  # '': several count, and their mean is the replicate's score
                found[row, known[configuration, *place]] = None
    return [*found]


def example_frame(
    counts: Mapping[str, NDArray[np.int64]], gold: NDArray[Any], names: Sequence[str], shares: NDArray[np.float64]
) -> pd.DataFrame:
    """One row an example. `counts` [n, C]: how many runs of a row predict each class; `shares` [n, C]: probabilities, summed over all runs."""
    import pandas as pd

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


def _line(place: str, frame: pd.DataFrame, rows: int) -> str:
    """What all rows get wrong, and how many labels are doubted."""
    wrong, doubts = int(frame["all_rows_wrong"].sum()), int(frame["doubted"].sum())
    return (
        f"{place}: the consensus of {'every row' if rows > 1 else 'the row'} is wrong on {wrong:,} of {counted(len(frame), 'test example')}; "
        f"{counted(doubts, 'label')} {'is' if doubts == 1 else 'are'} doubted ({100 * AGREED:g} % of {frame['runs'].iloc[0]} runs or more agree on one other class)."
    )


def _doubt(grid: Grid, each: Mapping[Any, Any]) -> list[str]:
    texts = [str(value) for name, value in each.items() if str(name).startswith("text.") and value == value]
    shares = [DASH if value != value else in_points(value) for value in (each["right"], each["flips"])]
    place = column_name(grid, each["column"]), f"{each['size']:,}" if each["size"] else "full", f"{each['example']:,}"
    return [*place, each["gold"], each["consensus"], *shares, " | ".join(texts)]
