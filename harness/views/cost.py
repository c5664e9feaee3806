"""Scores beside their cost: what one run of a row computes and how long it takes, with the stages before fine-tuning and with search. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.specs import Parent, Stage
from harness.views.cells import Grid, on_grid
from harness.views.view import DASH, Table, View, with_spread
from harness.wording import in_points, two_digits

Cost = NDArray[np.float64]
"""FLOPs and seconds of training, a multiply-add as two."""
UNITS, PARTS = ("flops", "seconds"), ("fine_tuning", "earlier", "search", "total")
OWN = [f"{part}_{unit}" for part in PARTS[:2] for unit in UNITS]
CELL = ["size", "row", "column", "metric", "score", "low", "high"]
COLUMNS = [*CELL, *(f"{part}_{unit}" for part in PARTS for unit in UNITS)]
"""Of the frame, a row a cell: the mean over the largest full grid of replicates on the metric's own scale with its crossed 95 % interval, and the mean
cost of a run that counts; `search`: of configurations that do not count, shared by the runs of the cell. In a table of several
encoders also `parameters`."""
ABOUT = (
    "Score: mean over subsets and seeds in points (x100), with half the width of its crossed 95 % interval. FLOPs and time: means of one run, each stage "
    "counted in every run that starts from it, as the run alone would cost; time as recorded, on the hardware of each record. Times: FLOPs as a multiple of the "
    "first row's. What others spent on a given encoder is in no figure."
)


def cost_before(stage: Stage, known: Mapping[str, Cost]) -> Cost:
    """Of the stages that one starts from, whose costs are `known` by key. Of one whose weights are taken on its way, the share of its updates
    until then."""
    if not isinstance(stage.init, Parent):
        return np.zeros(2)
    start, step = stage.init.stage, stage.init.step
    share = step / start.optim.steps if isinstance(step, int) else 1.0
    return share * known[start.key] + cost_before(start, known)


def costs(grid: Grid, spent: pd.DataFrame, parameters: Mapping[str, float] = MappingProxyType({})) -> View:
    """Every cell with a finished run. `spent`: of each run its size, row as printed and task, the costs `OWN`, each as if it had been trained alone, and whether
    it `counts`, or was trained to select another configuration of its row. `parameters`: of the encoder of a row as printed, where it is said. A run
    in a column Avg costs what its runs on all columns' tasks cost."""
    r, runs, place = grid.resolved, grid.scores, ["size", "row", "task"]
    means = spent[spent["counts"]].groupby(place)[OWN].mean()
    rejected = spent[~spent["counts"]].groupby(place)[OWN].sum()
    cells: list[dict[str, Any]] = []
    for size, column, row in itertools.product(r.sizes, grid.compared, r.printed_rows):
        over = r.made_of(column)
        tasks = [*dict.fromkeys((size, row, r.columns[name].task) for name in over)]
        of_cell = runs.get((size, row, column))
        if of_cell is None or not all(task in means.index for task in tasks):
            continue
        (values,), _ = on_grid(of_cell)
        cost = means.loc[tasks].sum()
        cell: dict[str, Any] = {"size": size, "row": row, "column": column, "metric": grid.metric(column)}
        cell |= {name: cost[name] for name in OWN}
        low, high = grid.interval(column, values) or (None, None)
        cell |= {"score": float(values.mean()), "low": low, "high": high, "parameters": parameters.get(row, 0.0)}
        other = rejected.reindex(tasks).sum()
        for unit in UNITS:
            cell[f"search_{unit}"] = (other[f"fine_tuning_{unit}"] + other[f"earlier_{unit}"]) / values.size
            cell[f"total_{unit}"] = sum(cell[f"{part}_{unit}"] for part in PARTS[:3])
        cells.append(cell)
    sized, searched = any(parameters.values()), any(cell["search_flops"] for cell in cells)
    shown = [part for part in PARTS if part != "search" or searched]
    head = ["Column", "Row", *(["Parameters"] if sized else []), "Score", "Fine-tuning", "Earlier"]
    head += [*(["Search"] if searched else []), "FLOPs", "Times", "Hours"]
    tables = []
    for size in r.sizes:
        here, body = [cell for cell in cells if cell["size"] == size], []
        first = {cell["column"]: cell["total_flops"] for cell in reversed(here)}
        for cell in here:
            spread = "" if cell["high"] is None else in_points(cell["high"] - cell["score"])
            size_of = f"{cell['parameters'] / 1e6:.1f} M" if cell["parameters"] else DASH
            names = [grid.column_name(cell["column"]), cell["row"], *([size_of] if sized else [])]
            flops = [f"{cell[f'{part}_flops']:.2g}" for part in shown]
            times = f"{cell['total_flops'] / first[cell['column']]:.2f}" if first[cell["column"]] else DASH
            score = with_spread(in_points(cell["score"]), spread)
            body.append([*names, score, *flops, times, two_digits(cell["total_seconds"] / 3600)])
        tables.append(Table(grid.size_name(size), head, body, {0, 1}))
    frame = pd.DataFrame(cells, columns=[*COLUMNS, *(["parameters"] if sized else [])])
    search = "Search: the configurations of a row that were not selected, shared by the runs of its cell."
    return View("costs", frame, tables, [ABOUT, *([search] if searched else [])], about={"table": r.table.name})
