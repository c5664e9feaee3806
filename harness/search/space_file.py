"""What a file under `search_spaces/` may say, and what it says under one preset, with the place of each mistake."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from harness.errors import unknown
from harness.methods import METHODS, methods_named
from harness.planning.recipe import EXCLUSIVE, Count, Scalar, Seed, Size, Value
from harness.planning.request import Override, Request, overrides_of
from harness.planning.resolve import resolve
from harness.planning.row import Row
from harness.planning.table import Table, load_table
from harness.search.parameters import Distribution, GridValues, Parameter, Tunable, tunable_at
from harness.search.trials import Mode
from harness.tasks.metrics import METRICS
from harness.tasks.task import TASKS
from harness.yaml_files import MisplacedError, Strict, one_of, placed

MODES: tuple[Mode, ...] = ("grid", "search")
SAMPLERS = ("tpe", "gp", "random", "grid")
RACINGS = ("none", "asha", "median", "paired")
MOST_POINTS = 10_000
UNVARIED = "neither grid nor search varies it; vary it, or leave it out"


def known_metric(metric: str) -> str:
    """Raises ValueError for a metric that no task has."""
    if metric and metric not in METRICS:
        raise ValueError(str(unknown("metric", metric, METRICS)))
    return metric


class Settings(Strict):
    """What a space says, and a preset may change. `table`, `row`: whose protocol, recipe and replicates are used; `sampler`, `racing`,
    `trials`: of the search; `set`: values that all points share, by the keys of overrides; `defaults`: the point that is tried first.

    What a point is judged by is the table's where it is left out: `metric`, one of the tasks' ('': what the table selects
    checkpoints by), `tasks`, `sizes`, `subsets` (a count) and `seeds`.
    """

    table: str = ""
    row: str = ""
    metric: Annotated[str, AfterValidator(known_metric)] = ""
    tasks: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    sizes: Annotated[tuple[Size, ...], Field(min_length=1)] | None = None
    subsets: Count | None = None
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] | None = None
    sampler: Annotated[str, one_of("sampler", [name for name in SAMPLERS if name != "grid"])] = "tpe"
    racing: Annotated[str, one_of("racing", RACINGS)] = "paired"
    trials: Count = 20
    set: dict[str, Scalar] = Field(default_factory=dict)
    defaults: dict[str, Scalar] = Field(default_factory=dict)
    grid: GridValues = Field(default_factory=dict)
    search: dict[str, Distribution] = Field(default_factory=dict)


class SpacePreset(Settings):
    """What a preset changes; a key left out is the space's. `defaults` and `set` are merged.

    `table_preset`: the preset of the table; by default the one of the same name.
    """

    description: str
    table_preset: str = ""


class Space(Settings):
    """One search space. `method`: as in a table's row, 'cmlm' or 'cmlm+scl'."""

    name: str
    title: str = ""
    method: str
    table: str = Field(min_length=1)
    notes: tuple[str, ...] = ()
    default_preset: str = "quick"
    presets: dict[str, SpacePreset] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        with placed("method"):
            methods_named(self.method)
        if self.presets and self.default_preset not in self.presets:
            raise MisplacedError(["default_preset"], str(unknown("preset", self.default_preset, self.presets)))
        parsed = [each for name in self.presets or [self.default_preset] for each in self.under(name).parsed.values()]
        varied = {parameter.path for parameters, _ in parsed for parameter in parameters}
        for path in self.defaults:
            with placed("defaults", path):
                if tunable_at(path, self.parts).path not in varied:
                    raise ValueError(UNVARIED)
        return self

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.method.split("+"))

    def under(self, preset: str) -> View:
        """The space with the changes of a preset; without presets of its own, for any preset of its table."""
        changes = self.presets.get(preset, SpacePreset(description=""))
        changed = {name: getattr(changes, name) for name in changes.model_fields_set & Settings.model_fields.keys()}
        merged = {name: {**getattr(self, name), **getattr(changes, name)} for name in ("set", "defaults")}
        return View(self.model_copy(update=changed | merged), preset, changes)


