"""A table as it is run: one flat, frozen object that the planner reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from harness import specs
from harness.encoders.sources import NEW
from harness.errors import UserError
from harness.methods import METHODS, REFERENCE
from harness.planning.aggregation import Aggregation
from harness.planning.recipe import (
    PHASES,
    Augment,
    MlmHead,
    PreTrain,
    Recipe,
    StartsFrom,
    Value,
    fraction_of,
    scaled,
    updates_between,
)
from harness.planning.request import Override
from harness.planning.row import ENCODER, Place, Row
from harness.planning.table import Column, Table
from harness.tasks.protocols import protocol_named
from harness.wording import value_text


@dataclass(frozen=True)
class Departure:
    """A value in use that is not the paper's: its `path`, ours and the paper's `value`, `where` the paper says so, and the `flag` that sets it."""

    path: str
    value: Any
    paper: str
    where: str
    flag: str

    @property
    def reason(self) -> str:
        """Why a cell that depends on it cannot be held against the paper's."""
        return f"{self.path.removeprefix('recipe.')} {value_text(self.value)} instead of the paper's {self.paper}"

    def concerns(self, row: Row) -> bool:
        """Whether a row reads the value."""
        if self.path == "translator":
            return bool(row.augment) or any(METHODS[part].translates for part in row.parts if part in METHODS)
        return bool(row.pre_train) or not self.path.startswith(("pre_train.", "recipe.pre_train."))


Part = tuple[float, float]
"""Where a part of a corpus begins and ends in [0, 1); see `harness.tasks.corpora.Corpus.part`."""


def on_encoder(row: str, encoder: str) -> str:
    """The name of a row in a table of several encoders."""
    return f"{row} on {encoder}"


def encoder_titles(parts: Sequence[ResolvedTable]) -> tuple[str, ...]:
    """What the rows of each encoder call it: the last part of a folder or a hub id, where that names one alone."""
    whole = tuple(part.encoder for part in parts)
    short = tuple(name if name.startswith(NEW) else name.rstrip("/").rpartition("/")[2] for name in whole)
    return short if len(set(short)) == len(short) else whole


