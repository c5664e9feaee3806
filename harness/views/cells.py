"""Results into cells: value and spread by the table's aggregation rule, Avg, verdicts against the paper; the scores that cells are made of, by
replicate; which row each row is compared with, and where a design has runs.

Pure: the same results in any order give the same grid.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.errors import unknown
from harness.planning.aggregation import AVERAGE, mean, std
from harness.planning.resolved import ResolvedRow, ResolvedTable, on_encoder
from harness.scores import PLACE, placed
from harness.statistics.crossed import INTERVAL_LEVEL, full_grid, mean_interval, published_half_width
from harness.tasks.metrics import METRICS

Verdict = Literal["", "agrees", "higher", "lower", "incomplete", "not comparable"]
Place = tuple[int, str, str]
"""(size, row as printed, column)."""
Answers = Mapping[tuple[int, str, str, int, int], NDArray[np.float64]]
"""What a run scores on each test item, by (size, configuration, column id, subset, seed)."""
CELL, REPLICATE = ["size", "row", "column"], ["subset", "seed"]


class Note(NamedTuple):
    """The reason of a footnote mark: `kind` is collapsed, diverged, failed or skipped."""

    kind: str
    reason: str


@dataclass(frozen=True)
class Cell:
    """One cell, on the metric's own scale. `value` and all spreads are None until all `expected` runs are done.

    `value`: of the runs by the table's rule. `spread`: sd of the runs that the value is made of, with the table's ddof.
    `half_width`: of the interval of ours minus paper (`_verdict`). `selected`: the configurations whose runs count, where the row has several. `why`: reasons for no verdict.
    """

    value: float | None = None
    spread: float | None = None
    done: int = 0
    expected: int = 0
    paper: float | None = None
    paper_spread: float | None = None
    verdict: Verdict = ""
    collapsed: int = 0
    notes: tuple[Note, ...] = ()
    half_width: float | None = None
    why: tuple[str, ...] = ()
    skip: str = ""
    selected: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return self.expected > 0 and self.done == self.expected


@dataclass(frozen=True, eq=False)
class Grid:
    """All cells by (size, row, column id), the design they fill, the results in the order of the design, and their `runs` (`own_scores`). `hours`: of
    training before fine-tuning, by row as printed, for a figure over them. `collapsed`: whether collapsed runs count in what is made of single runs.
    `elsewhere`: further (size, row, column) of the benches and seals that these runs are part of, for the family of comparisons. `answers`: where test
    items are a factor. Not compared by its fields: a cache keeps the one that it was asked with."""

    resolved: ResolvedTable
    columns: tuple[str, ...]
    cells: Mapping[Place, Cell]
    results: pd.DataFrame
    runs: pd.DataFrame
    hours: Mapping[str, float] = field(default_factory=dict)
    collapsed: bool = True
    elsewhere: frozenset[Place] = frozenset()
    answers: Answers | None = None

    @property
    def complete(self) -> bool:
        """Every run that can be done is done."""
        return all(cell.complete for cell in self.cells.values() if not cell.skip)

    @cached_property
    def counted(self) -> pd.DataFrame:
        """The finished runs that cells are made of, with the columns of `own_scores`, in the order of the design; of a row whose configuration is selected none
        before all runs of the selection are done. Runs that do not count because they collapsed take part in the selection."""
        counted = _selected(self.resolved, self.runs[self.runs["done"]])
        return counted if self.collapsed else counted[~counted["collapsed"]]

    @cached_property
    def scores(self) -> Mapping[Place, pd.DataFrame]:
        """The scores that cells are made of, by place, Avg among them: `test` on the metric's own scale, the `configuration` that was run ('' of
        several, whose mean it is), whether a run `collapsed`, the known `hardware` of all that is in it, and its `answers` (None: not known), each by (subset, seed). Where all
        configurations of a row count, replicates that lack one are left out: their mean would be of other configurations."""
        r, counted = self.resolved, self.counted
        if r.aggregate.select == "none" and len(r.printed_rows) < len(r.rows):
            there = counted.groupby(PLACE)["configuration"].transform("size")
            rows = zip(counted["row"], counted["task"], strict=True)
            counted = counted[there == [len(r.configurations(row, task)) for row, task in rows]]
        by_run = counted.groupby(PLACE, sort=False)
        kept: Any = {"dev": "mean", "test": "mean", "configuration": "first", "collapsed": "any", "hardware": _union}
        found: pd.DataFrame = by_run.agg(kept)
        found["configuration"] = found["configuration"].where(by_run.size() == 1, "")
        found, known = found.reset_index(), self.answers or {}
        places = found[["size", "configuration", "column", *REPLICATE]].itertuples(index=False, name=None)
        found["answers"] = pd.Series(map(known.get, places), found.index, dtype=object)
        found = _with_averages(r, found, REPLICATE) if AVERAGE in self.compared else found
        by_place: Any = found.set_index(REPLICATE).groupby(CELL, sort=False)
        return dict(iter(by_place))

    @property
    def compared(self) -> tuple[str, ...]:
        """The columns that are compared: the table's, and the mean over them where there are several."""
        several = len(self.resolved.made_of(AVERAGE)) > 1
        return (*self.resolved.columns, *([AVERAGE] if several else []))

    @property
    def places(self) -> set[Place]:
        """Where the design has runs, done or not."""
        places = itertools.product(self.resolved.sizes, self.resolved.printed_rows, self.compared)
        return {place for place in places if place not in self.cells or not self.cells[place].skip}

    def title(self, column: str) -> str:
        return "Avg" if column == AVERAGE else self.resolved.columns[column].title

    def column_name(self, column: str) -> str:
        """'SST-2 (acc)'."""
        return self.title(column) + (f" ({METRICS[metric].short})" if (metric := self.metric(column)) else "")

    def size_name(self, size: int) -> str:
        """A heading: '20 training examples'."""
        return f"{size} {self.resolved.protocol.size_unit}" if size else "Full training set"

    def metric(self, column: str) -> str:
        return "" if column == AVERAGE else self.resolved.columns[column].metric

    def lowest(self, column: str) -> float:
        """The least score of a column's scale, whose highest is 1; of Avg, that of its columns."""
        over = self.resolved.made_of(column)
        return min(METRICS[self.metric(each)].worst for each in over)

    def interval(self, column: str, scores: NDArray[np.float64]) -> tuple[float, float] | None:
        """That of the mean of a cell's runs (subsets, seeds), cut at the ends of the scale; None for a single run, and where all have one score."""
        found = mean_interval(scores)
        return found and (max(found[0], self.lowest(column)), min(found[1], 1.0))


