"""The views of a prepared table from what the store holds now: its cells and caption, comparisons, a page; and a comparison that is sealed before its first
run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.commands.prepare import Prepared
from harness.commands.recorded import command
from harness.encoders.flops import parameters
from harness.errors import UserError
from harness.paths import without_folders
from harness.planning.aggregation import AVERAGE
from harness.planning.request import names_in
from harness.planning.resolved import on_encoder
from harness.planning.runs import Plan
from harness.planning.table import HOURS
from harness.scores import PLACE, frame_of, hardware, results_of, with_records
from harness.specs import Run
from harness.store import DEFAULT_URL, Store, StoredSeal
from harness.store.records import predicted_by
from harness.tasks.metrics import METRICS
from harness.tasks.overlap import unit_ids
from harness.views.cells import Grid, Place, aggregate
from harness.views.cost import OWN, cost_before, costs
from harness.views.differences import REGION, Difference, differences, ranks_view
from harness.views.examples import classes_view, examples
from harness.views.figures import figure_view
from harness.views.notes import plan_notes, starts_elsewhere_sentences
from harness.views.other_system import read_other_system
from harness.views.power import cost_of, detections
from harness.views.seal import followed, plan_of, rule_of, sealed_places
from harness.views.settings import settings_view
from harness.views.table import Caption, notes_view, results_page, results_view
from harness.views.variance import variance
from harness.views.view import View
from harness.wording import counted, listed, shares, some_of


def grid_of(prepared: Prepared) -> Grid:
    """The table's cells from what the store holds now."""
    plan, store, resolved = prepared.plan, prepared.store, prepared.resolved
    tests = {name: plan.tasks[column.task].tests[column.evaluation] for name, column in resolved.columns.items()}
    test_rows = {name: rows.rows for name, rows in tests.items() if rows.resolved}
    notes = {name: plan.tasks[column.task].note for name, column in resolved.columns.items()}
    skipped = {(row, task): reason for row, task, reason in plan.skipped if task}
    results = results_of(plan, store)
    if others := prepared.others:
        resolved = replace(resolved, rows=(*resolved.rows, *others.rows))
        results = pd.concat([results, frame_of(others.results)], ignore_index=True)
    grid = aggregate(resolved, results, test_rows, notes, skipped)
    if resolved.table.figure and resolved.table.figure.x == HOURS:
        spent = spent_of(prepared)
        hours = spent[spent["earlier_seconds"] > 0].groupby("row")["earlier_seconds"].mean() / 3600
        grid = replace(grid, hours={str(row): each for row, each in hours.items()})
    seals = [each.plan for each in store.seals(prepared.resolved.table.name) if each.intact]
    elsewhere = _benched_places(prepared).union(*(_sealed_here(prepared, each) for each in seals))
    return replace(grid, elsewhere=frozenset(elsewhere))


