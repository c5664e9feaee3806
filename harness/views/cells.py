"""Results into cells: value and spread by the table's aggregation rule, Avg, verdicts against the paper.

Pure: the same results in any order give the same grid.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from harness.planning.aggregation import (
    AVERAGE,
    RULES,
    average,
    best_configurations,
    mean,
    replicate_averages,
    std,
    subset_std,
)
from harness.planning.resolved import ResolvedTable
from harness.planning.row import ResolvedRow
from harness.scores import PLACE, placed
from harness.statistics.difference import published_half_width

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["", "agrees", "higher", "lower", "incomplete", "not comparable"]
Place = tuple[int, str, str]
"""(size, row as printed, column)."""
CONFIDENCE = 0.95
REPLICATE = ["subset", "seed"]
OTHER_TASKS = "the row is not run on this task"


@dataclass(frozen=True, order=True)
class Note:
    """The reason of a footnote mark: `kind` is collapsed, diverged, failed or skipped."""

    kind: str
    reason: str


@dataclass(frozen=True)
class Cell:
    """One cell, on the metric's own scale. `value` and all spreads are None until all `expected` runs are done.

    `value`: of the runs by the table's rule. `spread`: sd of the runs that the value is made of, with the table's ddof.
    `spread_between`: sd of the subsets' means (of the runs where there is one subset).
    `without_collapsed`: `value` over the runs that did not collapse. `half_width`: of the interval of ours minus paper (`_verdict`).
    `selected`: the configurations whose runs count, where the row has several. `why`: reasons for no verdict.
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
    spread_between: float | None = None
    without_collapsed: float | None = None
    half_width: float | None = None
    why: tuple[str, ...] = ()
    skip: str = ""
    selected: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return self.expected > 0 and self.done == self.expected


@dataclass(frozen=True, eq=False)
class Grid:
    """All cells by (size, row, column id), the design they fill, and the results in the order of the design. `hours`: of training before
    fine-tuning, by row as printed, for a figure over them. `collapsed`: whether collapsed runs count in what is made of single runs; cells have both values. `elsewhere`: further
    (size, row, column) of the benches and seals that these runs are part of, for the family of comparisons. Not compared by its fields: a cache keeps the one that it was asked with."""

    resolved: ResolvedTable
    columns: tuple[str, ...]
    cells: Mapping[Place, Cell]
    results: pd.DataFrame
    hours: Mapping[str, float] = field(default_factory=dict)
    collapsed: bool = True
    elsewhere: frozenset[Place] = frozenset()

    @property
    def complete(self) -> bool:
        """Every run that can be done is done."""
        return all(cell.complete for cell in self.cells.values() if not cell.skip)

    @property
    def num_runs(self) -> tuple[int, int]:
        """How many runs are done, and how many can be: one for each row, task, size, subset and seed, whatever columns show it."""
        titles, columns = self.resolved.titles, self.resolved.columns
        expected = {
            (size, row, columns[column].task, *replicate)
            for size, row, column, *replicate in self.resolved.places
            if not self.cells[size, titles[row], column].skip
        }
        own = own_scores(self.resolved, self.results)
        done = own.loc[own["done"], ["size", "configuration", "task", *REPLICATE]]
        return len(expected.intersection(done.itertuples(index=False, name=None))), len(expected)

    def title(self, column: str) -> str:
        return "Avg" if column == AVERAGE else self.resolved.columns[column].title