def aggregate(
    resolved: ResolvedTable,
    results: pd.DataFrame,
    test_rows: Mapping[str, int] = MappingProxyType({}),
    not_comparable: Mapping[str, str] = MappingProxyType({}),
    skipped: Mapping[tuple[str, str], str] = MappingProxyType({}),
) -> Grid:
    """Every cell of a resolved table.

    `results`: of the schema; those outside the design are left out. `test_rows`: number of test examples scored, by column
    id. `not_comparable`: further reasons by column id. `skipped`: by (row, task), why a method is not run on a
    task. Raises ValueError when one place of the design has two results.
    """
    results = placed(results, resolved.places)
    runs = own_scores(resolved, results)
    counted, rule = _selected(resolved, runs[runs["done"]]), resolved.aggregate
    if has_average(resolved) and rule.average == "per_replicate":
        counted = _with_averages(resolved, counted, [*(["configuration"] if rule.select == "none" else []), *REPLICATE])
    runs_at, counted_at = (dict(iter(each.groupby(CELL, sort=False))) for each in (runs, counted))
    columns = (*resolved.columns, *([AVERAGE] if has_average(resolved) else []))
    cells: dict[Place, Cell] = {}

    def incomparable(rows: Sequence[ResolvedRow], column: str) -> Iterator[str]:
        """Why a cell of this row and column is not comparable with the paper's, whatever its runs."""
        yield from resolved.incomparable
        if resolved.aggregate.center != "mean" or len(rows) > 1:
            yield "the interval of a verdict holds for the mean of all runs of one configuration"
        for row in rows:
            yield from resolved.row_incomparable(row)
        spec, actual = resolved.columns[column], test_rows.get(column)
        if resolved.comparable and actual is None:
            yield f"{spec.title}: the number of test examples is not known"
        elif resolved.comparable and spec.test_rows is not None and actual != spec.test_rows:
            yield f"{spec.title}: {actual} test examples instead of {spec.test_rows}"
        if why := not_comparable.get(column):
            yield f"{spec.title}: {why}"

    for size in resolved.sizes:
        for place in itertools.product([size], resolved.printed_rows, columns):
            _, row, column = place
            if column == AVERAGE:
                groups = [[cells[size, row, name] for name in group] for group in resolved.average_over]
                cell, made_of = _replicates(resolved, place, groups, runs, counted), counted_at.get(place)
                cells[place] = _mean_of_cells(resolved, place, cell, groups, [] if made_of is None else [made_of])
                continue
            task, kept = resolved.columns[column].task, counted_at.get(place, counted[:0])
            rows = resolved.configurations(row, task)
            why_not = (skipped.get((each.name, task)) for each in rows)
            if skip := next(filter(None, why_not), "") if rows else "the row is not run on this task":
                cells[place] = Cell(notes=(Note("skipped", skip),), skip=skip)
                continue
            cell = _cell_of_runs(resolved, size, rows, runs_at.get(place, runs[:0]), kept)
            cells[place] = _verdict(resolved, place, cell, incomparable(rows, column), kept)
        for place in itertools.product([size], resolved.averages, resolved.columns):
            over = [(size, row, place[2]) for row in resolved.averages[place[1]]]
            members, parts = [cells[at] for at in over], [counted_at.get(at, counted[:0]) for at in over]
            counts = {name: sum(getattr(cell, name) for cell in members) for name in ("done", "expected", "collapsed")}
            cells[place] = _mean_of_cells(resolved, place, Cell(**counts), [members], parts)
    return Grid(resolved, columns, cells, results, runs)


