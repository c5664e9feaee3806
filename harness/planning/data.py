"""The data of a table as row sets, without texts, and the runs that they give for any hyperparameters."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

from harness.encoders import Located, adapted
from harness.errors import UserError
from harness.methods import Method, RunContext, UnlabelledPhase, chain, definition_of, hyperparameters, methods_named
from harness.planning.recipe import Augment, group_of, updates_between
from harness.planning.resolved import ResolvedRow, ResolvedTable
from harness.specs import Data, Encoder, Parent, RowSet, Run, Selection, Stage
from harness.tasks.task import Task


@dataclass(frozen=True)
class TaskData:
    """One task's evaluation sets as row sets: dev (of the first training set, where each has its own), tests by evaluation name.

    `note`: why they are not the paper's. `origin`: which rows of the source they are; empty while not read. `unlabelled`: texts that the task
    names besides. Of a task of the user's that was read, `labels`: rows of each class, or the lowest and the highest score; `rare`: see
    `EvaluationSets`; `skipped`: bad rows that were left out; `counts`: rows by class name, of dev and of each test set.
    """

    task: Task
    dev: RowSet
    tests: Mapping[str, RowSet]
    note: str = ""
    origin: str = ""
    unlabelled: int = 0
    labels: tuple[float, ...] = ()
    rare: str = ""
    skipped: int = 0
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingSet:
    """One training set: its labelled rows, with the back-translations that augment them, the texts that post-training reads, their
    back-translations (None where there can be none), and the dev set that its runs select on. `drawn`: labelled rows without augmentation,
    which epochs count. `standardised`: see `Data`."""

    labelled: RowSet
    texts: RowSet
    translated: RowSet | None
    dev: RowSet
    drawn: int
    standardised: tuple[float, ...] = ()


@dataclass(frozen=True)
class Overlap:
    """Overlap of an evaluation set with training text. `most`: rows with a shared text, the largest number over the training
    sets; `rows`: all rows."""

    training: str
    evaluation: str
    most: int
    rows: int


READ = BeforeValidator(lambda key: json.loads(key) if isinstance(key, str) else key)
WRITTEN = PlainSerializer(lambda key: json.dumps(key, default=dict))
"""How JSON has a key that is no text: as one."""


@dataclass(frozen=True)
class TableData:
    """The data of a table: enough to make its runs for any hyperparameters without reading again.

    `training` by (task, size, subset, number of texts, 0 for its own, augmentation); `located`: encoders by the names that rows have for them;
    `mlm_heads`: where stages that use an MLM head start from instead; `corpora` of pre-training by fraction; `views` and `untranslated` of the
    translation; `unaugmented`: why training sets cannot be augmented so; `source`: where the tasks were read.
    """

    tasks: Mapping[str, TaskData]
    training: Mapping[Annotated[tuple[str, int, int, int, Augment | None], READ, WRITTEN], TrainingSet]
    located: Mapping[str, Located]
    mlm_heads: Mapping[str, Parent]
    corpora: Mapping[float, RowSet]
    views: int
    untranslated: str
    unaugmented: Mapping[Annotated[Augment | None, READ, WRITTEN], str] = field(default_factory=dict)
    source: str = ""
    overlaps: tuple[Overlap, ...] = ()


def runs_of(resolved: ResolvedTable, table_data: TableData) -> tuple[tuple[Run, ...], tuple[tuple[str, str, str], ...]]:
    """All runs of a resolved table, and (row, task, reason) of what is skipped. Nothing is read and no key is computed.

    `table_data` hold every task, size and subset of `resolved`. Raises UserError for unknown methods and hyperparameters, and for
    objectives that the encoder cannot be trained with.
    """
    runs: list[Run] = []
    skipped: list[tuple[str, str, str]] = []
    prepared = []
    for row in resolved.rows:
        located, head = table_data.located[row.encoder], table_data.mlm_heads.get(row.encoder)
        if settings := group_of(row.own_values, "encoder"):
            located = replace(located, encoder=adapted(located.encoder, settings, located.config))
            head = head and replace(head, stage=replace(head.stage, init=located.encoder))
        before, steps = _steps(resolved, row)
        start = _pre_trained(resolved, row, before, located.encoder, table_data)
        if start is None and resolved.mlm_head.shared and any(not method.labelled for method in steps):
            start = head
        prepared.append((row, steps, start, located, head))
    for name in resolved.tasks:
        contexts_of: dict[tuple[Any, ...], list[tuple[int, RunContext]]] = {}
        for row, steps, start, located, head in prepared:
            if name not in row.tasks:
                continue
            if reason := table_data.unaugmented.get(row.augment):
                skipped.append((row.name, name, reason))
                continue
            like = (row.encoder, located.encoder, f"{row.recipe.values}{row.alone}", row.unlabelled, row.augment)
            if like not in contexts_of:
                contexts_of[like] = _contexts(resolved, row, located.encoder, head, table_data, name)
            _, first = contexts_of[like][0]
            reason = next((why for method in steps if (why := method.skipped(first))), None)
            reason = reason or _unsuited(chain(steps, first, start)[-1], located, head is not None)
            if reason:
                skipped.append((row.name, name, reason))
                continue
            for seed, context in contexts_of[like]:
                leaf = chain(steps, context, start)[-1]
                runs.append(Run(leaf, row.name, row.method, name, context.size, context.subset, seed))
    return tuple(runs), tuple(skipped)


def _unsuited(leaf: Stage, located: Located, trains_head: bool) -> str | None:
    """Why a row is skipped for its encoder: where post-training does not pass on a trained MLM head to a fine-tuning that uses it. Raises UserError for
    an objective that the encoder cannot be trained with."""
    definitions, config = [definition_of(stage.objective) for stage in leaf.chain], located.config
    parent = leaf.parent
    if trains_head and parent and definitions[-1].mlm_head and not definitions[-2].mlm_head:
        return f"objective {parent.objective.name} trains without an MLM head, and the encoder has none of its own to prompt"
    if missing := next(filter(None, (each.refused(config) for each in definitions if config)), None):
        raise UserError(f"{located.name}: {missing}.")
    return None


def _steps(resolved: ResolvedTable, row: ResolvedRow) -> tuple[list[Method], list[Method]]:
    """A row's methods with their hyperparameters: those of pre-training, and the others."""
    place, values = f"table {resolved.table.name}, row {row.name}", row.on()

    def made(method: type[Method]) -> Method:
        set_here = [each for each in row.overrides if each.group == method.name and each.key not in row.own_values]
        origins = {each.field: each.place for each in set_here}
        return hyperparameters(method, group_of(values, method.name), f"method {method.name} (row {row.name})", origins)

    before, steps = (
        list(map(made, methods_named(text, place) if text else ())) for text in (row.pre_train, row.method)
    )
    if wrong := next((method.name for method in before if method.labelled or method.translates), None):
        raise UserError(f"{place}: {wrong} cannot pre-train on a corpus; pre_train takes methods without labels.")
    return before, steps


