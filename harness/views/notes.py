"""What a caption and a plan say of the runs beside their numbers: where rows start, what data they read, which texts overlap."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from harness.encoders import Located
from harness.methods import definition_of
from harness.planning.overrides import unreached
from harness.planning.request import Override
from harness.planning.row import phases_of
from harness.planning.runs import COMPARED_TEXTS, Plan
from harness.planning.task_reader import UNLABELLED
from harness.specs import Parent, Record, Run, starts_elsewhere
from harness.views.caption import shares
from harness.wording import counted, listed, some_of, two_digits
from harness.yaml_files import format_value

BUDGET = ("batch_size", "epochs", "steps", "min_steps", "schedule", "warmup", "warmup_steps")
"""What rows that are compared should have in common."""


def plan_notes(plan: Plan, overrides: Sequence[Override]) -> list[str]:
    """The notes of a caption, a sentence each."""
    notes = [*own_data(plan), *truncation_sentences(plan), *unreached_sentences(plan, overrides)]
    notes += [f"Overlap: {sentence}." for sentence in overlap_sentences(plan)]
    notes += seedless_sentences(plan)
    notes += [f"{sentence}." for sentence in (*start_sentences(plan), *weight_sentences(plan))]
    notes += mlm_head_notes(plan)
    for encoder, located in plan.table_data.located.items():
        if seen := sorted(set(located.contaminated) & set(plan.resolved.tasks)):
            notes.append(f"The encoder {encoder} saw labelled pairs of {', '.join(seen)} in its own training.")
    return notes


def seedless_sentences(plan: Plan) -> list[str]:
    """Which reference rows draw nothing, so that one stage is the run of every seed."""
    seeds: dict[tuple[str, str], set[int]] = {}
    for run in plan.runs:
        if definition_of(run.stage.objective).fitted:
            seeds.setdefault((plan.resolved.titles[run.row], run.stage.key), set()).add(run.seed)
    rows = dict.fromkeys(title for (title, _), shared in seeds.items() if len(shared) > 1)
    verb = "does" if len(rows) == 1 else "do"
    return [f"{listed(rows)} {verb} not depend on the seed: all seeds of a subset are one fit."] if rows else []


def unreached_sentences(plan: Plan, overrides: Sequence[Override]) -> list[str]:
    """Which rows keep a value of their own where the request sets another, and in what budget rows differ where it sets one for some alone."""
    found = unreached(plan.resolved, overrides)
    resolved = plan.resolved
    for encoder in resolved.encoders:
        rows = [row for row in resolved.rows_under(encoder) if row.title not in resolved.reference_titles]
        for phase, name in itertools.product(phases_of(resolved.rows), BUDGET):
            values: dict[str, list[str]] = {}
            for row in (row for row in rows if phase in phases_of((row,))):
                value = row.under.values.get(f"{phase}.{name}")
                values.setdefault("unset" if value is None else format_value(value), []).append(row.own.name)
            if len(values) > 1:
                each = "; ".join(f"{value} for {listed(names)}" for value, names in values.items())
                found.append(f"The rows differ in {phase}.{name}: {each}.")
    return [*dict.fromkeys(found)]


def mlm_head_notes(plan: Plan) -> list[str]:
    """Which rows start from a trained MLM head, where the encoder has no usable one of its own, a sentence an encoder."""
    notes, titles = [], {row.name: row.own.title for row in plan.resolved.rows}
    for located, runs in _by_encoder(plan):
        roots = {titles[run.row]: run.stage.chain[0] for run in runs if run.stage.chain[0].phase == "mlm-head"}
        if roots:
            stage = next(iter(roots.values()))
            others = {titles[run.row] for run in runs} - roots.keys()
            rest = "; the other rows start from the encoder as it is" if others else ""
            what = "its MLM head trained alone" if stage.objective.name == "mlm_head" else "MLM of the whole model"
            notes.append(
                f"{located.name} has no usable MLM head: {', '.join(roots)} start{'s' * (len(roots) == 1)} from {stage.optim.steps:,} updates of {what} on "
                f"{stage.data.train.name}{rest}."
            )
    return notes


def _by_encoder(plan: Plan) -> Iterator[tuple[Located, list[Run]]]:
    encoders = {row.name: row.encoder for row in plan.resolved.rows}
    for name, located in plan.table_data.located.items():
        yield located, [run for run in plan.runs if encoders[run.row] == name]


def weight_sentences(plan: Plan) -> list[str]:
    """Which rows start from an MLM head that is drawn since the encoder's weights lack it, and which of these weights are not read."""
    found, titles = [], {row.name: row.own.title for row in plan.resolved.rows}
    for located, runs in _by_encoder(plan):
        rows = {
            titles[run.row]: None
            for run in runs
            if located.lacks and run.stage.chain[0].phase != "mlm-head"
            if any(definition_of(stage.objective).mlm_head for stage in run.stage.chain)
        }
        if rows:
            found.append(
                f"{located.name} lacks weights of an MLM head ({some_of(located.lacks, 1)}), and {listed(rows)} start{'s' * (len(rows) == 1)} from "
                "random ones; --set mlm_head.steps=200 trains them first"
            )
        if located.unread:
            found.append(
                f"Weights of {located.name} that its configuration has no place for are not read: {some_of(located.unread, 3)}"
            )
    return found