def has_average(resolved: ResolvedTable) -> bool:
    return resolved.aggregate.average != "none" and len(resolved.made_of(AVERAGE)) > 1


# --------------------------------------------------------------------------------------------------------------- runs


def own_scores(resolved: ResolvedTable, results: pd.DataFrame) -> pd.DataFrame:
    """One row a run and column, with the column's own metric; where the table shows dev, `test` is the dev score: `row` as printed, `configuration` the row that was run, whether
    it is done, and the `note` that it puts on its cell, or None."""
    metrics = {name: column.metric for name, column in resolved.columns.items()}
    own = results[results["metric"] == results["column"].map(metrics)]
    if resolved.aggregate.scores == "dev":
        own = own.assign(test=own["dev"])
    done = (own["status"] == "done") & own["test"].notna()
    own = own.assign(configuration=own["row"], row=own["row"].map(resolved.titles), done=done)
    own["hardware"] = own["hardware"].map(lambda each: frozenset({each} if isinstance(each, str) else {}))
    runs = zip(own["status"], own["reason"], done, own["collapsed"], strict=True)
    own = own.assign(note=pd.Series([_note(*run) for run in runs], own.index, dtype=object))
    return own[[*PLACE, "configuration", "task", "dev", "test", "done", "collapsed", "note", "hardware", "key"]]