def aggregate(
    resolved: ResolvedTable,
    results: pd.DataFrame,
    test_rows: Mapping[str, int] | None = None,
    not_comparable: Mapping[str, str] | None = None,
    skipped: Mapping[tuple[str, str], str] | None = None,
) -> Grid:
    """Every cell of a resolved table.

    `results`: of the schema; those outside the design are left out. `test_rows`: number of test examples scored, by column
    id. `not_comparable`: further reasons by column id, '' for all. `skipped`: by (row, task), why a method is not run on a
    task. Raises ValueError when one place of the design has two results.
    """
    results = placed(results, resolved.places)
    runs = own_scores(resolved, results)
    counted = _selected(resolved, runs[runs["done"]])
    runs_at, counted_at = (dict(iter(each.groupby(["size", "row", "column"], sort=False))) for each in (runs, counted))
    averaged = [AVERAGE] if has_average(resolved) else []
    cells: dict[Place, Cell] = {}
    for size in resolved.sizes:
        for title in resolved.printed_rows:
            here: dict[str, Cell] = {}
            for column, spec in resolved.columns.items():
                place, rows = (size, title, column), resolved.configurations(title, spec.task)
                methods = [(row.name, spec.task) for row in rows]
                skip = next(filter(None, map((skipped or {}).get, methods)), "") if rows else OTHER_TASKS
                if skip:
                    here[column] = Cell(notes=(Note("skipped", skip),), skip=skip)
                    continue
                kept = counted_at.get(place, counted[:0])
                cell = _cell_of_runs(resolved, size, rows, runs_at.get(place, runs[:0]), kept)
                why = tuple(dict.fromkeys(_reasons(resolved, rows, column, test_rows or {}, not_comparable or {})))
                here[column] = _verdict(resolved, place, cell, why, kept)
            for column in averaged:
                mine = [each[(each["size"] == size) & (each["row"] == title)] for each in (runs, counted)]
                here[column] = _average(resolved, (size, title, column), here, *mine)
            cells |= {(size, title, column): cell for column, cell in here.items()}
        for place in itertools.product([size], resolved.averages, resolved.columns):
            members = [(size, row, place[2]) for row in resolved.averages[place[1]]]
            scores = [counted_at.get(each, counted[:0]) for each in members]
            cells[place] = _mean_of_rows(resolved, place, [cells[each] for each in members], scores)
    return Grid(resolved, (*resolved.columns, *averaged), cells, results)


def has_average(resolved: ResolvedTable) -> bool:
    return resolved.aggregate.average != "none" and sum(map(len, resolved.average_over)) > 1


# --------------------------------------------------------------------------------------------------------------- runs


def own_scores(resolved: ResolvedTable, results: pd.DataFrame) -> pd.DataFrame:
    """One row a run and column, with the column's own metric; where the table shows dev, `test` is the dev score: `row` as printed, `configuration` the row that was run, whether
    it is done, and the `note` that it puts on its cell, or None."""
    import pandas as pd

    metrics = {name: column.metric for name, column in resolved.columns.items()}
    own = results[results["metric"] == results["column"].map(metrics)]
    if resolved.aggregate.scores == "dev":
        own = own.assign(test=own["dev"])
    done = (own["status"] == "done") & own["test"].notna()
    own = own.assign(configuration=own["row"], row=own["row"].map(resolved.titles), done=done)
    noted = zip(own["status"], own["reason"], done, own["collapsed"], strict=True)
    own = own.assign(note=pd.Series([_note(*run) for run in noted], own.index, dtype=object))
    return own[[*PLACE, "configuration", "task", "dev", "test", "done", "collapsed", "note", "hardware"]]


def _note(status: str, reason: str | float, done: bool, collapsed: bool) -> Note | None:
    if status != "done":
        return Note(status, " ".join(reason.split()) if isinstance(reason, str) else "no reason recorded")
    if not done:
        return Note("failed", "the score is not a finite number")
    return Note("collapsed", "one class only, or no answer, is predicted on dev") if collapsed else None


def counted_scores(grid: Grid) -> pd.DataFrame:
    """The finished runs that cells are made of, with the columns of `own_scores`, in the order of the design; of a row whose configuration is selected none
    before all runs of the selection are done. Runs that do not count because they collapsed take part in the selection."""
    own = own_scores(grid.resolved, grid.results)
    counted = _selected(grid.resolved, own[own["done"]])
    return counted if grid.collapsed else counted[~counted["collapsed"]]


