"""The scores that cells are made of, by replicate; which row each row is compared with, and where a design has runs. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import unknown
from harness.planning.aggregation import AVERAGE, replicate_averages
from harness.planning.resolved import ResolvedTable
from harness.planning.row import on_encoder
from harness.scores import PLACE
from harness.statistics.design import full_grid
from harness.statistics.difference import mean_interval
from harness.tasks.metrics import METRICS
from harness.views.cells import REPLICATE, Grid, Place, counted_scores

if TYPE_CHECKING:
    import pandas as pd

Pair = tuple[int, int]
"""(subset, seed)."""
Answers = Mapping[tuple[int, str, str, int, int], NDArray[np.float64]]
"""What a run scores on each test item, by (size, configuration, column id, subset, seed)."""
Reference = Callable[[str], str]
"""The row that each row is compared with; it is its own where it is compared with none."""


def no_runs() -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame({"test": [], "configuration": [], "collapsed": [], "hardware": []})


def on_grid(*runs: pd.DataFrame) -> tuple[NDArray[np.float64], list[Pair]]:
    """(rows, subsets, seeds): the scores over the largest full grid of replicates that all of `runs` have, and its replicates in order."""
    scores = [each["test"].to_dict() for each in runs]
    subsets, seeds = full_grid(set.intersection(*map(set, scores)))  # type: ignore[arg-type]
    pairs = [*itertools.product(subsets, seeds)]
    return np.array([[of[pair] for pair in pairs] for of in scores]).reshape(len(runs), len(subsets), len(seeds)), pairs


def answers_of(
    answers: Answers, place: tuple[int, str], runs: pd.DataFrame, pairs: Sequence[Pair]
) -> NDArray[np.float64] | None:
    """(items, pairs): what the runs of a (size, column) score on each test item; None where that of one is not known."""
    size, column = place
    keys = [(size, runs["configuration"][pair], column, *pair) for pair in pairs]
    return np.array([answers[key] for key in keys], dtype=np.float64).T if all(key in answers for key in keys) else None


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
def runs_of(grid: Grid) -> Mapping[Place, pd.DataFrame]:
    """The scores that cells are made of, by place, Avg among them: `test` on the metric's own scale, the `configuration` that was run ('' of
    several, whose mean it is), whether a run `collapsed`, and the known `hardware` of all that is in it, each by (subset, seed)."""
    import pandas as pd

    r, replicate = grid.resolved, ["size", "row", *REPLICATE]
    scores = _whole_replicates(r, counted_scores(grid))
    by_run = scores.groupby(PLACE, sort=False)
    found = by_run.agg(
        {"dev": "mean", "test": "mean", "configuration": "first", "collapsed": "any", "hardware": _known}
    )
    found["configuration"] = found["configuration"].where(by_run.size() == 1, "")
    parts, over = [found.reset_index()], [*itertools.chain(*r.average_over)]
    if AVERAGE in columns_of(grid):
        here = parts[0][parts[0]["column"].isin(over)]
        whole = here[here.groupby(replicate)["column"].transform("size") == len(over)]
        if len(whole):
            averages = replicate_averages(whole, replicate, r.average_over).set_index(replicate)
            averages["hardware"] = whole.groupby(replicate)["hardware"].agg(_together)
            parts.append(averages.reset_index().assign(column=AVERAGE, configuration=""))
    every = pd.concat(parts).set_index(REPLICATE)[
        ["size", "row", "column", "test", "configuration", "collapsed", "hardware"]
    ]
    by_place: Any = every.groupby(["size", "row", "column"], sort=False)
    return dict(iter(by_place))


def _together(devices: pd.Series[Any]) -> frozenset[str]:
    return frozenset(itertools.chain(*devices))


def _known(devices: pd.Series[Any]) -> frozenset[str]:
    return frozenset(devices.dropna())


def _whole_replicates(resolved: ResolvedTable, scores: pd.DataFrame) -> pd.DataFrame:
    """Where all configurations of a row count, without the replicates that lack one: their mean would be of other configurations than that of the others."""
    if resolved.aggregate.select != "none" or len(resolved.printed_rows) == len(resolved.rows):
        return scores
    there = scores.groupby(["size", "row", "column", *REPLICATE])["configuration"].transform("size")
    places = zip(scores["row"], scores["task"], strict=True)
    return scores[there == [len(resolved.configurations(row, task)) for row, task in places]]


def score_interval(grid: Grid, column: str, scores: NDArray[np.float64]) -> tuple[float, float] | None:
    """That of the mean of a cell's runs (subsets, seeds), cut at the ends of the scale; None for a single run, and where all have one score."""
    found = mean_interval(scores)
    return found and (max(found[0], lowest(grid, column)), min(found[1], 1.0))


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
