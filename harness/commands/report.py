"""The cells and the caption of a prepared table, from what the store holds now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from harness.commands.prepare import Prepared
from harness.specs import Parent, Stage
from harness.tables.caption import Caption, shares, some_of
from harness.tables.cells import Grid, aggregate
from harness.tables.class_report import class_reports
from harness.tables.costs import Cost, cost_before
from harness.tables.overrides import unreached
from harness.tables.plan import COMPARED_TEXTS, Plan
from harness.tables.results import examples, hardware, results_of
from harness.tables.table import HOURS
from harness.tables.task_reader import UNLABELLED
from harness.tables.values import listed

if TYPE_CHECKING:
    from harness.store import Store


def grid_of(prepared: Prepared) -> tuple[Grid, Caption]:
    """The table's cells and caption from what the store holds now."""
    plan, store, resolved = prepared.plan, prepared.store, prepared.resolved
    found = examples(plan)
    test_rows = {name: each.test for name, each in found.items()}
    not_comparable = {
        name: plan.tasks[column.task].note for name, column in resolved.columns.items() if plan.tasks[column.task].note
    }
    skipped = {(row, task): reason for row, task, reason in plan.skipped if task}
    grid = aggregate(resolved, results_of(plan, store), test_rows, not_comparable, skipped)
    if resolved.table.figure and resolved.table.figure.x == HOURS:
        grid = replace(grid, hours=hours_before(plan, store))
    notes = (
        own_data(plan)
        + unreached_sentences(prepared)
        + [f"Overlap: {sentence}." for sentence in overlap_sentences(plan)]
    )
    if any(stage.data.views > 1 for stage in plan.stages.values()):
        notes.append(f"CSSL contrasts back-translations made by {resolved.translator}.")
    if any(run for run in plan.runs if run.row in {row.name for row in resolved.rows if row.augment}):
        notes.append(f"Training sets are augmented with back-translations by {resolved.translator}.")
    corpora = {stage.data.train.name: stage.data.train for stage in plan.stages.values() if stage.phase == "pre-train"}
    known = {name: f" ({rows.rows:,} texts)" if rows.resolved else "" for name, rows in corpora.items()}
    notes += [f"Pre-trained on {name}{size}." for name, size in known.items()]
    notes += [f"{sentence}." for sentence in (*starts_of(plan), *start_sentences(plan))]
    notes += mlm_head_notes(plan)
    seen = sorted(set(plan.located.contaminated) & set(resolved.tasks))
    if seen:
        notes.append(f"The encoder {resolved.encoder} saw labelled pairs of {', '.join(seen)} in its own training.")
    keys = {run.stage.key for run in plan.runs}
    return grid, Caption(
        len(keys), plan.source, found, hardware(plan, store), tuple(notes), class_reports(plan, store, grid.results)
    )


def known_costs(stages: Iterable[Stage], store: Store) -> dict[str, Cost]:
    """What those of the stages cost that are finished, by key."""
    records = store.records({stage.key for stage in stages})
    return {key: Cost(each.flops, each.seconds) for key, each in records.items() if each.status == "done"}


def hours_before(plan: Plan, store: Store) -> dict[str, float]:
    """Hours of training before fine-tuning, by row as printed: the mean over its runs, of those whose earlier stages are all done."""
    known = known_costs((stage for run in plan.runs for stage in run.stage.chain[:-1]), store)
    titles = plan.resolved.titles
    found: dict[str, list[float]] = {}
    for run in plan.runs:
        earlier = run.stage.chain[:-1]
        if earlier and all(stage.key in known for stage in earlier):
            found.setdefault(titles[run.row], []).append(cost_before(run.stage, known).seconds / 3600)
    return {title: fmean(hours) for title, hours in found.items()}


def unreached_sentences(prepared: Prepared) -> list[str]:
    """Which rows keep a value of their own where the request sets another, a sentence each."""
    return [f"{each.sentence}." for each in unreached(prepared.resolved, prepared.request.overrides)]