def _note(status: str, reason: str | float, done: bool, collapsed: bool) -> Note | None:
    if status != "done":
        return Note(status, " ".join(reason.split()) if isinstance(reason, str) else "no reason recorded")
    if not done:
        return Note("failed", "the score is not a finite number")
    return Note("collapsed", "one class only, or no answer, is predicted on dev") if collapsed else None


def _selected(resolved: ResolvedTable, done: pd.DataFrame) -> pd.DataFrame:
    """The runs that count: of rows with several configurations those of the one that is best on dev, where the table selects, once all of them are done: the best of a
    part may be another one. A task's dev score is that of its first column, which selects checkpoints too."""
    aggregation = resolved.aggregate
    if aggregation.select == "none" or len(resolved.printed_rows) == len(resolved.rows) or done.empty:
        return done
    by = ["size", "row", "task", *(["subset"] if aggregation.select == "per_subset" else [])]
    rows = zip(done["row"], done["task"], strict=True)
    count = pd.Series([len(resolved.configurations(row, task)) for row, task in rows], done.index)
    by_size = {size: resolved.seeds if "subset" in by else resolved.replicates_at(size) for size in resolved.sizes}
    replicates = {size: len(each) for size, each in by_size.items()}
    first = {column.task: name for name, column in reversed([*resolved.columns.items()])}
    dev = done[(count > 1) & (done["column"] == done["task"].map(first))]
    dev = dev[dev.groupby(by)["dev"].transform("size") == (count * done["size"].map(replicates))[dev.index]]
    if dev.empty:
        return done[count == 1]
    best = aggregation.best_configurations(dev, by)
    chosen = done.assign(count=count).merge(best.rename("chosen"), how="left", left_on=by, right_index=True)
    chosen = chosen[(chosen["count"] == 1) | (chosen["configuration"] == chosen["chosen"])]
    order = pd.Index(resolved.replicates).get_indexer(pd.MultiIndex.from_frame(chosen[REPLICATE]))
    return chosen.iloc[np.argsort(order, kind="stable")]


def _with_averages(resolved: ResolvedTable, scores: pd.DataFrame, run: list[str]) -> pd.DataFrame:
    """Scores with those of Avg, one a `run` that is there in all of its columns; collapsed where one of them is."""
    over, groups, run = resolved.made_of(AVERAGE), resolved.average_over, ["size", "row", *run]
    here = scores[scores["column"].isin(over)]
    here = here[here.groupby(run)["column"].transform("size") == len(over)]
    if here.empty:
        return scores
    found: Any = here.groupby(run, sort=False).agg({"collapsed": "any", "hardware": _union})
    for name in ("dev", "test"):
        by_column: Any = here.pivot(index=run, columns="column", values=name).loc[found.index].to_dict("index").values()
        found[name] = [mean([mean([of[c] for c in group]) for group in groups]) for of in by_column]
    every: pd.DataFrame = pd.concat([scores, found.reset_index().assign(column=AVERAGE)])
    return every.fillna({"configuration": ""})


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset(itertools.chain(*sets))


# -------------------------------------------------------------------------------------------------------------- cells


def _cell_of_runs(
    resolved: ResolvedTable, size: int, rows: Sequence[ResolvedRow], runs: pd.DataFrame, counted: pd.DataFrame
) -> Cell:
    cell = Cell(done=int(runs["done"].sum()), expected=len(rows) * len(resolved.replicates_at(size)))
    shown = counted if cell.complete else runs
    notes, collapsed = sorted({*shown["note"].dropna()}), int(shown["collapsed"][shown["done"]].sum())
    cell = replace(cell, notes=tuple(notes), collapsed=collapsed)
    if not cell.complete or counted.empty:
        return cell
    several = len(rows) > 1 and resolved.aggregate.select != "none"
    selected = tuple(dict.fromkeys(counted["configuration"])) if several else ()
    return _summarised(resolved, replace(cell, selected=selected), counted)


