"""A published file of results, held against the records of a store: every figure is derived again by the current code, and every score
is computed again from the stored predictions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.commands.prepare import Prepared, prepare
from harness.commands.report import grid_of
from harness.errors import UserError
from harness.specs import Record, Stage
from harness.store import DEFAULT_URL, Store
from harness.tables.caption import counted
from harness.tables.plan import Plan
from harness.tables.published import (
    Difference,
    Place,
    Published,
    cells_compared,
    compared,
    place_of,
    read_published,
    same,
    where,
)
from harness.tables.render import cell_records
from harness.tables.request import Request, from_json, is_own
from harness.tables.results import results_of
from harness.tables.schema import PLACE, records
from harness.tasks import score

CHUNK = 100
"""Records whose predictions are held in memory at a time."""


@dataclass
class Verification:
    """What came out. `figures`: that were compared; `missing`: rows of the file without an intact record, `problems`: everything else that is
    wrong, a sentence each; `notes`: what the file leaves out and what was not checked; `rescored`: records whose scores were computed
    again; `requests`: of each run that was found the request that makes it."""

    published: Published
    store: Store
    figures: int = 0
    rescored: int = 0
    differences: list[Difference] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tables: dict[str, None] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)

    @property
    def confirmed(self) -> bool:
        return not (self.differences or self.missing or self.problems)


def verify(path: Path, url: str | None) -> Verification:
    """Compare every figure of a file with what the records of its runs give. Raises UserError for a file that is not one of results, and where
    there is no store."""
    published = read_published(path)
    store = Store(url or DEFAULT_URL, create=False)
    if not store.exists:
        raise UserError(
            f"There is no store at {store.shown}; name the one that holds the records of {path} with --store."
        )
    found = Verification(published, store)
    left = dict(enumerate(published.rows, start=1))
    derived: dict[Place, Mapping[str, Any]] = {}
    reasons: dict[str, str] = {}
    for prepared in _tables(published, store, left, reasons):
        rows = {place_of(row): row for row in records(results_of(prepared.plan, store))}
        mine = {k: row for k, row in left.items() if rows.get(place_of(row), {}).get("key") == row["key"]}
        if not mine:
            continue
        for k, row in mine.items():
            found.differences += compared(k, row, rows[place_of(row)])
            found.figures += len(row)
            found.requests.setdefault(row["key"], prepared.request)
            del left[k]
        found.tables[prepared.resolved.table.name] = None
        derived |= rows
        _check_records(found, prepared, {row["key"] for row in mine.values()})
        if published.cells and not left:
            _check_cells(found, prepared)
    found.differences.sort(key=lambda each: each.row)
    _explain(found, left, reasons)
    _look_for_left_out(found, derived)
    if published.unknown:
        found.notes.append(f"Not checked: {', '.join(published.unknown)} (no columns of 'harness report').")
    return found


def _tables(
    published: Published, store: Store, left: Mapping[int, Mapping[str, Any]], reasons: dict[str, str]
) -> Iterator[Prepared]:
    """The benches that need runs of the file, prepared, as long as rows are left: first those with the most of its runs, of these the smallest.
    `reasons`: filled with why a bench cannot be planned here, by the keys of its stages."""
    benches = [each for each in store.requests_for(published.keys) if not each[0].study]
    for stored, keys, _ in sorted(benches, key=lambda each: (-len(each[1]), each[2])):
        if keys.isdisjoint(row["key"] for row in left.values()):
            continue
        try:
            prepared = prepare(replace(from_json(stored.values), store=store.url), train=False)
        except UserError as error:
            reasons |= dict.fromkeys(keys, str(error))
            continue
        if gone := prepared.plan.unresolved:
            reasons |= dict.fromkeys(keys, f"{', '.join(gone[:3])} is not at hand.")
        yield prepared


# ------------------------------------------------------------------------------------------------------- records


def _check_records(found: Verification, prepared: Prepared, keys: Iterable[str]) -> None:
    """Compute the scores of finished runs again from their predictions, and compare them with what their records say."""
    plan, known = prepared.plan, sorted(set(keys) & prepared.plan.stages.keys())
    for start in range(0, len(known), CHUNK):
        for key, record in found.store.records(known[start : start + CHUNK], predictions=True).items():
            if record.status == "done":
                found.rescored += 1
                found.problems += [
                    f"record {key[:12]}: {said}" for said in contradictions(plan, plan.stages[key], record)
                ]


def contradictions(plan: Plan, stage: Stage, record: Record) -> Iterator[str]:
    """In which figures a finished record contradicts its own predictions and history, or its predictions the labels of the data."""
    for rows in (stage.data.dev, *stage.data.tests):
        if rows is None or rows.digest not in plan.library:
            continue
        if not np.array_equal(record.predictions[rows.digest].gold, plan.library[rows.digest].gold):
            yield f"the labels of {rows.name} that it keeps are not those of the data"
    if stage.data.dev is None or stage.selection is None:
        return
    predicted = record.predictions[stage.data.dev.digest]
    for metric, recorded in record.dev_scores.items():
        computed = score(metric, predicted.gold, predicted.logits)
        if not same(recorded, computed):
            yield f"it says {recorded!r} for {metric} on dev, and its predictions give {computed!r}"
    if stage.data.num_labels > 1:
        classes = np.bincount(predicted.logits.argmax(axis=1), minlength=stage.data.num_labels)
        if record.histogram != classes.tolist() or record.collapsed != (np.count_nonzero(classes) == 1):
            yield "the classes that it says are predicted on dev are not those of its predictions"
    evaluated = [(entry["step"], entry["dev"][stage.selection.metric]) for entry in record.history if "dev" in entry]
    best = max((value for _, value in evaluated), default=None)
    first = next((step for step, value in evaluated if value == best), record.selected_step)
    if first != record.selected_step:
        yield f"it selects update {record.selected_step}, and its history is best on dev at update {first}"


# ------------------------------------------------------------------------------------- what the file does not agree with


def _check_cells(found: Verification, prepared: Prepared) -> None:
    """The cells of a JSON file against those of a table of the same tasks, subsets and seeds."""
    rows, request, resolved = found.published.rows, prepared.request, prepared.resolved
    subsets, seeds, tasks = ({row[name] for row in rows} for name in ("subset", "seed", "task"))
    if subsets < {*resolved.subsets} or seeds < {*resolved.seeds} or tasks < {*resolved.tasks}:
        named = tuple(text for text in request.tasks or resolved.tasks if text in tasks or is_own(text))
        kept = (
            tuple(each for each in all_of if each in mine)
            for all_of, mine in ((resolved.subsets, subsets), (resolved.seeds, seeds))
        )
        prepared = prepare(replace(request, tasks=named, subsets=next(kept), seeds=next(kept)), train=False)
    grid, _ = grid_of(prepared)
    derived = cell_records(grid)
    all_rows = {cell["row"] for cell in derived} == {cell.get("row") for cell in found.published.cells}
    if not all_rows:  # which cell is the best of its column depends on the rows
        derived = [{name: value for name, value in cell.items() if name != "best"} for cell in derived]
    found.figures += sum(len(set(derived[0]) & set(cell)) for cell in found.published.cells)
    found.problems += cells_compared(found.published.cells, derived)


def _explain(found: Verification, left: Mapping[int, Mapping[str, Any]], reasons: Mapping[str, str]) -> None:
    """Why no record gives these rows: not recorded, damaged, another run, or a bench that cannot be planned here."""
    keys = {str(row["key"]) for row in left.values()}
    recorded = found.store.statuses(keys)
    damaged = {each.key: each.why for each in found.store.damages()[1]} if keys - recorded.keys() else {}
    said: set[str] = set()
    for number, row in left.items():
        key, words = str(row["key"]), f"row {number} ({where(row)})"
        if key in found.requests or (key in recorded and key not in reasons):
            others = ", ".join(
                f"{label['row']}, {label['task']}, {label['size']:,} examples, subset {label['subset']}, seed {label['seed']}"
                for label in found.store.labels(key)[:2]
            )
            found.problems.append(f"{words}: its key {key[:12]} is the run of {others or 'no bench of this store'}")
        elif key not in said:
            said.add(key)
            if key in damaged:
                found.missing.append(f"{words}: its record {key[:12]} is damaged ({damaged[key]})")
            elif key in reasons:
                found.missing.append(f"{words}: {key[:12]} cannot be derived again here: {reasons[key].rstrip('.')}")
            else:
                found.missing.append(f"{words}: the store has no record {key[:12]}")


def _look_for_left_out(found: Verification, derived: Mapping[Place, Mapping[str, Any]]) -> None:
    """Finished runs of the same benches that the file does not have: within its own design that is wrong, beyond it a note."""
    rows = found.published.rows
    there = {place_of(row) for row in rows}
    design = [{row[name] for row in rows} for name in (*PLACE, "metric")]
    lacking = [row for place, row in derived.items() if place not in there]
    inside = [row for row in lacking if all(v in each for v, each in zip(place_of(row), design, strict=True))]
    if inside:
        found.problems.append(
            f"the file leaves out {counted(len(inside), 'row')} of its own subsets and seeds; the first: {where(inside[0])}"
        )
    outside = {row["key"] for row in lacking} - {row["key"] for row in rows} - {row["key"] for row in inside}
    if outside:
        more = [
            f"{name} {', '.join(map(str, extra))}"
            for name, mine in zip(PLACE, design, strict=False)
            if (extra := sorted({row[name] for row in lacking if row["key"] in outside} - mine))
        ]
        found.notes.append(
            f"The bench that it was printed from has {counted(len(outside), 'more run')} ({'; '.join(more)}), which the file leaves out."
        )
