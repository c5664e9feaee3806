"""What a caption and a plan say of the runs beside their numbers: where rows start, what data they read, which texts overlap."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from harness.encoders import SIZES
from harness.encoders.sources import NEW
from harness.methods import definition_of
from harness.planning.recipe import PHASES
from harness.planning.runs import COMPARED_TEXTS, Plan
from harness.planning.task_reader import UNLABELLED
from harness.specs import Record, starts_elsewhere
from harness.wording import counted, listed, shares, some_of, two_digits
from harness.yaml_files import format_value


def plan_notes(plan: Plan) -> Iterator[str]:
    """What is to be known of a plan's runs, a sentence each."""
    yield from own_data(plan)
    yield from truncation_sentences(plan)
    yield from unreached_sentences(plan)
    yield from overlap_sentences(plan)
    yield from seedless_sentences(plan)
    yield from encoder_sentences(plan)


def seedless_sentences(plan: Plan) -> Iterator[str]:
    """Which reference rows draw nothing, so that one stage is the run of every seed."""
    seeds: dict[tuple[str, str], set[int]] = {}
    for run in plan.runs:
        if definition_of(run.stage.objective).fitted:
            seeds.setdefault((plan.resolved.titles[run.row], run.stage.key), set()).add(run.seed)
    if rows := dict.fromkeys(title for (title, _), shared in seeds.items() if len(shared) > 1):
        verb = "does" if len(rows) == 1 else "do"
        yield f"{listed(rows)} {verb} not depend on the seed: all seeds of a subset are one fit."


def unreached_sentences(plan: Plan) -> Iterator[str]:
    """Which rows keep a value of their own where the request sets another, and in what budget rows differ where it sets one for some alone."""
    resolved, found = plan.resolved, dict.fromkeys(plan.resolved.unreached)
    budget = ("batch_size", "epochs", "steps", "min_steps", "schedule", "warmup", "warmup_steps")
    rows = [row for row in resolved.rows_of_one if row.title not in resolved.reference_titles]
    for phase, name in itertools.product(PHASES, budget):
        values: dict[str, list[str]] = {}
        for row in (row for row in rows if phase in row.groups):
            value = row.under[""].get(f"{phase}.{name}")
            values.setdefault("unset" if value is None else format_value(value), []).append(row.own.name)
        if len(values) > 1:
            each = "; ".join(f"{value} for {listed(names)}" for value, names in values.items())
            found[f"The rows differ in {phase}.{name}: {each}."] = None
    yield from found


def encoder_sentences(plan: Plan) -> Iterator[str]:
    """Of each encoder: which rows start from an MLM head that is drawn since its weights lack it, or trained first since it has no usable one, which of its
    weights are not read, which tasks it saw, and whether it is of another size than the table is for."""
    settings, rows = plan.resolved.table.encoder_settings, {row.name: row for row in plan.resolved.rows}
    runs = sorted(plan.runs, key=lambda run: run.stage.chain[0].phase == "mlm-head")
    for encoder, located in plan.table_data.located.items():
        chains = {rows[run.row].own.title: run.stage.chain for run in runs if rows[run.row].encoder == encoder}
        trained = {title: chain[0] for title, chain in chains.items() if chain[0].phase == "mlm-head"}
        drawn = [title for title in chains if located.lacks and title not in trained]
        drawn = [title for title in drawn if any(definition_of(stage.objective).mlm_head for stage in chains[title])]
        if drawn:
            starts = f"{listed(drawn)} start{'s' * (len(drawn) == 1)} from random ones"
            lacks = f"{located.name} lacks weights of an MLM head ({some_of(located.lacks, 1)})"
            yield f"{lacks}, and {starts}; --set mlm_head.steps=200 trains them first."
        if located.unread:
            unread = some_of(located.unread, 3)
            yield f"Weights of {located.name} that its configuration has no place for are not read: {unread}."
        for stage in [*trained.values()][:1]:
            rest = "; the other rows start from the encoder as it is" if chains.keys() - trained.keys() else ""
            what = "its MLM head trained alone" if stage.objective.name == "mlm_head" else "MLM of the whole model"
            verb, steps = "start" + "s" * (len(trained) == 1), f"{stage.optim.steps:,} updates of {what}"
            starts = f"{', '.join(trained)} {verb} from {steps}"
            yield f"{located.name} has no usable MLM head: {starts} on {stage.data.train.name}{rest}."
        if seen := sorted({*located.contaminated} & {*plan.resolved.tasks}):
            yield f"The encoder {encoder} saw labelled pairs of {', '.join(seen)} in its own training."
        size = SIZES.get(encoder.removeprefix(NEW).partition("@")[0])
        own, given = size and size.relative_positions, (settings.relative_buckets, settings.relative_distance)
        if own and all(own) and all(given) and own != given:
            used = "{} buckets up to distance {}".format
            yield (
                f"{encoder} trains with the recipe and the relative positions of another size, {used(*given)} instead of {used(*own)}; "
                "its own are in another table ('harness list tables')."
            )


