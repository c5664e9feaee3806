"""Replicates into cells: mean (or median) and spread over subsets x seeds, Avg per replicate, verdicts against the paper.

Pure: the same replicates in any order give the same grid. Sums are exactly rounded (`math.fsum`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.specs import Status
from harness.tables.resolve import ResolvedTable
from harness.tables.table import Row

AVERAGE = "avg"
"""Column id of the mean over columns."""

Verdict = Literal["", "agrees", "higher", "lower", "incomplete", "not comparable"]
CONFIDENCE = 0.95


@dataclass(frozen=True, order=True)
class Score:
    """One metric of one run, on its own scale (1 for 100 %): dev at the selected checkpoint, and test."""

    metric: str
    dev: float | None
    test: float | None


@dataclass(frozen=True, order=True)
class Replicate:
    """One run's score in one column. `value` on the metric's own scale (1 for 100 %), None unless the run is done.

    `scores`: every metric of the task, the column's first; `selected_step`: the update of the selected checkpoint, `tied`:
    evaluations that share its dev score; `seconds`: of the fine-tuning stage alone.
    """

    row: str
    size: int
    column: str
    subset: int
    seed: int
    value: float | None
    status: Status = "done"
    reason: str = ""
    collapsed: bool = False
    key: str = ""
    scores: tuple[Score, ...] = ()
    selected_step: int | None = None
    tied: int | None = None
    seconds: float | None = None

    @property
    def done(self) -> bool:
        return self.status == "done" and self.value is not None and math.isfinite(self.value)


@dataclass(frozen=True, order=True)
class Note:
    """The reason of a footnote mark: `kind` is collapsed, diverged, failed or skipped."""

    kind: str
    reason: str


@dataclass(frozen=True)
class Cell:
    """One cell, on the metric's own scale. `value` and all spreads are None until all `expected` replicates are done.

    `value`: their mean, or the median where the table says so. `spread`: sd over all replicates with the table's ddof.
    `spread_between`: sd of the subsets' means (of the replicates where there is one subset), which intervals are built on.
    `without_collapsed`: `value` over the runs that did not collapse. `half_width`: of the 95 % interval of ours minus paper. `why`: reasons for no verdict.
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
    best: bool = False
    skip: str = ""

    @property
    def complete(self) -> bool:
        return self.expected > 0 and self.done == self.expected


@dataclass(frozen=True)
class Grid:
    """All cells by (size, row, column id), the design they fill, and the replicates in the order of the design."""

    resolved: ResolvedTable
    columns: tuple[str, ...]
    cells: Mapping[tuple[int, str, str], Cell]
    replicates: tuple[Replicate, ...]

    @property
    def complete(self) -> bool:
        """Every run that can be done is done."""
        return all(cell.complete for cell in self.cells.values() if not cell.skip)

    def title(self, column: str) -> str:
        return "Avg" if column == AVERAGE else self.resolved.columns[column].title


def mean(values: Sequence[float]) -> float:
    """The mean of at least one value."""
    return math.fsum(values) / len(values)


CENTERS: Mapping[str, Callable[[Sequence[float]], float]] = {"mean": mean, "median": statistics.median}
"""What a table's `aggregate.center` names."""


def std(values: Sequence[float], ddof: int) -> float | None:
    """The standard deviation with `ddof`, None when there are not more than `ddof` values."""
    if len(values) <= ddof:
        return None
    center = mean(values)
    return math.sqrt(math.fsum((v - center) ** 2 for v in values) / (len(values) - ddof))


def subset_std(values: Mapping[tuple[int, int], float]) -> float | None:
    """Sd (ddof 1) of the subsets' means, `values` by (subset, seed); with a single subset, of the values themselves."""
    return std(_clusters(values), 1)


def _clusters(values: Mapping[tuple[int, int], float]) -> list[float]:
    subsets = sorted({subset for subset, _ in values})
    if len(subsets) == 1:
        return [values[k] for k in sorted(values)]
    return [mean([values[k] for k in sorted(values) if k[0] == subset]) for subset in subsets]


