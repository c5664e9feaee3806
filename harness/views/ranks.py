"""Ranks of a table's rows with intervals, and the sets of the best: column by column, and over the columns as a sample of tasks.

Pure. `docs/statistics.md` has the rules and how often they err.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from harness.statistics.crossed import ROUNDING, mean_squares, p_value, t_inference
from harness.views.cells import Grid, Place
from harness.views.differences import LEVEL, judged
from harness.views.runs import column_name, means_lines, no_runs, on_grid, reference_of, run_places, runs_of, size_name
from harness.views.view import DASH, Table, View, best

if TYPE_CHECKING:
    import pandas as pd

OVER = "columns"
"""In the place of a column's id: over the columns as a sample of tasks."""
BEST = f"{best('Marked')}: statistically tied for best in its column (95 %, by the tests of 'harness compare')."
"""What a marked cell is."""
LEAST_TASKS = 3
"""Of two tasks the t quantile is 12.7, and nothing separates."""


class Rank(NamedTuple):
    """Of a complete row among the `num_rows` complete rows of its column and size. `best`: it is tied for best, where any row is not."""

    low: int
    high: int
    num_rows: int
    best: bool


def ranks_view(grid: Grid) -> View:
    """Of each complete row its rank with an interval, by column and over the columns; marked where it is in the set of the best."""
    import pandas as pd

    ranked, r = ranks(grid), grid.resolved
    names = ("size", "row", "column", "rank_low", "rank_high", "num_rows", "best")
    frame = pd.DataFrame([(*place, *rank) for place, rank in ranked.items()], columns=names)
    tables = []
    for size in r.sizes:
        columns = [*grid.columns, *([OVER] if any(place[::2] == (size, OVER) for place in ranked) else [])]
        head = ["Method", *("Over columns" if column == OVER else column_name(grid, column) for column in columns)]
        rows = [[row, *(_text(ranked.get((size, row, column))) for column in columns)] for row in r.printed_rows]
        tables.append(Table(size_name(size, r.size_unit), head, rows))
    lines = [
        "Rank intervals: from 1 + the rows that are surely above a row to the number of rows less those that are surely below it, by the paired crossed t test; all intervals of the table hold "
        f"together with 95 % (Bonferroni). {BEST}",
        f"Over columns: the columns are a sample of tasks, crossed with the seeds (of {LEAST_TASKS} tasks or more). In Avg they are taken as given. Rows that lack runs have no rank.",
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
        values = {row: cell.value if grid.collapsed else cell.without_collapsed for row, cell in cells.items()}
        scores = {row: value for row, value in values.items() if value is not None}
        if len(scores) < 2:
            continue
        top = max(scores, key=lambda row: scores[row])
        if top not in against_top:
            against_top[top] = judged(grid, lambda row, top=top: top)[0]  # type: ignore[misc]
        every = own, against_top[top]
        shown, others = ([c for c in of if (c["size"], c["column"]) == (size, column)] for of in every)
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
    """Of each complete row in each column, Avg among them, and over the columns (`OVER`), where two rows or more are complete.

    Rows are compared pair by pair, by the crossed t test. A rank interval counts the rows that are above and below with p times the number of all pairs, of all columns and sizes that
    Holm's family has, below `LEVEL`: all hold together, and no rank tells rows apart that no verdict does. Over the columns rows are tied for best of which none is above with half of p times
    the number of a row's tests below `LEVEL`: the row with the highest true mean is left out only if one of its own tests errs.
    """
    runs, leading = runs_of(grid), sets_of_the_best(grid)
    at: dict[tuple[int, str], dict[str, pd.DataFrame]] = {}
    for (size, row, column), cell in grid.cells.items():
        if cell.complete and row in grid.resolved.printed_rows:
            at.setdefault((size, column), {})[row] = runs.get((size, row, column), no_runs())
    over = {size: _over_columns(grid, size) for size in grid.resolved.sizes}
    at |= {(size, OVER): rows for size, rows in over.items()}
    planned = Counter((size, column) for size, _, column in run_places(grid) | grid.elsewhere)
    everywhere, over_columns = (
        sum(math.comb(n, 2) for n in counts) for counts in (planned.values(), map(len, over.values()))
    )
    found = {}
    for (size, column), rows in at.items():
        if len(rows) < 2:
            continue
        p, pairs = _above(rows), over_columns if column == OVER else everywhere
        kept = {row for row in rows if all(p[other, row] / 2 * (len(rows) - 1) >= LEVEL for other in rows)}
        for row in rows:
            best = (size, row, column) in leading
            if column == OVER:
                best = row in kept and len(kept) < len(rows)
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


def _over_columns(grid: Grid, size: int) -> dict[str, pd.DataFrame]:
    """Rows that are complete in all columns of the average, with the mean over the subsets that all of them have of each task and seed. Subsets of two tasks are different examples, so
    that they are part of what varies between tasks; seeds are the same in all: tasks x seeds is a crossed design like subsets x seeds."""
    import pandas as pd

    groups, runs = _groups_of_tasks(grid), runs_of(grid)
    columns = [*itertools.chain(*groups)]
    rows = [
        row
        for row in grid.resolved.printed_rows
        if all(grid.cells[size, row, c].complete and (size, row, c) in runs for c in columns)
    ]
    if len(groups) < LEAST_TASKS or not rows:
        return {}
    means = []
    for group in groups:
        of_task = []
        for column in group:  # where collapsed runs are left out, rows lack different ones
            scores, pairs = on_grid(*(runs[size, row, column] for row in rows))
            seeds = [seed for _, seed in pairs[: scores.shape[2]]]
            of_task.append(pd.DataFrame(scores.mean(axis=1), rows, seeds))
        means.append(sum(of_task[1:], of_task[0]) / len(group))
    by_task = pd.concat(means, axis=1, keys=range(len(means)), join="inner").dropna(axis=1)
    common = by_task.columns.to_frame().groupby(1)[0].transform("size") == len(groups)
    kept = by_task.loc[:, common.to_numpy()]
    return {row: pd.DataFrame({"test": kept.loc[row]}) for row in rows}


def _groups_of_tasks(grid: Grid) -> list[tuple[str, ...]]:
    """The columns of the average in groups that count as one task: those that the table groups, and those with the same runs (MNLI's two test sets)."""
    columns, groups = grid.resolved.columns, list[tuple[str, ...]]()
    for group in grid.resolved.average_over:
        tasks = {columns[column].task for column in group}
        same = [other for other in groups if not tasks.isdisjoint(columns[column].task for column in other)]
        groups = [other for other in groups if other not in same] + [tuple(itertools.chain(*same, group))]
    return groups
