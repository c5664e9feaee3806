"""The rows of a prepared table compared, the variance of its cells, and what its plan detects, from what the store holds now."""

from __future__ import annotations

from harness.commands.prepare import Prepared
from harness.commands.report import grid_of
from harness.tables.cells import Grid
from harness.tables.comparison import Comparisons, compared
from harness.tables.power import Detections, cost_of, detections
from harness.tables.results import answers
from harness.tables.variance import CellVariance, decomposed
from harness.tasks import protocol_named


def comparisons_of(prepared: Prepared, against: str, region: float, items: bool) -> Comparisons:
    """`region`: on the metric's own scale. `items`: test items become a factor."""
    grid, _ = grid_of(prepared)
    found = answers(prepared.plan, prepared.store, grid.results) if items else None
    return compared(grid, against, region, found, prepared.request.option)


def detections_of(prepared: Prepared, wanted: float) -> Detections:
    """What the planned table detects. `wanted`: a difference on the metric's own scale."""
    cost = cost_of(prepared.plan)

    def hours(subsets: int, seeds: int) -> float:
        flops, stages = cost(subsets, seeds)
        return prepared.hours_of(flops, round(stages))

    grid, _ = grid_of(prepared)
    return detections(grid, wanted, hours)


def subsets_of(prepared: Prepared) -> int:
    """How many subsets the table, its preset or its protocol has in all."""
    r = prepared.resolved
    return protocol_named(r.protocol).num_subsets or max(r.table.subsets, r.table.presets[r.preset].subsets or 0)


def variance_of(prepared: Prepared) -> tuple[Grid, list[CellVariance]]:
    grid, _ = grid_of(prepared)
    return grid, decomposed(grid, answers(prepared.plan, prepared.store, grid.results))