def own_tasks(plan: Plan) -> Iterator[str]:
    """How the user's own tasks are read, a sentence each: text columns, label column, classes with their shares."""
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
        elif task.kind.per_token:
            what = "{:,} questions with an answer, {:,} without".format(*data.labels)
        else:
            what = "a regression, {:.15g} to {:.15g}".format(*data.labels)
        yield f"{task.title}: {text} in {columns}, labels in '{task.label}': {what}."


def own_data(plan: Plan) -> Iterator[str]:
    """What dev and test of the user's own tasks were cut from, and their unlabelled texts, a sentence each."""
    for name, data in plan.tasks.items():
        title = data.task.title
        if data.task.own and data.origin:
            yield f"{title}: {data.origin}."
        if data.skipped:
            rows = counted(data.skipped, "bad row")
            yield f"{title}: {rows} left out (no text, no label of the task, or no whole row)."
        if data.rare:
            yield f"{title}: warning, {data.rare}."
        if data.unlabelled:
            read = [training.texts.rows for key, training in plan.table_data.training.items() if key[0] == name]
            removed = data.unlabelled - min(read, default=data.unlabelled)
            left_out = f"; {removed:,} of them are also in dev or test and are left out" if removed else ""
            yield f"{title}: {data.unlabelled:,} unlabelled texts for post-training{left_out}."


def truncation_sentences(plan: Plan) -> Iterator[str]:
    """How many texts are cut, a sentence a task with some."""
    for (encoder, name), found in plan.truncations.items():
        where = f" of {encoder}" if len(plan.encoders) > 1 else ""
        if found.cut:
            share, about = 100 * found.cut / found.rows, "" if found.counted else "about "
            yield (
                f"{plan.tasks[name].task.title}: {about}{found.cut:,} of {found.rows:,} texts ({two_digits(share)} %) are longer than {plan.resolved.max_length} "
                f"tokens{where} (max_length) and are cut."
            )


def overlap_sentences(plan: Plan) -> Iterator[str]:
    """Overlap of training and evaluation texts, a sentence each."""
    named = {"training sets": "one of the training sets", UNLABELLED: "the unlabelled texts"}
    found = [
        f"{overlap.most} of {overlap.rows:,} rows of {overlap.evaluation} share a text with "
        f"{named.get(overlap.training, f'the corpus {overlap.training}')}"
        for overlap in plan.table_data.overlaps
        if overlap.most
    ]
    largest = [*plan.table_data.corpora.values()][:1]  # the others are parts of it
    unread = [corpus for corpus in largest if corpus.resolved and corpus.rows > COMPARED_TEXTS]
    if not found and plan.table_data.overlaps:
        found.append(f"no dev or test text of this table is part of the {'other ' if unread else ''}training text")
    found += [f"not looked for in the {corpus.rows:,} texts of {corpus.name}" for corpus in unread]
    yield from (f"Overlap: {sentence}." for sentence in found)


def starts_elsewhere_sentences(plan: Plan, records: Mapping[str, Record]) -> Iterator[str]:
    """Which runs come from a stage that was trained again for its weights and gave others than its record has, a sentence each kind of stage."""
    parents = {stage.key: stage.parent for stage in plan.stages.values() if starts_elsewhere(stage, records)}
    every = {run.stage.key: {stage.key for stage in run.stage.chain} for run in plan.runs}
    for phase in dict.fromkeys(parent.phase for parent in parents.values() if parent):
        changed = {key for key, parent in parents.items() if parent and parent.phase == phase}
        runs = sum(not changed.isdisjoint(chain) for chain in every.values())
        yield (
            f"Of {counted(len(every), 'run')}, {runs:,} come from weights of {phase} that were made again and are not those of its record "
            "(another machine, version or commit); 'harness verify' names each."
        )