def _summarised(resolved: ResolvedTable, cell: Cell, *parts: pd.DataFrame) -> Cell:
    """A complete cell with its value, the mean over `parts`, and its spread over all their runs, which all count."""
    rule = resolved.aggregate
    scores = [score for runs in parts for score in rule.counted(runs)]
    return replace(cell, value=mean([rule.value(runs) for runs in parts]), spread=std(scores, rule.ddof))


def _mean_of_cells(
    resolved: ResolvedTable, place: Place, cell: Cell, groups: Sequence[Sequence[Cell]], parts: Sequence[pd.DataFrame]
) -> Cell:
    """A cell with its runs counted that is the mean over groups of cells of the mean within each; where there are `parts`, of the runs in them.

    It is skipped where one of the cells is: a mean over fewer is not comparable with the other rows'.
    """
    cells = [*itertools.chain(*groups)]
    if skipped := [each for each in cells if each.skip]:
        notes = dict.fromkeys(note for each in skipped for note in each.notes)
        return Cell(notes=tuple(notes), skip=skipped[0].skip)
    values = [[each.value for each in group if each.value is not None] for group in groups]
    if sum(map(len, values)) == len(cells):
        cell = _summarised(resolved, cell, *parts) if parts else replace(cell, value=mean([*map(mean, values)]))
    why = itertools.chain(*(each.why for each in cells))
    return _verdict(resolved, place, cell, [*why, "a mean of cells has no interval"])


def _replicates(
    resolved: ResolvedTable, place: Place, groups: Sequence[Sequence[Cell]], runs: pd.DataFrame, counted: pd.DataFrame
) -> Cell:
    """The runs of an Avg, counted in replicates: one is done where all configurations of all its columns are."""
    size, row, _ = place
    columns, replicates = resolved.made_of(AVERAGE), len(resolved.replicates_at(size))
    at = (
        each[(each["size"] == size) & (each["row"] == row) & each["column"].isin(columns)]
        for each in (runs[runs["done"]], counted)
    )
    done, kept = (each.groupby(REPLICATE)["collapsed"].agg(["size", "any"]) for each in at)
    done = done[done["size"] * replicates == sum(cell.expected for cell in itertools.chain(*groups))]
    fell = kept if len(done) == replicates else done
    return Cell(done=len(done), expected=replicates, collapsed=int(fell["any"].sum()))


# ------------------------------------------------------------------------------------------------------------ verdicts


def family(resolved: ResolvedTable) -> int:
    """Of how many cells the table can give verdicts: the paper's numbers of rows that can be compared, whatever part of the table is shown."""
    titles = {row.title for row in resolved.table.rows if not row.incomparable}
    printed = [(row, columns) for rows in resolved.table.paper.values() for row, columns in rows.items()]
    return sum(len(columns.keys() - {AVERAGE}) for row, columns in printed if row in titles)


def _verdict(
    resolved: ResolvedTable, place: Place, cell: Cell, reasons: Iterable[str], counted: pd.DataFrame | None = None
) -> Cell:
    """With the paper's numbers and the verdict on them; `counted`: the cell's runs, of one without `reasons` for none.

    'agrees' when the interval of ours minus paper holds 0. It is over crossed subsets and seeds (`harness.statistics.crossed`) and simultaneous
    (Bonferroni): of a table that is reproduced exactly, the chance that any cell does not agree is 5 % at most. The paper's subsets and seeds
    are those of the table's file. The draw of the test set is not in it.
    """
    paper, paper_spread = resolved.paper_value(*place) or (None, None)
    if paper is None:
        return cell
    cell = replace(cell, paper=paper, paper_spread=paper_spread)
    if why := tuple(dict.fromkeys(reasons)):
        return replace(cell, verdict="not comparable", why=why)
    if cell.value is None or counted is None:
        return replace(cell, verdict="incomplete")
    if cell.done == 1:
        return replace(cell, verdict="not comparable", why=("one replicate has no spread",))
    scores = counted.pivot(index="subset", columns="seed", values="test").to_numpy()
    table = resolved.table
    count = table.subsets if place[0] and table.subsets > 1 else len(table.seeds)
    half = float(published_half_width(scores, paper_spread, count, 1 - (1 - INTERVAL_LEVEL) / family(resolved)))
    if not half:
        return replace(cell, verdict="not comparable", why=("the runs have one score and no spread",))
    difference = cell.value - paper
    verdict: Verdict = "agrees" if abs(difference) <= half else "higher" if difference > 0 else "lower"
    return replace(cell, verdict=verdict, half_width=half)


