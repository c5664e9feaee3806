"""A table under the preset, the filters and the overrides of a request: one flat, frozen object that the planner reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from harness import specs
from harness.errors import UserError, unknown
from harness.methods import METHODS
from harness.tables.aggregation import Aggregation
from harness.tables.filters import chosen_columns, chosen_design, chosen_rows, distinct
from harness.tables.overrides import applied, check_effect
from harness.tables.recipe import Augment, MlmHead, PreTrain, Recipe, StartsFrom, Value, updates_between
from harness.tables.request import YAML, Override, Request
from harness.tables.row import ENCODER, Row, encoder_part
from harness.tables.schema import Place
from harness.tables.table import Column, Table, load_table
from harness.tables.values import PHASES, deviations
from harness.tasks.protocols import protocol_named

if TYPE_CHECKING:
    from harness.tasks.task import Task

T = TypeVar("T")
Part = tuple[float, float]
"""Where a part of a corpus begins and ends in [0, 1); see `harness.tasks.corpora.Corpus.part`."""


@dataclass(frozen=True)
class ResolvedTable:
    """A table as it is run: flat and frozen.

    `columns` by id, in order; `subsets` indices; `sizes` total labelled examples, 0 the full training set; `mlm_head`:
    the MLM stage for an encoder without a usable MLM head; `incomparable`: why no cell here can be held against the paper's (empty: it can);
    `deviations`: every value that differs from the paper's recipe; `settings`: overridden hyperparameters by method, and
    `origins`: their overrides by key; `encoder_settings`: what the table, the preset or an override says of the encoder, for
    all rows; `num_workers` train one stage together, which is no part of what is computed; `file`: the table's, '' where
    it is packaged; `protocol`: the table's, or another that the request names; `task_recipes` of tasks that have their own; `starts_from`: what all runs
    start from, and `earlier` the table of the runs among which that is selected.
    """

    table: Table
    preset: str
    encoder: str
    data: str
    rows: tuple[Row, ...]
    tasks: tuple[str, ...]
    columns: Mapping[str, Column]
    sizes: tuple[int, ...]
    subsets: tuple[int, ...]
    seeds: tuple[int, ...]
    recipe: Recipe
    max_length: int
    selection_every: int | str
    mlm_head: MlmHead
    aggregate: Aggregation
    pre_train: PreTrain | None = None
    translator: str = ""
    incomparable: tuple[str, ...] = ()
    deviations: tuple[str, ...] = ()
    settings: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    origins: Mapping[str, Override] = field(default_factory=dict)
    encoder_settings: Mapping[str, int] = field(default_factory=dict)
    num_workers: int = 1
    file: str = ""
    protocol: str = ""
    task_recipes: Mapping[str, Recipe] = field(default_factory=dict)
    starts_from: StartsFrom | None = None
    earlier: ResolvedTable | None = None

    @property
    def comparable(self) -> bool:
        return not self.incomparable

    @property
    def replicates(self) -> tuple[tuple[int, int], ...]:
        """The crossed design: every (subset, seed), subsets slowest."""
        return tuple((subset, seed) for subset in self.subsets for seed in self.seeds)

    def subsets_at(self, size: int) -> tuple[int, ...]:
        """The subsets of one size: a full training set is one, unless the protocol draws its dev set with each subset."""
        one = not size and not protocol_named(self.protocol).redraws
        return self.subsets[:1] if one else self.subsets

    def replicates_at(self, size: int) -> tuple[tuple[int, int], ...]:
        """The crossed design of one size."""
        return tuple((subset, seed) for subset in self.subsets_at(size) for seed in self.seeds)

    @property
    def titles(self) -> dict[str, str]:
        """The printed row of each row, by its name."""
        return {row.name: row.title for row in self.rows}

    @property
    def printed_rows(self) -> dict[str, tuple[Row, ...]]:
        """The rows as they are printed, each with its configurations: most have one, the row itself."""
        return {
            title: tuple(row for row in self.rows if row.title == title) for title in [row.title for row in self.rows]
        }

    @property
    def places(self) -> list[Place]:
        """(size, row, column, subset, seed) of every score of the table."""
        return [
            (size, row.name, column, *replicate)
            for size in self.sizes
            for row in self.rows
            if not row.skip
            for column, spec in self.columns.items()
            if self.takes(row, spec.task)
            for replicate in self.replicates_at(size)
        ]

    def takes(self, row: Row, task: str) -> bool:
        """Whether a row is run on a task: on one that the table lacks all rows are, those with a grid for each group of tasks at the
        points of the last one."""
        if task in self.table.tasks:
            return row.takes(task)
        return row.tasks == self._last_tasks.get(row.title, row.tasks)

    @cached_property
    def _last_tasks(self) -> dict[str, tuple[str, ...]]:
        """The last group of tasks of each printed row."""
        return {row.title: row.tasks for row in self.table.rows}

    @property
    def average_over(self) -> tuple[tuple[str, ...], ...]:
        """The groups of columns that the Avg is taken over, of those that are here."""
        given = self.aggregate.average_over
        groups = self.columns if given is None else given
        here = [tuple(c for c in ((g,) if isinstance(g, str) else g) if c in self.columns) for g in groups]
        return tuple(group for group in here if group)

    def settings_of(self, row: Row) -> dict[str, dict[str, Value]]:
        """What each method of a row is set to: overrides first, then the row's own `set`, which makes it this row."""
        found = {part: dict(self.settings.get(part, {})) for part in row.parts}
        for key, value in row.hyperparameters.items():
            part, _, name = key.partition(".")
            if part not in found or not name:
                part, name = row.parts[0], key
            found[part][name] = value
        return found

    def origins_of(self, row: Row, method: str) -> dict[str, str]:
        """Where a hyperparameter of a row's method is set, by its name: an override, or a key of a user's own table."""
        found = {o.path[-1]: o.place for o in self.origins.values() if o.path[0] == method}
        for key in row.hyperparameters:
            part, _, name = key.rpartition(".")
            if (part or row.parts[0]) == method:
                found.pop(name, None)
                if self.file and row in self.table.rows:
                    found[name] = f"{self.file}, key rows.{self.table.rows.index(row)}.set.{key}"
        return found

    def hyperparameters(self, row: Row) -> dict[str, Value]:
        """What a row sets, for a reader: by name, by 'method.name' where the row has several methods."""
        several = len(row.parts) > 1
        found = {
            f"{part}.{key}" if several else key: value
            for part, values in self.settings_of(row).items()
            for key, value in values.items()
        }
        found |= {f"{ENCODER}{key}": value for key, value in row.encoder_settings.items()}
        found |= {
            f"{phase}.{key}": value for phase, values in row.recipe_settings.items() for key, value in values.items()
        }
        found |= {} if row.pre_train_step is None else {"pre_train_step": self.pre_train_step(row)}
        found |= {} if row.pre_train_fraction is None else {"pre_train_fraction": row.pre_train_fraction}
        found |= (
            {f"augment.{key}": v for key, v in row.augment.model_dump(exclude_none=True).items()} if row.augment else {}
        )
        return found | ({} if row.unlabelled is None else {"unlabelled": row.unlabelled})

    def row_incomparable(self, row: Row) -> str:
        """Why this row gets no verdict, or ''."""
        settings = [(part, *item) for part in row.parts for item in sorted(self.settings.get(part, {}).items())]
        return row.incomparable or ", ".join(f"{part}.{name} set to {value}" for part, name, value in settings)

    @property
    def averages(self) -> dict[str, tuple[str, ...]]:
        """The rows that are means of others, of which all are here."""
        titles = self.printed_rows
        return {name: rows for name, rows in self.table.averages.items() if all(row in titles for row in rows)}

    @property
    def translates(self) -> bool:
        """Some row reads back-translations."""
        return self.contrasts_views or bool(self.augmentations)

    @property
    def contrasts_views(self) -> bool:
        """Some row contrasts back-translations of a text."""
        parts = [part for row in self.rows if not row.skip for part in row.parts]
        return any(METHODS[part].translates for part in parts if part in METHODS)

    @property
    def augmentations(self) -> tuple[Augment, ...]:
        """How rows augment their training sets, each way once."""
        return distinct(row.augment for row in self.rows if row.augment and not row.skip)

    def translator_of(self, augment: Augment | None) -> str:
        """The translator of an augmentation, or (None) of views."""
        return augment.translator(self.translator) if augment else self.translator

    @property
    def phases(self) -> tuple[str, ...]:
        """The training phases that its rows have, fine-tuning first."""
        parts = [part for row in self.rows if not row.skip for part in row.method.split("+") if part in METHODS]
        found = {"post_train"} if any(METHODS[part].train is not None for part in parts) else set()
        found |= {"pre_train"} if any(row.pre_train for row in self.rows) else set()
        return tuple(phase for phase in PHASES if phase == "fine_tune" or phase in found)

    def selection_metric(self, task: str) -> str:
        """The metric of a task that selects checkpoints: its first column's."""
        return next(column.metric for column in self.columns.values() if column.task == task)

    def selection(self, task: str, per_epoch: int) -> specs.Selection:
        """The checkpoint rule of a task on dev, as often as `selection_every` says, where an epoch has `per_epoch` updates."""
        return specs.Selection(self.selection_metric(task), updates_between(self.selection_every, per_epoch))

    def optim(
        self, phase: str, size: int = 0, num_rows: int = 0, row: Row | None = None, task: str = ""
    ) -> specs.Optim:
        """The recipe of a phase at `size`, for a task with its own, and for a row with what it changes; steps = epochs * ceil(num_rows / batch_size), `num_rows`
        of the training set, at least `min_steps`. The recipe of pre-training is always in steps.

        Raises UserError when the recipe has no epochs for this size.
        """
        recipe = self.task_recipes.get(task, self.recipe)
        recipe = recipe.patched(row.recipe) if row and row.recipe_settings else recipe
        values: dict[str, Any] = getattr(recipe, phase).model_dump(exclude_none=True)
        key = "steps" if "steps" in values else "epochs"
        length = values.pop(key)
        if isinstance(length, dict):
            if size not in length:
                have = ", ".join(map(str, sorted(length)))
                raise UserError(
                    f"table {self.table.name}, key recipe.{phase}.{key}: no {key} for size {size} (given for {have}); "
                    f"add one, or set {phase}.{key} to a number."
                )
            length = length[size]
        least = values.pop("min_steps", 1)
        if key == "epochs":
            length = max(least, round(length * math.ceil(num_rows / values["batch_size"])))
        if "warmup_steps" in values:
            values["warmup"] = _fraction(values.pop("warmup_steps"), int(length))
        return specs.Optim(steps=int(length), **values)

    def pre_train_step(self, row: Row) -> int | Literal["last"]:
        """The update of its pre-training that a row starts from: where that has more or fewer updates than in the table's recipe, the
        one at the same share of them."""
        if row.pre_train_step is None:
            return "last"
        table = self.table.recipe.patched(row.recipe).pre_train.steps
        return _scaled(row.pre_train_step, table, self.optim("pre_train", row=row).steps)

    def fraction(self, row: Row) -> float:
        """The fraction of the corpus that a row is pre-trained on, without what is held out."""
        assert self.pre_train is not None
        return min(row.pre_train_fraction or self.pre_train.fraction, 1 - self.pre_train.held_out)

    @property
    def held_out(self) -> Part | None:
        """The part of the corpus on which the loss is logged; None where there is none."""
        share = self.pre_train.held_out if self.pre_train else 0.0
        return (1 - share, 1.0) if share else None

    @property
    def corpus_parts(self) -> tuple[Part, ...]:
        """The parts of the corpus that rows are pre-trained on, the largest first, and the one that is held out; none without
        pre-training."""
        rows = [row for row in self.rows if row.pre_train and not row.skip]
        trained = sorted({self.fraction(row) for row in rows}, reverse=True) if self.pre_train else []
        return (*((0.0, fraction) for fraction in trained), *([self.held_out] if self.held_out else []))

    def save_at(self, steps: int) -> set[int]:
        """The updates after which a pre-training stage of `steps` updates stores its weights, besides those that rows start from: at
        the same share as in the recipe that names them."""
        assert self.pre_train is not None
        base = self.table.presets[self.preset]
        table = (self.table.recipe.patched(base.recipe) if base.pre_train else self.table.recipe).pre_train.steps
        return {_scaled(step, table, steps) for step in self.pre_train.save_at} - {steps}

    def paper_value(self, size: int, row: str, column: str) -> tuple[float, float | None] | None:
        """The paper's (value, spread), both with 1 for 100 %, whatever its units; None where it prints none."""
        pair = self.table.paper.get(size, {}).get(row, {}).get(column)
        if pair is None:
            return None
        value, spread = pair
        unit = self.table.paper_unit
        return round(value * unit.value, 10), None if spread is None else round(spread * unit.spread, 10)


