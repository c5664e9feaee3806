"""The rows of a prepared table compared, the variance of its cells, and what its plan detects, from what the store holds now."""

from __future__ import annotations

from dataclasses import replace

from harness.analysis.scores import answers
from harness.commands.prepare import Prepared
from harness.commands.report import grid_of, known_costs
from harness.commands.seal import runs_began
from harness.encoders.flops import parameters
from harness.errors import UserError
from harness.methods import METHODS
from harness.planning.row import ResolvedRow
from harness.planning.table import Column
from harness.tasks.metrics import METRICS
from harness.views.cells import Grid, counted_scores
from harness.views.numbers.comparison import REGION, Comparisons, compared
from harness.views.numbers.cost import CellCost, Cost, RunCost, cost_before, costs
from harness.views.numbers.power import Detections, cost_of, detections
from harness.views.seal import followed
from harness.views.variance import CellVariance, decomposed
from harness.wording import counted, listed


def comparisons_of(
    prepared: Prepared,
    against: str = "",
    region: float = REGION,
    items: bool = False,
    collapsed: bool = True,
    grid: Grid | None = None,
) -> Comparisons:
    """`region`: on the metric's own scale. `items`: test items become a factor. `collapsed`: with the runs that collapsed. Each is planned or exploratory by
    the seals of the store, whose comparisons are in the family too. `grid`: the table's cells where they are at hand."""
    grid, left_out = counted_grid(prepared, collapsed, grid)
    if (
        items
        and prepared.unread
        and (grouped := [c.title for c in prepared.resolved.columns.values() if _unit(prepared, c)])
    ):
        raise UserError(
            f"--items: the texts that say which examples of {listed(grouped)} go together are missing ({prepared.unread})."
        )
    found = answers(prepared.plan, prepared.store, grid.results) if items else None
    absent = "missing or failed" if collapsed else "missing, failed or collapsed"
    runs, store = prepared.plan.runs, prepared.store
    seals = store.seals(prepared.resolved.table.name)
    comparisons = compared(grid, against, region, found, absent=absent)
    comparisons = replace(comparisons, left_out=tuple(left_out), unit=_test_item(prepared))
    seal, planned, line = followed(comparisons, collapsed, runs, seals, runs_began(store, runs) if seals else {})
    every = tuple(replace(c, planned=k in planned) for k, c in enumerate(comparisons.comparisons))
    return replace(comparisons, comparisons=every, seal=seal.digest if seal else "", plan=(line,))


def _test_item(prepared: Prepared) -> str:
    """What a test item is in each column, for people."""
    units: dict[str, list[str]] = {}
    for column in prepared.resolved.columns.values():
        if METRICS[column.metric].per_item is None:
            continue
        text = _unit(prepared, column)
        units.setdefault(f"all examples of one {text}" if text else "one example", []).append(column.title)
    return (
        f"A test item is {', '.join(f'{unit} ({listed(titles)})' for unit, titles in units.items()) or 'one example'}."
    )


def _unit(prepared: Prepared, column: Column) -> str:
    """The text column that a test item of a column has; empty where an item is one example."""
    task = prepared.plan.tasks[column.task].task
    return "" if task.unit is None else task.columns[task.unit]


def detections_of(prepared: Prepared, wanted: float) -> Detections:
    """What the planned table detects. `wanted`: a difference on the metric's own scale."""
    cost = cost_of(prepared.plan)

    def hours(subsets: int, seeds: int) -> float:
        flops, stages = cost(subsets, seeds)
        return prepared.hours_of(flops, round(stages))

    grid, _ = grid_of(prepared)
    return detections(grid, wanted, hours)


def variance_of(prepared: Prepared, collapsed: bool = True) -> tuple[Grid, list[CellVariance]]:
    grid, _ = counted_grid(prepared, collapsed)
    return grid, decomposed(grid, answers(prepared.plan, prepared.store, grid.results))


def costs_of(prepared: Prepared, collapsed: bool = True) -> tuple[Grid, list[CellCost], list[str]]:
    """Scores beside the cost of a run, with the stages before fine-tuning and the search, and sentences about what is left out."""
    grid, left_out = counted_grid(prepared, collapsed)
    plan = prepared.plan
    known = known_costs((stage for run in plan.runs for stage in run.stage.chain), prepared.store)
    titles = prepared.resolved.titles
    of_runs: dict[tuple[str, str, int], list[RunCost]] = {}
    place = ["configuration", "task", "size", "subset"]
    chosen = set(counted_scores(grid)[place].itertuples(index=False, name=None))
    several = {title for title, rows in prepared.resolved.printed_rows.items() if len(rows) > 1}
    for run in plan.runs:
        if all(stage.key in known for stage in run.stage.chain):
            title, earlier = titles[run.row], cost_before(run.stage, known)
            counts = title not in several or (run.row, run.task, run.size, run.subset) in chosen
            of_runs.setdefault((title, run.task, run.size), []).append(RunCost(known[run.stage.key], earlier, counts))
    searched = _searches(prepared) if prepared.request.overrides else {}
    sizes = {titles[run.row]: parameters(plan.encoder_of(run.stage).config) for run in plan.runs}
    return grid, costs(grid, of_runs, searched, sizes if len(plan.encoders) > 1 else {}), left_out


def _searches(prepared: Prepared) -> dict[str, Cost]:
    """What the studies cost that hold the runs of a row, by row as printed. A row whose values are the table's own was not searched for, although a study
    tries its point too: this is asked of a table with overrides."""
    titles = prepared.resolved.titles
    rows = {run.stage.key: titles[run.row] for run in prepared.plan.runs}
    changed = {titles[row.name] for row in prepared.resolved.rows if _set_by_request(prepared, row)}
    found: dict[str, Cost] = {}
    for stored, keys, _ in prepared.store.requests_for(rows):
        mine = {rows[key] for key in keys} & changed
        if stored.study and mine:
            spent = prepared.store.records(prepared.store.stages_of(stored)).values()
            whole = sum((Cost(record.flops, record.seconds) for record in spent), Cost())
            for row in mine:
                found[row] = found.get(row, Cost()) + whole
    return found


def _set_by_request(prepared: Prepared, row: ResolvedRow) -> bool:
    """Whether an override of the request is of this row, of a method of it, or of the recipe of all."""
    shared = [each.path[0] for each in prepared.request.overrides if not each.row]
    return row.alone or any(name in row.parts or name not in METHODS for name in shared)


def counted_grid(prepared: Prepared, collapsed: bool, grid: Grid | None = None) -> tuple[Grid, list[str]]:
    """The table's cells (`grid`, where they are at hand), without the runs that collapsed where `collapsed` is False, and a sentence about those."""
    grid = grid or grid_of(prepared)[0]
    if collapsed:
        return grid, []
    fell = grid.results["collapsed"] & (grid.results["status"] == "done")
    each = grid.results[fell].drop_duplicates(["row", "task", "size", "subset", "seed"])
    rows = ", ".join(f"{row} {count}" for row, count in each.groupby("row", sort=False).size().items())
    said = (
        f"Left out: {counted(len(each), 'collapsed run')}, which predict one class only on dev ({rows})."
        if len(each)
        else "No run collapsed: nothing is left out."
    )
    return replace(grid, collapsed=False), [said]
