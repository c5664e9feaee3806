"""Rank intervals of the rows of each column. Pure; `docs/statistics.md` has the rule."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pandas as pd

from harness.statistics.difference import difference
from harness.views.cells import Grid, means_lines, no_runs, on_grid
from harness.views.differences import BEST, LEVEL, REGION, sets_of_the_best
from harness.views.view import DASH, Table, View, best


def ranks_view(grid: Grid) -> View:
    """Of each complete row its rank among the complete rows of its column and size, where there are several: those above and below it count whose p, times the number of
    all pairs of the table and its benches, is below `LEVEL`. Marked where it is tied for best."""
    r, leading, found = grid.resolved, sets_of_the_best(grid), []
    planned = Counter((size, column) for size, _, column in grid.places | grid.elsewhere)
    pairs = sum(math.comb(rows, 2) for rows in planned.values())
    for size, column in itertools.product(r.sizes, grid.columns):
        runs = {row: grid.scores.get((size, row, column), no_runs()) for row in r.printed_rows}
        runs = {row: each for row, each in runs.items() if grid.cells[size, row, column].complete}
        above, below = Counter[str](), Counter[str]()
        for one, other in itertools.combinations(runs, 2):
            (ours, theirs), common = on_grid(runs[one], runs[other])
            each = difference(ours - theirs, REGION) if common else None
            if each and each.p is not None and each.p * pairs < LEVEL:
                above[other if each.difference > 0 else one] += 1
                below[one if each.difference > 0 else other] += 1
        for row in runs if len(runs) > 1 else ():
            first = (size, row, column) in leading
            low = 1 if first else 1 + above[row]
            found.append((size, row, column, low, len(runs) - below[row], len(runs), first))
    names = ("size", "row", "column", "rank_low", "rank_high", "num_rows", "best")
    texts = {each[:3]: f"{each[3]} to {each[4]}" if each[3] < each[4] else f"{each[3]}" for each in found}
    texts |= {place: best(text) for place, text in texts.items() if place in leading}
    head, tables = ["Method", *map(grid.column_name, grid.columns)], []
    for size in r.sizes:
        rows = [[row, *(texts.get((size, row, column), DASH) for column in grid.columns)] for row in r.printed_rows]
        tables.append(Table(grid.size_name(size), head, rows))
    lines = [
        "Rank intervals: from 1 + the rows that are surely above a row to the number of rows less those that are surely below it, by the paired crossed t test; all intervals of the table hold "
        f"together with 95 % (Bonferroni). {BEST} Rows that lack runs have no rank.",
        *means_lines(grid, "ranks"),
    ]
    return View("ranks", pd.DataFrame(found, columns=names), tables, lines, about={"table": r.table.name})