def resolve(table: Table, request: Request | None = None, tasks: Mapping[str, Task] | None = None) -> ResolvedTable:
    """`table` as a request (None: the table's own defaults) asks for it.

    `tasks`: the known tasks by name, for those the table has no column for (one column for each evaluation, the task's
    first metric); None means `harness.tasks.task.TASKS`, without a check of the table's own tasks.
    Raises UserError for an unknown name, a number out of range, or a wrong override.
    """
    request = request or Request()
    preset = request.preset or table.preset_for(request.encoder)
    if preset not in table.presets:
        raise unknown("preset", preset, table.presets, f"{request.origin('preset')} of table {table.name}")
    base = table.presets[preset]
    rows = chosen_rows(table, preset, request)
    sizes, subsets, seeds = chosen_design(table, preset, request)
    chosen_tasks = tuple(base.tasks or table.tasks) if request.tasks is None else distinct(request.tasks)
    if not chosen_tasks:
        raise UserError(
            f"table {table.name} has no task of its own; name a file of labelled rows, a task's YAML file or a task with "
            f"{request.option('tasks')}."
        )
    columns = chosen_columns(table, preset, request, chosen_tasks, tasks)
    pre_train, patched = base.pre_train or table.pre_train, table.recipe.patched(base.recipe)
    found = applied((*table.rows, *rows), patched, pre_train, request.overrides)
    if request.corpus is not None:
        if found.pre_train is None:
            place = f"{request.origin('corpus')} {request.corpus}"
            raise UserError(f"{place}: table {table.name} has no row that is pre-trained.")
        found.pre_train = found.pre_train.model_copy(update={"corpus": request.corpus})
    translator = table.translator if base.translator is None else base.translator
    mlm_head = {key.partition(".")[2]: value for key, value in found.single.items() if key.startswith("mlm_head.")}
    result = ResolvedTable(
        table=table,
        preset=preset,
        encoder=request.encoder or base.encoder,
        data=request.data or base.data,
        rows=rows,
        tasks=chosen_tasks,
        columns=columns,
        sizes=sizes,
        subsets=subsets,
        seeds=seeds,
        recipe=found.recipe,
        task_recipes=_task_recipes(table, base.recipe, rows, request),
        max_length=found.single.get("max_length", base.max_length or table.max_length),
        selection_every=base.selection_every or table.selection_every,
        mlm_head=(base.mlm_head or MlmHead()).model_copy(update=mlm_head),
        aggregate=table.aggregate,
        pre_train=found.pre_train if any(row.pre_train for row in rows) else None,
        translator=translator if request.translator is None else request.translator,
        settings=found.hyperparameters,
        origins=found.origins,
        encoder_settings=table.encoder_under(base) | encoder_part(found.single),
        num_workers=request.num_workers or base.num_workers or table.num_workers,
        file=request.table if request.table.endswith(YAML) else "",
        protocol=request.protocol or table.protocol,
        starts_from=base.starts_from or table.starts_from,
    )
    result = replace(result, earlier=_earlier(result, request, tasks))
    check_effect(result, request.overrides)
    _check_k(result)
    differs = deviations(result)
    incomparable = differs if base.comparable else [f"preset {preset} is not the paper's setting"]
    if table.source is None:
        incomparable = ["no paper prints this table"]
    return replace(result, deviations=(*differs, *_set_here(result)), incomparable=tuple(incomparable))


