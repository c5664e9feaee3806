"""A table as it is run: one flat, frozen object that the planner reads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal, NamedTuple

from pydantic import Field

from harness import specs
from harness.encoders.sources import NEW, NEW_TOKENIZER
from harness.errors import UserError
from harness.methods import METHODS, REFERENCE
from harness.planning.aggregation import AVERAGE, Aggregation
from harness.planning.recipe import (
    EXCLUSIVE,
    RECIPE_KEYS,
    Augment,
    MlmHead,
    Phase,
    PreTrain,
    Recipe,
    TaskRecipe,
    Value,
    Values,
    fraction_of,
    group_of,
    keyed,
    patched,
    replaced,
)
from harness.planning.request import Override
from harness.planning.table import DATA, DESIGN, Column, Preset, Row, Table
from harness.tasks.protocol import Protocol
from harness.wording import value_text
from harness.yaml_files import parse_value

TASK_RECIPES = "task_recipes"
TOKENIZER = "encoder.tokenizer"
WHOLE = ("pre_train.fraction", 1.0)
"""All of a corpus, which goes without saying."""


class Use(NamedTuple):
    """A value in use, by its `path`. `tasks`: of a recipe's value those on which a row takes it. `instead`: the table's as a text, where it is
    another. `letter`: of its origin, '' where the table names none or the value is not the table's own; where the table departs from the paper, D, or
    P where the value in use is the paper's. `note`: what stands behind the letter; `paper`: of a value that departs in the table the paper's."""

    path: str
    value: Any
    tasks: tuple[str, ...]
    instead: str
    letter: str
    note: str
    paper: str

    @property
    def key(self) -> str:
        return self.path.removeprefix("recipe.")

    def concerns(self, row: Row) -> bool:
        """Whether a row reads the value."""
        if self.path == "translator":
            return bool(row.augment) or any(METHODS[part].translates for part in row.parts if part in METHODS)
        return bool(row.pre_train) or not self.path.startswith(("pre_train.", "recipe.pre_train."))


def _instead(path: str, ours: Any, theirs: Mapping[str, Any]) -> str:
    """The table's value as a text, where ours is another; where it states none the other of a pair, or the default."""
    other, (parent, _, name) = theirs.get(path), path.rpartition(".")
    if ours == other or (isinstance(ours, tuple) and {*ours} == {*(other or ())}):
        return ""
    if other is not None:
        return value_text(other)
    for field in (field for pair in EXCLUSIVE if name in pair for field in pair if f"{parent}.{field}" in theirs):
        return f"{field} {value_text(theirs[f'{parent}.{field}'])}"
    default = getattr(specs.Optim, name, None)
    return "none" if default is None else f"{value_text(default)}, the default"


def _path_of(recipe: Recipe) -> str:
    return f"{TASK_RECIPES}.{'+'.join(recipe.tasks)}" if isinstance(recipe, TaskRecipe) else "recipe"


def _flat(
    of: Any, encoder: str, data: str, trained: Mapping[str, Any], translator: str | None, **more: Any
) -> dict[str, Any]:
    """What `of`, a Table or a ResolvedTable, has by path, in the order in which it is printed; `trained`: settings of the encoder and the recipe by
    path, `more`: of the design. Which weights are stored on the way changes no number."""
    found: dict[str, Any] = {"encoder": encoder}
    if encoder.startswith(NEW) and "," not in encoder:
        size, _, tokenizer = encoder.partition("@")
        found = {"encoder": size, TOKENIZER: tokenizer or NEW_TOKENIZER}
    found |= {"data": data, **trained}
    found |= {"grids": "of the rows"} if any(row.configuration_of for row in of.rows) else {}
    found |= {} if translator is None else {"translator": translator}
    corpus = keyed("pre_train", of.pre_train)
    found |= {key: value for key, value in corpus.items() if key != "pre_train.save_at" and (key, value) != WHOLE}
    found |= {name: getattr(of, name) for name in ("max_length", "selection_every", "sizes", "seeds")} | more
    return found | {f"aggregate.{name}": value for name, value in of.aggregate.stated.items()}


def stated(table: Table, preset: Preset) -> dict[str, Any]:
    """Every value that a table states, by path: under a preset that is the paper's setting, else under the first that is, with its design; else under
    'paper' or the default."""
    usual = table.presets.get("paper", table.presets[table.default_preset])
    reference = next((each for each in (preset, *table.presets.values()) if each.comparable), usual)
    here = table.under(reference, (*DATA, *(DESIGN if reference.comparable else ())))
    trained = keyed("encoder", table.encoder_settings)
    for recipe in (table.recipe, *table.task_recipes):
        trained |= {f"{_path_of(recipe)}.{key}": value for key, value in recipe.values.items()}
    return _flat(here, reference.encoder, reference.data, trained, here.translator or None, subsets=here.subsets)


