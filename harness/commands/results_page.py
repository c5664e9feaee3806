"""The page of a prepared table, from what the store holds now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.analysis.comparison import Comparisons
from harness.analysis.examples import example_frames
from harness.analysis.scores import answers
from harness.analysis.variance import decomposed
from harness.commands.compare import comparisons_of
from harness.commands.prepare import Prepared
from harness.commands.recorded import learning_curve
from harness.commands.report import grid_of
from harness.commands.stored import command
from harness.errors import UserError
from harness.paths import without_folders
from harness.report.results_page import Results, results_page


def page_of(prepared: Prepared, url: str | None) -> tuple[bool, str]:
    """Whether the table is complete, and its page. `url`: the store as the user named it."""
    plan, store = prepared.plan, prepared.store
    grid, caption = grid_of(prepared)
    comparisons: Comparisons | str
    try:
        comparisons = comparisons_of(prepared, grid=grid)
    except UserError as error:
        comparisons = f"No comparison: {str(error).removeprefix('compare: ')}"
    records, curves = {}, {}
    stages = {stage.key: stage for run in plan.runs for stage in run.stage.chain}
    last = {run.stage.key for run in plan.runs}
    for key, record in store.each(stages):
        if key in last:
            curves[key] = learning_curve(record, stages[key])[1]
        records[key] = replace(record, history=[])
    request = replace(prepared.request, preset=prepared.resolved.preset)
    table = Path(request.table).stem
    commands = [command(request, "bench", url), f"{command(request, 'report', url)} --format html --out {table}.html"]
    found = Results(
        grid,
        caption,
        comparisons,
        decomposed(grid, answers(plan, store, grid.results)),
        plan.runs,
        records,
        curves,
        [*map(without_folders, commands)],
        example_frames(plan, store, grid),
    )
    return grid.complete, results_page(found)
