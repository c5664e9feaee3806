"""Scores beside their cost: what one run of a row computes and how long it takes, with the stages before fine-tuning and with search.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from harness.specs import Parent, Stage
from harness.statistics.design import full_grid
from harness.views.cells import Grid
from harness.views.numbers.comparison import columns_of, metric_of, runs_of, score_interval

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Cost:
    """FLOPs and seconds of training, a multiply-add as two."""

    flops: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.seconds + other.seconds)

    def per(self, count: int) -> Cost:
        return Cost(self.flops / count, self.seconds / count)


@dataclass(frozen=True)
class RunCost:
    """Of one run: its fine-tuning, and the stages before it, each as if the run had been trained alone. `counts`: its score does; else it was
    trained to select another configuration of its row."""

    fine_tuning: Cost
    earlier: Cost
    counts: bool = True


RunCosts = Mapping[tuple[str, str, int], Sequence[RunCost]]
"""The costs of finished runs by (row as printed, task, size)."""


@dataclass(frozen=True)
class CellCost:
    """`score`: mean over the largest full grid of replicates, on the metric's own scale, with its crossed 95 % interval (None: no spread
    to judge by). Costs are means of a run that counts; `search`: of all the search, configurations that do not count too, shared by the runs of the cell. `parameters`: of its
    encoder, in a table of several. `beaten`: a row that scores as
    high for no more FLOPs."""

    size: int
    row: str
    column: str
    title: str
    metric: str
    score: float
    low: float | None
    high: float | None
    fine_tuning: Cost
    earlier: Cost
    search: Cost
    parameters: float = 0.0
    beaten: str = ""

    @property
    def total(self) -> Cost:
        return self.fine_tuning + self.earlier + self.search


def cost_before(stage: Stage, known: Mapping[str, Cost]) -> Cost:
    """Of the stages that one starts from, whose costs are `known` by key. Of one whose weights are taken on its way, the share of its updates
    until then."""
    if not isinstance(stage.init, Parent):
        return Cost()
    start, step = stage.init.stage, stage.init.step
    share = step / start.optim.steps if isinstance(step, int) else 1.0
    whole = known[start.key]
    return Cost(share * whole.flops, share * whole.seconds) + cost_before(start, known)


def costs(
    grid: Grid, of_runs: RunCosts, search: Mapping[str, Cost], parameters: Mapping[str, float] = MappingProxyType({})
) -> list[CellCost]:
    """Every cell with a finished run. `search`: the cost of the searches that gave a row its point, by row as printed; `parameters`: of the encoder of
    a row, where it is said. A run in a column Avg
    costs what its runs on all columns' tasks cost."""
    found: list[CellCost] = []
    runs = runs_of(grid)
    for size in grid.resolved.sizes:
        for column in columns_of(grid):
            here = [
                cell
                for row in grid.resolved.printed_rows
                if (size, row, column) in runs
                and (cell := _cell(grid, (size, row, column), dict(runs[size, row, column].scores), of_runs, search))
            ]
            found += [replace(_beaten(cell, here), parameters=parameters.get(cell.row, 0.0)) for cell in here]
    return found


def _cell(
    grid: Grid,
    place: tuple[int, str, str],
    scores: dict[tuple[int, int], float],
    of_runs: RunCosts,
    search: Mapping[str, Cost],
) -> CellCost | None:
    size, row, column = place
    columns = grid.resolved.columns
    over = [name for group in grid.resolved.average_over for name in group]
    tasks = [columns[column].task] if column in columns else [*dict.fromkeys(columns[name].task for name in over)]
    every = [of_runs.get((row, task, size), ()) for task in tasks]
    of_tasks = [[run for run in runs if run.counts] for runs in every]
    subsets, seeds = full_grid(list(scores))
    if not subsets or not all(of_tasks):
        return None
    fine_tuning, earlier = (
        sum((sum((getattr(run, name) for run in runs), Cost()).per(len(runs)) for runs in of_tasks), Cost())
        for name in ("fine_tuning", "earlier")
    )
    rejected = (run.fine_tuning + run.earlier for runs in every for run in runs if not run.counts)
    values = np.array([[scores[s, r] for r in seeds] for s in subsets])
    interval, searched = score_interval(grid, column, values), sum(rejected, search.get(row, Cost())).per(values.size)
    low, high = (interval.low, interval.high) if interval else (None, None)
    of_column = grid.title(column), metric_of(grid, column)
    return CellCost(*place, *of_column, float(values.mean()), low, high, fine_tuning, earlier, searched)


def _beaten(cell: CellCost, here: Sequence[CellCost]) -> CellCost:
    """With the cheapest other cell that scores as high for no more FLOPs, one of them strictly."""
    better = [
        other
        for other in here
        if other.score >= cell.score
        and other.total.flops <= cell.total.flops
        and (other.score, -other.total.flops) != (cell.score, -cell.total.flops)
    ]
    if not better:
        return cell
    return replace(cell, beaten=min(better, key=lambda other: other.total.flops).row)


def cost_frame(cells: Sequence[CellCost]) -> pd.DataFrame:
    """One row a cell; scores on the metric's own scale, costs of one run in FLOPs and seconds."""
    import pandas as pd

    names = ("size", "row", "column", "metric", "score", "low", "high")
    parts = ("fine_tuning", "earlier", "search", "total")
    units = ("flops", "seconds")
    rows = [
        {name: getattr(cell, name) for name in names}
        | {f"{part}_{unit}": getattr(getattr(cell, part), unit) for part in parts for unit in units}
        | {"beaten": cell.beaten}
        for cell in cells
    ]
    columns = [*names, *(f"{part}_{unit}" for part in parts for unit in units), "beaten"]
    frame = pd.DataFrame(rows, columns=columns)
    if any(cell.parameters for cell in cells):
        frame["parameters"] = [cell.parameters for cell in cells]
    return frame
