"""Rows of a table compared with one of them: paired differences column by column, Holm's correction over the table's family of
comparisons, and a verdict for each.

Pure. `docs/statistics.md` says what each figure is and how often it is right.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError, unknown
from harness.planning.aggregation import AVERAGE, replicate_averages
from harness.planning.resolved import ResolvedTable
from harness.planning.row import on_encoder
from harness.statistics.design import full_grid
from harness.statistics.difference import Difference, Interval, difference, mean_interval
from harness.statistics.sign_flip import holm
from harness.tasks.metrics import METRICS
from harness.views.cells import REPLICATE, Grid, counted_scores
from harness.wording import counted

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["higher", "lower", "equivalent", "not separable", "no verdict"]
LEVEL = 0.05
REGION = 0.01
"""Default half width of the region of practical equivalence: one point."""

Place = tuple[int, str, str]
"""(size, row, column id)."""
Pair = tuple[int, int]
"""(subset, seed)."""
Answers = Mapping[tuple[int, str, str, int, int], NDArray[np.float64]]
"""Which test examples a run answered rightly, by (size, configuration, column id, subset, seed)."""


@dataclass(frozen=True)
class Comparison:
    """`row` minus `against` in one column at one size. `difference`: on the metric's own scale; None where no replicate is done in both.

    `p_holm`, `flip_p_holm`, `equivalence_p_holm`: adjusted over its family of `Comparisons`. `left_out`: what is not in it. `across_hardware`: how many of its
    pairs are two runs on different hardware, which rounds differently; a difference may then be one of machines. `of_reference`: one of its
    rows is a reference row. `planned`: it follows a plan that was sealed before its runs (`harness.views.seal`).
    `collapsed`: how many of the compared runs of `row` and of `against` did; `without_collapsed`: where any did, the verdict without them.
    """

    size: int
    column: str
    title: str
    metric: str
    row: str
    against: str
    difference: Difference | None
    p_holm: float | None = None
    flip_p_holm: float | None = None
    equivalence_p_holm: float | None = None
    verdict: Verdict = "no verdict"
    left_out: tuple[str, ...] = ()
    across_hardware: int = 0
    of_reference: bool = False
    planned: bool = False
    collapsed: tuple[int, int] = (0, 0)
    without_collapsed: Verdict | None = None


@dataclass(frozen=True)
class Comparisons:
    """`region`: half the width of the region of practical equivalence, on the metric's own scale. `items`: test items are a factor, `unit`: what one is, a sentence. `family`: how many
    comparisons p is adjusted for, `reference_family`: for how many in comparisons with a reference row, which are a family of their own. `left_out`: which finished
    runs are in no comparison, in sentences. `seal`: the digest of the plan that they are held against, '' where none was sealed; `plan`: how many
    follow it, in a sentence."""

    grid: Grid
    against: str
    region: float
    items: bool
    comparisons: tuple[Comparison, ...]
    family: int
    reference_family: int = 0
    left_out: tuple[str, ...] = ()
    unit: str = ""
    seal: str = ""
    plan: tuple[str, ...] = ()


@dataclass(frozen=True)
class Runs:
    """The scores of one place by replicate, on the metric's own scale, the row that was run in each ('' where several were), the
    hardware of all that is in the score, as far as it is recorded, and the replicates with a run that collapsed."""

    scores: Mapping[Pair, float]
    configurations: Mapping[Pair, str] = field(default_factory=dict)
    hardware: Mapping[Pair, set[str]] = field(default_factory=dict)
    collapsed: frozenset[Pair] = frozenset()


NO_RUNS = Runs({})


def compared(
    grid: Grid,
    against: str = "",
    region: float = REGION,
    answers: Answers | None = None,
    absent: str = "missing or failed",
) -> Comparisons:
    """Every row of the grid against one of them, its first unless `against` names another (`reference_of`). `answers`: test items become a factor.
    `absent`: what runs are that have no score. Raises UserError for fewer than two rows and for an unknown one."""
    if len(titles := grid.resolved.printed_rows) < 2:
        rows = "one row" if titles else "no row"
        raise UserError(f"compare: table {grid.resolved.table.name} has {rows} here; name two or more with --methods.")
    named, reference = reference_of(grid.resolved, against)
    found, families = judged(grid, reference, region, answers, absent)
    if grid.collapsed and any(sum(each.collapsed) for each in found):
        others, _ = judged(replace(grid, collapsed=False), reference, region, answers, absent)
        both = zip(found, others, strict=True)
        found = [replace(c, without_collapsed=other.verdict) if sum(c.collapsed) else c for c, other in both]
    return Comparisons(grid, named, region, answers is not None, tuple(found), *families)


def judged(
    grid: Grid, reference: Reference, region: float = REGION, answers: Answers | None = None, absent: str = ""
) -> tuple[list[Comparison], tuple[int, int]]:
    """Every row against its `reference`, with verdicts, and the sizes of the two families (`family_sizes`)."""
    runs = runs_of(grid)
    found = [
        _compared(grid, runs, (size, row, column), reference(row), region, answers, absent)
        for size in grid.resolved.sizes
        for column in columns_of(grid)
        for row in grid.resolved.printed_rows
        if row != reference(row)
    ]
    families = family_sizes(run_places(grid) | grid.elsewhere, reference, grid.resolved.reference_titles)
    for of_reference, family in enumerate(families):
        mine = [k for k, comparison in enumerate(found) if comparison.of_reference == bool(of_reference)]
        for k, comparison in zip(mine, _judged([found[k] for k in mine], family), strict=True):
            found[k] = comparison
    return found, families


Reference = Callable[[str], str]
"""The row that each row is compared with; it is its own where it is compared with none."""


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


def _lowest(grid: Grid, column: str) -> float:
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


def cell_intervals(grid: Grid) -> dict[Place, Interval]:
    """The 95 % interval of each complete cell that is the mean of all its runs: crossed over subsets and seeds."""
    found: dict[Place, Interval] = {}
    if grid.resolved.aggregate.center != "mean":
        return found
    for place, runs in runs_of(grid).items():
        subsets, seeds = full_grid(list(runs.scores))
        cell = grid.cells.get(place)
        if cell and cell.complete and len(runs.scores) == len(subsets) * len(seeds) > 1 and cell.value is not None:
            scores = np.array([[runs.scores[s, r] for r in seeds] for s in subsets])
            if interval := score_interval(grid, place[2], scores):
                found[place] = interval
    return found


def score_interval(grid: Grid, column: str, scores: NDArray[np.float64]) -> Interval | None:
    """That of the mean of a cell's runs (subsets, seeds), cut at the ends of the scale; None for a single run, and where all have one score."""
    found = mean_interval(scores)
    return found and found.within(_lowest(grid, column), 1.0)


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