def aggregate(
    resolved: ResolvedTable,
    replicates: Iterable[Replicate],
    test_rows: Mapping[str, int] | None = None,
    not_comparable: Mapping[str, str] | None = None,
    skipped: Mapping[tuple[str, str], str] | None = None,
) -> Grid:
    """Every cell of a resolved table.

    `test_rows`: number of test examples scored, by column id. `not_comparable`: further reasons by column id, '' for all.
    `skipped`: by (row, task), why a method is not run on a task. Replicates outside the design are left out.
    Raises ValueError when one place of the design has two different scores.
    """
    placed = _place(resolved, replicates)
    cells: dict[tuple[int, str, str], Cell] = {}
    for size in resolved.sizes:
        for row in resolved.rows:
            mine: dict[str, dict[tuple[int, int], Replicate]] = {}
            for column in resolved.columns:
                mine[column] = {
                    r: placed[(row.name, size, column, *r)]
                    for r in resolved.replicates_at(size)
                    if (row.name, size, column, *r) in placed
                }
                reasons = _reasons(resolved, row, column, test_rows or {}, not_comparable or {})
                cells[size, row.name, column] = _cell(resolved, row, size, column, mine[column], reasons)
                skip = (skipped or {}).get((row.name, resolved.columns[column].task))
                if skip:
                    cells[size, row.name, column] = Cell(None, None, 0, 0, notes=(Note("skipped", skip),), skip=skip)
            if has_average(resolved):
                here = [cells[size, row.name, column] for column in resolved.columns]
                cells[size, row.name, AVERAGE] = _average(resolved, size, mine, [cell for cell in here if cell.skip])
    columns = (*resolved.columns, *([AVERAGE] if has_average(resolved) else []))
    _mark_best(resolved, columns, cells)
    return Grid(resolved, columns, cells, tuple(placed.values()))


def has_average(resolved: ResolvedTable) -> bool:
    return resolved.aggregate.average != "none" and len(resolved.columns) > 1


def _place(resolved: ResolvedTable, replicates: Iterable[Replicate]) -> dict[tuple[str, int, str, int, int], Replicate]:
    """Replicates by place, in the design's order; of several at one place a done one, else the first when sorted."""

    def rank(each: Replicate) -> tuple[bool, str, str, str]:
        return not each.done, each.status, each.reason, each.key

    found: dict[tuple[str, int, str, int, int], Replicate] = {}
    for new in replicates:
        place = (new.row, new.size, new.column, new.subset, new.seed)
        old = found.get(place)
        if old and old.done and new.done and old.value != new.value:
            raise ValueError(f"two different scores for {place}: {old.value} and {new.value}")
        if old is None or rank(new) < rank(old):
            found[place] = new
    order = (
        (row.name, size, column, subset, seed)
        for size in resolved.sizes
        for row in resolved.rows
        if not row.skip
        for column in resolved.columns
        for subset, seed in resolved.replicates_at(size)
    )
    return {place: found[place] for place in order if place in found}


def _cell(
    resolved: ResolvedTable,
    row: Row,
    size: int,
    column: str,
    found: Mapping[tuple[int, int], Replicate],
    reasons: tuple[str, ...],
) -> Cell:
    published = resolved.paper_value(size, row.name, column)
    paper, paper_spread = published or (None, None)
    if row.skip:
        note = Note("skipped", row.skip)
        return Cell(None, None, 0, 0, paper, paper_spread, notes=(note,), skip=row.skip)
    values = {k: r.value for k, r in found.items() if r.done and r.value is not None}
    notes = sorted({note for r in found.values() for note in notes_of(r)})
    kept = [values[k] for k in values if not found[k].collapsed]
    collapsed = sum(found[k].collapsed for k in values)
    cell = _summary(resolved, size, values, kept)
    cell = replace(cell, paper=paper, paper_spread=paper_spread, notes=tuple(notes), collapsed=collapsed)
    return _judged(resolved, cell, values, reasons)


def notes_of(replicate: Replicate) -> tuple[Note, ...]:
    """The marks one replicate puts on its cell."""
    if replicate.status != "done":
        return (Note(replicate.status, " ".join(replicate.reason.split()) or "no reason recorded"),)
    if not replicate.done:
        return (Note("failed", "the score is not a finite number"),)
    return (Note("collapsed", "one class only is predicted on dev"),) if replicate.collapsed else ()


def _summary(
    resolved: ResolvedTable, size: int, values: Mapping[tuple[int, int], float], kept: Sequence[float]
) -> Cell:
    expected = len(resolved.replicates_at(size))
    if not expected or len(values) < expected:
        return Cell(None, None, len(values), expected)
    ordered = [values[k] for k in resolved.replicates_at(size)]
    center = CENTERS[resolved.aggregate.center]
    return Cell(
        center(ordered),
        std(ordered, resolved.aggregate.ddof),
        expected,
        expected,
        spread_between=subset_std(values),
        without_collapsed=center(kept) if kept else None,
    )


