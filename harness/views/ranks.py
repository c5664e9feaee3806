"""Ranks of a table's rows with intervals, and the sets of the best: column by column, and over the columns as a sample of tasks.

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

from harness.statistics.crossed import ROUNDING, mean_squares, p_value, t_inference
from harness.statistics.design import full_grid
from harness.views.cells import Grid
from harness.views.differences import LEVEL, judged
from harness.views.runs import (
    NO_RUNS,
    Place,
    Runs,
    column_name,
    means_lines,
    reference_of,
    run_places,
    runs_of,
    size_name,
)
from harness.views.view import DASH, Table, View, best

OVER = "columns"
"""In the place of a column's id: over the columns as a sample of tasks."""
BEST = f"{best('Marked')}: statistically tied for best in its column (95 %, by the tests of 'harness compare')."
"""What a marked cell is."""
LEAST_TASKS = 3
"""Of two tasks the t quantile is 12.7, and nothing separates."""


class Rank(NamedTuple):
    """Of a complete row among the `num_rows` complete rows of its column and size: from `low` to `high`, together for all rows, columns and sizes with 95 %. `best`: it is tied for best,
    where any row is not."""

    low: int
    high: int
    num_rows: int
    best: bool


def ranks_view(grid: Grid) -> View:
    """Of each complete row its rank with an interval, by column and over the columns; marked where it is in the set of the best."""
    import pandas as pd

    ranked = ranks(grid)
    names = ("size", "row", "column", "rank_low", "rank_high", "num_rows", "best")
    frame = pd.DataFrame([(*place, *rank) for place, rank in ranked.items()], columns=names)
    tables = []
    for size in grid.resolved.sizes:
        columns = [*grid.columns, *([OVER] if any(place[::2] == (size, OVER) for place in ranked) else [])]
        head = ["Method", *("Over columns" if column == OVER else column_name(grid, column) for column in columns)]
        rows = [
            [row, *(_text(ranked.get((size, row, column))) for column in columns)] for row in grid.resolved.printed_rows
        ]
        tables.append(Table(size_name(size, grid.resolved.size_unit), head, rows))
    lines = [
        "Rank intervals: from 1 + the rows that are surely above a row to the number of rows less those that are surely below it, by the paired crossed t test; all intervals of the table hold "
        f"together with 95 % (Bonferroni). {BEST}",
        f"Over columns: the columns are a sample of tasks, crossed with the seeds (of {LEAST_TASKS} tasks or more). In Avg they are taken as given. Rows that lack runs have no rank.",
        *means_lines(grid, "ranks"),
    ]
    return View("ranks", frame, tables, lines, about={"table": grid.resolved.table.name})


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
        at = size, column
        shown, others = ([c for c in every if (c["size"], c["column"]) == at] for every in (own, against_top[top]))
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
    runs, titles_at, leading = runs_of(grid), {}, sets_of_the_best(grid)
    for size, column in dict.fromkeys((size, column) for size, _, column in grid.cells):
        titles_at[size, column] = [row for row in grid.resolved.printed_rows if grid.cells[size, row, column].complete]
    for size in grid.resolved.sizes:
        over = _over_columns(grid, runs, size)
        runs = {**runs, **{(size, title, OVER): of for title, of in over.items()}}
        titles_at[size, OVER] = [*over]
    planned = Counter((size, column) for size, _, column in run_places(grid) | grid.elsewhere)
    everywhere = sum(math.comb(count, 2) for count in planned.values())
    over_columns = sum(math.comb(len(titles_at[size, OVER]), 2) for size in grid.resolved.sizes)
    found = {}
    for (size, column), titles in titles_at.items():
        if len(titles) < 2:
            continue
        p = _above({title: runs.get((size, title, column), NO_RUNS) for title in titles})
        pairs = over_columns if column == OVER else everywhere
        kept = {title for title in titles if all(p[other, title] / 2 * (len(titles) - 1) >= LEVEL for other in titles)}
        for title in titles:
            best = (size, title, column) in leading
            if column == OVER:
                best = title in kept and len(kept) < len(titles)
            low = 1 + sum(p[other, title] * pairs < LEVEL for other in titles)
            high = len(titles) - sum(p[title, other] * pairs < LEVEL for other in titles)
            found[size, title, column] = Rank(1 if best else low, high, len(titles), best)
    return found


def _above(runs: Mapping[str, Runs]) -> dict[tuple[str, str], float]:
    """The p by which the first row is above the second, for each ordered pair; infinite where it is not, or there is no spread to judge by."""
    p = dict.fromkeys(itertools.product(runs, runs), math.inf)
    for one, other in itertools.combinations(runs, 2):
        d, pairs = runs[one].minus(runs[other])
        if len(pairs) < 2:
            continue
        squares = mean_squares(d)
        variances, degrees = t_inference(squares)
        if np.ptp(d) > ROUNDING and variances.sum() > 0:
            above = (one, other) if squares.mean > 0 else (other, one)
            p[above] = float(p_value(squares.mean, variances, degrees))
    return p


def _over_columns(grid: Grid, runs: Mapping[Place, Runs], size: int) -> dict[str, Runs]:
    """Rows that are complete in all columns of the average, with the mean over the subsets that all of them have of each task (columns of one group, and of one task, count as one) and seed. Subsets of two tasks are different examples, so
    that they are part of what varies between tasks; seeds are the same in all: tasks x seeds is a crossed design like subsets x seeds."""
    groups = _groups_of_tasks(grid)
    columns = [*itertools.chain(*groups)]
    titles = [
        title
        for title in grid.resolved.printed_rows
        if all(grid.cells[place].complete and place in runs for place in ((size, title, column) for column in columns))
    ]
    if len(groups) < LEAST_TASKS or not titles:
        return {}
    common = {  # where collapsed runs are left out, rows lack different ones
        column: full_grid(sorted(set.intersection(*(set(runs[size, title, column].scores) for title in titles))))
        for column in columns
    }
    seeds = [seed for seed in grid.resolved.seeds if all(seed in there for _, there in common.values())]

    def mean_of(title: str, column: str, seed: int) -> float:
        return float(np.mean([runs[size, title, column].scores[subset, seed] for subset in common[column][0]]))

    return {
        title: Runs(
            {
                (task, seed): float(np.mean([mean_of(title, column, seed) for column in group]))
                for (task, group), seed in itertools.product(enumerate(groups), seeds)
            }
        )
        for title in titles
    }


def _groups_of_tasks(grid: Grid) -> list[tuple[str, ...]]:
    """The columns of the average in groups that count as one task: those that the table groups, and those with the same runs (MNLI's two test sets)."""
    columns, groups = grid.resolved.columns, list[tuple[str, ...]]()
    for group in grid.resolved.average_over:
        tasks = {columns[column].task for column in group}
        same = [other for other in groups if not tasks.isdisjoint(columns[column].task for column in other)]
        groups = [other for other in groups if other not in same] + [tuple(itertools.chain(*same, group))]
    return groups