def _compared(
    grid: Grid,
    runs: Mapping[Place, Runs],
    place: Place,
    against: str,
    region: float,
    answers: Answers | None,
    absent: str,
) -> Comparison:
    size, row, column = place
    base = Comparison(size, column, grid.title(column), metric_of(grid, column), row, against, None)
    base = replace(base, of_reference=not grid.resolved.reference_titles.isdisjoint((row, against)))
    ours, theirs = (runs.get((size, name, column), NO_RUNS) for name in (row, against))
    design = grid.resolved.replicates_at(size)
    both = [pair for pair in design if pair in ours.scores and pair in theirs.scores]
    subsets, seeds = full_grid(both)
    left_out = []
    if len(both) < len(design):
        rows = [(name, len(design) - len(of_row.scores)) for name, of_row in ((row, ours), (against, theirs))]
        missing = " and ".join(f"{count} of {name}" for name, count in rows if count)
        grid_of_both = f"{counted(len(subsets), 'subset')} x {counted(len(seeds), 'seed')}"
        kept = f"compared over {grid_of_both}" if both else "no replicate is done in both rows"
        left_out.append(f"of {len(design)} runs each, {missing} {absent}: {kept}")
    if not both:
        left_out += _unselected(grid, runs, size, column, (row, against))
        return replace(base, left_out=tuple(left_out))
    items = None
    if answers is not None:
        items = _item_differences(answers, (size, column), ours, theirs, subsets, seeds)
        if items is None:
            metric = base.metric or "an average"
            left_out.append(
                f"test items are a factor for accuracy, EM and answer F1 of one task only, not for {metric}"
            )
    tested = difference(paired(ours, theirs, subsets, seeds), region, items)
    if tested.interval:
        span = 1 - _lowest(grid, column)
        tested = replace(tested, interval=tested.interval.within(-span, span))
    fell = [len(each.collapsed.intersection(itertools.product(subsets, seeds))) for each in (ours, theirs)]
    return replace(
        base,
        difference=tested,
        left_out=tuple(left_out),
        across_hardware=_across(ours, theirs, subsets, seeds),
        collapsed=(fell[0], fell[1]),
    )