def _average(
    resolved: ResolvedTable,
    size: int,
    found: Mapping[str, Mapping[tuple[int, int], Replicate]],
    skipped: Sequence[Cell],
) -> Cell:
    """The mean over columns within each replicate, then the table's center over replicates; complete where all columns are.

    A row that skips a column has none: a mean over fewer columns is not comparable with the other rows'.
    """
    if skipped:
        notes = dict.fromkeys(note for cell in skipped for note in cell.notes)
        return Cell(None, None, 0, 0, notes=tuple(notes), skip=skipped[0].skip)
    values: dict[tuple[int, int], float] = {}
    collapsed = set()
    for place in resolved.replicates_at(size):
        runs = [found[column].get(place) for column in resolved.columns]
        scores = [r.value for r in runs if r is not None and r.done and r.value is not None]
        if len(scores) == len(resolved.columns):
            values[place] = mean(scores)
            if any(r.collapsed for r in runs if r is not None):
                collapsed.add(place)
    cell = _summary(resolved, size, values, [v for k, v in values.items() if k not in collapsed])
    return replace(cell, collapsed=len(collapsed))


def _reasons(
    resolved: ResolvedTable, row: Row, column: str, test_rows: Mapping[str, int], given: Mapping[str, str]
) -> tuple[str, ...]:
    """Why a cell of this row and column is not comparable with the paper's, whatever its replicates."""
    reasons = [*resolved.incomparable]
    mine = resolved.row_incomparable(row)
    if mine:
        reasons.append(f"row {row.name}: {mine}")
    expected, actual = resolved.columns[column].test_rows, test_rows.get(column)
    title = resolved.columns[column].title
    if resolved.comparable and actual is None:
        reasons.append(f"{title}: the number of test examples is not known")
    elif resolved.comparable and expected is not None and actual != expected:
        reasons.append(f"{title}: {actual} test examples instead of {expected}")
    reasons += [given[""]] if given.get("") else []
    reasons += [f"{title}: {given[column]}"] if given.get(column) else []
    return tuple(dict.fromkeys(reasons))


def _judged(
    resolved: ResolvedTable, cell: Cell, values: Mapping[tuple[int, int], float], reasons: tuple[str, ...]
) -> Cell:
    """The verdict on a published cell.

    'agrees' when ours minus paper lies within t(0.975, k-1) * s * sqrt(2/k), where s is the sd between the k subsets (the
    seeds where there is one subset) and the paper's own mean is taken to be as uncertain as ours. The draw of the test set
    is not in it. The interval holds for means: a median has no verdict.
    """
    if cell.paper is None:
        return cell
    if reasons:
        return replace(cell, verdict="not comparable", why=reasons)
    if not cell.complete or cell.value is None:
        return replace(cell, verdict="incomplete")
    if resolved.aggregate.center != "mean":
        return replace(
            cell, verdict="not comparable", why=("the interval of a verdict holds for means, not for medians",)
        )
    clusters = len(_clusters(values))
    if cell.spread_between is None:
        return replace(cell, verdict="not comparable", why=("one replicate has no spread",))
    from scipy.special import stdtrit  # the t quantile without scipy.stats, whose import takes a second

    half = float(stdtrit(clusters - 1, (1 + CONFIDENCE) / 2)) * cell.spread_between * math.sqrt(2 / clusters)
    difference = cell.value - cell.paper
    verdict: Verdict = "agrees" if abs(difference) <= half else "higher" if difference > 0 else "lower"
    return replace(cell, verdict=verdict, half_width=half)


def _mark_best(resolved: ResolvedTable, columns: Iterable[str], cells: dict[tuple[int, str, str], Cell]) -> None:
    """Marks the highest complete cell of each column and size (all that tie), where at least two are complete."""
    for size in resolved.sizes:
        for column in columns:
            places = [(size, row.name, column) for row in resolved.rows if cells[size, row.name, column].complete]
            values = [v for p in places if (v := cells[p].value) is not None]
            for place in places if len(places) > 1 else []:
                if cells[place].value == max(values):
                    cells[place] = replace(cells[place], best=True)
