"""Rank intervals and sets of the best in words and tables. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from harness.views.caption import BEST, means_lines
from harness.views.cells import Grid
from harness.views.document import DASH, Document, Entry, Table, in_format
from harness.views.numbers.comparison import Place
from harness.views.numbers.ranks import LEAST_TASKS, OVER, Rank, ranks
from harness.views.table import column_name, size_name

if TYPE_CHECKING:
    import pandas as pd


def notes(bold: bool) -> list[str]:
    """What the ranks are, for below the tables."""
    return [
        "Rank intervals: from 1 + the rows that are surely above a row to the number of rows less those that are surely below it, by the paired crossed t test; all intervals of the table hold "
        f"together with 95 % (Bonferroni). {BEST}",
        f"Over columns: the columns are a sample of tasks, crossed with the seeds (of {LEAST_TASKS} tasks or more). In Avg they are taken as given. Rows that lack runs have no rank.",
    ]


def rendered_ranks(grid: Grid, format: str) -> str:
    """Ends with a newline. Raises UserError for an unknown format."""
    ranked, name = ranks(grid), grid.resolved.table.name
    tables = [_table(grid, ranked, size) for size in grid.resolved.sizes]
    about = [*notes(format != "text"), *means_lines(grid, "ranks")]
    document = Document(f"{name}-ranks", tables, about, caption=about[:1])
    return in_format(format, ranks_frame(grid), "ranks", {"table": name, "ranks": [], "notes": about}, document)


def _table(grid: Grid, ranked: Mapping[Place, Rank], size: int) -> Table:
    columns = [*grid.columns, *([OVER] if any(place[::2] == (size, OVER) for place in ranked) else [])]
    head = ["Method", *("Over columns" if column == OVER else column_name(grid, column) for column in columns)]
    rows: list[list[str | Entry]] = [
        [row, *(_entry(ranked.get((size, row, column))) for column in columns)] for row in grid.resolved.printed_rows
    ]
    return Table(size_name(size, grid.resolved.size_unit), head, rows)


def _entry(rank: Rank | None) -> Entry:
    if rank is None:
        return Entry(DASH)
    return Entry(f"{rank.low} to {rank.high}" if rank.low < rank.high else f"{rank.low}", best=rank.best)


def ranks_frame(grid: Grid) -> pd.DataFrame:
    """One row a size, row and column (`columns`: over them): `rank_low`, `rank_high`, `num_rows` that are ranked, and `best`, whether it is in the set of the best."""
    import pandas as pd

    names = ["size", "row", "column", "rank_low", "rank_high", "num_rows", "best"]
    rows = [(*place, rank.low, rank.high, rank.count, rank.best) for place, rank in ranks(grid).items()]
    return pd.DataFrame(rows, columns=names)
