"""The test examples of a table over its runs: which flip between replicates, which every row gets wrong, which labels are doubted. Of tasks with classes,
from stored predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.analysis.schema import with_records
from harness.planning.runs import Plan
from harness.specs import Record
from harness.statistics.agreement import WRONG, doubted, flip_rates, if_wrong, votes
from harness.statistics.design import full_grid
from harness.store import Store
from harness.store.rows import predicted_by
from harness.tasks.metrics import METRICS
from harness.views.cells import Grid
from harness.views.numbers.comparison import Place, Runs, runs_of

if TYPE_CHECKING:
    import pandas as pd

CHUNK = 100
"""Runs whose predictions are held in memory at a time."""
Codes = dict[tuple[int, int], NDArray[np.int64]]
"""The predicted classes [n] of a cell's runs, by replicate."""


@dataclass(frozen=True)
class ExampleFrames:
    """Data frames; docs/results.md has their columns. `rows`: one row a cell; `examples`: one an example of a column at a size, over all rows;
    `labels`: one a column and size. `skipped`: what is not in them, in sentences."""

    grid: Grid
    rows: pd.DataFrame
    examples: pd.DataFrame
    labels: pd.DataFrame
    skipped: tuple[str, ...] = ()


def example_frames(plan: Plan, store: Store, grid: Grid) -> ExampleFrames:
    """Of every column with classes, over the finished runs that cells are made of."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []
    examples: list[pd.DataFrame] = []
    classes, skipped = {}, []
    for name, column in grid.resolved.columns.items():
        kind = plan.tasks[column.task].task.kind
        if kind.names:
            classes[name] = kind.names
        else:
            skipped.append(f"{column.title} is left out: {kind.description}, which has no classes to agree on.")
    grid = replace(grid, results=with_records(grid.results))
    of_place = runs_of(grid)
    for size in grid.resolved.sizes:
        for name, names in classes.items():
            column = grid.resolved.columns[name]
            rowset = plan.tasks[column.task].tests[column.evaluation]
            keys = _keys(grid, of_place, (size, name))
            cells: dict[str, Codes] = {}
            gold: NDArray[Any] | None = None
            shares: Any = 0.0
            for row, place, record in _recorded(store, keys):
                predicted = predicted_by(record, rowset.digest)
                cells.setdefault(row, {})[place], gold = predicted.decoded, predicted.gold
                shares = shares + predicted.probabilities
            if gold is None:
                continue
            for row in (title for title in grid.resolved.printed_rows if title in cells):
                where = {"size": size, "column": name, "metric": column.metric, "row": row}
                rows.append(where | _of_cell(cells[row], gold, len(names), column.metric))
            frame, counts = _of_examples({"size": size, "column": name}, cells, gold, names, shares)
            examples.append(frame)
            labels.append(counts)
    of_examples = pd.concat(examples, ignore_index=True) if examples else pd.DataFrame()
    return ExampleFrames(grid, pd.DataFrame(rows), of_examples, pd.DataFrame(labels), tuple(skipped))


def _keys(grid: Grid, of_place: Mapping[Place, Runs], at: tuple[int, str]) -> dict[tuple[str, str], tuple[int, int]]:
    """By row as printed and key of a run that counts its replicate, in the order of the table. Two rows may share a run; of a row without seeds each
    is there once."""
    size, column = at
    found: dict[tuple[str, str], tuple[int, int]] = {}
    results: Any = grid.results[(grid.results["size"] == size) & (grid.results["column"] == column)]
    known = {(each.row, each.subset, each.seed): each.key for each in results.itertuples() if each.status == "done"}
    for row in grid.resolved.printed_rows:
        runs = of_place.get((size, row, column))
        for place, configuration in runs.configurations.items() if runs else ():
            if configuration:  # '': several count, and their mean is the replicate's score
                found[row, known[configuration, *place]] = place
    return found


def _recorded(
    store: Store, keys: Mapping[tuple[str, str], tuple[int, int]]
) -> Iterator[tuple[str, tuple[int, int], Record]]:
    every = [*keys.items()]
    for start in range(0, len(every), CHUNK):
        part = every[start : start + CHUNK]
        records = store.records([key for (_, key), _ in part], predictions=True)
        yield from ((row, place, records[key]) for (row, key), place in part)


def _of_cell(cell: Codes, gold: NDArray[Any], classes: int, metric: str) -> dict[str, Any]:
    """The score, consensus and flips of a row's runs, of its largest full grid of replicates."""
    subsets, seeds = full_grid([*cell])
    codes = np.array([cell[subset, seed] for subset in subsets for seed in seeds])
    rates, compute = flip_rates(codes.reshape(len(subsets), len(seeds), -1), classes), METRICS[metric].compute
    return {
        "num_subsets": len(subsets),
        "num_seeds": len(seeds),
        "test": float(np.mean([compute(gold, run) for run in codes])),
        "consensus": compute(gold, votes(codes, classes).consensus),
        "flips": rates.all,
        "flips_by_seed": rates.by_seed,
        "flips_by_subset": rates.by_subset,
    }


def _of_examples(
    where: Mapping[str, Any],
    cells: Mapping[str, Codes],
    gold: NDArray[Any],
    names: Sequence[str],
    probabilities: NDArray[np.float64],
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """One row an example, and what the labels of all of them come to. `probabilities` [n, C]: summed over all runs."""
    import pandas as pd

    of_row = {row: votes([*cell.values()], len(names)) for row, cell in cells.items()}
    every = votes([codes for cell in cells.values() for codes in cell.values()], len(names))
    wrong = sum((of.consensus != gold).astype(int) for of in of_row.values())
    flips = [of.flips for of in of_row.values() if of.runs > 1]
    doubts = doubted(every, gold)
    columns = {
        **where,
        "example": np.arange(1, len(gold) + 1),
        "gold": [names[code] for code in gold],
        "consensus": [names[code] for code in every.consensus],
        "runs": every.runs,
        "agreement": every.agreement,
        "right": every.counts[np.arange(len(gold)), gold] / every.runs,
        "gold_probability": probabilities[np.arange(len(gold)), gold] / every.runs,
        "flips": np.mean(flips, axis=0) if flips else np.nan,
        "rows_wrong": wrong,
        "all_rows_wrong": wrong == len(of_row),
        "doubted": doubts,
    }
    columns |= {f"right.{row}": of.counts[np.arange(len(gold)), gold] / of.runs for row, of in of_row.items()}
    good = if_wrong(every, gold)
    counts = {
        **where,
        "examples": len(gold),
        "rows": len(of_row),
        "runs": every.runs,
        "all_rows_wrong": int(columns["all_rows_wrong"].sum()),
        "doubted": int(doubts.sum()),
        "wrong": WRONG,
        "precision": good.precision,
        "recall": good.recall,
    }
    return pd.DataFrame(columns), counts
