"""A prepared table as a page of HTML, from what the store holds now."""

from __future__ import annotations

from dataclasses import replace

from harness.commands.prepare import Prepared
from harness.commands.recorded import learning_curve
from harness.commands.report import grid_of
from harness.commands.stored import command
from harness.errors import UserError
from harness.pages.results_page import Results, results_page
from harness.tables.comparison import Comparisons, compared
from harness.tables.results import answers
from harness.tables.variance import decomposed

CHUNK = 500
"""Stages whose histories are held in memory at a time."""


def page_of(prepared: Prepared, url: str | None) -> tuple[bool, str]:
    """Whether the table is complete, and its page. `url`: the store as the user named it."""
    plan, store = prepared.plan, prepared.store
    grid, caption = grid_of(prepared)
    comparisons: Comparisons | str
    try:
        comparisons = compared(grid, option=prepared.request.option)
    except UserError as error:
        comparisons = f"No comparison: {str(error).removeprefix('compare: ')}"
    records, curves = {}, {}
    stages = {stage.key: stage for run in plan.runs for stage in run.stage.chain}
    last = {run.stage.key for run in plan.runs}
    keys = [*stages]
    for start in range(0, len(keys), CHUNK):
        for key, record in store.records(keys[start : start + CHUNK]).items():
            if key in last:
                curves[key] = learning_curve(record, stages[key])[1]
            records[key] = replace(record, history=[])
    request = replace(prepared.request, preset=prepared.resolved.preset)
    commands = [
        command(request, "bench", url),
        f"{command(request, 'report', url)} --format html --out {request.table}.html",
    ]
    found = Results(
        grid,
        caption,
        comparisons,
        decomposed(grid, answers(plan, store, grid.results)),
        plan.runs,
        records,
        curves,
        commands,
    )
    return grid.complete, results_page(found)
