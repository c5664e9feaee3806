"""Scores beside their cost: what one run of a row computes and how long it takes, with the stages before fine-tuning and with search. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.specs import Parent, Stage
from harness.views.cells import Grid, Place
from harness.views.runs import column_name, columns_of, metric_of, on_grid, runs_of, score_interval, size_name
from harness.views.view import DASH, Table, View, with_spread
from harness.wording import in_points, two_digits

if TYPE_CHECKING:
    import pandas as pd

PARTS = ("fine_tuning", "earlier", "search", "total")
COLUMNS = (
    *("size", "row", "column", "metric", "score", "low", "high"),
    *(f"{part}_{unit}" for part in PARTS for unit in ("flops", "seconds")),
)
"""Of the frame, a row a cell: the mean over the largest full grid of replicates on the metric's own scale with its crossed 95 % interval, and the mean
cost of a run that counts; `search`: of configurations that do not count, shared by the runs of the cell. In a table of several
encoders also `parameters`."""
ABOUT = (
    "Score: mean over subsets and seeds in points (x100), with half the width of its crossed 95 % interval. FLOPs and time: means of one run, each stage "
    "counted in every run that starts from it, as the run alone would cost; time as recorded, on the hardware of each record. Times: FLOPs as a multiple of the "
    "first row's. What others spent on a given encoder is in no figure."
)
SEARCH = "Search: the configurations of a row that were not selected, shared by the runs of its cell."


@dataclass(frozen=True)
class Cost:
    """FLOPs and seconds of training, a multiply-add as two."""

    flops: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.seconds + other.seconds)

    def per(self, count: int) -> Cost:
        return Cost(self.flops / count, self.seconds / count)


class RunCost(NamedTuple):
    """Of one run: its fine-tuning, and the stages before it, each as if the run had been trained alone. `counts`: its score does; else it was
    trained to select another configuration of its row."""

    fine_tuning: Cost
    earlier: Cost
    counts: bool = True


RunCosts = Mapping[tuple[str, str, int], Sequence[RunCost]]
"""The costs of finished runs by (row as printed, task, size)."""


def cost_before(stage: Stage, known: Mapping[str, Cost]) -> Cost:
    """Of the stages that one starts from, whose costs are `known` by key. Of one whose weights are taken on its way, the share of its updates
    until then."""
    if not isinstance(stage.init, Parent):
        return Cost()
    start, step = stage.init.stage, stage.init.step
    share = step / start.optim.steps if isinstance(step, int) else 1.0
    whole = known[start.key]
    return Cost(share * whole.flops, share * whole.seconds) + cost_before(start, known)


def costs(grid: Grid, of_runs: RunCosts, parameters: Mapping[str, float] = MappingProxyType({})) -> View:
    """Every cell with a finished run. `parameters`: of the encoder of a row as printed, where it is said. A run in a column Avg costs what its runs
    on all columns' tasks cost."""
    import pandas as pd

    runs, sizes = runs_of(grid), grid.resolved.sizes
    cells = [
        cell
        for size in sizes
        for column in columns_of(grid)
        for row in grid.resolved.printed_rows
        if (size, row, column) in runs and (cell := _cell(grid, (size, row, column), runs[size, row, column], of_runs))
    ]
    sized = bool(cells) and any(parameters.values())
    if sized:
        cells = [cell | {"parameters": parameters.get(cell["row"], 0.0)} for cell in cells]
    searched = any(cell["search_flops"] for cell in cells)
    head = ["Column", "Row", *(["Parameters"] if sized else []), "Score", "Fine-tuning", "Earlier"]
    head += [*(["Search"] if searched else []), "FLOPs", "Times", "Hours"]
    tables = []
    for size in sizes:
        here = [cell for cell in cells if cell["size"] == size]
        first = {cell["column"]: cell["total_flops"] for cell in reversed(here)}
        rows = [_row(grid, cell, first[cell["column"]], searched) for cell in here]
        tables.append(Table(size_name(size, grid.resolved.size_unit), head, rows, {0, 1}))
    frame = pd.DataFrame(cells, columns=[*COLUMNS, *(["parameters"] if sized else [])])
    lines = [ABOUT, *([SEARCH] if searched else [])]
    return View("costs", frame, tables, lines, about={"table": grid.resolved.table.name})


def _cell(grid: Grid, place: Place, of_cell: pd.DataFrame, of_runs: RunCosts) -> dict[str, Any] | None:
    size, row, column = place
    columns = grid.resolved.columns
    over = [name for group in grid.resolved.average_over for name in group]
    tasks = [columns[column].task] if column in columns else [*dict.fromkeys(columns[name].task for name in over)]
    every = [of_runs.get((row, task, size), ()) for task in tasks]
    of_tasks = [[run for run in runs if run.counts] for runs in every]
    (values,), pairs = on_grid(of_cell)
    if not pairs or not all(of_tasks):
        return None
    fine_tuning, earlier = (
        sum((sum((getattr(run, name) for run in runs), Cost()).per(len(runs)) for runs in of_tasks), Cost())
        for name in ("fine_tuning", "earlier")
    )
    rejected = (run.fine_tuning + run.earlier for runs in every for run in runs if not run.counts)
    searched = sum(rejected, Cost()).per(values.size)
    interval = score_interval(grid, column, values)
    found = {
        "size": size,
        "row": row,
        "column": column,
        "metric": metric_of(grid, column),
        "score": float(values.mean()),
    }
    found |= dict(zip(("low", "high"), interval or (None, None), strict=True))
    parts = zip(PARTS, (fine_tuning, earlier, searched, fine_tuning + earlier + searched), strict=True)
    return found | {f"{part}_{unit}": value for part, cost in parts for unit, value in vars(cost).items()}


def _row(grid: Grid, cell: Mapping[str, Any], first: float, searched: bool) -> list[str]:
    spread = "" if cell["high"] is None else in_points(cell["high"] - cell["score"])
    shown = [part for part in PARTS if part != "search" or searched]
    return [
        column_name(grid, cell["column"]),
        cell["row"],
        *([f"{size / 1e6:.1f} M" if size else DASH] if (size := cell.get("parameters")) is not None else []),
        with_spread(in_points(cell["score"]), spread),
        *(f"{cell[f'{part}_flops']:.2g}" for part in shown),
        f"{cell['total_flops'] / first:.2f}" if first else DASH,
        two_digits(cell["total_seconds"] / 3600),
    ]