Pair = tuple[int, int]
"""(subset, seed)."""
Reference = Callable[[str], str]
"""The row that each row is compared with; it is its own where it is compared with none."""


def no_runs() -> pd.DataFrame:
    return pd.DataFrame({"test": [], "configuration": [], "collapsed": [], "hardware": [], "answers": []})


def on_grid(*runs: pd.DataFrame) -> tuple[NDArray[np.float64], list[Pair]]:
    """(rows, subsets, seeds): the scores over the largest full grid of replicates that all of `runs` have, and its replicates in order."""
    scores = [each["test"].to_dict() for each in runs]
    subsets, seeds = full_grid(set.intersection(*map(set, scores)))  # type: ignore[arg-type]
    pairs = [*itertools.product(subsets, seeds)]
    return np.array([[of[pair] for pair in pairs] for of in scores]).reshape(len(runs), len(subsets), len(seeds)), pairs


def answers_of(runs: pd.DataFrame, pairs: Sequence[Pair]) -> NDArray[np.float64] | None:
    """(items, pairs): what runs score on each test item; None where that of one is not known."""
    known = [each for each in runs["answers"][pairs] if isinstance(each, np.ndarray)]
    return np.array(known, dtype=np.float64).T if len(known) == len(pairs) else None


def reference_of(resolved: ResolvedTable, against: str = "") -> tuple[str, Reference]:
    """What rows are compared with, in words and row by row: one row, of several encoders also a row of the same encoder (the first one, where `against`
    is empty), or the same row of one encoder. Raises UserError for a name of none of these."""
    titles, encoders = [*resolved.printed_rows], resolved.encoder_titles
    methods = [*dict.fromkeys(row.own.title for row in resolved.rows)]
    wanted = (against or methods[0]).casefold()
    groups = titles, methods if encoders else (), encoders
    one, method, encoder = (next((n for n in names if n.casefold() == wanted), None) for names in groups)

    def ending(row: str) -> str:
        return next(end for end in (on_encoder("", name) for name in encoders) if row.endswith(end))

    if one is not None:
        return one, lambda row: one
    if method is not None:
        return f"{method} on the same encoder", lambda row: method + ending(row)
    if encoder is not None:
        return f"the same row on {encoder}", lambda row: on_encoder(row.removesuffix(ending(row)), encoder)
    raise unknown("row", against, [*titles, *(methods if encoders else ()), *encoders], "--against")


def family_sizes(places: Collection[Place], reference: Reference, apart: Collection[str]) -> tuple[int, int]:
    """How many comparisons with its `reference` a design has: of each other row in all columns and sizes in which both are run, done or not. First those of
    its own rows, then those with a row of `apart`, the reference rows, on either side: they are a family of their own."""
    pairs = [(row, reference(row)) for size, row, column in places if (size, reference(row), column) in places]
    further = [not {*pair}.isdisjoint(apart) for pair in pairs if pair[0] != pair[1]]
    return len(further) - sum(further), sum(further)


def means_lines(grid: Grid, judged: str) -> Iterator[str]:
    """What is `judged` by the means of runs, in a table of several rows whose cells are something else."""
    aggregation = grid.resolved.aggregate
    if aggregation.center != "mean" and len(grid.resolved.printed_rows) > 1:
        yield f"A cell of this table is the {aggregation.label} of its runs; {judged} are of their means."
