"""Results into cells: value and spread by the table's aggregation rule, Avg, verdicts against the paper.

Pure: the same results in any order give the same grid.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from harness.analysis.schema import PLACE, placed
from harness.planning.aggregation import (
    AVERAGE,
    RULES,
    Groups,
    average,
    best_configurations,
    mean,
    replicate_averages,
    std,
    subset_std,
)
from harness.planning.resolved import ResolvedTable
from harness.planning.row import ResolvedRow
from harness.statistics.difference import published_half_width

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["", "agrees", "higher", "lower", "incomplete", "not comparable"]
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
    `without_collapsed`: `value` over the runs that did not collapse. `half_width`: of the interval of ours minus paper (`_judged`).
    `selected`: the configurations whose runs count, where the row has several. `why`: reasons for no verdict.
    """

    value: float | None
    spread: float | None
    done: int
    expected: int
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
    cells: Mapping[tuple[int, str, str], Cell]
    results: pd.DataFrame
    hours: Mapping[str, float] = field(default_factory=dict)
    collapsed: bool = True
    elsewhere: frozenset[tuple[int, str, str]] = frozenset()

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
    all_runs, all_counted = (
        dict(iter(each.groupby(["size", "row", "column"], sort=False))) for each in (runs, counted)
    )
    cells: dict[tuple[int, str, str], Cell] = {}
    for size in resolved.sizes:
        for title in resolved.printed_rows:
            for column, spec in resolved.columns.items():
                place = (size, title, column)
                rows = resolved.configurations(title, spec.task)
                cell = _unrun(resolved, rows, place, skipped or {})
                if not cell.skip:
                    kept = all_counted.get(place, counted[:0])
                    cell = _filled(resolved, cell, len(rows) > 1, all_runs.get(place, runs[:0]), kept)
                    reasons = _reasons(resolved, rows, column, test_rows or {}, not_comparable or {})
                    cell = _judged(resolved, size, cell, kept, reasons)
                cells[place] = cell
            if has_average(resolved):
                here = {column: cells[size, title, column] for column in resolved.columns}
                mine = [each[(each["size"] == size) & (each["row"] == title)] for each in (runs, counted)]
                found = _average(resolved, size, here, *mine)
                if not found.skip and resolved.has_whole_average:
                    paper, paper_spread = resolved.paper_value(size, title, AVERAGE) or (None, None)
                    why = [
                        reason for column in [*itertools.chain(*resolved.average_over)] for reason in here[column].why
                    ]
                    found = replace(found, paper=paper, paper_spread=paper_spread)
                    found = _judged(
                        resolved,
                        size,
                        found,
                        counted[:0],
                        tuple(dict.fromkeys([*why, "an average of cells has no interval"])),
                    )
                cells[size, title, AVERAGE] = found
        for place in itertools.product([size], resolved.averages, resolved.columns):
            members = [(size, row, place[2]) for row in resolved.averages[place[1]]]
            scores = [all_counted.get(each, counted[:0]) for each in members]
            cells[place] = _mean_of_rows(resolved, place, [cells[each] for each in members], scores)
    columns = (*resolved.columns, *([AVERAGE] if has_average(resolved) else []))
    return Grid(resolved, columns, cells, results)


def has_average(resolved: ResolvedTable) -> bool:
    return resolved.aggregate.average != "none" and len([*itertools.chain(*resolved.average_over)]) > 1