@dataclass(frozen=True)
class View:
    """A space under one preset: what holds there, the preset's `changes` included, and where in the file it says so."""

    space: Space
    preset: str
    changes: SpacePreset

    def place(self, key: str, name: str = "") -> tuple[str, ...]:
        """Where `key`, or the entry `name` of it, is set: by the preset or by the space."""
        own = getattr(self.changes, key, {})
        of_preset = key in self.changes.model_fields_set and (name in own if name and isinstance(own, dict) else True)
        return (*(("presets", self.preset) if of_preset else ()), key, *([name] if name else []))

    @property
    def table_preset(self) -> str:
        return self.changes.table_preset or self.preset

    @cached_property
    def table(self) -> Table:
        with placed(*self.place("table")):
            return load_table(self.space.table)

    @cached_property
    def row(self) -> Row | None:
        """The table's row that is tuned: the one that is named, or the first one of the method."""
        name, rows = self.space.row, self.table.rows
        if not name:
            return next((row for row in rows if row.method == self.space.method and not row.pre_train), None)
        with placed(*self.place("row")):
            chosen = next((row for row in rows if row.name == name), None)
            if chosen is None:
                raise unknown("row", name, [row.name for row in rows])
            if not set(self.space.parts) <= {*chosen.parts, "ft"}:
                raise ValueError(f"the row {name} trains {' and '.join(chosen.parts)}, and not {self.space.method}")
        return chosen

    @cached_property
    def parsed(self) -> dict[Mode, tuple[tuple[Parameter, ...], dict[str, Value]]]:
        """By mode what is varied, parents before children, and the default point. Raises MisplacedError for what cannot be."""
        space = self.space
        self._check_table()
        if not space.grid and not space.search:
            raise MisplacedError(self.place("search"), "there is neither a grid nor a search; give one of them")
        found = {mode: self._parameters(mode) for mode in MODES}
        parsed = {mode: (parameters, self._point(parameters, mode)) for mode, parameters in found.items()}
        varied = {parameter.path for parameters in found.values() for parameter in parameters}
        for key in space.set:
            if key in varied or key.removeprefix(f"{space.method}.") in varied:
                raise MisplacedError(self.place("set", key), "the space varies it; leave one of them out")
        for key in self.changes.defaults:
            if tunable_at(key, space.parts).path not in varied:
                raise MisplacedError(self.place("defaults", key), UNVARIED)
        return parsed

    def _parameters(self, mode: Mode) -> tuple[Parameter, ...]:
        parameters: dict[str, Parameter] = {}
        specs: Mapping[str, Any] = getattr(self.space, mode)
        for key, values in specs.items():
            loc = self.place(mode, key)
            with placed(*loc):
                tunable = tunable_at(key, self.space.parts)
                if tunable.path in parameters:
                    raise ValueError(f"{tunable.path} is given twice; keep one")
                self._takes_effect(tunable, parameters)
                parameters[tunable.path] = tunable.parameter(values, loc)
        if mode == "search":
            return _in_order({path: self._conditional(each, parameters) for path, each in parameters.items()})
        with placed(*self.place("grid")):
            points = math.prod(len(parameter.choices) for parameter in parameters.values())
            if points > MOST_POINTS:
                raise ValueError(
                    f"has {points:,} points, and {MOST_POINTS:,} is the most; take fewer values, or search"
                )
        return tuple(parameters.values())

    def _takes_effect(self, tunable: Tunable, before: Mapping[str, Parameter]) -> None:
        """Raises ValueError for a path that changes nothing here, or whose value another one replaces."""
        owner, name, row = tunable.owner, tunable.name, self.row
        for group in EXCLUSIVE:
            other = next((f"{owner}.{other}" for other in group if other != name and name in group), "")
            if other in before:
                raise ValueError(f"{tunable.path} replaces {other}, which is varied too; keep one")
        if owner in METHODS:
            if row and any(key in row.set for key in (f"{owner}.{name}", *[name] * (owner == row.parts[0]))):
                raise ValueError(f"the row {row.name} of table {self.table.name} sets {name} itself; leave it out")
            return
        methods = [METHODS[part] for part in (row.method if row else self.space.method).split("+") if part in METHODS]
        trains = {
            "fine_tune": True,
            "post_train": any(method.train for method in methods),
            "pre_train": bool(row and row.pre_train),
        }
        if not trains[owner]:
            raise ValueError(f"{row.name if row else self.space.method} has no {owner}; leave it out")

    def _conditional(self, parameter: Parameter, parameters: Mapping[str, Parameter]) -> Parameter:
        """The same with `when`, checked against the parents."""
        path, when = parameter.path, {}
        for key, values in self.space.search[parameter.loc[-1]].when.items():
            with placed(*parameter.loc, "when", key):
                parent = tunable_at(key, self.space.parts)
                if parent.path == path:
                    raise ValueError(f"{path} depends on itself; name another parameter")
                if parent.path not in parameters:
                    raise ValueError(f"{parent.path} is not in search; add it there, or leave the condition out")
                choices = parameters[parent.path].choices
                if not choices:
                    raise ValueError(f"{parent.path} has no choice; a condition needs one")
                if not values:
                    raise ValueError("is empty, so that it never holds; list the values under which it is varied")
                when[parent.path] = parent.values(values)
                if never := [value for value in when[parent.path] if value not in choices]:
                    raise ValueError(
                        f"{parent.path} is never {never[0]!r}; it is one of {', '.join(map(str, choices))}"
                    )
        return replace(parameter, when=when)

    def _point(self, parameters: tuple[Parameter, ...], mode: Mode) -> dict[str, Value]:
        """A value for each parameter that is active in the default point, inside of what the search draws from."""
        given: dict[str, Value] = {}
        for key, value in self.space.defaults.items():
            with placed(*self.place("defaults", key)):
                tunable = tunable_at(key, self.space.parts)
                if tunable.path in given:
                    raise ValueError(f"{tunable.path} is given twice; keep one")
                given[tunable.path] = tunable.value(value)
                parameter = next((each for each in parameters if each.path == tunable.path), None)
                if mode == "search" and parameter and not parameter.holds(given[tunable.path]):
                    raise ValueError(f"{given[tunable.path]!r} is outside of the search: {parameter.described()}")
        point: dict[str, Value] = {}
        for parameter in parameters:
            if parameter.active(point):
                if parameter.path not in given:
                    raise MisplacedError(parameter.loc, f"has no default; add {parameter.path} to defaults")
                point[parameter.path] = given[parameter.path]
        return point

    def fixed(self, mode: Mode) -> tuple[Override, ...]:
        """What the default point says of parameters that only the other mode varies: the same for all points."""
        varied = {parameter.path for parameter in self.parsed[mode][0]}
        others, point = self.parsed["search" if mode == "grid" else "grid"]
        origin = f"space {self.space.name}, key defaults,"
        return tuple(
            Override(each.key, point[each.path], origin=origin)
            for each in others
            if each.path in point and each.path not in varied
        )

    def _check_table(self) -> None:
        table, preset, space = self.table, self.table_preset, self.space
        if preset not in table.presets:
            loc = self.place("table_preset") if self.changes.table_preset else ("presets", self.preset)
            loc = loc if space.presets else ("default_preset",)
            raise MisplacedError(loc, str(unknown("preset", preset, table.presets, f"table {table.name}")))
        _ = self.row
        with placed(*self.place("sizes")):
            for size in space.sizes or ():
                if table.sizes and size not in table.sizes:
                    raise unknown("size", str(size), map(str, table.sizes), f"table {table.name}")
        with placed(*self.place("set")):
            tasks = None if table.presets[preset].tasks or table.tasks else (next(iter(TASKS)),)  # own: any will do
            resolve(table, Request(preset=preset, tasks=tasks, overrides=overrides_of(space.set)))
        most = max(table.subsets, table.presets[preset].subsets or 0)
        if (space.subsets or 0) > most:
            raise MisplacedError(self.place("subsets"), f"table {table.name} has {most} subsets; take as many or fewer")


def _in_order(parameters: Mapping[str, Parameter]) -> tuple[Parameter, ...]:
    """Parents before children, otherwise as in the file."""
    waiting, ordered = dict(parameters), dict[str, Parameter]()
    while waiting:
        ready = [path for path, parameter in waiting.items() if parameter.when.keys() <= ordered.keys()]
        if not ready:
            path, parameter = next(iter(waiting.items()))
            raise MisplacedError(
                [*parameter.loc, "when"], f"{path} depends on itself through {', '.join(parameter.when)}"
            )
        ordered[ready[0]] = waiting.pop(ready[0])
    return tuple(ordered.values())