def _task_recipes(table: Table, preset: Recipe, rows: Iterable[Row], request: Request) -> dict[str, Recipe]:
    """The recipes of tasks that have their own: over the table's, and under the preset's and the overrides."""
    found: dict[str, Recipe] = {}
    for spec in table.task_recipes:
        patched = table.recipe.patched(spec).patched(preset)
        recipe = applied((*table.rows, *rows), patched, table.pre_train, request.overrides).recipe
        found |= dict.fromkeys(spec.tasks, recipe)
    return found


def _earlier(resolved: ResolvedTable, request: Request, tasks: Mapping[str, Task] | None) -> ResolvedTable | None:
    """The table of the runs that this one's start from, under the same preset, encoder and overrides. Raises UserError where a row
    does more than fine-tune."""
    start = resolved.starts_from
    if start is None:
        return None
    place = f"table {resolved.table.name}, key starts_from"
    for row in resolved.rows:
        if not row.skip and (row.pre_train or any(METHODS[part].train for part in row.parts if part in METHODS)):
            raise UserError(
                f"{place}: row {row.name} trains on unlabelled texts; rows of a table that starts from selected runs are fine-tuned "
                "only."
            )
    earlier = Request(
        table=start.table,
        preset=resolved.preset,
        methods=tuple(row.name for row in resolved.rows if not row.skip),
        tasks=(start.task,),
        sizes=(start.size,),
        encoder=request.encoder,
        data=request.data,
        overrides=request.overrides,
        origins=dict.fromkeys(("table", "preset", "methods", "tasks", "sizes"), place),
        flags=request.flags,
    )
    return resolve(load_table(start.table, place), earlier, tasks)


