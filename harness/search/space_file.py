"""What a file under `search_spaces/` may say, and what it says under one preset, with the place of each mistake."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from harness.errors import UserError, unknown
from harness.methods import METHODS, methods_named
from harness.search.parameters import (
    Distribution,
    GridValues,
    Parameter,
    Tunable,
    as_list,
    checked_values,
    sampled_parameter,
    tunable_at,
)
from harness.search.trials import Direction
from harness.tables.recipe import Count, Scalar, Seed, Size, Value
from harness.tables.request import Request, overrides_of
from harness.tables.resolve import resolve
from harness.tables.row import Row
from harness.tables.table import Table, load_table
from harness.tables.values import EXCLUSIVE
from harness.tasks.metrics import METRICS
from harness.tasks.task import TASKS
from harness.yaml_files import MisplacedError, Strict

Mode = Literal["grid", "search"]
Loc = list[int | str]

MODES: tuple[Mode, ...] = ("grid", "search")
SAMPLERS = ("tpe", "random", "grid", "cmaes", "nsga2")
RACINGS = ("none", "asha", "median", "paired")
FLOPS = "flops"
"""The metric that every task has: what the stages of a run cost."""
MOST_POINTS = 10_000


def _metrics(value: object) -> object:
    return () if value == "" else as_list(value)


class Target(Strict):
    """What a point is judged by; a key left out is the table's. `metric`: one or several of the tasks' or 'flops'; '' is what
    the table selects checkpoints by. `direction`: one for each. `subsets` is a count."""

    metric: Annotated[tuple[str, ...], BeforeValidator(_metrics)] | None = None
    direction: Annotated[tuple[Direction, ...], BeforeValidator(as_list)] | None = None
    tasks: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    sizes: Annotated[tuple[Size, ...], Field(min_length=1)] | None = None
    subsets: Count | None = None
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] | None = None


class SpacePreset(Target):
    """What a preset changes; a key left out is the space's. `defaults` and `set` are merged, `grid` and `search` replaced.

    `table_preset`: the preset of the table; by default the one of the same name.
    """

    description: str
    table_preset: str | None = None
    table: str | None = None
    row: str | None = None
    sampler: str | None = None
    racing: str | None = None
    trials: Count | None = None
    set: dict[str, Scalar] = Field(default_factory=dict)
    defaults: dict[str, Scalar] = Field(default_factory=dict)
    grid: GridValues | None = None
    search: dict[str, Distribution] | None = None


class Space(Strict):
    """One search space. `method`: as in a table's row, 'cmlm' or 'cmlm+scl'; `table`, `row`: whose protocol, recipe and
    replicates are used; `sampler`, `racing`, `trials`: of the search; `set`: values that all points share, by the keys of
    overrides; `defaults`: the point that is tried first."""

    name: str
    title: str = ""
    method: str
    table: str
    row: str = ""
    target: Target = Target()
    sampler: str = "tpe"
    racing: str = "paired"
    trials: Count = 20
    set: dict[str, Scalar] = Field(default_factory=dict)
    defaults: dict[str, Scalar] = Field(default_factory=dict)
    grid: GridValues = Field(default_factory=dict)
    search: dict[str, Distribution] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    default_preset: str = "quick"
    presets: dict[str, SpacePreset] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        with placed(["method"]):
            methods_named(self.method)
        if self.presets and self.default_preset not in self.presets:
            raise MisplacedError(["default_preset"], str(unknown("preset", self.default_preset, self.presets)))
        views = [View(self, name) for name in self.presets or [self.default_preset]]
        varied = {path for view in views for path in view.check()}
        for path in self.defaults:
            with placed(["defaults", path]):
                if tunable_at(path, self.parts).path not in varied:
                    raise ValueError(UNVARIED)
        return self

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.method.split("+"))


UNVARIED = "neither grid nor search varies it; vary it, or leave it out"


@contextmanager
def placed(loc: Loc) -> Iterator[None]:
    """What is raised below is wrong at `loc` of the file."""
    try:
        yield
    except MisplacedError:
        raise
    except (UserError, ValueError) as error:
        raise MisplacedError(loc, str(error)) from None


@dataclass(frozen=True)
class View:
    """A space under one preset: what holds there, and where in the file it says so."""

    space: Space
    preset: str

    @cached_property
    def changes(self) -> SpacePreset | None:
        return self.space.presets.get(self.preset)

    def place(self, key: str) -> Loc:
        """Where `key` is set: by the preset, by the target or by the space."""
        if self.changes is not None and key in self.changes.model_fields_set:
            return ["presets", self.preset, key]
        return ["target", key] if key in Target.model_fields else [key]

    def get(self, key: str) -> Any:
        own = getattr(self.changes, key, None)
        return own if own is not None else getattr(self.space.target if key in Target.model_fields else self.space, key)

    @property
    def table_preset(self) -> str:
        return (self.changes and self.changes.table_preset) or self.preset

    @cached_property
    def table(self) -> Table:
        with placed(self.place("table")):
            return load_table(self.get("table"))

    @cached_property
    def row(self) -> Row | None:
        """The table's row that is tuned: the one that is named, or the first one of the method."""
        name, rows = self.get("row"), self.table.rows
        if not name:
            return next((row for row in rows if row.method == self.space.method and not row.pre_train), None)
        found = next((row for row in rows if row.name == name), None)
        if found is None:
            raise MisplacedError(self.place("row"), str(unknown("row", name, [row.name for row in rows])))
        if not set(self.space.parts) <= {*found.parts, "ft"}:
            trains = " and ".join(found.parts)
            raise MisplacedError(self.place("row"), f"the row {name} trains {trains}, and not {self.space.method}")
        return found

    @property
    def metrics(self) -> tuple[str, ...]:
        return self.get("metric") or ()

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The target's, unless the preset has metrics of its own."""
        stale = self.place("metric")[0] == "presets" and self.place("direction")[0] != "presets"
        given: tuple[Direction, ...] | None = None if stale else self.get("direction")
        return given or directions_of(self.metrics)

    def parameters(self, mode: Mode) -> tuple[Parameter, ...]:
        """What is varied, in the order of the file, parents before children."""
        found: dict[str, tuple[Parameter, Loc]] = {}
        for key, values in self.get(mode).items():
            loc = [*self.place(mode), key]
            with placed(loc):
                tunable = tunable_at(key, self.space.parts)
                if tunable.path in found:
                    raise ValueError(f"{tunable.path} is given twice; keep one")
                self._takes_effect(tunable, list(found))
            if isinstance(values, Distribution):
                found[tunable.path] = sampled_parameter(tunable, values, loc), loc
            else:
                found[tunable.path] = Parameter(tunable.path, checked_values(tunable, values, loc)), loc
        if mode == "grid":
            points = math.prod(len(parameter.choices) for parameter, _ in found.values())
            if points > MOST_POINTS:
                raise MisplacedError(
                    self.place("grid"),
                    f"has {points:,} points, and {MOST_POINTS:,} is the most; take fewer values, or search",
                )
            return tuple(parameter for parameter, _ in found.values())
        return _in_order(self._conditional(found))

    def _takes_effect(self, tunable: Tunable, before: list[str]) -> None:
        """Raises ValueError for a path that changes nothing here, or whose value another one replaces."""
        phase, name = tunable.owner, tunable.name
        for group in EXCLUSIVE:
            other = next((f"{phase}.{other}" for other in group if other != name and name in group), "")
            if other in before:
                raise ValueError(f"{tunable.path} replaces {other}, which is varied too; keep one")
        row = self.row
        if tunable.method is not None:
            own = (
                {} if row is None else {key if "." in key else f"{row.parts[0]}.{key}": v for key, v in row.set.items()}
            )
            if row is not None and f"{tunable.owner}.{name}" in own:
                raise ValueError(f"the row {row.name} of table {self.table.name} sets {name} itself; leave it out")
            return
        methods = [METHODS[part] for part in (row.method if row else self.space.method).split("+") if part in METHODS]
        trains = {
            "fine_tune": True,
            "post_train": any(method.train for method in methods),
            "pre_train": bool(row and row.pre_train),
        }
        if not trains[phase]:
            raise ValueError(f"{row.name if row else self.space.method} has no {phase}; leave it out")

    def _conditional(self, found: Mapping[str, tuple[Parameter, Loc]]) -> dict[str, tuple[Parameter, Loc]]:
        """The same with `when`, checked against the parents."""
        parts, specs = self.space.parts, self.get("search")
        done = {}
        for path, (parameter, loc) in found.items():
            when = {}
            for key, values in specs[loc[-1]].when.items():
                at = [*loc, "when", key]
                with placed(at):
                    parent = tunable_at(key, parts)
                    if parent.path == path:
                        raise ValueError(f"{path} depends on itself; name another parameter")
                    if parent.path not in found:
                        raise ValueError(f"{parent.path} is not in search; add it there, or leave the condition out")
                    choices = found[parent.path][0].choices
                    if not choices:
                        raise ValueError(f"{parent.path} has no choice; a condition needs one")
                    for value in (when_values := checked_values(parent, values, at)):
                        if value not in choices:
                            raise ValueError(
                                f"{parent.path} is never {value!r}; it is one of {', '.join(map(str, choices))}"
                            )
                    when[parent.path] = when_values
            done[path] = Parameter(**{**vars(parameter), "when": when}), loc
        return done

    def shared(self) -> dict[str, Value]:
        """What all points share, by the keys of overrides: the space's, then the preset's."""
        return {**self.space.set, **(self.changes.set if self.changes else {})}

    def defaults(self) -> dict[str, tuple[Value, Loc]]:
        """The paper's point by path: the space's, then the preset's."""
        found: dict[str, tuple[Value, Loc]] = {}
        places: list[tuple[Loc, Mapping[str, Value]]] = [(["defaults"], self.space.defaults)]
        if self.changes is not None:
            places.append((["presets", self.preset, "defaults"], self.changes.defaults))
        for place, values in places:
            mine = set()
            for key, value in values.items():
                loc = [*place, key]
                with placed(loc):
                    tunable = tunable_at(key, self.space.parts)
                    if tunable.path in mine:
                        raise ValueError(f"{tunable.path} is given twice; keep one")
                    mine.add(tunable.path)
                    found[tunable.path] = tunable.value(value), loc
        return found

    def point(self, parameters: tuple[Parameter, ...], mode: Mode) -> dict[str, Value]:
        """The default point: a value for each parameter that is active in it, inside of what the search draws from."""
        given, point = self.defaults(), dict[str, Value]()
        for parameter in parameters:
            path = parameter.path
            if path in given and mode == "search" and not parameter.holds(given[path][0]):
                value, loc = given[path]
                raise MisplacedError(loc, f"{value!r} is outside of the search: {parameter.described()}")
            if not parameter.active(point):
                continue
            if path not in given:
                key = next(key for key in self.get(mode) if tunable_at(key, self.space.parts).path == path)
                raise MisplacedError([*self.place(mode), key], f"has no default; add {path} to defaults")
            point[path] = given[path][0]
        return point

    def check(self) -> set[str]:
        """The paths that are varied. Raises MisplacedError for what cannot be."""
        for key, known in (("sampler", [s for s in SAMPLERS if s != "grid"]), ("racing", RACINGS)):
            if self.get(key) not in known:
                raise MisplacedError(self.place(key), str(unknown(key, self.get(key), known)))
        for index, metric in enumerate(self.metrics):
            if metric not in (*METRICS, FLOPS):
                raise MisplacedError(self.place("metric"), str(unknown("metric", metric, (*METRICS, FLOPS))))
            if metric in self.metrics[:index]:
                raise MisplacedError(self.place("metric"), f"{metric} is given twice; keep one")
        if len(self.directions) != max(1, len(self.metrics)):
            raise MisplacedError(
                self.place("direction"),
                f"has {len(self.directions)} for {len(self.metrics)} metrics; give one for each",
            )
        self._check_table()
        if not self.get("grid") and not self.get("search"):
            raise MisplacedError(self.place("search"), "there is neither a grid nor a search; give one of them")
        parameters = {mode: self.parameters(mode) for mode in MODES}
        for mode in MODES:
            self.point(parameters[mode], mode)
        varied = {parameter.path for mode in MODES for parameter in parameters[mode]}
        for key in self.shared():
            if key in varied or key.removeprefix(f"{self.space.method}.") in varied:
                loc = self.place("set") if self.changes and key in self.changes.set else ["set"]
                raise MisplacedError([*loc, key], "the space varies it; leave one of them out")
        for path, (_, loc) in self.defaults().items():
            if loc[0] == "presets" and path not in varied:
                raise MisplacedError(loc, UNVARIED)
        return varied

    def _check_table(self) -> None:
        table, preset = self.table, self.table_preset
        if preset not in table.presets:
            loc: Loc = ["presets", self.preset] if self.changes else ["default_preset"]
            loc = self.place("table_preset") if self.changes and self.changes.table_preset else loc
            raise MisplacedError(loc, str(unknown("preset", preset, table.presets, f"table {table.name}")))
        _ = self.row
        for size in self.get("sizes") or ():
            if table.sizes and size not in table.sizes:
                error = unknown("size", str(size), map(str, table.sizes), f"table {table.name}")
                raise MisplacedError(self.place("sizes"), str(error))
        with placed(self.place("set")):
            tasks = None if table.presets[preset].tasks or table.tasks else (next(iter(TASKS)),)  # own: any will do
            resolve(table, Request(preset=preset, tasks=tasks, overrides=overrides_of(self.shared())))
        most = max(table.subsets, table.presets[preset].subsets or 0)
        if (self.get("subsets") or 0) > most:
            raise MisplacedError(self.place("subsets"), f"table {table.name} has {most} subsets; take as many or fewer")


def directions_of(metrics: tuple[str, ...]) -> tuple[Direction, ...]:
    """Scores rise, FLOPs fall."""
    return tuple("minimize" if metric == FLOPS else "maximize" for metric in metrics or ("",))


def _in_order(found: Mapping[str, tuple[Parameter, Loc]]) -> tuple[Parameter, ...]:
    """Parents before children, otherwise as in the file."""
    waiting, ordered = dict(found), dict[str, Parameter]()
    while waiting:
        ready = [path for path, (parameter, _) in waiting.items() if set(parameter.when) <= set(ordered)]
        if not ready:
            path, (parameter, loc) = next(iter(waiting.items()))
            raise MisplacedError([*loc, "when"], f"{path} depends on itself through {', '.join(parameter.when)}")
        ordered[ready[0]] = waiting.pop(ready[0])[0]
    return tuple(ordered.values())