@dataclass(frozen=True)
class ResolvedTable:
    """A table as it is run: flat and frozen.

    `columns` by id, in order; `subsets` indices; `sizes` total labelled examples, 0 the full training set; `mlm_head`:
    the MLM stage for an encoder without a usable MLM head; `incomparable`: why no cell here can be held against the paper's (empty: it can);
    `deviations`: every value that differs from the table's own; `departures`: those that differ from what the paper says; `settings`: overridden hyperparameters by method, and
    `origins`: their overrides by key; `encoder_settings`: what the table, the preset or an override says of the encoder, for
    all rows; `num_workers` train one stage together, which is no part of what is computed; `file`: the table's, '' where
    it is packaged; `protocol`: the table's, or another that the request names; `task_recipes` of tasks that have their own; `starts_from`: what all runs
    start from; `tuned`: the table of a row alone, by name, for those that
    some overrides reach alone; `by_encoder`: of several encoders the table under each, whose rows in order are the `rows` here, under names that
    say the encoder.
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
    departures: tuple[Departure, ...] = ()
    settings: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    origins: Mapping[str, Override] = field(default_factory=dict)
    encoder_settings: Mapping[str, int] = field(default_factory=dict)
    num_workers: int = 1
    file: str = ""
    protocol: str = ""
    task_recipes: Mapping[str, Recipe] = field(default_factory=dict)
    starts_from: StartsFrom | None = None
    tuned: Mapping[str, ResolvedTable] = field(default_factory=dict)
    by_encoder: tuple[ResolvedTable, ...] = ()

    @property
    def parts(self) -> tuple[ResolvedTable, ...]:
        """The table under each of its encoders: itself, where it has one."""
        return self.by_encoder or (self,)

    @cached_property
    def origin_rows(self) -> dict[str, tuple[ResolvedTable, Row]]:
        """Of several encoders the table under one and its row there, by the name of each row here."""
        own = [(part, row) for part in self.by_encoder for row in part.rows]
        return {row.name: found for row, found in zip(self.rows, own, strict=True)} if own else {}

    @property
    def comparable(self) -> bool:
        return not self.incomparable

    @property
    def size_unit(self) -> str:
        """What its sizes count."""
        return protocol_named(self.protocol).size_unit

    @property
    def scores_dev(self) -> bool:
        """Whether dev is also what is scored."""
        return protocol_named(self.protocol).scores_dev

    @property
    def scored_set(self) -> str:
        """What the scores shown are on: 'test set' or 'development set'."""
        return "development set" if self.scores_dev or self.aggregate.scores == "dev" else "test set"

    @property
    def replicates(self) -> tuple[tuple[int, int], ...]:
        """The crossed design: every (subset, seed), subsets slowest."""
        return tuple((subset, seed) for subset in self.subsets for seed in self.seeds)

    def is_drawn(self, size: int) -> bool:
        """Whether each subset of a size is another one: a full training set is one, unless the protocol draws its dev set with each subset."""
        return bool(size) or protocol_named(self.protocol).redraws

    def subsets_at(self, size: int) -> tuple[int, ...]:
        """The subsets of one size."""
        return self.subsets if self.is_drawn(size) else self.subsets[:1]

    def configurations(self, title: str, task: str) -> list[Row]:
        """The configurations of a printed row that are run on a task."""
        return [row for row in self.printed_rows[title] if self.takes(row, task)]

    def replicates_at(self, size: int) -> tuple[tuple[int, int], ...]:
        """The crossed design of one size."""
        return tuple((subset, seed) for subset in self.subsets_at(size) for seed in self.seeds)

    @property
    def trained_rows(self) -> tuple[Row, ...]:
        """The rows without those of another system, whose method is none of ours."""
        return tuple(row for row in self.rows if all(part in METHODS for part in row.method.split("+")))

    @property
    def titles(self) -> dict[str, str]:
        """The printed row of each row, by its name."""
        return {row.name: row.title for row in self.rows}

    @cached_property
    def printed_rows(self) -> dict[str, tuple[Row, ...]]:
        """The rows as they are printed, each with its configurations: most have one, the row itself."""
        printed: dict[str, tuple[Row, ...]] = {}
        for row in self.rows:
            printed[row.title] = (*printed.get(row.title, ()), row)
        return printed

    @cached_property
    def reference_titles(self) -> frozenset[str]:
        """The titles of all reference rows, also of those that are not here: of the table's own and of those that methods without a row get."""
        titles = {row.title for row in (*self.table.rows, *self.rows) if row.method in REFERENCE}
        titles |= {METHODS[name].title for name in REFERENCE}
        encoders = encoder_titles(self.by_encoder)
        return frozenset(titles | {on_encoder(title, encoder) for title in titles for encoder in encoders})

    @property
    def continued(self) -> tuple[Row, ...]:
        """The rows that start from other runs: reference rows start from the encoder as it is."""
        return tuple(row for row in self.rows if self.starts_from and row.title not in self.reference_titles)

    @property
    def places(self) -> list[Place]:
        """(size, row, column, subset, seed) of every score of the table."""
        return [
            (size, row.name, column, *replicate)
            for size in self.sizes
            for row in self.rows
            for column, spec in self.columns.items()
            if self.takes(row, spec.task)
            for replicate in self.replicates_at(size)
        ]

    def takes(self, row: Row, task: str) -> bool:
        """Whether a row is run on a task: on one that the table lacks all rows are, those with a grid for each group of tasks at the
        points of the last one."""
        if row.name in self.origin_rows:
            part, own = self.origin_rows[row.name]
            return part.takes(own, task)
        if task in self.table.tasks:
            return not row.tasks or task in row.tasks
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

    @property
    def has_whole_average(self) -> bool:
        """Whether the Avg here is over the same columns as the table's."""
        if self.aggregate.average_over is None:
            return self.columns.keys() == self.table.columns.keys()
        groups = [(each,) if isinstance(each, str) else each for each in self.aggregate.average_over]
        return all(column in self.columns for group in groups for column in group)

    def under(self, row: Row) -> ResolvedTable:
        """The table under the encoder of a row, with the overrides that reach it."""
        part, own = self.origin_rows.get(row.name, (self, row))
        return part.tuned.get(own.name, part)

    def set_alone(self, row: Row) -> bool:
        """Whether some override reaches this row alone."""
        part, own = self.origin_rows.get(row.name, (self, row))
        return own.name in part.tuned

    def tuned_recipe(self, row: Row) -> dict[str, Value]:
        """What overrides that reach this row alone change in the recipe of its phases, by key."""
        here = self.under(row).recipe
        if here is self.recipe:
            return {}
        return {
            f"{phase}.{name}": value
            for phase in self.phases
            for name, value in getattr(here, phase).model_dump(exclude_none=True).items()
            if value != getattr(getattr(self.recipe, phase), name)
        }

    def settings_of(self, row: Row) -> dict[str, dict[str, Value]]:
        """What each method of a row is set to: overrides first, then the row's own `set`, which makes it this row."""
        settings = self.under(row).settings
        found = {part: dict(settings.get(part, {})) for part in row.parts}
        for key, value in row.hyperparameters.items():
            part, _, name = key.partition(".")
            if part not in found or not name:
                part, name = row.parts[0], key
            found[part][name] = value
        return found

    def origins_of(self, row: Row, method: str) -> dict[str, str]:
        """Where a hyperparameter of a row's method is set, by its name: an override, or a key of a user's own table."""
        found = {o.path[-1]: o.place for o in self.under(row).origins.values() if o.path[0] == method}
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
        found |= {f"{ENCODER}{key}": value for key, value in row.encoder_settings.items()} | self.tuned_recipe(row)
        own = row.model_dump(include={"recipe", "augment"}, exclude_none=True)
        for group, values in (own["recipe"] | {"augment": own.get("augment", {})}).items():
            found |= {f"{group}.{key}": value for key, value in values.items()}
        found |= {} if row.pre_train_step is None else {"pre_train_step": self.pre_train_step(row)}
        return found | row.model_dump(include={"pre_train_fraction", "unlabelled"}, exclude_none=True)

    def row_incomparable(self, row: Row) -> tuple[str, ...]:
        """Why this row gets no verdict: its own reason or the hyperparameters that are set, and the departures from the paper that it
        depends on."""
        here = self.under(row).settings
        values = {f"{part}.{name}": value for part in row.parts for name, value in sorted(here.get(part, {}).items())}
        values |= self.tuned_recipe(row)
        own = row.incomparable or ", ".join(f"{key} set to {value}" for key, value in values.items())
        return (*([own] if own else []), *(each.reason for each in self.departures if each.concerns(row)))

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
        parts = [part for row in self.rows for part in row.parts]
        return any(METHODS[part].translates for part in parts if part in METHODS)

    @property
    def augmentations(self) -> tuple[Augment, ...]:
        """How rows augment their training sets, each way once."""
        return tuple(dict.fromkeys(row.augment for row in self.rows if row.augment))

    def translator_of(self, augment: Augment | None) -> str:
        """The translator of an augmentation, or (None) of views."""
        return augment.translator(self.translator) if augment else self.translator

    @property
    def phases(self) -> tuple[str, ...]:
        """The training phases that its rows have, fine-tuning first."""
        parts = [part for row in self.rows for part in row.method.split("+") if part in METHODS]
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
        here = self.under(row) if row else self
        recipe = here.task_recipes.get(task, here.recipe)
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
            values["warmup"] = fraction_of(values.pop("warmup_steps"), int(length))
        if not values.get("weight_decay"):
            values.pop("decay_biases_and_norms", None)
        return specs.Optim(steps=int(length), **values)

    def pre_train_step(self, row: Row) -> int | Literal["last"]:
        """The update of its pre-training that a row starts from: where that has more or fewer updates than in the table's recipe, the
        one at the same share of them."""
        if row.pre_train_step is None:
            return "last"
        table = self.table.recipe.patched(row.recipe).pre_train.steps
        return scaled(row.pre_train_step, table, self.optim("pre_train", row=row).steps)

    def fraction(self, row: Row) -> float:
        """The fraction of the corpus that a row is pre-trained on, without what is held out."""
        assert self.pre_train is not None
        return min(row.pre_train_fraction or self.pre_train.fraction, 1 - self.pre_train.held_out)

    @property
    def held_out(self) -> Part | None:
        """The part of the corpus on which the loss is logged; None where there is none."""
        return (1 - self.pre_train.held_out, 1.0) if self.pre_train and self.pre_train.held_out else None

    @property
    def corpus_parts(self) -> tuple[Part, ...]:
        """The parts of the corpus that rows are pre-trained on, the largest first, and the one that is held out; none without
        pre-training."""
        if not self.pre_train:
            return ()
        trained = sorted({self.fraction(row) for row in self.rows if row.pre_train}, reverse=True)
        return (*((0.0, fraction) for fraction in trained), *([self.held_out] if self.held_out else []))

    def save_at(self, steps: int) -> set[int]:
        """The updates after which a pre-training stage of `steps` updates stores its weights, besides those that rows start from: at
        the same share as in the recipe that names them."""
        assert self.pre_train is not None
        base = self.table.presets[self.preset]
        table = (self.table.recipe.patched(base.recipe) if base.pre_train else self.table.recipe).pre_train.steps
        return {scaled(step, table, steps) for step in self.pre_train.save_at} - {steps}

    def paper_value(self, size: int, row: str, column: str) -> tuple[float, float | None] | None:
        """The paper's (value, spread), both with 1 for 100 %, whatever its units; None where it prints none."""
        pair = self.table.paper.get(size, {}).get(row, {}).get(column)
        return None if pair is None else self.table.paper_unit.converted(pair)
