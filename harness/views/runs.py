"""The scores that cells are made of, by replicate; which row each row is compared with, and where a design has runs. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import unknown
from harness.planning.aggregation import AVERAGE, replicate_averages
from harness.planning.resolved import ResolvedTable
from harness.planning.row import on_encoder
from harness.statistics.design import full_grid
from harness.statistics.difference import Interval, mean_interval
from harness.tasks.metrics import METRICS
from harness.views.cells import REPLICATE, Grid, counted_scores

if TYPE_CHECKING:
    import pandas as pd

Place = tuple[int, str, str]
"""(size, row, column id)."""
Pair = tuple[int, int]
"""(subset, seed)."""
Answers = Mapping[tuple[int, str, str, int, int], NDArray[np.float64]]
"""What a run scores on each test item, by (size, configuration, column id, subset, seed)."""
Reference = Callable[[str], str]
"""The row that each row is compared with; it is its own where it is compared with none."""


@dataclass(frozen=True)
class Runs:
    """The scores of one place by replicate, on the metric's own scale, the row that was run in each ('' where several were), the
    hardware of all that is in the score, as far as it is recorded, and the replicates with a run that collapsed."""

    scores: Mapping[Pair, float]
    configurations: Mapping[Pair, str] = field(default_factory=dict)
    hardware: Mapping[Pair, set[str]] = field(default_factory=dict)
    collapsed: frozenset[Pair] = frozenset()

    def grid(self) -> tuple[NDArray[np.float64], list[Pair]]:
        """(subsets, seeds): the scores of the largest full grid, and its replicates row by row."""
        subsets, seeds = full_grid([*self.scores])
        pairs = [*itertools.product(subsets, seeds)]
        return np.array([self.scores[pair] for pair in pairs]).reshape(len(subsets), len(seeds)), pairs

    def minus(self, other: Runs) -> tuple[NDArray[np.float64], list[Pair]]:
        """(subsets, seeds): the difference of each pair over the largest full grid that both have, and its replicates row by row."""
        return Runs(
            {pair: score - other.scores[pair] for pair, score in self.scores.items() if pair in other.scores}
        ).grid()


NO_RUNS = Runs({})


def reference_of(resolved: ResolvedTable, against: str = "") -> tuple[str, Reference]:
    """What rows are compared with, in words and row by row: one row, of several encoders also a row of the same encoder (the first one, where `against`
    is empty), or the same row of one encoder. Raises UserError for a name of none of these."""
    titles, encoders = list(resolved.printed_rows), resolved.encoder_titles
    own = list(dict.fromkeys(row.own.title for row in resolved.rows))

    def apart(row: str) -> tuple[str, str]:
        encoder = next(name for name in encoders if row.endswith(on_encoder("", name)))
        return row.removesuffix(on_encoder("", encoder)), encoder

    def meant(names: Iterable[str]) -> str | None:
        return next((name for name in names if name.casefold() == (against or own[0]).casefold()), None)

    if (one := meant(titles)) is not None:
        return one, lambda row: one
    if encoders and (method := meant(own)) is not None:
        return f"{method} on the same encoder", lambda row: on_encoder(method, apart(row)[1])
    if (encoder := meant(encoders)) is not None:
        return f"the same row on {encoder}", lambda row: on_encoder(apart(row)[0], encoder)
    raise unknown("row", against, [*titles, *(own if encoders else ()), *encoders], "--against")


def run_places(grid: Grid) -> set[Place]:
    """Where the design of the grid has runs, done or not."""
    places = itertools.product(grid.resolved.sizes, grid.resolved.printed_rows, columns_of(grid))
    return {place for place in places if place not in grid.cells or not grid.cells[place].skip}


def family_sizes(places: Collection[Place], reference: Reference, apart: Collection[str]) -> tuple[int, int]:
    """How many comparisons with its `reference` a design has: of each other row in all columns and sizes in which both are run, done or not. First those of
    its own rows, then those with a row of `apart`, the reference rows, on either side: they are a family of their own."""
    planned = [
        row for size, row, column in places if row != reference(row) and (size, reference(row), column) in places
    ]
    further = sum(row in apart or reference(row) in apart for row in planned)
    return len(planned) - further, further


def columns_of(grid: Grid) -> tuple[str, ...]:
    """The columns that are compared: the table's, and the mean over them where there are several."""
    columns = tuple(grid.resolved.columns)
    return (*columns, AVERAGE) if sum(map(len, grid.resolved.average_over)) > 1 else columns


