"""Ranks of a table's rows with intervals, and the sets of the best, column by column.

Pure. `docs/statistics.md` has the rules and how often they err.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from harness.statistics.crossed import ROUNDING, mean_squares, p_value, t_inference
from harness.views.cells import Grid, Place, means_lines, no_runs, on_grid, reference_of
from harness.views.differences import LEVEL, judged
from harness.views.view import DASH, Table, View, best

BEST = f"{best('Marked')}: statistically tied for best in its column (95 %, by the tests of 'harness compare')."
"""What a marked cell is."""


class Rank(NamedTuple):
    """Of a complete row among the `num_rows` complete rows of its column and size. `best`: it is tied for best, where any row is not."""

    low: int
    high: int
    num_rows: int
    best: bool


def ranks_view(grid: Grid) -> View:
    """Of each complete row its rank with an interval, by column; marked where it is in the set of the best."""
    ranked, r = ranks(grid), grid.resolved
    names = ("size", "row", "column", "rank_low", "rank_high", "num_rows", "best")
    frame = pd.DataFrame([(*place, *rank) for place, rank in ranked.items()], columns=names)
    head = ["Method", *(grid.column_name(column) for column in grid.columns)]
    tables = []
    for size in r.sizes:
        rows = [[row, *(_text(ranked.get((size, row, column))) for column in grid.columns)] for row in r.printed_rows]
        tables.append(Table(grid.size_name(size), head, rows))
    lines = [
        "Rank intervals: from 1 + the rows that are surely above a row to the number of rows less those that are surely below it, by the paired crossed t test; all intervals of the table hold "
        f"together with 95 % (Bonferroni). {BEST} Rows that lack runs have no rank.",
        *means_lines(grid, "ranks"),
    ]
    return View("ranks", frame, tables, lines, about={"table": r.table.name})


def _text(rank: Rank | None) -> str:
    if rank is None:
        return DASH
    text = f"{rank.low} to {rank.high}" if rank.low < rank.high else f"{rank.low}"
    return best(text) if rank.best else text


@lru_cache(maxsize=2)
def sets_of_the_best(grid: Grid) -> frozenset[Place]:
    """The complete rows that are tied for best in their column and size; none where no row is shown to be below another.

    By the verdicts of `harness compare`: those of the table's own comparison, and for a pair that is not in it those of all rows against the highest one. A row is tied for best
    where the highest row is not higher than it by its verdict, and no row is by those of the table's own. Where a pair has no test the lower row is not.
    """
    if len(grid.resolved.printed_rows) < 2:
        return frozenset()
    named, reference = reference_of(grid.resolved)
    own, found = judged(grid, reference)[0], set[Place]()
    against_top = {named: own}
    for size, column in dict.fromkeys((size, column) for size, _, column in grid.cells):
        cells = {row: grid.cells[size, row, column] for row in grid.resolved.printed_rows}
        scores = {row: cell.value for row, cell in cells.items() if cell.value is not None}
        if len(scores) < 2:
            continue
        top = max(scores, key=lambda row: scores[row])
        if top not in against_top:
            against_top[top] = judged(grid, lambda row, top=top: top)[0]  # type: ignore[misc]
        every = against_top[top], own
        others, shown = ([c for c in of if (c["size"], c["column"]) == (size, column)] for of in every)
        pairs = {frozenset((c["row"], c["against"])): c for c in (*others, *shown)}
        to_top = {row: pairs[frozenset((row, top))] for row in scores if row != top}
        lower = {{"lower": c["row"], "higher": c["against"]}.get(c["verdict"]) for c in (*shown, *to_top.values())}
        tested = {row for row, c in to_top.items() if c["verdict"] != "no verdict"}
        equal = {row for row, c in to_top.items() if c["difference"] is not None and abs(c["difference"]) <= ROUNDING}
        if tested and not lower.isdisjoint(scores) and top not in lower:
            found |= {(size, row, column) for row in {top, *tested, *equal} - lower}
    return frozenset(found)


@lru_cache(maxsize=2)
def ranks(grid: Grid) -> Mapping[Place, Rank]:
    """Of each complete row in each column, Avg among them, where two rows or more are complete.

    Rows are compared pair by pair, by the crossed t test. A rank interval counts the rows that are above and below with p times the number of all pairs, of all columns and sizes that
    Holm's family has, below `LEVEL`: all hold together, and no rank tells rows apart that no verdict does.
    """
    runs, leading = grid.scores, sets_of_the_best(grid)
    at: dict[tuple[int, str], dict[str, pd.DataFrame]] = {}
    for (size, row, column), cell in grid.cells.items():
        if cell.complete and row in grid.resolved.printed_rows:
            at.setdefault((size, column), {})[row] = runs.get((size, row, column), no_runs())
    planned = Counter((size, column) for size, _, column in grid.places | grid.elsewhere)
    pairs, found = sum(math.comb(rows, 2) for rows in planned.values()), {}
    for (size, column), rows in at.items():
        p = _above(rows)
        for row in rows if len(rows) > 1 else ():
            best = (size, row, column) in leading
            low = 1 + sum(p[other, row] * pairs < LEVEL for other in rows)
            high = len(rows) - sum(p[row, other] * pairs < LEVEL for other in rows)
            found[size, row, column] = Rank(1 if best else low, high, len(rows), best)
    return found


def _above(runs: Mapping[str, pd.DataFrame]) -> dict[tuple[str, str], float]:
    """The p by which the first row is above the second, for each ordered pair; infinite where it is not, or there is no spread to judge by."""
    p = dict.fromkeys(itertools.product(runs, runs), math.inf)
    for one, other in itertools.combinations(runs, 2):
        (scores, others), pairs = on_grid(runs[one], runs[other])
        if len(pairs) < 2:
            continue
        squares = mean_squares(d := scores - others)
        variances, degrees = t_inference(squares)
        if np.ptp(d) > ROUNDING and variances.sum() > 0:
            above = (one, other) if squares.mean > 0 else (other, one)
            p[above] = float(p_value(squares.mean, variances, degrees))
    return p