def _check_k(resolved: ResolvedTable) -> None:
    """Raises UserError where a cell has fewer runs than its rule takes."""
    configurations = min(map(len, resolved.printed_rows.values())) if resolved.aggregate.select == "none" else 1
    runs = min(len(resolved.replicates_at(size)) for size in resolved.sizes) * configurations
    if (resolved.aggregate.k or 0) > runs:
        raise UserError(
            f"table {resolved.table.name}, key aggregate.k: a cell is the {resolved.aggregate.label}, and the chosen subsets and "
            f"seeds give {runs}; choose more of them."
        )


def _set_here(resolved: ResolvedTable) -> list[str]:
    """The overridden hyperparameters of the chosen rows' methods, for a caption."""
    chosen = {part for row in resolved.rows for part in row.parts}
    return [
        f"{method}.{name} set to {value}"
        for method, values in sorted(resolved.settings.items())
        if method in chosen
        for name, value in sorted(values.items())
    ]


def _fraction(updates: int, steps: int) -> float:
    """The share of `steps` that the loop reads as `updates`, at most all: it rounds up, so an error upwards would add one."""
    share = min(1.0, updates / steps)
    return share if math.ceil(share * steps) <= updates else math.nextafter(share, 0)


def _scaled(step: int, of: object, steps: int) -> int:
    """`step` of `of` updates at the same share of `steps` updates."""
    assert isinstance(of, int)  # the table checks it
    return max(1, round(step * steps / of))