def _pre_trained(
    resolved: ResolvedTable, row: ResolvedRow, steps: list[Method], base: Encoder | Parent, table_data: TableData
) -> Parent | None:
    """The weights that all replicates of a row start from, of its last pre-training stage. The first one starts from `base`, the encoder as it is."""
    if not steps:
        return None
    text = resolved.pre_train
    assert text is not None  # a table with such a row has a corpus
    rows = table_data.corpora[row.on()["pre_train.fraction"]]
    data = Data(rows, max_length=text.max_length, blocks=text.blocks)
    optim = resolved.optim("pre_train", row=row)
    for method in steps:
        base = Parent(method.train(UnlabelledPhase(data, optim, text.seed, base, "pre-train"))[-1])
    assert isinstance(base, Parent)
    return Parent(base.stage, resolved.pre_train_step(row))


def _contexts(
    resolved: ResolvedTable, row: ResolvedRow, encoder: Encoder, head: Parent | None, table_data: TableData, name: str
) -> list[tuple[int, RunContext]]:
    """Every training set of a task with every seed of the table, under the row's recipe; a full training set has one subset. The context
    has the seed that the protocol makes of the table's."""
    task, protocol, length = table_data.tasks[name].task, resolved.protocol, resolved.max_length
    tests, made = tuple(table_data.tasks[name].tests.values()), []
    # Made once for all subsets of a size, and so is their canonical form.
    optim = cache(lambda phase, size, rows: resolved.optim(phase, size, rows, row, name))
    metric = resolved.selection_metric(name)
    selection = cache(lambda per_epoch: Selection(metric, updates_between(resolved.selection_every, per_epoch)))
    for size, subset in ((each, subset) for each in resolved.sizes for subset in resolved.subsets_at(each)):
        training = table_data.training[name, size, subset, row.unlabelled or 0, row.augment]
        data = Data(
            training.labelled,
            num_labels=task.kind.outputs,
            max_length=length,
            dev=training.dev,
            tests=tests,
            spans=task.reading,
            standardised=training.standardised,
            classes=task.classes,
        )
        fine_tune = optim("fine_tune", size, training.drawn)
        context = RunContext(
            name,
            size,
            subset,
            0,
            data,
            Data(training.texts, max_length=length),
            fine_tune,
            optim("post_train", size, training.texts.rows),
            selection(math.ceil(training.drawn / fine_tune.batch_size)),
            encoder,
            head,
            Data(views, max_length=length, views=table_data.views) if (views := training.translated) else None,
            table_data.untranslated,
            task.cloze,
        )
        made += [(seed, replace(context, seed=protocol.training_seed(subset, seed))) for seed in resolved.seeds]
    return made
