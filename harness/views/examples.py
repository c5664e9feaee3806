"""The test examples of a table over its runs: what most runs predict, which examples flip between replicates, which labels are doubted. Of tasks with
classes, from stored predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.planning.runs import Plan
from harness.scores import with_records
from harness.specs import Record
from harness.statistics.agreement import AGREED, doubted, flip_rates, votes
from harness.statistics.design import full_grid
from harness.store import Store
from harness.store.rows import predicted_by
from harness.tasks.metrics import METRICS
from harness.views.cells import Grid, Place
from harness.views.runs import Pair, column_name, no_runs, runs_of, size_name
from harness.views.view import DASH, Table, View
from harness.wording import counted, in_points, training_examples

if TYPE_CHECKING:
    import pandas as pd

CHUNK = 100
"""Runs whose predictions are held in memory at a time."""
SHOWN = 20
"""Examples that are printed."""
Codes = dict[Pair, NDArray[np.int64]]
"""The predicted classes [n] of a cell's runs, by replicate."""
ABOUT = (
    "Points (x100). Consensus: the score of what most runs of a row predict. Flips: of an example, the share of pairs of runs that predict "
    "differently; by seed: of pairs with one training subset, by subset: of pairs with one seed."
)
HEAD = ("Column", "Row", "Runs", "Test", "Consensus", "Flips", "by seed", "by subset")
DOUBTS = ("Column", "Size", "Example", "Label", "Consensus", "Right", "Flips", "Text")


def examples(plan: Plan, store: Store, grid: Grid, with_texts: bool = True) -> View:
    """The frame has a row an example of a column at a size, the doubted first, with its texts as 'text.COLUMN' where the data are at hand. Raises
    UserError where no finished run predicts classes."""
    import pandas as pd

    grid, r = replace(grid, results=with_records(grid.results)), grid.resolved
    of_place, tables, frames, lines, skipped = runs_of(grid), [], list[pd.DataFrame](), [], []
    for size in r.sizes:
        rows = []
        for name, column in r.columns.items():
            data = plan.tasks[column.task]
            if not (names := data.task.kind.names):
                kind = data.task.kind.description
                skipped.append(f"{column.title} is left out: {kind}, which has no classes to agree on.")
                continue
            digest = data.tests[column.evaluation].digest
            cells: dict[str, Codes] = {}
            gold, shares = np.empty(0, dtype=np.int64), np.zeros(1)
            for row, pair, record in _recorded(store, _keys(grid, of_place, (size, name))):
                predicted = predicted_by(record, digest)
                cells.setdefault(row, {})[pair], gold = predicted.decoded, np.asarray(predicted.gold)
                shares = shares + predicted.probabilities
            if not cells:
                continue
            for row in (title for title in r.printed_rows if title in cells):
                rows.append([column_name(grid, name), row, *_of_cell(cells[row], gold, len(names), column.metric)])
            frame = _of_examples(cells, gold, names, shares)
            frame.insert(0, "size", size)
            frame.insert(1, "column", name)
            if with_texts and (texts := plan.library.get(digest)) is not None:
                places = frame["example"].to_numpy() - 1
                for number, title in enumerate(data.task.columns):
                    frame[f"text.{title}"] = [texts.texts[place][number] for place in places]
            frames.append(frame)
            lines.append(_line(f"{column.title}, {training_examples(size, r.size_unit)}", frame, len(cells)))
        if rows:
            tables.append(Table(size_name(size, r.size_unit), HEAD, rows, {0, 1}))
    skipped = [*dict.fromkeys(skipped)]
    if not frames:
        raise UserError(" ".join(["examples: no finished run of this table predicts classes.", *skipped]))
    found = pd.concat(frames, ignore_index=True)
    found = found.sort_values(
        ["doubted", "gold_probability"], ascending=[False, True], kind="stable", ignore_index=True
    )
    shown = found.head(SHOWN).to_dict("records")
    title = f"The {len(shown)} labels that are doubted most, of {counted(len(found), 'example')}"
    doubts = Table(title, DOUBTS, [_doubt(grid, each) for each in shown], {0, 3, 4, 7})
    return View("examples", found, [*tables, doubts], [*lines, ABOUT, *skipped], about={"table": r.table.name})


def _keys(grid: Grid, of_place: Mapping[Place, pd.DataFrame], at: tuple[int, str]) -> dict[tuple[str, str], Pair]:
    """By row as printed and key of a run that counts its replicate, in the order of the table. Two rows may share a run; of a row without seeds each
    is there once."""
    size, column = at
    found: dict[tuple[str, str], Pair] = {}
    results: Any = grid.results[(grid.results["size"] == size) & (grid.results["column"] == column)]
    known = {(each.row, each.subset, each.seed): each.key for each in results.itertuples() if each.status == "done"}
    for row in grid.resolved.printed_rows:
        runs: Any = of_place.get((size, row, column), no_runs())
        for place, configuration in runs["configuration"].items():
            if configuration:  # '': several count, and their mean is the replicate's score
                found[row, known[configuration, *place]] = place
    return found


def _recorded(store: Store, keys: Mapping[tuple[str, str], Pair]) -> Iterator[tuple[str, Pair, Record]]:
    every = [*keys.items()]
    for start in range(0, len(every), CHUNK):
        part = every[start : start + CHUNK]
        records = store.records([key for (_, key), _ in part], predictions=True)
        yield from ((row, place, records[key]) for (row, key), place in part)


def _of_cell(cell: Codes, gold: NDArray[Any], classes: int, metric: str) -> list[str]:
    """The score, consensus and flips of a row's runs, of its largest full grid of replicates."""
    subsets, seeds = full_grid([*cell])
    codes = np.array([cell[subset, seed] for subset in subsets for seed in seeds])
    rates, compute = flip_rates(codes.reshape(len(subsets), len(seeds), -1), classes), METRICS[metric].compute
    test = float(np.mean([compute(gold, run) for run in codes]))
    values = (test, compute(gold, votes(codes, classes).consensus), rates.all, rates.by_seed, rates.by_subset)
    return [f"{len(subsets)} x {len(seeds)}", *(DASH if value != value else in_points(value) for value in values)]


def _of_examples(
    cells: Mapping[str, Codes], gold: NDArray[Any], names: Sequence[str], probabilities: NDArray[np.float64]
) -> pd.DataFrame:
    """One row an example. `probabilities` [n, C]: summed over all runs."""
    import pandas as pd

    of_row = {row: votes([*cell.values()], len(names)) for row, cell in cells.items()}
    every, place = (
        votes([codes for cell in cells.values() for codes in cell.values()], len(names)),
        np.arange(len(gold)),
    )
    wrong = sum((of.consensus != gold).astype(int) for of in of_row.values())
    flips = [of.flips for of in of_row.values() if of.runs > 1]
    columns = {
        "example": place + 1,
        "gold": [names[code] for code in gold],
        "consensus": [names[code] for code in every.consensus],
        "runs": every.runs,
        "agreement": every.agreement,
        "right": every.counts[place, gold] / every.runs,
        "gold_probability": probabilities[place, gold] / every.runs,
        "flips": np.mean(flips, axis=0) if flips else np.nan,
        "rows_wrong": wrong,
        "all_rows_wrong": wrong == len(of_row),
        "doubted": doubted(every, gold),
    }
    return pd.DataFrame(columns | {f"right.{row}": of.counts[place, gold] / of.runs for row, of in of_row.items()})


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
