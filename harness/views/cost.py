"""Scores beside their cost as text, Markdown, LaTeX, CSV or JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from harness.views.cells import Grid
from harness.views.document import DASH, Document, Entry, Table, in_format
from harness.views.numbers.cost import CellCost, cost_frame
from harness.views.table import column_name, size_name
from harness.wording import in_points, two_digits


def notes(costs: Sequence[CellCost]) -> list[str]:
    """What the figures are, for below the table."""
    lines = [
        "Score: mean over subsets and seeds in points (x100), with half the width of its crossed 95 % interval. FLOPs and time: means of one run, each stage "
        "counted in every run that starts from it, as the run alone would cost; time as recorded, on the hardware of each record. Times: FLOPs as a multiple of the "
        "first row's.",
        "Beaten by: the cheapest row whose mean is as high or higher for no more FLOPs; 'harness compare' says whether the scores are separable. What others "
        "spent on a given encoder is in no figure.",
    ]
    if any(cell.search.flops for cell in costs):
        lines.append(
            "Search: all stages of the studies that hold the runs of a row, and of its configurations that were not selected, shared by the runs of its cell."
        )
    return lines


def rendered_costs(costs: Sequence[CellCost], grid: Grid, more: Sequence[str], format: str) -> str:
    """`more`: further sentences below the table. Ends with a newline. Raises UserError for an unknown format."""
    searched = any(cell.search.flops for cell in costs)
    search = ["Search"] if searched else []
    sized = ["Parameters"] if any(cell.parameters for cell in costs) else []
    head = ("Column", "Row", *sized, "Score", "Fine-tuning", "Earlier", *search, "FLOPs", "Times", "Hours", "Beaten by")
    left = frozenset({0, 1, len(head) - 1})
    tables = []
    for size in grid.resolved.sizes:
        of_size = [cell for cell in costs if cell.size == size]
        first = {cell.column: cell.total.flops for cell in reversed(of_size)}
        rows = [_row(grid, cell, first[cell.column], searched, bool(sized)) for cell in of_size]
        tables.append(Table(size_name(size, grid.resolved.size_unit), head, rows, left))
    about = notes(costs)
    name = grid.resolved.table.name
    document = Document(f"{name}-cost", tables, [*about, *more], caption=about[:2])
    body = {"table": name, "costs": [], "notes": [*about, *more]}
    return in_format(format, cost_frame(costs), "costs", body, document)


def _row(grid: Grid, cell: CellCost, first: float, searched: bool, sized: bool) -> list[str | Entry]:
    spread = "" if cell.high is None else in_points(cell.high - cell.score)
    search = [f"{cell.search.flops:.2g}"] if searched else []
    values = [f"{cell.fine_tuning.flops:.2g}", f"{cell.earlier.flops:.2g}", *search, f"{cell.total.flops:.2g}"]
    times = f"{cell.total.flops / first:.2f}" if first else DASH
    hours = two_digits(cell.total.seconds / 3600)
    return [
        column_name(grid, cell.column),
        cell.row,
        *([f"{cell.parameters / 1e6:.1f} M" if cell.parameters else DASH] if sized else []),
        Entry(in_points(cell.score), spread),
        *values,
        times,
        hours,
        cell.beaten,
    ]