def _selected(resolved: ResolvedTable, done: pd.DataFrame) -> pd.DataFrame:
    """The runs that count: of rows with several configurations those of the one that is best on dev, where the table selects, once all of them are done: the best of a
    part may be another one. A task's dev score is that of its first column, which selects checkpoints too."""
    import pandas as pd

    aggregation = resolved.aggregate
    if aggregation.select == "none" or len(resolved.printed_rows) == len(resolved.rows) or done.empty:
        return done
    by = ["size", "row", "task", *(["subset"] if aggregation.select == "per_subset" else [])]
    rows = zip(done["row"], done["task"], strict=True)
    count = pd.Series([len(resolved.configurations(row, task)) for row, task in rows], done.index)
    replicates = {
        size: len(resolved.seeds if "subset" in by else resolved.replicates_at(size)) for size in resolved.sizes
    }
    first = {column.task: name for name, column in reversed([*resolved.columns.items()])}
    dev = done[(count > 1) & (done["column"] == done["task"].map(first))]
    dev = dev[dev.groupby(by)["dev"].transform("size") == (count * done["size"].map(replicates))[dev.index]]
    if dev.empty:
        return done[count == 1]
    best = best_configurations(dev, by, RULES[aggregation.select_by or aggregation.center], aggregation.k or 0)
    chosen = done.assign(count=count).merge(best.rename("chosen"), how="left", left_on=by, right_index=True)
    chosen = chosen[(chosen["count"] == 1) | (chosen["configuration"] == chosen["chosen"])]
    order = pd.Index(resolved.replicates).get_indexer(pd.MultiIndex.from_frame(chosen[REPLICATE]))
    return chosen.iloc[np.argsort(order, kind="stable")]


# -------------------------------------------------------------------------------------------------------------- cells


def _cell_of_runs(
    resolved: ResolvedTable, size: int, rows: Sequence[ResolvedRow], runs: pd.DataFrame, counted: pd.DataFrame
) -> Cell:
    cell = Cell(done=int(runs["done"].sum()), expected=len(rows) * len(resolved.replicates_at(size)))
    shown = counted if cell.complete else runs
    notes = sorted(set(shown["note"].dropna()))
    cell = replace(cell, notes=tuple(notes), collapsed=int(shown["collapsed"][shown["done"]].sum()))
    if cell.complete and len(rows) > 1 and resolved.aggregate.select != "none":
        cell = replace(cell, selected=tuple(dict.fromkeys(counted["configuration"])))
    return _summarised(resolved, cell, counted) if cell.complete and len(counted) else cell


def _summarised(resolved: ResolvedTable, cell: Cell, scores: pd.DataFrame) -> Cell:
    """A complete cell with its value and spreads, of `scores` with a row for each run that counts."""
    rule, k = RULES[resolved.aggregate.center], resolved.aggregate.k or 0
    found, sound = rule.summary(scores, k), scores[~scores["collapsed"]]
    return replace(
        cell,
        value=found.value,
        spread=std(found.scores, resolved.aggregate.ddof),
        spread_between=subset_std(scores["subset"].tolist(), scores["test"].tolist()),
        without_collapsed=rule.summary(sound, k).value if len(sound) >= max(1, k) else None,
    )


def _mean_of_rows(
    resolved: ResolvedTable, place: Place, cells: Sequence[Cell], counted: Sequence[pd.DataFrame]
) -> Cell:
    """The mean of cells of several rows, complete where they are; its spread is that of all runs of which they are made."""
    if skipped := next((cell for cell in cells if cell.skip), None):
        return skipped
    done, expected, collapsed = (
        sum(column) for column in zip(*((c.done, c.expected, c.collapsed) for c in cells), strict=True)
    )
    found = Cell(done=done, expected=expected, collapsed=collapsed)
    if all(cell.value is not None for cell in cells):
        rule, k = RULES[resolved.aggregate.center], resolved.aggregate.k or 0
        scores = [score for runs in counted for score in rule.summary(runs, k).scores]
        values, sound = ([getattr(c, name) for c in cells] for name in ("value", "without_collapsed"))
        without = None if None in sound else mean(sound)
        spread = std(scores, resolved.aggregate.ddof)
        found = replace(found, value=mean(values), spread=spread, without_collapsed=without)
    why = dict.fromkeys([*(reason for cell in cells for reason in cell.why), "a mean of cells has no interval"])
    return _verdict(resolved, place, found, tuple(why))


