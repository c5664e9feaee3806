"""The views of a prepared table, from what the store holds now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.commands.prepare import Prepared
from harness.commands.recorded import command, learning_curve
from harness.commands.report import caption_of, grid_of, known_costs
from harness.commands.seal import runs_began
from harness.encoders.flops import parameters
from harness.errors import UserError
from harness.paths import without_folders
from harness.planning.table import Column
from harness.scores import answers
from harness.tasks.metrics import METRICS
from harness.views.caption import Caption
from harness.views.cells import Grid, counted_scores
from harness.views.classes import classes_view
from harness.views.cost import RunCost, cost_before, costs
from harness.views.differences import REGION, Difference, differences
from harness.views.examples import examples
from harness.views.figures.curves import curves_view
from harness.views.figures.figure import figure_view
from harness.views.power import cost_of, detections
from harness.views.ranks import ranks_view
from harness.views.results_page import results_page
from harness.views.seal import followed, rule_of
from harness.views.settings import settings_view
from harness.views.table import notes_view, results_view
from harness.views.variance import variance
from harness.views.view import View
from harness.wording import counted, listed


def differences_of(
    prepared: Prepared,
    grid: Grid,
    against: str = "",
    region: float = REGION,
    items: bool = False,
    collapsed: bool = True,
) -> View:
    """`region`: on the metric's own scale. `items`: test items become a factor. `collapsed`: with the runs that collapsed. Each is planned or exploratory by
    the seals of the store, whose comparisons are in the family too."""
    grouped = [c.title for c in prepared.resolved.columns.values() if _unit(prepared, c)]
    if items and prepared.textless and grouped:
        raise UserError(
            f"--items: the texts that say which examples of {listed(grouped)} go together are missing ({prepared.textless})."
        )
    more = [] if collapsed else [_left_out(grid)]
    compared = replace(grid, collapsed=collapsed)
    runs, store = prepared.plan.runs, prepared.store
    seals = store.seals(prepared.resolved.table.name)

    def follow(found: Sequence[Difference], named: str) -> tuple[str, set[int], str]:
        rule = rule_of(compared, named, region, items, collapsed)
        seal, planned, line = followed(compared, found, rule, runs, seals, runs_began(store, runs) if seals else {})
        return seal.digest if seal else "", planned, line

    return differences(
        compared,
        against,
        region,
        answers(prepared.plan, store, grid.results) if items else None,
        absent="missing or failed" if collapsed else "missing, failed or collapsed",
        more=more,
        unit=_test_item(prepared),
        follow=follow,
    )


def _left_out(grid: Grid) -> str:
    """A sentence about the runs that collapsed."""
    fell = grid.results["collapsed"] & (grid.results["status"] == "done")
    each = grid.results[fell].drop_duplicates(["row", "task", "size", "subset", "seed"])
    rows = ", ".join(f"{row} {count}" for row, count in each.groupby("row", sort=False).size().items())
    if not len(each):
        return "No run collapsed: nothing is left out."
    return f"Left out: {counted(len(each), 'collapsed run')}, which predict one class only on dev ({rows})."


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


def detections_of(prepared: Prepared, wanted: float, duration: Callable[[float], str] = "{:.1f} h".format) -> View:
    """What the planned table detects. `wanted`: a difference on the metric's own scale; `duration`: hours in words."""
    cost = cost_of(prepared.plan)

    def hours(subsets: int, seeds: int) -> float:
        flops, stages = cost(subsets, seeds)
        return prepared.hours_of(flops, round(stages))

    return detections(grid_of(prepared), wanted, hours, duration)


def variance_of(prepared: Prepared, grid: Grid) -> View:
    return variance(grid, answers(prepared.plan, prepared.store, grid.results))


def costs_of(prepared: Prepared, grid: Grid) -> View:
    """Scores beside the cost of a run, with the stages before fine-tuning."""
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
    sizes = {titles[run.row]: parameters(plan.encoder_of(run.stage).config) for run in plan.runs}
    return costs(grid, of_runs, sizes if len(plan.encoders) > 1 else {})


def curves_of(prepared: Prepared, grid: Grid) -> View:
    """The learning curves of the runs."""
    stages = {run.stage.key: run.stage for run in prepared.plan.runs}
    curves = {key: learning_curve(record, stages[key])[1] for key, record in prepared.store.each(stages)}
    return curves_view(grid, prepared.plan.runs, curves)


VIEWS: Mapping[str, Callable[[Prepared, Grid], View]] = {
    "results": lambda prepared, grid: results_view(grid, caption_of(prepared, grid)),
    "notes": lambda prepared, grid: notes_view(grid, caption_of(prepared, grid)),
    "settings": lambda prepared, grid: settings_view(grid.resolved),
    "classes": lambda prepared, grid: classes_view(prepared.plan, prepared.store, grid),
    "figure": lambda prepared, grid: figure_view(grid),
    "differences": differences_of,
    "variance": variance_of,
    "ranks": lambda prepared, grid: ranks_view(grid),
    "cost": costs_of,
    "examples": lambda prepared, grid: examples(prepared.plan, prepared.store, grid),
}
"""By the name that `report --view` takes."""
WITH_TEXTS = ("variance", "examples")
"""Those that read the data of the runs, where they are at hand."""


PAGE: Mapping[str, Callable[[Prepared, Grid], View]] = {
    "Comparisons": differences_of,
    "Figure": VIEWS["figure"],
    "Learning curves": curves_of,
    "Variance": variance_of,
    "Test examples": lambda prepared, grid: examples(prepared.plan, prepared.store, grid, with_texts=False),
    "Classes": VIEWS["classes"],
    "Cost": costs_of,
}
"""What a page shows after the table, where there is any of it, by title; a page may be passed on, and has no texts."""


def page_of(prepared: Prepared, grid: Grid, caption: Caption, url: str | None) -> str:
    """The page of a table. `url`: the store as the user named it."""
    request = replace(prepared.request, preset=prepared.resolved.preset)
    again = f"{command(request, 'report', url)} --format html --out {Path(request.table).stem}.html"
    views: dict[str, View | str] = {}
    for title, view in PAGE.items():
        try:
            found = view(prepared, grid)
        except UserError as error:
            views |= {title: f"No comparison: {str(error).removeprefix('compare: ')}"} if view is differences_of else {}
        else:
            views |= {title: found} if len(found.frame) or view is differences_of else {}
    return results_page(grid, caption, views, [*map(without_folders, (command(request, "bench", url), again))])