def _unselected(grid: Grid, runs: Mapping[Place, Runs], size: int, column: str, rows: Iterable[str]) -> Iterator[str]:
    """Clauses about rows with runs, of which none counts yet."""
    for row in rows:
        cell = grid.cells.get((size, row, column))  # a table without an Avg has no cell there
        if cell and cell.done and (size, row, column) not in runs and len(grid.resolved.printed_rows[row]) > 1:
            yield f"the configuration of {row} is selected once all runs of its configurations are done"


def paired(row: Runs, baseline: Runs, subsets: Sequence[int], seeds: Sequence[int]) -> NDArray[np.float64]:
    """(subsets, seeds): the difference of each pair."""
    return np.array([[row.scores[s, r] - baseline.scores[s, r] for r in seeds] for s in subsets])


def _across(ours: Runs, theirs: Runs, subsets: Sequence[int], seeds: Sequence[int]) -> int:
    """How many pairs are two runs on different hardware. A run that does not say its hardware counts as run on the other's."""
    pairs = [(ours.hardware.get(pair), theirs.hardware.get(pair)) for pair in itertools.product(subsets, seeds)]
    return sum(a != b for a, b in pairs if a and b)


def _item_differences(
    answers: Answers, place: tuple[int, str], ours: Runs, theirs: Runs, subsets: Sequence[int], seeds: Sequence[int]
) -> NDArray[np.float64] | None:
    """(items, subsets, seeds): of accuracy 1, 0 or -1 for each test example; None where the answers of a run are not known."""
    size, column = place
    right = []
    for runs in (ours, theirs):
        keys = [[(size, runs.configurations[s, r], column, s, r) for r in seeds] for s in subsets]
        if any(key not in answers for row in keys for key in row):
            return None
        right.append(np.array([[answers[key] for key in row] for row in keys], dtype=np.float64))
    return np.moveaxis(right[0] - right[1], -1, 0)


def _judged(comparisons: Sequence[Comparison], family: int) -> list[Comparison]:
    """With p values adjusted over a family of so many comparisons, and verdicts by them."""
    tested = {k: c.difference for k, c in enumerate(comparisons) if c.difference and c.difference.p is not None}
    flipped = {k: d.flip.p for k, d in tested.items() if d.flip}

    def adjusted(values: Mapping[int, Any]) -> dict[int, float]:
        return dict(zip(values, holm([*values.values()], family), strict=True))

    by_t = adjusted({k: d.p for k, d in tested.items()})
    by_flip, by_region = adjusted(flipped), adjusted({k: d.equivalence_p for k, d in tested.items()})
    judged = [*comparisons]
    for k, d in tested.items():
        verdict: Verdict = "equivalent" if by_region[k] < LEVEL else "not separable"
        if by_t[k] < LEVEL:
            verdict = "higher" if d.mean > 0 else "lower"
        judged[k] = replace(
            comparisons[k], p_holm=by_t[k], flip_p_holm=by_flip.get(k), equivalence_p_holm=by_region[k], verdict=verdict
        )
    return judged