def _average(
    resolved: ResolvedTable, place: Place, here: Mapping[str, Cell], runs: pd.DataFrame, counted: pd.DataFrame
) -> Cell:
    """The cell of the column Avg, counted in replicates: one is done where all configurations of all its columns are.

    A row that skips a column of it has none: a mean over fewer columns is not comparable with the other rows'.
    """
    groups, aggregation = resolved.average_over, resolved.aggregate
    columns = {column: here[column] for column in itertools.chain(*groups)}
    if skipped := [cell for cell in columns.values() if cell.skip]:
        notes = dict.fromkeys(note for cell in skipped for note in cell.notes)
        return Cell(notes=tuple(notes), skip=skipped[0].skip)
    replicates = len(resolved.replicates_at(place[0]))
    done = runs[runs["column"].isin(columns) & runs["done"]].groupby(REPLICATE)["collapsed"].agg(["size", "any"])
    done = done[done["size"] * replicates == sum(cell.expected for cell in columns.values())]
    cell = Cell(done=len(done), expected=replicates, collapsed=int(done["any"].sum()))
    if cell.complete:
        scores = counted[counted["column"].isin(columns)]
        cell = replace(cell, collapsed=int(scores.groupby(REPLICATE)["collapsed"].any().sum()))
        if aggregation.average == "per_replicate":
            run = [*(["configuration"] if aggregation.select == "none" else []), *REPLICATE]
            cell = _summarised(resolved, cell, replicate_averages(scores, run, groups))
        else:
            values, sound = (
                {column: getattr(each, name) for column, each in columns.items()}
                for name in ("value", "without_collapsed")
            )
            without = None if None in sound.values() else average(sound, groups)
            cell = replace(cell, value=average(values, groups), without_collapsed=without)
    why = dict.fromkeys([*(w for each in columns.values() for w in each.why), "an average of cells has no interval"])
    return _verdict(resolved, place, cell, tuple(why)) if resolved.has_whole_average else cell


# ------------------------------------------------------------------------------------------------------------ verdicts


def _reasons(
    resolved: ResolvedTable,
    rows: Sequence[ResolvedRow],
    column: str,
    test_rows: Mapping[str, int],
    stated: Mapping[str, str],
) -> Iterator[str]:
    """Why a cell of this row and column is not comparable with the paper's, whatever its runs. `stated`: reasons of the data by column, and of
    all columns under ''."""
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
    if stated.get(""):
        yield stated[""]
    if stated.get(column):
        yield f"{spec.title}: {stated[column]}"


def family(resolved: ResolvedTable) -> int:
    """Of how many cells the table can give verdicts: the paper's numbers of rows that can be compared, whatever part of the table is shown."""
    titles = {row.title for row in resolved.table.rows if not row.incomparable}
    return sum(
        len(columns.keys() - {AVERAGE})
        for rows in resolved.table.paper.values()
        for row, columns in rows.items()
        if row in titles
    )


def _verdict(
    resolved: ResolvedTable, place: Place, cell: Cell, reasons: tuple[str, ...], counted: pd.DataFrame | None = None
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
    if reasons:
        return replace(cell, verdict="not comparable", why=reasons)
    if cell.value is None or counted is None:
        return replace(cell, verdict="incomplete")
    if cell.done == 1:
        return replace(cell, verdict="not comparable", why=("one replicate has no spread",))
    scores = counted.pivot(index="subset", columns="seed", values="test").to_numpy()
    table = resolved.table
    count = table.subsets if place[0] and table.subsets > 1 else len(table.seeds)
    half = float(published_half_width(scores, paper_spread, count, 1 - (1 - CONFIDENCE) / family(resolved)))
    if not half:
        return replace(cell, verdict="not comparable", why=("the runs have one score and no spread",))
    difference = cell.value - paper
    verdict: Verdict = "agrees" if abs(difference) <= half else "higher" if difference > 0 else "lower"
    return replace(cell, verdict=verdict, half_width=half)
