"""The cells and the caption of a prepared table, from what the store holds now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from harness.commands.prepare import Prepared
from harness.planning.aggregation import AVERAGE
from harness.planning.request import encoder_names
from harness.planning.row import on_encoder
from harness.planning.runs import Plan
from harness.planning.table import HOURS
from harness.scores import examples, hardware, joined_frames, results_of
from harness.specs import Stage
from harness.views.caption import Caption
from harness.views.cells import Grid, Place, aggregate
from harness.views.cost import Cost, cost_before
from harness.views.notes import plan_notes, starts_elsewhere_sentences
from harness.views.other_system import Digests, read_other_system
from harness.views.seal import sealed_places

if TYPE_CHECKING:
    from harness.store import Store


def grid_of(prepared: Prepared) -> Grid:
    """The table's cells from what the store holds now."""
    plan, store, resolved = prepared.plan, prepared.store, prepared.resolved
    test_rows = {name: of_column.test for name, of_column in examples(plan).items()}
    not_comparable = {
        name: plan.tasks[column.task].note for name, column in resolved.columns.items() if plan.tasks[column.task].note
    }
    skipped = {(row, task): reason for row, task, reason in plan.skipped if task}
    results = results_of(plan, store)
    if others := prepared.others:
        resolved = others.joined(resolved)
        results = joined_frames(results, others.results)
    grid = aggregate(resolved, results, test_rows, not_comparable, skipped)
    if resolved.table.figure and resolved.table.figure.x == HOURS:
        grid = replace(grid, hours=hours_before(plan, store))
    seals = [each.plan for each in store.seals(prepared.resolved.table.name) if each.intact]
    elsewhere = _benched_places(prepared).union(*(_sealed_here(prepared, each) for each in seals))
    return replace(grid, elsewhere=frozenset(elsewhere))


def caption_of(prepared: Prepared, grid: Grid) -> Caption:
    """What stands below these cells: it reads the texts of the plan."""
    plan, store = prepared.plan, prepared.store
    records = store.records(plan.stages)
    notes = plan_notes(plan, prepared.request.overrides)
    return Caption(
        len({run.stage.key for run in plan.runs}),
        plan.source,
        examples(plan),
        hardware(records.values()),
        (*notes, *(f"{sentence}." for sentence in starts_elsewhere_sentences(plan, records))),
        (prepared.others.note,) if prepared.others else (),
    )


def _sealed_here(prepared: Prepared, plan: Mapping[str, Any]) -> set[Place]:
    """The places of a sealed plan that belong to this table: of several encoders the rows of one of these, of one encoder none that names another."""
    r, places = prepared.resolved, sealed_places(plan)
    encoders = tuple(on_encoder("", title) for title in r.encoder_titles)
    if encoders:
        return {place for place in places if place[1].endswith(encoders)}
    own = {row.title for row in (*r.table.rows, *r.rows)}
    return {place for place in places if place[1] in own or on_encoder("", "") not in place[1]}


def _benched_places(prepared: Prepared) -> set[Place]:
    """The places of all benches of this table that need any of its runs, whatever filters select of them here: they are one family of comparisons."""
    store, table = prepared.store, prepared.resolved.table
    benches = store.requests_for({run.stage.key for run in prepared.plan.runs})
    every = prepared.resolved.encoder_titles
    encoders_here = prepared.resolved.encoders if every else ()
    keys: dict[tuple[str, ...], set[str]] = {}
    for stored in (stored for stored, _, _ in benches if not stored.study):
        names = encoder_names(str(stored.values.get("encoder", "")))
        mine = tuple(each.title for each in encoders_here if each.name in names)
        keys.setdefault(mine or every, set()).update(store.stages_of(stored))
    titles = {row.name: row.title for row in table.rows}
    columns: dict[str, list[str]] = {}
    for name, column in table.columns.items():
        columns.setdefault(column.task, []).append(name)
    found = {
        (int(label["size"]), row, column)
        for encoders, stages in keys.items()
        for label in store.labels_of(stages)
        if label["table"] == table.name
        for title in [titles.get(label["row"], label["row"])]
        for row in ([on_encoder(title, encoder) for encoder in encoders] or [title])
        for column in columns.get(label["task"], [label["task"]])
    }
    averaged, given = {column for _, _, column in found}, table.aggregate.average_over
    if given is not None:
        averaged &= {column for group in given for column in ((group,) if isinstance(group, str) else group)}
    rows = {(size, row) for size, row, _ in found if all((size, row, column) in found for column in averaged)}
    return found | {(size, row, AVERAGE) for size, row in rows if len(averaged) > 1}


def with_other_system(prepared: Prepared, path: Path) -> Prepared:
    """With the rows of another system from a file. Raises UserError."""
    data = prepared.plan.table_data
    training = {
        (task, size, subset): found.labelled.digest
        for (task, size, subset, _, augment), found in data.training.items()
        if augment is None
    }
    tests = {(task, name): rows.digest for task, found in data.tasks.items() for name, rows in found.tests.items()}
    return replace(prepared, others=read_other_system(path, prepared.resolved, Digests(training, tests)))


def known_costs(stages: Iterable[Stage], store: Store) -> dict[str, Cost]:
    """What those of the stages cost that are finished, by key."""
    records = store.records({stage.key for stage in stages})
    return {key: Cost(record.flops, record.seconds) for key, record in records.items() if record.status == "done"}


def hours_before(plan: Plan, store: Store) -> dict[str, float]:
    """Hours of training before fine-tuning, by row as printed: the mean over its runs, of those whose earlier stages are all done."""
    known = known_costs((stage for run in plan.runs for stage in run.stage.chain[:-1]), store)
    titles = plan.resolved.titles
    hours: dict[str, list[float]] = {}
    for run in plan.runs:
        earlier = run.stage.chain[:-1]
        if earlier and all(stage.key in known for stage in earlier):
            hours.setdefault(titles[run.row], []).append(cost_before(run.stage, known).seconds / 3600)
    return {title: fmean(each) for title, each in hours.items()}