def own_scores(resolved: ResolvedTable, results: pd.DataFrame) -> pd.DataFrame:
    """One row a run and column, with the column's own metric; where the table shows dev, `test` is the dev score: `row` as printed, `configuration` the row that was run, whether
    it is done, and the `note` that it puts on its cell, or None."""
    import pandas as pd

    metrics = {name: column.metric for name, column in resolved.columns.items()}
    own = results[results["metric"] == results["column"].map(metrics)]
    titles = resolved.titles
    if resolved.aggregate.scores == "dev":
        own = own.assign(test=own["dev"])
    done = (own["status"] == "done") & own["test"].notna()
    own = own.assign(configuration=own["row"], row=own["row"].map(titles), done=done)
    notes = [
        _note(*run) for run in zip(*(own[name] for name in ("status", "reason", "done", "collapsed")), strict=True)
    ]
    own = own.assign(note=pd.Series(notes, own.index, dtype=object))
    return own[[*PLACE, "configuration", "task", "dev", "test", "done", "collapsed", "note", "hardware"]]


def counted_scores(grid: Grid) -> pd.DataFrame:
    """The finished runs that cells are made of, with the columns of `own_scores`, in the order of the design; of a row whose configuration is selected none
    before all runs of the selection are done. Runs that do not count because they collapsed take part in the selection."""
    own = own_scores(grid.resolved, grid.results)
    counted = _selected(grid.resolved, own[own["done"]])
    return counted if grid.collapsed else counted[~counted["collapsed"]]


def _selected(resolved: ResolvedTable, done: pd.DataFrame) -> pd.DataFrame:
    """The runs that count: of rows with several configurations those of the one that is best on dev, where the table selects, once all of them are done: the best of a
    part may be another one. A task's dev score is that of its first column, which selects checkpoints too."""
    aggregation = resolved.aggregate
    if aggregation.select == "none" or len(resolved.printed_rows) == len(resolved.rows) or done.empty:
        return done
    tasks = zip(done["row"], done["task"], strict=True)
    several: NDArray[np.bool_] = np.array([len(resolved.configurations(row, task)) > 1 for row, task in tasks])
    first = {column.task: name for name, column in reversed([*resolved.columns.items()])}
    by = ["size", "row", "task", *(["subset"] if aggregation.select == "per_subset" else [])]
    dev = done[several & (done["column"] == done["task"].map(first))]
    ended = dev.groupby(by, sort=False).size()
    counts = zip(ended.index.tolist(), ended.tolist(), strict=True)
    whole = [place for place, count in counts if count == _num_selected_from(resolved, *place)]
    dev = dev[dev.set_index(by).index.isin(whole)]
    if dev.empty:
        return done[~several]
    best = best_configurations(dev, by, RULES[aggregation.select_by or aggregation.center], aggregation.k or 0)
    chosen = done.merge(best.rename("chosen"), how="left", left_on=by, right_index=True)
    chosen = chosen[~several | (chosen["configuration"] == chosen["chosen"])]
    position = {place: i for i, place in enumerate(resolved.replicates)}
    order = [position[place] for place in zip(chosen["subset"], chosen["seed"], strict=True)]
    return chosen.assign(order=order).sort_values("order", kind="stable")


def _num_selected_from(resolved: ResolvedTable, size: int, row: str, task: str, subset: int | None = None) -> int:
    """How many runs a selection is of."""
    replicates = [pair for pair in resolved.replicates_at(size) if subset is None or pair[0] == subset]
    return len(resolved.configurations(row, task)) * len(replicates)


def _note(status: str, reason: str | float, done: bool, collapsed: bool) -> Note | None:
    if status != "done":
        return Note(status, " ".join(reason.split()) if isinstance(reason, str) else "no reason recorded")
    if not done:
        return Note("failed", "the score is not a finite number")
    return Note("collapsed", "one class only, or no answer, is predicted on dev") if collapsed else None


def _unrun(
    resolved: ResolvedTable,
    rows: Sequence[ResolvedRow],
    place: tuple[int, str, str],
    skipped: Mapping[tuple[str, str], str],
) -> Cell:
    """A cell without runs: what the paper prints there, or why it is not run."""
    size, title, column = place
    paper, paper_spread = resolved.paper_value(size, title, column) or (None, None)
    if not rows:
        return Cell(None, None, 0, 0, notes=(Note("skipped", OTHER_TASKS),), skip=OTHER_TASKS)
    for row in rows:
        if reason := skipped.get((row.name, resolved.columns[column].task)):
            return Cell(None, None, 0, 0, notes=(Note("skipped", reason),), skip=reason)
    return Cell(None, None, 0, len(rows) * len(resolved.replicates_at(size)), paper, paper_spread)


