"""Ranks of a table's rows with intervals, and the sets of the best: column by column, and over the columns as a sample of tasks.

Pure. `docs/statistics.md` has the rules and how often they err.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from harness.analysis.cells import Grid
from harness.analysis.comparison import LEVEL, NO_RUNS, Place, Runs, candidates_of, paired, runs_of
from harness.statistics.crossed import ROUNDING, mean_squares, p_value, t_inference
from harness.statistics.design import full_grid

OVER = "columns"
"""In the place of a column's id: over the columns as a sample of tasks."""
LEAST_TASKS = 3
"""Of two tasks the t quantile is 12.7, and nothing separates."""


@dataclass(frozen=True)
class Rank:
    """Of a complete row among the `count` complete rows of its column and size: from `low` to `high`, together for all rows with 95 %. `best`: it cannot be told from the best, where
    any row can."""

    low: int
    high: int
    count: int
    best: bool


def ranks(grid: Grid) -> dict[Place, Rank]:
    """Of each complete row in each column, without reference rows, Avg among the columns, and over the columns (`OVER`), where two rows or more are complete.

    Rows are compared pair by pair, by the one-sided p of the crossed t test. A row that another one is above, with p times the number of the row's tests below `LEVEL` (Bonferroni), is
    not in the set of the best: the row with the highest true mean is left out only if one of its own tests errs, so that it is in the set with probability 1 - `LEVEL` or more, whichever row looks
    best. A rank interval counts the rows that are above and below with p times the number of all ordered pairs below `LEVEL`: all of the column's hold together.
    """
    runs, titles_at = runs_of(grid), {}
    for size, column in dict.fromkeys((size, column) for size, _, column in grid.cells):
        titles_at[size, column] = [title for title in candidates_of(grid) if grid.cells[size, title, column].complete]
    for size in grid.resolved.sizes:
        over = _over_columns(grid, runs, size)
        runs = {**runs, **{(size, title, OVER): of for title, of in over.items()}}
        titles_at[size, OVER] = [*over]
    found = {}
    for (size, column), titles in titles_at.items():
        if len(titles) < 2:
            continue
        p = _above({title: runs.get((size, title, column), NO_RUNS) for title in titles})
        pairs = len(titles) * (len(titles) - 1)
        kept = [title for title in titles if all(p[other, title] * (len(titles) - 1) >= LEVEL for other in titles)]
        for title in titles:
            low = 1 + sum(p[other, title] * pairs < LEVEL for other in titles)
            high = len(titles) - sum(p[title, other] * pairs < LEVEL for other in titles)
            found[size, title, column] = Rank(low, high, len(titles), title in kept and len(kept) < len(titles))
    return found


def sets_of_the_best(grid: Grid) -> set[Place]:
    """The rows that cannot be told from the best of their column and size; none where no row can be told from another."""
    return {place for place, rank in ranks(grid).items() if rank.best}


def _above(runs: Mapping[str, Runs]) -> dict[tuple[str, str], float]:
    """The one-sided p by which the first row is above the second, for each ordered pair; 1 where it is not, or there is no spread to judge by."""
    p = dict.fromkeys(itertools.product(runs, runs), 1.0)
    for one, other in itertools.combinations(runs, 2):
        ours, theirs = runs[one], runs[other]
        subsets, seeds = full_grid([pair for pair in ours.scores if pair in theirs.scores])
        if len(subsets) * len(seeds) < 2:
            continue
        d = paired(ours, theirs, subsets, seeds)
        squares = mean_squares(d)
        variances, degrees = t_inference(squares)
        if np.ptp(d) > ROUNDING and variances.sum() > 0:
            above = (one, other) if squares.mean > 0 else (other, one)
            p[above] = float(p_value(squares.mean, variances, degrees)) / 2
    return p


def _over_columns(grid: Grid, runs: Mapping[Place, Runs], size: int) -> dict[str, Runs]:
    """Rows that are complete in all columns of the average, with the mean over the subsets that all of them have of each task (columns of one group, and of one task, count as one) and seed. Subsets of two tasks are different examples, so
    that they are part of what varies between tasks; seeds are the same in all: tasks x seeds is a crossed design like subsets x seeds."""
    groups = _groups_of_tasks(grid)
    columns = [*itertools.chain(*groups)]
    titles = [
        title
        for title in candidates_of(grid)
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
            },
            {},
            {},
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
