"""The test examples of a table over its runs: which flip between replicates, which every row gets wrong, which labels are doubted; and the calibration of each
run, with the temperature and the threshold that dev chooses. Of tasks with classes, from stored predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.analysis.calibration import calibration_of
from harness.analysis.cells import Grid
from harness.analysis.comparison import Place, Runs, runs_of
from harness.analysis.schema import with_records
from harness.kinds import Predictions
from harness.planning.runs import Plan
from harness.specs import Record, Stage
from harness.statistics.agreement import WRONG, doubted, flip_rates, if_wrong, votes
from harness.statistics.calibration import Bins, binned, brier, calibrated_error, calibration_error
from harness.statistics.design import full_grid
from harness.statistics.difference import mean_interval
from harness.store import Store
from harness.tasks import METRICS

if TYPE_CHECKING:
    import pandas as pd

CHUNK = 100
"""Runs whose predictions are held in memory at a time."""
INTERVALS = {"ece": (0.0, 1.0), "brier": (0.0, 2.0), "tempering": (-1.0, 1.0), "threshold_gain": (-2.0, 2.0)}
"""Of a row's runs, whose means have intervals, with the ends of their scales, at which these are cut."""
MEANS = (
    *("test", "ece", "ece_calibrated", "brier", "reliability", "resolution", "uncertainty", "within_bins"),
    *("ece_tempered", "tempering", "threshold_gain"),
)
MEDIANS = ("temperature", "threshold")


@dataclass(frozen=True)
class ExampleFrames:
    """Data frames; docs/results.md has their columns. `runs`: one row a run; `rows`: one a cell; `examples`: one an example of a column at a size, over
    all rows; `labels`: one a column and size; `bins`: one a cell and bin of its reliability. `skipped`: what is not in them, in sentences."""

    grid: Grid
    runs: pd.DataFrame
    rows: pd.DataFrame
    examples: pd.DataFrame
    labels: pd.DataFrame
    bins: pd.DataFrame
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Cell:
    """The runs of a cell by replicate: `codes` [n] of each, numbers of each, and its reliability."""

    codes: dict[tuple[int, int], NDArray[np.int64]]
    numbers: list[dict[str, Any]]
    bins: list[Bins]


def example_frames(plan: Plan, store: Store, grid: Grid) -> ExampleFrames:
    """Of every column with classes, over the finished runs that cells are made of."""
    import pandas as pd

    runs: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []
    bins: list[dict[str, Any]] = []
    examples: list[pd.DataFrame] = []
    stages = {run.stage.key: run.stage for run in plan.runs}
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
            cells: dict[str, _Cell] = {}
            gold: NDArray[Any] | None = None
            shares: Any = 0.0
            for row, place, stage, record in _recorded(store, stages, keys):
                where = {"size": size, "column": name, "metric": column.metric, "row": row}
                cell, predicted = cells.setdefault(row, _Cell({}, [], [])), record.predictions[rowset.digest]
                cell.codes[place], gold = predicted.decoded, predicted.gold
                numbers, reliability = _of_run(stage, record, predicted, column.metric)
                cell.numbers.append({**where, "subset": place[0], "seed": place[1], "key": stage.key, **numbers})
                cell.bins.append(reliability)
                shares = shares + predicted.probabilities
            if gold is None:
                continue
            for row in (title for title in grid.resolved.printed_rows if title in cells):
                where = {"size": size, "column": name, "metric": column.metric, "row": row}
                runs += cells[row].numbers
                rows.append(where | _of_cell(cells[row], gold, len(names), column.metric))
                bins += [where | each for each in _mean_bins(cells[row].bins)]
            frame, counts = _of_examples({"size": size, "column": name}, cells, gold, names, shares)
            examples.append(frame)
            labels.append(counts)
    of_examples = pd.concat(examples, ignore_index=True) if examples else pd.DataFrame()
    of_runs, of_rows, of_labels, of_bins = (pd.DataFrame(each) for each in (runs, rows, labels, bins))
    return ExampleFrames(grid, of_runs, of_rows, of_examples, of_labels, of_bins, tuple(skipped))


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
    store: Store, stages: Mapping[str, Stage], keys: Mapping[tuple[str, str], tuple[int, int]]
) -> Iterator[tuple[str, tuple[int, int], Stage, Record]]:
    every = [*keys.items()]
    for start in range(0, len(every), CHUNK):
        part = every[start : start + CHUNK]
        records = store.records([key for (_, key), _ in part], predictions=True)
        yield from ((row, place, stages[key], records[key]) for (row, key), place in part)