def _filled(resolved: ResolvedTable, cell: Cell, several: bool, runs: pd.DataFrame, counted: pd.DataFrame) -> Cell:
    cell = replace(cell, done=int(runs["done"].sum()))
    shown = counted if cell.complete else runs
    notes = sorted(set(shown["note"].dropna()))
    cell = replace(cell, notes=tuple(notes), collapsed=int(shown["collapsed"][shown["done"]].sum()))
    if cell.complete and several and resolved.aggregate.select != "none":
        cell = replace(cell, selected=tuple(dict.fromkeys(counted["configuration"])))
    return _summarised(resolved, cell, counted)


def _summarised(resolved: ResolvedTable, cell: Cell, scores: pd.DataFrame) -> Cell:
    """A complete cell with its value and spreads, of `scores` with a row for each run that counts."""
    if not cell.complete:
        return cell
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
    resolved: ResolvedTable, place: tuple[int, str, str], cells: Sequence[Cell], counted: Sequence[pd.DataFrame]
) -> Cell:
    """The mean of cells of several rows, complete where they are; its spread is that of all runs of which they are made."""
    if skipped := next((cell for cell in cells if cell.skip), None):
        return Cell(None, None, 0, 0, notes=skipped.notes, skip=skipped.skip)
    done, expected, collapsed = (
        sum(getattr(cell, name) for cell in cells) for name in ("done", "expected", "collapsed")
    )
    paper, paper_spread = resolved.paper_value(*place) or (None, None)
    why = dict.fromkeys(itertools.chain(*(cell.why for cell in cells), ["a mean of cells has no interval"]))
    found = Cell(None, None, done, expected, paper, paper_spread, collapsed=collapsed)
    found = _judged(resolved, place[0], found, counted[0], tuple(why))
    values = [cell.value for cell in cells if cell.value is not None]
    if len(values) < len(cells):
        return found
    rule, k = RULES[resolved.aggregate.center], resolved.aggregate.k or 0
    scores = [score for runs in counted for score in rule.summary(runs, k).scores]
    sound = [cell.without_collapsed for cell in cells if cell.without_collapsed is not None]
    without = mean(sound) if len(sound) == len(cells) else None
    return replace(found, value=mean(values), spread=std(scores, resolved.aggregate.ddof), without_collapsed=without)


