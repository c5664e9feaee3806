"""A row of a table: as its YAML file says it, and with all that it trains with."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, model_validator

from harness.methods import METHODS
from harness.planning.recipe import (
    PHASES,
    Augment,
    Count,
    EncoderSettings,
    Phase,
    Recipe,
    Share,
    Value,
    Values,
    group_of,
    patched,
    read_value,
)
from harness.planning.request import Override
from harness.yaml_files import MisplacedError, Strict, placed

T = TypeVar("T")

Place = tuple[int, str, str, int, int]
"""Where a table has a score: (size, row, column, subset, seed)."""


ByTask = Mapping[str, Values]
"""Values by task, under '' those of all that have no others."""


def drawn(points: Sequence[T], draws: int, seed: str) -> list[T]:
    """`draws` of the points of a grid, without replacement."""
    return random.Random(seed).sample(points, min(draws, len(points)))


class Grid(Strict):
    """Values by hyperparameter, or by value of the recipe ('fine_tune.lr'), for a group of `tasks` (none: those of the row)."""

    tasks: tuple[str, ...] = ()
    grid: dict[str, tuple[Value, ...]] = Field(min_length=1)


def _as_grids(value: object) -> object:
    return [{"grid": value}] if isinstance(value, Mapping) else value


class Row(Strict):
    """One row: a method with the hyperparameters that make it this row.

    `method`: 'cmlm', or several after one another as 'cmlm+scl'; `pre_train`: the same, before, on the table's corpus; `pre_train_step`: the
    update of pre-training that it starts from (left out: the last), of those in the table's own recipe; `pre_train_fraction`: of the corpus's
    texts, where it is not the table's. `set`: hyperparameters by name, by 'method.name' where the row has several methods, and `encoder.`
    settings of this row alone. `recipe`: what this row changes in the recipe. `unlabelled`: post-training reads so many texts, those of the
    training set and further ones. `augment`: back-translations as further labelled rows of fine-tuning, over the same updates. `incomparable`:
    why our row gets no verdict even under the paper's preset. `tasks`: those that it is run on (left out: all).
    `grid`: the values of a grid, or a list with a grid for each group of tasks: the row is printed, and has a configuration for each point, or
    for `draws` of them; rows with the same tasks and grid draw the same points. `configuration_of`: the printed row that it is one of several
    configurations of. `line`: of the table's figure (left out: that of its pre-training).
    """

    name: str
    pre_train: str = ""
    pre_train_step: Count | None = None
    pre_train_fraction: Share | None = None
    method: str = Field(min_length=1)
    set: dict[str, Value] = Field(default_factory=dict)
    recipe: Recipe = Recipe()
    unlabelled: Count | None = None
    augment: Augment | None = None
    incomparable: str = ""
    tasks: tuple[str, ...] = ()
    grid: Annotated[tuple[Grid, ...], BeforeValidator(_as_grids)] = ()
    draws: Count | None = None
    configuration_of: str = ""
    line: str = ""

    @model_validator(mode="after")
    def _fits(self) -> Row:
        tasks = [bool(each.tasks) for each in self.grid]
        for key, wrong, why in (
            ("pre_train_step", self.pre_train_step and not self.pre_train, "the row has no pre_train to start from"),
            ("pre_train_fraction", self.pre_train_fraction and not self.pre_train, "the row has no pre_train"),
            ("grid", len(tasks) > 1 and not all(tasks), "name the tasks of each of several grids"),
            ("tasks", self.tasks and any(tasks), "the grids of the row name their tasks; leave tasks out"),
            ("draws", self.draws and not self.grid, "there is no grid to draw from"),
        ):
            if wrong:
                raise MisplacedError([key], why)
        for key, value in self.set.items():
            with placed("set", key):
                self._check(key, value)
        for index, part in enumerate(self.grid):
            for key, place in ((key, place) for key, values in part.grid.items() for place in range(len(values))):
                with placed("grid", index, "grid", key, place):
                    self._check(key, part.grid[key][place], PHASES)
        return self

    def _check(self, key: str, value: Value, phases: Sequence[str] = ()) -> None:
        """Raises ValueError for a value that does not fit its key; of the recipe for `phases` alone."""
        group, _, name = key.rpartition(".")
        if len(self.parts) > 1 and group not in ("encoder", *self.parts, *phases):
            known = " or ".join(f"{part}.{key}" for part in dict.fromkeys(self.parts))
            raise ValueError(f"the row has several methods; write {known}")
        models: dict[str, type[Strict]] = {**METHODS, "encoder": EncoderSettings, **dict.fromkeys(phases, Phase)}
        if model := models.get(group or self.parts[0]):
            read_value(model, name, value)

    @property
    def configurations(self) -> tuple[Row, ...]:
        """The row itself, or a row for each point of its grids, or for each of the points that are drawn."""
        found = []
        for part in self.grid:
            tasks = part.tasks or self.tasks
            points = [dict(zip(part.grid, values, strict=True)) for values in itertools.product(*part.grid.values())]
            points = drawn(points, self.draws, f"{' '.join(tasks)} 0") if self.draws else points
            name = f"{self.name} on {', '.join(part.tasks)}" if part.tasks else self.name
            found += [self._at(name, tasks, point) for point in points]
        return tuple(found) if self.grid else (self,)

    def _at(self, name: str, tasks: tuple[str, ...], point: Mapping[str, Value]) -> Row:
        """The row with the values of a point. Its name has the last parts of their keys."""
        shown = [f"{key.rpartition('.')[2]} {value}" for key, value in point.items()]
        of_recipe = {key: value for key, value in point.items() if key.partition(".")[0] in PHASES}
        settings = self.set | {key: value for key, value in point.items() if key not in of_recipe}
        recipe = patched(self.recipe.values, of_recipe)
        changed: dict[str, Any] = {"name": f"{name}, {', '.join(shown)}", "tasks": tasks, "set": settings}
        changed |= {"recipe": Recipe(**{phase: group_of(recipe, phase) for phase in PHASES}), "grid": (), "draws": None}
        return self.model_copy(update={**changed, "configuration_of": self.title})

    @property
    def title(self) -> str:
        return self.configuration_of or self.name

    @property
    def own_values(self) -> dict[str, Any]:
        """What it sets, by keys as overrides have them."""
        known = ("encoder", *self.parts)
        named = {key if key.partition(".")[0] in known else f"{self.parts[0]}.{key}": v for key, v in self.set.items()}
        fraction = self.pre_train_fraction
        return self.recipe.values | named | ({"pre_train.fraction": fraction} if fraction else {})

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the row's methods, pre-training first."""
        return tuple(part for text in (self.pre_train, self.method) if text for part in text.split("+"))

    @property
    def groups(self) -> tuple[str, ...]:
        """Its methods, and the phases that it trains, fine-tuning first."""
        unlabelled = any(not METHODS[part].labelled for part in self.method.split("+") if part in METHODS)
        phases = {"fine_tune": True, "post_train": unlabelled, "pre_train": bool(self.pre_train)}
        return (*self.parts, *(phase for phase in PHASES if phases[phase]))


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


def rows_named(rows: Iterable[Row], name: str) -> list[Row]:
    """Those of the rows that a name means: the row of that name, else all rows of the method of that name."""
    rows, lower = list(rows), name.lower()
    found = [row for row in rows if name in (row.name, row.title)]
    found = found or [row for row in rows if row.method and row.method.lower() == lower]
    return found or [row for row in rows if lower in (row.name.lower(), row.title.lower())]