def start_sentences(plan: Plan) -> list[str]:
    """Which run the runs of each row start from, where they start from a selected one."""
    starts, table = plan.table_data.starts, plan.resolved.starts_from
    if table is None or not plan.resolved.continued:
        return []
    found = [f"Its runs start from runs of table {table.table}: in each row from the one that is best on dev"]
    for row in plan.resolved.continued:
        start = starts.get(row.name)
        if start is None:
            found.append(f"{row.name}: none is selected yet, its keys are provisional")
        elif isinstance(start, Parent):
            found.append(f"{row.name} starts from {start.stage.key[:10]}")
    return found


def own_tasks(plan: Plan) -> list[str]:
    """How the user's own tasks are read, a sentence each: text columns, label column, classes with their shares."""
    sentences = []
    for data in plan.tasks.values():
        task = data.task
        if not data.labels:
            continue
        columns = listed(f"'{column}'" for column in task.columns)
        text = "a pair of texts" if len(task.columns) == 2 else "text"
        if task.classes:
            counts = {title: int(count) for title, count in zip(task.classes, data.labels, strict=True)}
            what = f"{len(task.classes)} classes{shares(counts)}"
            what += f"; F1 is that of {task.classes[1]}, the second" if "f1" in task.metrics else ""
        else:
            what = task.kind.overview(data.labels)
        sentences.append(f"{task.title}: {text} in {columns}, labels in '{task.label}': {what}.")
    return sentences


def own_data(plan: Plan) -> list[str]:
    """What dev and test of the user's own tasks were cut from, and their unlabelled texts, a sentence each."""
    sentences = []
    for name, data in plan.tasks.items():
        title = data.task.title
        sentences += [f"{title}: {data.origin}."] if data.task.own and data.origin else []
        if data.skipped:
            rows = counted(data.skipped, "bad row")
            sentences.append(f"{title}: {rows} left out (no text, no label of the task, or no whole row).")
        sentences += [f"{title}: warning, {data.rare}."] if data.rare else []
        if data.unlabelled:
            read = [training.texts.rows for key, training in plan.table_data.training.items() if key[0] == name]
            removed = data.unlabelled - min(read, default=data.unlabelled)
            left_out = f"; {removed:,} of them are also in dev or test and are left out" if removed else ""
            sentences.append(f"{title}: {data.unlabelled:,} unlabelled texts for post-training{left_out}.")
    return sentences


def truncation_sentences(plan: Plan) -> list[str]:
    """How many texts are cut, a sentence a task with some."""
    sentences = []
    for (encoder, name), found in plan.truncations.items():
        where = f" of {encoder}" if len(plan.encoders) > 1 else ""
        if found.cut:
            share, about = 100 * found.cut / found.rows, "" if found.counted else "about "
            sentences.append(
                f"{plan.tasks[name].task.title}: {about}{found.cut:,} of {found.rows:,} texts ({two_digits(share)} %) are longer than {plan.resolved.max_length} "
                f"tokens{where} (max_length) and are cut."
            )
    return sentences


def overlap_sentences(plan: Plan) -> list[str]:
    """Overlap of training and evaluation texts, a sentence each."""
    named = {"training sets": "one of the training sets", UNLABELLED: "the unlabelled texts"}
    sentences = [
        f"{overlap.most} of {overlap.rows:,} rows of {overlap.evaluation} share a text with "
        f"{named.get(overlap.training, f'the corpus {overlap.training}')}"
        for overlap in plan.overlaps
        if overlap.most
    ]
    largest = [*plan.table_data.corpora.values()][:1]  # the others are parts of it
    unread = [corpus for corpus in largest if corpus.resolved and corpus.rows > COMPARED_TEXTS]
    if not sentences and plan.overlaps:
        sentences.append(f"no dev or test text of this table is part of the {'other ' if unread else ''}training text")
    return sentences + [f"not looked for in the {corpus.rows:,} texts of {corpus.name}" for corpus in unread]


def starts_elsewhere_sentences(plan: Plan, records: Mapping[str, Record]) -> list[str]:
    """Which runs come from a stage that was trained again for its weights and gave others than its record has, a sentence each kind of stage."""
    stages = [stage for stage in plan.stages.values() if starts_elsewhere(stage, records)]
    every, sentences = counted(len({run.stage.key for run in plan.runs}), "run"), []
    for phase in dict.fromkeys(stage.parent.phase for stage in stages if stage.parent):
        changed = {stage.key for stage in stages if stage.parent and stage.parent.phase == phase}
        runs = {run.stage.key for run in plan.runs if any(stage.key in changed for stage in run.stage.chain)}
        sentences.append(
            f"Of {every}, {len(runs):,} come from weights of {phase} that were made again and are not those of its record "
            "(another machine, version or commit); 'harness verify' names each"
        )
    return sentences