def _average(
    resolved: ResolvedTable, size: int, here: Mapping[str, Cell], runs: pd.DataFrame, counted: pd.DataFrame
) -> Cell:
    """The cell of the column Avg, counted in replicates: one is done where all configurations of all its columns are.

    A row that skips a column of it has none: a mean over fewer columns is not comparable with the other rows'.
    """
    groups = resolved.average_over
    columns = [*itertools.chain(*groups)]
    if skipped := [here[column] for column in columns if here[column].skip]:
        notes = dict.fromkeys(note for cell in skipped for note in cell.notes)
        return Cell(None, None, 0, 0, notes=tuple(notes), skip=skipped[0].skip)
    replicates = len(resolved.replicates_at(size))
    configurations = {column: here[column].expected // replicates for column in columns}  # grids differ by task
    done = runs[runs["column"].isin(columns) & runs["done"]]
    by_column = done.groupby(["column", *REPLICATE])["collapsed"].agg(["size", "any"]).reset_index()
    whole = by_column[by_column["size"] == by_column["column"].map(configurations)]
    found = whole.groupby(REPLICATE)["any"].agg(["size", "any"])
    found = found[found["size"] == len(columns)]
    cell = Cell(None, None, len(found), replicates, collapsed=int(found["any"].sum()))
    if not cell.complete:
        return cell
    scores = counted[counted["column"].isin(columns)]
    cell = replace(cell, collapsed=int(scores.groupby(REPLICATE)["collapsed"].any().sum()))
    if resolved.aggregate.average == "per_replicate":
        run = [*(["configuration"] if resolved.aggregate.select == "none" else []), *REPLICATE]
        return _summarised(resolved, cell, replicate_averages(scores, run, groups))
    values = {column: here[column].value for column in columns}
    sound = {column: here[column].without_collapsed for column in columns}
    return replace(cell, value=_of_cells(values, groups), without_collapsed=_of_cells(sound, groups))


def _of_cells(values: Mapping[str, float | None], groups: Groups) -> float | None:
    """The average of cells by column; None where one has no value."""
    known = {column: value for column, value in values.items() if value is not None}
    return average(known, groups) if len(known) == len(values) else None


def _reasons(
    resolved: ResolvedTable,
    rows: Sequence[ResolvedRow],
    column: str,
    test_rows: Mapping[str, int],
    stated: Mapping[str, str],
) -> tuple[str, ...]:
    """Why a cell of this row and column is not comparable with the paper's, whatever its runs. `stated`: reasons of the data by column, and of
    all columns under ''."""
    reasons = [*resolved.incomparable]
    if resolved.aggregate.center != "mean" or len(rows) > 1:
        reasons.append("the interval of a verdict holds for the mean of all runs of one configuration")
    reasons += itertools.chain(*map(resolved.row_incomparable, rows))
    expected, actual = resolved.columns[column].test_rows, test_rows.get(column)
    title = resolved.columns[column].title
    if resolved.comparable and actual is None:
        reasons.append(f"{title}: the number of test examples is not known")
    elif resolved.comparable and expected is not None and actual != expected:
        reasons.append(f"{title}: {actual} test examples instead of {expected}")
    reasons += [stated[""]] if stated.get("") else []
    reasons += [f"{title}: {stated[column]}"] if stated.get(column) else []
    return tuple(dict.fromkeys(reasons))


def family(resolved: ResolvedTable) -> int:
    """Of how many cells the table can give verdicts: the paper's numbers of rows that can be compared, whatever part of the table is shown."""
    titles = {row.title for row in resolved.table.rows if not row.incomparable}
    return sum(
        len(columns.keys() - {AVERAGE})
        for rows in resolved.table.paper.values()
        for row, columns in rows.items()
        if row in titles
    )


def _judged(resolved: ResolvedTable, size: int, cell: Cell, counted: pd.DataFrame, reasons: tuple[str, ...]) -> Cell:
    """The verdict on a published cell.

    'agrees' when the interval of ours minus paper holds 0. It is over crossed subsets and seeds (`harness.statistics.crossed`) and simultaneous
    (Bonferroni): of a table that is reproduced exactly, the chance that any cell does not agree is 5 % at most. The paper's subsets and seeds
    are those of the table's file. The draw of the test set is not in it.
    """
    if cell.paper is None:
        return cell
    if reasons:
        return replace(cell, verdict="not comparable", why=reasons)
    if not cell.complete or cell.value is None:
        return replace(cell, verdict="incomplete")
    if cell.done == 1:
        return replace(cell, verdict="not comparable", why=("one replicate has no spread",))
    scores = counted.pivot(index="subset", columns="seed", values="test").to_numpy()
    table = resolved.table
    count = table.subsets if size and table.subsets > 1 else len(table.seeds)
    level = 1 - (1 - CONFIDENCE) / family(resolved)
    half = float(published_half_width(scores, cell.paper_spread, count, level))
    if not half:
        return replace(cell, verdict="not comparable", why=("the runs have one score and no spread",))
    difference = cell.value - cell.paper
    verdict: Verdict = "agrees" if abs(difference) <= half else "higher" if difference > 0 else "lower"
    return replace(cell, verdict=verdict, half_width=half)