def _of_run(stage: Stage, record: Record, predicted: Predictions, metric: str) -> tuple[dict[str, Any], Bins]:
    """The numbers of a run on a test set, and its reliability."""
    compute, gold, shares = METRICS[metric].compute, predicted.gold, predicted.probabilities
    right = binned(shares.max(axis=1), predicted.decoded == gold)
    parts, dev = brier(shares, gold), calibration_of(stage, record)
    numbers = {
        "test": compute(gold, predicted.decoded),
        "ece": calibration_error(right),
        "ece_calibrated": calibrated_error(right),
        "brier": parts.score,
        "reliability": parts.reliability,
        "resolution": parts.resolution,
        "uncertainty": parts.uncertainty,
        "within_bins": parts.within,
    }
    if dev:
        tempered = dev.tempered(predicted).probabilities
        ece = calibration_error(binned(tempered.max(axis=1), tempered.argmax(axis=1) == gold))
        numbers |= {"temperature": dev.temperature, "ece_tempered": ece, "tempering": ece - numbers["ece"]}
        if dev.threshold is not None:
            moved = compute(gold, (tempered[:, 1] >= dev.threshold).astype(np.int64))
            numbers |= {"threshold": dev.threshold, "threshold_gain": moved - numbers["test"]}
    return numbers, right


def _of_cell(cell: _Cell, gold: NDArray[Any], classes: int, metric: str) -> dict[str, Any]:
    """The numbers of a row: of its largest full grid of replicates, and the consensus and flips of its runs."""
    subsets, seeds = full_grid([*cell.codes])
    pairs = [(subset, seed) for subset in subsets for seed in seeds]
    of_pair = {(each["subset"], each["seed"]): each for each in cell.numbers}
    shape = len(subsets), len(seeds)
    codes = np.array([cell.codes[pair] for pair in pairs])
    consensus, rates = votes(codes, classes).consensus, flip_rates(codes.reshape(*shape, -1), classes)
    found: dict[str, Any] = {
        "num_subsets": shape[0],
        "num_seeds": shape[1],
        "consensus": METRICS[metric].compute(gold, consensus),
        "flips": rates.all,
        "flips_by_seed": rates.by_seed,
        "flips_by_subset": rates.by_subset,
    }
    for name in (*MEANS, *MEDIANS):
        values: list[Any] = [of_pair[pair].get(name) for pair in pairs]
        known = None not in values
        found[name] = float((np.mean if name in MEANS else np.median)(values)) if known else None
        if name in INTERVALS:
            interval = mean_interval(np.reshape(values, shape)) if known else None
            ends = np.clip([interval.low, interval.high], *INTERVALS[name]).tolist() if interval else (None, None)
            found[f"{name}_low"], found[f"{name}_high"] = ends
    return found


def _mean_bins(runs: Sequence[Bins]) -> Iterator[dict[str, Any]]:
    """The means over runs of each bin."""
    for number in range(len(runs[0].count)):
        probability, outcome, count = (
            float(np.mean([getattr(run, name)[number] for run in runs])) for name in ("probability", "outcome", "count")
        )
        yield {"bin": number + 1, "probability": probability, "right": outcome, "examples": count}


def _of_examples(
    where: Mapping[str, Any],
    cells: Mapping[str, _Cell],
    gold: NDArray[Any],
    names: Sequence[str],
    probabilities: NDArray[np.float64],
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """One row an example, and what the labels of all of them come to. `probabilities` [n, C]: summed over all runs."""
    import pandas as pd

    of_row = {row: votes([*cell.codes.values()], len(names)) for row, cell in cells.items()}
    every = votes([codes for cell in cells.values() for codes in cell.codes.values()], len(names))
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