def metric_of(grid: Grid, column: str) -> str:
    return "" if column == AVERAGE else grid.resolved.columns[column].metric


def lowest(grid: Grid, column: str) -> float:
    """The least score of a column's scale, whose highest is 1; of Avg, that of its columns."""
    over = [*itertools.chain(*grid.resolved.average_over)] if column == AVERAGE else [column]
    return min(METRICS[metric_of(grid, each)].worst for each in over)


@lru_cache(maxsize=2)
def runs_of(grid: Grid) -> Mapping[Place, Runs]:
    """The scores that cells are made of, by place, Avg among them. Of several configurations that all count, the mean of each replicate that all of them have."""
    scores: Any = _whole_replicates(grid.resolved, counted_scores(grid))
    found: dict[Place, Runs] = {}
    for (size, row, column), frame in scores.groupby(["size", "row", "column"], sort=False):
        found[int(size), row, column] = _runs(frame, frame)
    over = [column for group in grid.resolved.average_over for column in group]
    if AVERAGE in columns_of(grid):
        here = scores[scores["column"].isin(over)]
        for (size, row), frame in here.groupby(["size", "row"], sort=False):
            # Each task may have configurations of its own.
            by_column = frame.groupby(["column", *REPLICATE], sort=False)
            of_column = by_column.agg({"dev": "mean", "test": "mean", "collapsed": "any"}).reset_index()
            whole = of_column[of_column.groupby(REPLICATE)["column"].transform("size") == len(over)]
            if len(whole):
                averages = replicate_averages(whole, REPLICATE, grid.resolved.average_over)
                found[int(size), row, AVERAGE] = _runs(averages.assign(configuration=""), frame)
    return found


def _whole_replicates(resolved: ResolvedTable, scores: pd.DataFrame) -> pd.DataFrame:
    """Where all configurations of a row count, without the replicates that lack one: their mean would be of other configurations than that of the others."""
    if resolved.aggregate.select != "none" or len(resolved.printed_rows) == len(resolved.rows):
        return scores
    there = scores.groupby(["size", "row", "column", *REPLICATE])["configuration"].transform("size")
    places = zip(scores["row"], scores["task"], strict=True)
    return scores[there == [len(resolved.configurations(row, task)) for row, task in places]]


def score_interval(grid: Grid, column: str, scores: NDArray[np.float64]) -> Interval | None:
    """That of the mean of a cell's runs (subsets, seeds), cut at the ends of the scale; None for a single run, and where all have one score."""
    found = mean_interval(scores)
    return found and found.within(lowest(grid, column), 1.0)


def _runs(frame: pd.DataFrame, trained: pd.DataFrame) -> Runs:
    """`frame`: a score a configuration and replicate; `trained`: the runs that these scores are of."""
    hardware: dict[Pair, set[str]] = {}
    for subset, seed, device in trained[["subset", "seed", "hardware"]].dropna().itertuples(index=False):
        hardware.setdefault((int(subset), int(seed)), set()).add(str(device))
    scores: dict[Pair, list[float]] = {}
    names: dict[Pair, list[str]] = {}
    for subset, seed, score, name in zip(
        *(frame[column] for column in ("subset", "seed", "test", "configuration")), strict=True
    ):
        scores.setdefault((int(subset), int(seed)), []).append(float(score))
        names.setdefault((int(subset), int(seed)), []).append(str(name))
    return Runs(
        {pair: float(np.mean(values)) for pair, values in scores.items()},
        {pair: rows[0] if len(rows) == 1 else "" for pair, rows in names.items()},
        hardware,
        frozenset(frame.loc[frame["collapsed"], REPLICATE].itertuples(index=False, name=None)),
    )


def size_name(size: int, unit: str) -> str:
    """A heading: '20 training examples'. `unit`: what a protocol's sizes count."""
    return f"{size} {unit}" if size else "Full training set"


def column_name(grid: Grid, column: str) -> str:
    """'SST-2 (acc)'."""
    spec = grid.resolved.columns.get(column)
    return f"{spec.title} ({METRICS[spec.metric].short})" if spec else grid.title(column)


def means_lines(grid: Grid, judged: str) -> Iterator[str]:
    """What is `judged` by the means of runs, in a table of several rows whose cells are something else."""
    aggregation = grid.resolved.aggregate
    if aggregation.center != "mean" and len(grid.resolved.printed_rows) > 1:
        yield f"A cell of this table is the {aggregation.label} of its runs; {judged} are of their means."