Place = tuple[int, str, str, int, int]
"""Where a table has a score: (size, row, column, subset, seed)."""
ByTask = Mapping[str, Values]
"""Values by task, under '' those of all that have no others."""


class ResolvedRow(Row):
    """A row with all that it trains with, as a request asks for it; of several encoders one under each, with a name that says it.

    `tasks`: of those that are chosen; `own`: the row as the table has it; `under`: what the table has for it by task, '' for most, as the `overrides`
    that reach it leave that; `alone`: what of it those change that do not reach all rows.
    """

    own: Row = Field(exclude=True)
    encoder: str = Field("", exclude=True)
    under: ByTask = Field({"": {}}, exclude=True)
    alone: dict[str, Value] = Field(default_factory=dict, exclude=True)
    overrides: tuple[Override, ...] = Field((), exclude=True)

    @classmethod
    def of(cls, own: Row, **carried: Any) -> ResolvedRow:
        """A row of a table with what it carries."""
        return cls.model_construct(**{**dict(own), **carried}, own=own)

    def on(self, task: str = "") -> dict[str, Any]:
        """All that it trains with on a task, by key: what it sets for itself over the table's."""
        return patched(self.under[task], self.own_values)


def on_encoder(row: str, encoder: str) -> str:
    """The name of a row in a table of several encoders."""
    return f"{row} on {encoder}"