def starts_of(plan: Plan) -> list[str]:
    """Which rows start from the weights of an update before the end of their pre-training."""
    found: dict[tuple[int, int], dict[str, None]] = {}
    titles = plan.resolved.titles
    for run in plan.runs:
        for stage in run.stage.chain:
            if isinstance(stage.init, Parent):
                for step in stage.init.save_at:
                    found.setdefault((step, stage.init.stage.optim.steps), {})[titles[run.row]] = None
    return [
        f"{some_of([*rows])} start{'s' if len(rows) == 1 else ''} after update {step:,} of {steps:,} of pre-training"
        for (step, steps), rows in sorted(found.items())
    ]


def mlm_head_notes(plan: Plan) -> list[str]:
    """Which rows start from a trained MLM head, where the encoder has no usable one of its own."""
    rows: dict[str, None] = {}
    titles = plan.resolved.titles
    for run in plan.runs:
        root = run.stage.chain[0]
        if root.phase == "mlm-head":
            rows[titles[run.row]] = None
            stage = root
    if not rows:
        return []
    what = "its MLM head trained alone" if stage.objective.name == "mlm_head" else "MLM of the whole model"
    return [
        f"{plan.located.name} has no usable MLM head: {', '.join(rows)} start{'s' * (len(rows) == 1)} from {stage.optim.steps:,} updates of {what} on "
        f"{stage.data.train.name}; the other rows start from the encoder as it is."
    ]


def start_sentences(plan: Plan) -> list[str]:
    """Which run the runs of each row start from, where they start from a selected one."""
    if plan.earlier is None:
        return []
    found = [
        f"Its runs start from one of {len(plan.earlier.runs):,} runs of table {plan.earlier.resolved.table.name}: in each row from the "
        "one that is best on dev"
    ]
    for row, start in plan.starts.items():
        if start.selected:
            found.append(f"{row} starts from {start.selected.name}, dev {start.dev:.4f}")
        else:
            found.append(
                f"{row} is not run: {start.reason}"
                if start.reason
                else f"{row}: none is selected yet, its keys are provisional"
            )
    return found


def own_tasks(plan: Plan) -> list[str]:
    """How the user's own tasks are read, a sentence each: text columns, label column, classes with their shares."""
    found = []
    for name, data in plan.tasks.items():
        task = data.task
        sets = [each.labelled for key, each in plan.table_data.training.items() if key[0] == name]
        rows = plan.library.get(max(sets, key=lambda each: each.rows).digest) if task.own and sets else None
        if rows is None:
            continue
        texts = listed(f"'{column}'" for column in task.columns)
        what = f"{task.title}: {'a pair of texts' if len(task.columns) == 2 else 'text'} in {texts}, labels in '{task.label}'"
        if task.regression:
            found.append(f"{what}: a regression, {rows.gold.min():g} to {rows.gold.max():g}.")
        else:
            counts = np.bincount(rows.gold, minlength=len(task.classes)).tolist()
            found.append(f"{what}: {len(task.classes)} classes{shares(dict(zip(task.classes, counts, strict=True)))}.")
    return found


def own_data(plan: Plan) -> list[str]:
    """What dev and test of the user's own tasks were cut from, and their unlabelled texts, a sentence each."""
    lines = []
    for name, found in plan.tasks.items():
        if found.task.own and found.origin:
            lines.append(f"{found.task.title}: {found.origin}.")
        if found.unlabelled:
            read = [each.texts.rows for key, each in plan.table_data.training.items() if key[0] == name]
            removed = found.unlabelled - min(read, default=found.unlabelled)
            left_out = f"; {removed:,} of them stand in dev or test and are left out" if removed else ""
            lines.append(f"{found.task.title}: {found.unlabelled:,} unlabelled texts for post-training{left_out}.")
    return lines


def overlap_sentences(plan: Plan) -> list[str]:
    """Overlap of training and evaluation texts, a sentence each."""
    found = [s for s in plan.overlaps if s.most]
    sentences = []
    for each in found:
        named = {"training sets": "one of the training sets", UNLABELLED: "the unlabelled texts"}
        training = named.get(each.training, f"the corpus {each.training}")
        sentences.append(f"{each.most} of {each.rows:,} rows of {each.evaluation} share a text with {training}")
    if not found and plan.overlaps:
        sentences.append("no dev or test text of this table is part of the training text")
    if plan.corpora and (largest := plan.corpora[0]).rows > COMPARED_TEXTS:
        sentences.append(f"not looked for in the {largest.rows:,} texts of {largest.name}")
    return sentences