def caption_of(prepared: Prepared) -> Caption:
    """What stands below its cells: it reads the texts of the plan."""
    plan, store = prepared.plan, prepared.store
    records = store.records(plan.stages)
    return Caption(
        len({run.stage.key for run in plan.runs}),
        plan.table_data.source,
        example_counts(plan),
        hardware(records.values()),
        (*plan_notes(plan), *starts_elsewhere_sentences(plan, records)),
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
    store, r, table = prepared.store, prepared.resolved, prepared.resolved.table
    titles, columns, found = {row.name: row.title for row in table.rows}, dict[str, list[str]](), set[Place]()
    for name, column in table.columns.items():
        columns.setdefault(column.task, []).append(name)
    for stored, _ in store.requests_for({run.stage.key for run in prepared.plan.runs}):
        named = names_in(stored.values.get("encoder")) or ()
        mine = [title for name, title in r.encoders.items() if name in named] if r.encoder_titles else []
        for label in [] if stored.study else store.labels(store.stages_of(stored)):
            if label["table"] == table.name:
                title = titles.get(label["row"], label["row"])
                rows = [on_encoder(title, encoder) for encoder in mine or r.encoder_titles] or [title]
                found |= {*product([int(label["size"])], rows, columns.get(label["task"], [label["task"]]))}
    averaged = {*chain(*table.aggregate.groups({column for _, _, column in found}))}
    whole = {(size, row) for size, row, _ in found if all((size, row, column) in found for column in averaged)}
    return found | {(size, row, AVERAGE) for size, row in whole if len(averaged) > 1}


def with_other_system(prepared: Prepared, path: Path) -> Prepared:
    """With the rows of another system from a file. Raises UserError."""
    data = prepared.plan.table_data
    digests: dict[tuple[str, ...], str] = {
        (task, str(size), str(subset)): found.labelled.digest
        for (task, size, subset, _, augment), found in data.training.items()
        if augment is None
    }
    digests |= {(task, name): rows.digest for task, found in data.tasks.items() for name, rows in found.tests.items()}
    return replace(prepared, others=read_other_system(path, prepared.resolved, digests))


def with_answers(prepared: Prepared, grid: Grid) -> Grid:
    """With what each finished run scores on each test item, in the columns whose metric is a mean over examples. Items are examples, or all examples of
    one text where the task says that those go together (`Task.unit`), of texts that are at hand; the mean over items is the metric."""
    plan, store, columns = prepared.plan, prepared.store, prepared.resolved.columns
    digests, units = {}, {}
    for name, column in columns.items():
        task, digest = plan.tasks[column.task].task, plan.tasks[column.task].tests[column.evaluation].digest
        if METRICS[column.metric].per_item is None or prepared.resolved.aggregate.scores != "test":
            continue
        if task.unit is not None:
            if (rows := plan.library.get(digest)) is None:
                continue
            units[name] = np.unique(unit_ids(rows, task.unit), return_inverse=True)[1]
        digests[name] = digest
    found = dict[tuple[int, str, str, int, int], Any]()
    results = with_records(grid.results)
    own = results["metric"] == results["column"].map({name: columns[name].metric for name in digests})
    places = results[(results["status"] == "done") & own].groupby("key")[PLACE]
    by_key = {str(key): [*part.itertuples(index=False, name=None)] for key, part in places}
    for key, record in store.each(by_key, predictions=True):
        for place in by_key[key]:
            predicted, measure = predicted_by(record, digests[place[2]]), METRICS[columns[place[2]].metric].per_item
            assert measure is not None
            values = measure(predicted.gold, predicted.decoded).astype(np.float64)
            if (unit := units.get(place[2])) is not None:
                values = np.bincount(unit, values) * (unit.max() + 1) / len(values)
            found[place] = values
    return replace(grid, answers=found)


def example_counts(plan: Plan) -> list[str]:
    """Numbers of examples of each column whose data are at hand, in words; of a task of the user's own with the shares of its classes."""
    found = []
    for column in plan.resolved.columns.values():
        data, training = plan.tasks[column.task], plan.table_data.training
        test = data.tests[column.evaluation]
        if data.dev.resolved and test.resolved:
            full = sorted(training[key].drawn for key in training if key[:2] == (column.task, 0)) or [0]
            several = f"{full[0]:,} to " if 0 < full[0] < full[-1] else ""
            train = f"train {several}{full[-1]:,}, " if full[-1] else ""
            dev, of_test = (shares(data.counts.get(role, {})) for role in ("dev", column.evaluation))
            found.append(f"{column.title} {train}dev {data.dev.rows:,}{dev}, test {test.rows:,}{of_test}")
    return found


def spent_of(prepared: Prepared) -> pd.DataFrame:
    """What each finished run cost: its size, row as printed, task and key, and the costs `OWN`, each as if it had been trained alone."""
    plan, titles = prepared.plan, prepared.resolved.titles
    records = prepared.store.records({stage.key for run in plan.runs for stage in run.stage.chain})
    known = {key: np.array([each.flops, each.seconds]) for key, each in records.items() if each.status == "done"}
    runs = [run for run in plan.runs if all(stage.key in known for stage in run.stage.chain)]
    costs = [(*known[run.stage.key], *cost_before(run.stage, known)) for run in runs]
    places = [(run.size, titles[run.row], run.task, run.stage.key) for run in runs]
    frame = pd.DataFrame(places, columns=["size", "row", "task", "key"])
    return frame.join(pd.DataFrame(costs, columns=OWN, dtype=float))


# --------------------------------------------------------------------------------------------------------------- views


def differences_of(
    prepared: Prepared, grid: Grid, against: str = "", region: float = REGION, items: bool = False
) -> View:
    """`region`: on the metric's own scale. `items`: test items become a factor. Each difference is planned or exploratory by the seals of the store, whose
    comparisons are in the family too."""
    plan, store, units = prepared.plan, prepared.store, dict[str, list[str]]()
    if items:
        tasks = {column.title: plan.tasks[column.task].task for column in prepared.resolved.columns.values()}
        texts = {title: task.columns[task.unit] for title, task in tasks.items() if task.unit is not None}
        if prepared.textless and texts:
            raise UserError(f"--items: texts say which examples of {listed(texts)} go together: {prepared.textless}.")
        for column in prepared.resolved.columns.values():
            if METRICS[column.metric].per_item is not None:
                unit = f"all examples of one {texts[column.title]}" if column.title in texts else "one example"
                units.setdefault(unit, []).append(column.title)
        grid = with_answers(prepared, grid)
    said = ", ".join(f"{unit} ({listed(titles)})" for unit, titles in units.items()) or "one example"
    seals = store.seals(prepared.resolved.table.name)

    def follow(found: Sequence[Difference], named: str) -> tuple[str, set[int], str]:
        rule, times = rule_of(grid, named, region, items), runs_began(store, plan.runs) if seals else {}
        seal, planned, line = followed(grid, found, rule, plan.runs, seals, times)
        return seal.digest if seal else "", planned, line

    return differences(grid, against, region, unit=f"A test item is {said}.", follow=follow)


def detections_of(prepared: Prepared, wanted: float, duration: Callable[[float], str] = "{:.1f} h".format) -> View:
    """What the planned table detects. `wanted`: a difference on the metric's own scale; `duration`: hours in words."""
    cost = cost_of(prepared.plan)

    def hours(subsets: int, seeds: int) -> float:
        flops, stages = cost(subsets, seeds)
        return prepared.hours_of(flops, round(stages))

    return detections(grid_of(prepared), wanted, hours, duration)


def variance_of(prepared: Prepared, grid: Grid) -> View:
    return variance(with_answers(prepared, grid))


def costs_of(prepared: Prepared, grid: Grid) -> View:
    """Scores beside the cost of a run, with the stages before fine-tuning."""
    plan, titles, spent = prepared.plan, prepared.resolved.titles, spent_of(prepared)
    several = [title for title, rows in prepared.resolved.printed_rows.items() if len(rows) > 1]
    spent = spent.assign(counts=~spent["row"].isin(several) | spent["key"].isin(grid.counted["key"]))
    sizes = {titles[run.row]: parameters(plan.encoder_of(run.stage).config) for run in plan.runs}
    return costs(grid, spent, sizes if len(plan.encoders) > 1 else {})


VIEWS: Mapping[str, Callable[[Prepared, Grid], View]] = {
    "results": lambda prepared, grid: results_view(grid, caption_of(prepared)),
    "notes": lambda prepared, grid: notes_view(grid, caption_of(prepared)),
    "settings": lambda prepared, grid: settings_view(grid.resolved),
    "classes": lambda prepared, grid: classes_view(prepared.plan, prepared.store, grid),
    "figure": lambda prepared, grid: figure_view(grid),
    "differences": differences_of,
    "variance": variance_of,
    "ranks": lambda prepared, grid: ranks_view(grid),
    "cost": costs_of,
    "examples": lambda prepared, grid: examples(prepared.plan, prepared.store, grid),
}
"""By the name that `report --view` takes."""
WITH_TEXTS = ("variance", "examples")
"""Those that read the data of the runs, where they are at hand."""


PAGE: Mapping[str, Callable[[Prepared, Grid], View]] = {
    "Comparisons": differences_of,
    "Figure": VIEWS["figure"],
    "Variance": variance_of,
    "Test examples": lambda prepared, grid: examples(prepared.plan, prepared.store, grid, with_texts=False),
    "Classes": VIEWS["classes"],
    "Cost": costs_of,
}
"""What a page shows after the table, where there is any of it, by title; a page may be passed on, and has no texts."""


def page_of(prepared: Prepared, grid: Grid, caption: Caption, url: str | None) -> str:
    """The page of a table. `url`: the store as the user named it."""
    request = replace(prepared.request, preset=prepared.resolved.preset)
    again = f"{command(request, 'report', url)} --format html --out {Path(request.table).stem}.html"
    views: dict[str, View | str] = {}
    for title, view in PAGE.items():
        try:
            found = view(prepared, grid)
        except UserError as error:
            views |= {title: f"No comparison: {str(error).removeprefix('compare: ')}"} if view is differences_of else {}
        else:
            views |= {title: found} if len(found.frame) or view is differences_of else {}
    return results_page(grid, caption, views, [*map(without_folders, (command(request, "bench", url), again))])


# --------------------------------------------------------------------------------------------------------------- seals


def seal(
    prepared: Prepared, against: str = "", region: float = REGION, items: bool = False, wanted: float | None = None
) -> StoredSeal:
    """Keep the plan of a comparison in the store, which is made where there is none; a plan that is sealed already stays as it is. `against`, `region`,
    `items`: as of `differences_of`; `wanted`: the difference that is looked for. Scores are on the metric's own scale.

    Raises UserError where a run is recorded, where keys are not known yet, and where there is nothing to compare.
    """
    plan = prepared.plan
    if plan.unresolved:
        missing = some_of(plan.unresolved, 3)
        raise UserError(f"plan --seal: {missing} is not at hand, and runs have no keys; name it (--data, --encoder).")
    planned = plan_of(grid_of(prepared), plan.runs, against, region, items, wanted)
    store, keys = Store(prepared.request.store or DEFAULT_URL), {run.stage.key for run in plan.runs}
    if recorded := store.keep_seal(planned["table"], planned, keys):
        first, number = max(prepared.resolved.subsets) + 1, len(prepared.resolved.subsets)
        there = f"{len(recorded):,} of its {counted(len(keys), 'run')} are recorded in {store.shown}"
        others = ",".join(str(first + k) for k in range(number))
        raise UserError(f"plan --seal: {there}; seal subsets that no run has used, such as --subsets {others}.")
    kept = next((each for each in store.seals(planned["table"]) if each.intact and each.plan == planned), None)
    if kept is None:
        raise UserError(f"plan --seal: {store.shown} has this seal, but not as it was sealed; restore a copy of it.")
    return kept


def runs_began(store: Store, runs: Sequence[Run]) -> dict[str, float]:
    """When the runs that have ended began, by their keys: with their last stage, or with an earlier one that failed or diverged."""
    stages = {stage.key for run in runs for stage in run.stage.chain}
    times, known = store.began(stages), store.statuses(stages)
    ended: dict[str, float] = {}
    for last in (run.stage for run in runs):
        for stage in reversed(last.chain):
            if stage.key in known and (stage.key == last.key or known[stage.key][0] != "done"):
                ended.setdefault(last.key, times[stage.key])
    return ended
