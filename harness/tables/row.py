"""A row of a table as its YAML file says it: methods, what they are set to, and its configurations."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError, model_validator

from harness.errors import unknown
from harness.tables.recipe import Augment, Count, EncoderSettings, Phase, Recipe, Seed, Share, Value
from harness.tables.values import PHASES
from harness.yaml_files import MisplacedError, Strict, describe_errors

ENCODER = "encoder."
"""How keys of a row's `set` and of overrides begin that are settings of the encoder."""


def encoder_part(settings: Mapping[str, Any]) -> dict[str, int]:
    """Of settings by key, those of the encoder, by name."""
    return {key.removeprefix(ENCODER): int(value) for key, value in settings.items() if key.startswith(ENCODER)}


class TaskGrid(Strict):
    """The grid of a row on some tasks."""

    tasks: tuple[str, ...] = Field(min_length=1)
    grid: dict[str, tuple[Value, ...]] = Field(min_length=1)


class Row(Strict):
    """One row: a method with the hyperparameters that make it this row, or a reason why it is not run.

    `method`: 'cmlm', or several after one another as 'cmlm+scl'; `pre_train`: the same, before, on the table's corpus;
    `pre_train_step`: the update of pre-training that it starts from (left out: the last), of those in the table's own recipe;
    `pre_train_fraction`: the fraction of the corpus's texts, where it is not the table's. `set`:
    hyperparameters by name, by 'method.name' where the row has several methods, and `encoder.` settings of this row alone.
    `incomparable`: why our row gets no verdict even under the paper's preset (for example values the paper leaves out).
    `configuration_of`: the printed row that it is one of several configurations of. `tasks`: those that it is run on (left out: all).
    `grid`: values by hyperparameter, or by value of the recipe ('fine_tune.lr'); the row is printed, and has a configuration for each
    point, or for `draws` of them, drawn without replacement under `draw_seed`: rows with the same tasks and grid draw the same points.
    `grids`: such a grid for each group of tasks instead, and the row is run on these tasks.
    `line`: the line of the table's figure that it is on (left out: that of its pre-training).
    `recipe`: what this row changes in the recipe; `unlabelled`: post-training reads so many texts, those of the training set
    and further ones of the training rows (left out: those of the training set). `augment`: back-translations as further labelled
    rows of fine-tuning, over the updates that the training set takes without them.
    """

    name: str
    pre_train: str = ""
    pre_train_step: Count | None = None
    pre_train_fraction: Share | None = None
    method: str = ""
    set: dict[str, Value] = Field(default_factory=dict)
    recipe: Recipe = Recipe()
    unlabelled: Count | None = None
    augment: Augment | None = None
    skip: str = ""
    incomparable: str = ""
    configuration_of: str = ""
    tasks: tuple[str, ...] = ()
    grid: dict[str, tuple[Value, ...]] = Field(default_factory=dict)
    grids: tuple[TaskGrid, ...] = ()
    draws: Count | None = None
    draw_seed: Seed = 0
    line: str = ""

    @model_validator(mode="after")
    def _runs_or_skips(self) -> Row:
        if not self.method and not self.skip:
            raise MisplacedError(["method"], "a row needs a method, or a skip with the reason")
        for key in ("pre_train_step", "pre_train_fraction"):
            if getattr(self, key) and not self.pre_train:
                raise MisplacedError([key], "the row has no pre_train to start from")
        for key in ("grid", "tasks"):
            if self.grids and getattr(self, key):
                raise MisplacedError([key], f"the row has grids, which name their tasks; leave {key} out")
        if self.draws and not self.grid and not self.grids:
            raise MisplacedError(["draws"], "there is no grid to draw from")
        self._check_grid(["grid"], self.grid)
        for index, each in enumerate(self.grids):
            self._check_grid(["grids", index, "grid"], each.grid)
        several = len(self.parts) > 1
        for key, value in self.set.items():
            if key.startswith(ENCODER):
                self._check_encoder(key, value)
            elif several and key.partition(".")[0] not in self.parts:
                known = " or ".join(f"{part}.{key}" for part in dict.fromkeys(self.parts))
                raise MisplacedError(["set", key], f"the row has several methods; write {known}")
        return self

    @staticmethod
    def _check_grid(loc: list[Any], grid: Mapping[str, tuple[Value, ...]]) -> None:
        """Raises MisplacedError for a value of the recipe that does not fit it; `loc`: the place of the grid in the row."""
        names = [key.rpartition(".")[2] for key in grid]
        for key, name in zip(grid, names, strict=True):
            if names.count(name) > 1:
                raise MisplacedError([*loc, key], f"two values of a grid are named {name}; write two rows")
        for key, values in grid.items():
            phase, _, name = key.partition(".")
            for index, value in enumerate(values if phase in PHASES else ()):
                try:
                    Phase.model_validate({name: value})
                except ValidationError as error:
                    raise MisplacedError([*loc, key, index], describe_errors(error, Phase, key)) from None

    def _check_encoder(self, key: str, value: Value) -> None:
        name = key.removeprefix(ENCODER)
        if name not in EncoderSettings.model_fields:
            known = [f"{ENCODER}{each}" for each in EncoderSettings.model_fields]
            raise MisplacedError(["set", key], str(unknown("key", key, known)))
        least = 1 if name == "relative_distance" else 0
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise MisplacedError(["set", key], f"should be a whole number of {least} or more, not {value!r}")

    @property
    def configurations(self) -> tuple[Row, ...]:
        """The row itself, or a row for each point of its grid, or for each of the points that are drawn."""
        if self.grids:
            return tuple(each for part in map(self._on, self.grids) for each in part.configurations)
        if not self.grid:
            return (self,)
        points = [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]
        if self.draws:
            of_all = random.Random(f"{' '.join(self.tasks)} {self.draw_seed}")
            points = of_all.sample(points, min(self.draws, len(points)))
        return tuple(self._at(point) for point in points)

    def _on(self, of: TaskGrid) -> Row:
        """The row on the tasks of one of its grids."""
        name = f"{self.name} on {', '.join(of.tasks)}"
        changed = {"name": name, "tasks": of.tasks, "grid": of.grid, "grids": (), "configuration_of": self.title}
        return self.model_copy(update=changed)

    def _at(self, point: Mapping[str, Value]) -> Row:
        """The row with the values of a point: hyperparameters, and values of the recipe. Its name has the last parts of their keys,
        which `_check_grid` keeps distinct."""
        recipe: dict[str, dict[str, Value]] = {}
        for key, value in point.items():
            phase, _, name = key.partition(".")
            if phase in PHASES:
                recipe.setdefault(phase, {})[name] = value
        values = {key: value for key, value in point.items() if key.partition(".")[0] not in PHASES}
        shown = [f"{key.rpartition('.')[2]} {value}" for key, value in point.items()]
        changed: dict[str, Any] = {
            "name": f"{self.name}, {', '.join(shown)}",
            "set": self.set | values,
            "recipe": self.recipe.patched(Recipe.model_validate(recipe)),
            "grid": {},
            "draws": None,
            "configuration_of": self.title,
        }
        return self.model_copy(update=changed)

    def takes(self, task: str) -> bool:
        """Whether the row is run on a task."""
        return not self.tasks or task in self.tasks

    @property
    def title(self) -> str:
        """The printed row that its runs belong to."""
        return self.configuration_of or self.name

    @property
    def encoder_settings(self) -> dict[str, int]:
        """Settings of the encoder for this row alone, over those of its table."""
        return encoder_part(self.set)

    @property
    def hyperparameters(self) -> dict[str, Value]:
        """The hyperparameters of its methods that this row sets."""
        return {key: value for key, value in self.set.items() if not key.startswith(ENCODER)}

    @property
    def recipe_settings(self) -> dict[str, dict[str, Any]]:
        """What the row changes in the recipe, by phase and name."""
        found = self.recipe.model_dump(exclude_none=True)
        return {phase: values for phase, values in found.items() if values}

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the row's methods, pre-training first."""
        return tuple(part for text in (self.pre_train, self.method) if text for part in text.split("+"))
