"""The rows of a prepared table compared, and the variance of its cells, from what the store holds now."""

from __future__ import annotations

from harness.commands.prepare import Prepared
from harness.commands.report import grid_of
from harness.tables.cells import Grid
from harness.tables.comparison import Comparisons, compared
from harness.tables.results import answers
from harness.tables.variance import CellVariance, decomposed


def comparisons_of(prepared: Prepared, against: str, region: float, items: bool) -> Comparisons:
    """`region`: on the metric's own scale. `items`: test items become a factor."""
    grid, _ = grid_of(prepared)
    found = answers(prepared.plan, prepared.store, grid.results) if items else None
    return compared(grid, against, region, found, prepared.request.option)


def variance_of(prepared: Prepared) -> tuple[Grid, list[CellVariance]]:
    grid, _ = grid_of(prepared)
    return grid, decomposed(grid, answers(prepared.plan, prepared.store, grid.results))