@dataclass(frozen=True)
class ResolvedTable:
    """A table as it is run: flat and frozen.

    `encoders`: what names of rows call each; `rows`: those of the first encoder, then of the next; `under`: what the table has for all of them. `columns` by id; `subsets` indices;
    `sizes` total labelled examples, 0 the full training set; `mlm_head`: the MLM stage for an encoder without a usable head; `unreached`: a sentence for each override that does not reach all rows that it concerns.
    """

    table: Table
    preset: str
    encoders: Mapping[str, str]
    under: ByTask
    data: str
    rows: tuple[ResolvedRow, ...]
    tasks: tuple[str, ...]
    columns: Mapping[str, Column]
    sizes: tuple[int, ...]
    subsets: tuple[int, ...]
    seeds: tuple[int, ...]
    max_length: int
    selection_every: int | str
    mlm_head: MlmHead
    protocol: Protocol
    pre_train: PreTrain | None = None
    translator: str = ""
    unreached: tuple[str, ...] = ()

    @property
    def encoder(self) -> str:
        return ",".join(self.encoders)

    @property
    def encoder_titles(self) -> tuple[str, ...]:
        return tuple(self.encoders.values()) if len(self.encoders) > 1 else ()

    @property
    def aggregate(self) -> Aggregation:
        return self.table.aggregate

    @property
    def rows_of_one(self) -> tuple[ResolvedRow, ...]:
        """The rows under the first encoder; those under the others have equal values."""
        return self.rows[: len(self.rows) // len(self.encoders)]

    @property
    def encoder_settings(self) -> dict[str, int]:
        return group_of(self.under[""], "encoder")

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        reached, preset = self._reach(), self.table.presets[self.preset]
        values = {f"encoder.{name}": value for name, value in self.encoder_settings.items()}
        values |= {path: value for path, (value, _) in reached.items()}
        theirs = stated(self.table, preset)
        count: Any = len if sorted(self.subsets) == [*range(len(self.subsets))] else tuple  # where not the first ones
        design = {"subsets": count(self.subsets), **({"draws": preset.draws} if preset.draws else {})}
        found = _flat(self, self.encoder, self.data, values, self.translator if self.translations else None, **design)
        # Fewer sizes are no change of a value, nor is the tokenizer where the table's encoder has its own.
        theirs = {TOKENIZER: found.get(TOKENIZER), "translator": "", **theirs, "sizes": self.sizes}
        theirs["subsets"] = count(range(theirs["subsets"]))
        made = []
        for path, value in found.items():
            tasks, instead = reached[path][1] if path in reached else self.tasks, _instead(path, value, theirs)
            origin = next((text for pattern, text in self.table.origin.items() if fnmatchcase(path, pattern)), "")
            letter, note, paper = "" if instead else origin[:1], origin[2:], ""
            if origin.startswith("D"):
                paper, _, note = note.rpartition(", ")
                letter = "P" if parse_value(paper) == value else "D"
            made.append(Use(path, value, tasks, instead, letter, note, paper))
        return tuple(made)

    def _reach(self) -> dict[str, tuple[Any, tuple[str, ...]]]:
        """The values of the recipe that some row does not replace, by path, with the tasks on which it takes them."""
        found: dict[str, tuple[Any, tuple[str, ...]]] = {}
        rows = [(row, replaced((*row.own_values, *row.alone))) for row in self.rows_of_one]
        recipes = {task: spec for spec in self.table.task_recipes for task in spec.tasks}
        for key, task in itertools.product(RECIPE_KEYS, self.tasks):
            phase, _, name = key.partition(".")
            values, recipe = self.under[task], recipes.get(task, self.table.recipe)
            idle = key not in values or (name == "decay_biases_and_norms" and not values.get(f"{phase}.weight_decay"))
            if not idle and any(phase in row.groups and task in row.tasks and key not in own for row, own in rows):
                path = f"{_path_of(recipe) if key in recipe.values else 'recipe'}.{key}"
                found[path] = values[key], (*found.get(path, (None, ()))[1], task)
        return found

    @property
    def deviations(self) -> tuple[str, ...]:
        """Every value that differs from the table's own, and the overridden hyperparameters of the chosen rows' methods."""
        values = sorted(self.under[""].items())
        here = [f"{key} set to {value}" for key, value in values if key.partition(".")[0] in self.methods]
        return (*self._changes(self.uses), *here)

    def _changes(self, uses: Iterable[Use]) -> tuple[str, ...]:
        """Each changed value as 'fine_tune.lr 0.0001 instead of 1e-05'."""
        found = [f"{use.key} {value_text(use.value)} instead of {use.instead}" for use in uses if use.instead]
        extra = [task for task in self.tasks if task not in self.table.tasks]
        return (*found, *([f"tasks that the paper's table lacks: {', '.join(extra)}"] if extra else []))

    @cached_property
    def incomparable(self) -> tuple[str, ...]:
        """Why no cell here can be held against the paper's; empty where it can."""
        if len(self.encoders) > 1:
            return ("no paper has rows of several encoders beside one another; name one alone",)
        if self.table.source is None:
            return ("no paper prints this table",)
        if not self.table.presets[self.preset].comparable:
            return (f"preset {self.preset} is not the paper's setting",)
        # Where the table departs from the paper its value is not what ours is held against.
        return self._changes(use for use in self.uses if not use.paper)

    @property
    def comparable(self) -> bool:
        return not self.incomparable

    def row_incomparable(self, row: ResolvedRow) -> tuple[str, ...]:
        """Why this row gets no verdict: its own reason or the hyperparameters that are set, and the departures from the paper that it
        depends on."""
        set_here = {f"{part}.{name}": v for part in row.parts for name, v in group_of(row.under[""], part).items()}
        own = row.incomparable or ", ".join(f"{key} set to {value}" for key, value in (set_here | row.alone).items())
        departing = [use for use in self.uses if row.encoder and use.letter == "D" and use.concerns(row)]
        found = [f"{use.key} {value_text(use.value)} instead of the paper's {use.paper}" for use in departing]
        return (*([own] if own else []), *found)

    def paper_value(self, size: int, row: str, column: str) -> tuple[float, float | None] | None:
        """The paper's (value, spread), both with 1 for 100 %, whatever its units; None where it prints none, and of an Avg over other columns than ours."""
        if column == AVERAGE and self.average_over != self.aggregate.groups(self.table.columns):
            return None
        if (pair := self.table.paper.get(size, {}).get(row, {}).get(column)) is None:
            return None
        (value, spread), unit = pair, self.table.paper_unit
        return round(value * unit.value, 10), None if spread is None else round(spread * unit.spread, 10)

    @property
    def scored_set(self) -> str:
        return "development set" if self.protocol.scores_dev or self.aggregate.scores == "dev" else "test set"

    @property
    def replicates(self) -> tuple[tuple[int, int], ...]:
        return tuple((subset, seed) for subset in self.subsets for seed in self.seeds)

    def is_drawn(self, size: int) -> bool:
        """Whether each subset of a size is another one: a full training set is one, unless the protocol draws its dev set with each subset."""
        return bool(size) or self.protocol.redraws

    def subsets_at(self, size: int) -> tuple[int, ...]:
        return self.subsets if self.is_drawn(size) else self.subsets[:1]

    def replicates_at(self, size: int) -> tuple[tuple[int, int], ...]:
        """The crossed design of one size."""
        return tuple((subset, seed) for subset in self.subsets_at(size) for seed in self.seeds)

    @property
    def places(self) -> list[Place]:
        """(size, row, column, subset, seed) of every score of the table."""
        return [
            (size, row.name, column, *replicate)
            for size in self.sizes
            for row in self.rows
            for column, spec in self.columns.items()
            if spec.task in row.tasks
            for replicate in self.replicates_at(size)
        ]

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of the rows, without those of another system."""
        return tuple(dict.fromkeys(part for row in self.rows for part in row.parts if part in METHODS))

    @cached_property
    def titles(self) -> dict[str, str]:
        return {row.name: row.title for row in self.rows}

    @cached_property
    def printed_rows(self) -> dict[str, tuple[ResolvedRow, ...]]:
        """The rows as they are printed, each with its configurations: most have one, the row itself."""
        printed: dict[str, tuple[ResolvedRow, ...]] = {}
        for row in self.rows:
            printed[row.title] = (*printed.get(row.title, ()), row)
        return printed

    def configurations(self, title: str, task: str) -> list[ResolvedRow]:
        """The configurations of a printed row that are run on a task."""
        return [row for row in self.printed_rows[title] if task in row.tasks]

    @cached_property
    def reference_titles(self) -> frozenset[str]:
        """The titles of all reference rows, also of those that are not here: of the table's own and of those that methods without a row get."""
        titles = {row.title for row in (*self.table.rows, *self.rows) if row.method in REFERENCE}
        titles |= {METHODS[name].title for name in REFERENCE}
        return frozenset(titles | {on_encoder(title, encoder) for title in titles for encoder in self.encoder_titles})

    def hyperparameters(self, row: ResolvedRow) -> dict[str, Value]:
        """What a row sets, for a reader: by name, by 'method.name' where the row has several methods."""
        found = {key: value for key, value in row.on().items() if key.partition(".")[0] in row.parts}
        alone = f"{row.parts[0]}." if len(row.parts) == 1 else ""
        found = {key.removeprefix(alone): value for key, value in (found | row.alone | row.own_values).items()}
        found |= keyed("augment", row.augment)
        found |= {} if row.pre_train_step is None else {"pre_train_step": self.pre_train_step(row)}
        return found | row.model_dump(include={"unlabelled"}, exclude_none=True)

    @property
    def average_over(self) -> list[tuple[str, ...]]:
        return self.aggregate.groups(self.columns)

    def made_of(self, column: str) -> list[str]:
        """The columns that a cell is made of: itself, or those of Avg."""
        return [*itertools.chain(*self.average_over)] if column == AVERAGE else [column]

    @property
    def averages(self) -> dict[str, tuple[str, ...]]:
        titles = self.printed_rows
        return {name: rows for name, rows in self.table.averages.items() if all(row in titles for row in rows)}

    @property
    def translations(self) -> tuple[Augment | None, ...]:
        """What is translated: texts for the views of rows (None), and training sets by augmentation."""
        views = any(METHODS[part].translates for part in self.methods)
        return (*([None] if views else []), *dict.fromkeys(row.augment for row in self.rows if row.augment))

    def translator_of(self, augment: Augment | None) -> str:
        """The translator of an augmentation, at its temperature, or (None) of views."""
        temperature = augment and augment.temperature
        return self.translator if temperature is None else f"{self.translator}@T={temperature:g}"

    def selection_metric(self, task: str) -> str:
        """The metric of a task that selects checkpoints: its first column's."""
        return next(column.metric for column in self.columns.values() if column.task == task)

    def optim(
        self, phase: str, size: int = 0, num_rows: int = 0, row: ResolvedRow | None = None, task: str = ""
    ) -> specs.Optim:
        """The recipe of a phase at `size`, for a task with its own, and for a row with what it changes; steps = epochs * ceil(num_rows / batch_size),
        at least `min_steps`. Raises UserError when the recipe has no epochs for this size."""
        values = group_of(row.on(task) if row else self.under[task], phase, Phase.model_fields)
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

    def pre_train_step(self, row: ResolvedRow) -> int | Literal["last"]:
        """The update of its pre-training that a row starts from: where that has more or fewer updates than in the table's recipe, the
        one at the same share of them."""
        if row.pre_train_step is None:
            return "last"
        return self._scaled(row.pre_train_step, row.recipe, self.optim("pre_train", row=row).steps, f"row {row.name}")

    def _scaled(self, step: int, recipe: Recipe, steps: int, place: str) -> int:
        """`step` of the updates that a recipe over the table's has, at the same share of `steps`. Raises UserError."""
        of = patched(self.table.recipe.values, recipe.values)["pre_train.steps"]
        if not isinstance(of, int) or step > of:
            wrong = f"update {step} is not among the {of} updates of recipe.pre_train.steps; take one of these"
            raise UserError(f"table {self.table.name}, {place}: {wrong}.")
        return max(1, round(step * steps / of))

    @property
    def fractions(self) -> tuple[float, ...]:
        """Of the corpus, those that rows are pre-trained on, the largest first."""
        trained = {row.on()["pre_train.fraction"] for row in self.rows if row.pre_train}
        return tuple(sorted(trained, reverse=True))

    def save_at(self, steps: int) -> set[int]:
        """The updates after which a pre-training stage of `steps` updates stores its weights, besides those that rows start from: at
        the same share as in the recipe that names them."""
        assert self.pre_train is not None
        base = self.table.presets[self.preset]
        recipe = base.recipe if base.pre_train else Recipe()
        return {self._scaled(step, recipe, steps, "key pre_train.save_at") for step in self.pre_train.save_at} - {steps}
