"""A method's search space as data: the paper's grid, wider distributions, the paper's point, what is judged, and presets.

One YAML file under `search_spaces/` each, read by `load_space`. `resolve_space` makes of it, for a request, under one preset, one
flat object. Imports no optuna: callers pass trials in.
"""

from __future__ import annotations

import itertools
import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from harness.errors import UserError, hint, unknown
from harness.methods import METHODS, methods_named
from harness.planning.recipe import PHASES, Count, Number, Phase, Scalar, Seed, Size, Value, read_value, replaced
from harness.planning.request import OWN_TABLE, YAML, Override, Request, is_own, overrides_of
from harness.planning.table import load_table
from harness.search.request import MODES, Point, Racing, TuneRequest
from harness.yaml_files import MisplacedError, Strict, load_named, packaged_files, placed

if TYPE_CHECKING:
    from harness.planning.resolved import ResolvedRow
    from harness.tasks.task import Task

DEFAULT_PRESET = "quick"


class Tunable(NamedTuple):
    """What a path names: a hyperparameter of `owner`, or a field of the recipe phase `owner`. `path`: 'name' where the space's method has one part,
    'part.name' where it has several, 'phase.field' of a recipe."""

    path: str
    owner: str
    name: str

    def value(self, value: Value) -> Value:
        """The value as the field reads it. Raises ValueError with a sentence for a wrong one."""
        return typing.cast(Value, read_value(METHODS.get(self.owner, Phase), self.name, value))

    def values(self, values: Iterable[Value]) -> tuple[Value, ...]:
        return tuple(dict.fromkeys(map(self.value, values)))


def tunable_at(path: str, parts: tuple[str, ...]) -> Tunable:
    """The hyperparameter or recipe field that `path` names, for a method with these parts. Raises ValueError."""
    owner, _, name = path.rpartition(".")
    if owner in PHASES and name in Phase.model_fields:
        return Tunable(path, owner, name)
    own = [(part, field) for part in parts for field in METHODS[part].model_fields]
    takers = [(part, field) for part, field in own if field == name and owner in ("", part)]
    if len(parts) > 1 and takers and not owner:
        fix = " or ".join(map(".".join, takers))
        raise ValueError(f"the method has several parts; write {fix} instead of {path}")
    if takers:
        return Tunable(name if len(parts) == 1 else path, *takers[0])
    known = sorted(".".join(each) if len(parts) > 1 else each[1] for each in own)
    meant = hint(path, [*known, *(f"{phase}.{field}" for phase in PHASES for field in Phase.model_fields)])
    raise ValueError(f"unknown parameter '{path}'.{meant} Known: {', '.join([*known, *(f'{p}.*' for p in PHASES)])}")


Values = Annotated[tuple[Scalar, ...], Field(min_length=1)]
OneOrMore = Annotated[Values, BeforeValidator(lambda value: [value] if isinstance(value, Value) else value)]


class Choice(Strict):
    """What a parameter is drawn from: a list of values. `when`: the values of other searched parameters under which this one has an effect;
    otherwise it is left out of the point."""

    choice: Values = ()
    when: dict[str, OneOrMore] = Field(default_factory=dict)

    def active(self, point: Point) -> bool:
        """Its parents, as far as the point goes, have values under which it has an effect."""
        return all(point.get(parent) in values for parent, values in self.when.items())

    @property
    def num_values(self) -> float:
        """How many values it can take; infinite for a continuous range."""
        return len(self.choice)

    def holds(self, value: Value) -> bool:
        return value in self.choice

    def suggest(self, trial: Any, path: str) -> Value:
        """The value that an optuna trial gives the parameter `path`."""
        return typing.cast(Value, trial.suggest_categorical(path, list(self.choice)))

    def read(self, tunable: Tunable, parts: tuple[str, ...]) -> Self:
        """The same with all values as the models read them, and its parents by their paths. Raises MisplacedError."""
        when: dict[str, tuple[Value, ...]] = {}
        for key, values in self.when.items():
            with placed("when", key):
                parent = tunable_at(key, parts)
                when[parent.path] = parent.values(values)
        return self.model_copy(update={"when": when, **self._read(tunable)})

    def _read(self, tunable: Tunable) -> dict[str, Any]:
        with placed("choice"):
            return {"choice": tunable.values(self.choice)}

    def described(self) -> str:
        """For a reader: '0.1, 0.3, 0.5' or '0.01 to 2 (log) where contrast is simclr'."""
        parents = [f"{parent} is {' or '.join(map(str, values))}" for parent, values in self.when.items()]
        return self._described() + (f" where {' and '.join(parents)}" if parents else "")

    def _described(self) -> str:
        return ", ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in self.choice)


class Range(Choice):
    """The numbers from `low` to `high`, whole ones of a parameter that is a whole number. `log`: evenly in the logarithm. `step`: low, low + step and
    so on."""

    low: Number
    high: Number
    log: bool = False
    step: Annotated[Number, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        low, high, step = self.low, self.high, self.step
        with placed("low"):
            if low >= high:
                raise ValueError(f"low {low:.15g} should be less than high {high:.15g}")
            if self.log and low <= 0:
                raise ValueError(f"low {low:.15g} has no logarithm; take more than 0, or leave log out")
        if step and self.log:
            raise MisplacedError(["step"], "log and step are both given; keep one")
        if step and not self.holds(high):
            last = self._stepped(max(low + step, high - step / 2))
            raise MisplacedError(["high"], f"high {high:.15g} is not on a step of {step:.15g}; set it to {last:.15g}")
        return self

    @property
    def num_values(self) -> float:
        step = self.step or (1 if isinstance(self.low, int) else 0)
        return round((self.high - self.low) / step) + 1 if step else math.inf

    def holds(self, value: Value) -> bool:
        return not isinstance(value, (bool, str)) and self.low <= value <= self.high and self._stepped(value) == value

    def _stepped(self, value: float) -> float:
        """The nearest step as one would write it: 0.3 and not 0.30000000000000004, which would be another run. Without steps the value itself."""
        if not self.step:
            return value
        return float(f"{self.low + round((value - self.low) / self.step) * self.step:.12g}")

    def suggest(self, trial: Any, path: str) -> Value:
        if isinstance(self.low, int):
            return int(trial.suggest_int(path, self.low, self.high, log=self.log, step=self.step or 1))
        return self._stepped(float(trial.suggest_float(path, self.low, self.high, log=self.log, step=self.step)))

    def _read(self, tunable: Tunable) -> dict[str, Any]:
        read: dict[str, Any] = {}
        for name in ("low", "high"):
            with placed(name):
                read[name] = tunable.value(getattr(self, name))
        kind = type(read["low"])
        if self.step and kind(self.step) != self.step:
            raise MisplacedError(["step"], f"{tunable.path} is a whole number, and {self.step:.15g} is not")
        return read | {"step": self.step and kind(self.step)}

    def _described(self) -> str:
        how = " (log)" if self.log else f" in steps of {self.step:.15g}" if self.step is not None else ""
        return f"{self.low:.15g} to {self.high:.15g}{how}"


_KIND = Discriminator(lambda value: "Choice" if isinstance(value, dict) and "choice" in value else "Range")
Distribution = Annotated[Annotated[Choice, Tag("Choice")] | Annotated[Range, Tag("Range")], _KIND]


# ----------------------------------------------------------------------------------------------------------------------


class Settings(Strict):
    """What a space says, and a preset may change. `table`, `row`: whose protocol, recipe and replicates are used; `racing`, `trials`: of the search;
    `set`: values that all points share, by the keys of overrides; `defaults`: the point that is tried first; what a mode does not vary of it
    holds for all points.

    What a point is judged by is the table's where it is left out: `metric`, one of the tasks' ('': what the table selects
    checkpoints by), `tasks`, `sizes`, `subsets` (a count) and `seeds`.
    """

    table: str = ""
    row: str = ""
    metric: str = ""
    tasks: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    sizes: Annotated[tuple[Size, ...], Field(min_length=1)] | None = None
    subsets: Count | None = None
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] | None = None
    racing: Racing = "paired"
    trials: Count = 20
    set: dict[str, Scalar] = Field(default_factory=dict)
    defaults: dict[str, Scalar] = Field(default_factory=dict)
    grid: dict[str, Values] = Field(default_factory=dict)
    search: dict[str, Distribution] = Field(default_factory=dict)

    def read(self, parts: tuple[str, ...]) -> None:
        """Put paths in the place of keys, and values as the models read them. Raises MisplacedError."""
        readers: dict[str, Callable[[Tunable, Any], Any]] = {
            "grid": Tunable.values,
            "search": lambda tunable, drawn: drawn.read(tunable, parts),
            "defaults": Tunable.value,
        }
        for name, read in readers.items():
            found: dict[str, Any] = {}
            for key, value in getattr(self, name).items():
                with placed(name, key):
                    tunable = tunable_at(key, parts)
                    if twice := replaced([tunable.path]) & found.keys():
                        raise ValueError(f"replaces {', '.join(twice)}, which is there too; keep one")
                    found[tunable.path] = read(tunable, value)
            object.__setattr__(self, name, found)


class SpacePreset(Settings):
    """What a preset changes; a key left out is the space's. `table_preset`: the preset of the table; by default the one of the same name."""

    description: str
    table_preset: str = ""


class Space(Settings):
    """One search space. `method`: as in a table's row, 'cmlm' or 'cmlm+scl'."""

    name: str
    title: str = ""
    method: str
    table: str = Field(min_length=1)
    notes: tuple[str, ...] = ()
    presets: dict[str, SpacePreset] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        with placed("method"):
            methods_named(self.method)
        if not (self.grid or self.search):
            raise MisplacedError(["search"], "there is neither a grid nor a search; give one of them")
        self.read(self.parts)
        for name, preset in self.presets.items():
            with placed("presets", name):
                preset.read(self.parts)
                for mode in MODES:
                    self.under(name).explored(mode)
        for mode in () if self.presets else MODES:
            self.explored(mode)
        return self

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.method.split("+"))

    def under(self, preset: str) -> Self:
        """The space with the changes of a preset, of `set` and `defaults` to single entries; without presets of its own, for any preset of its table."""
        changes = self.presets.get(preset, SpacePreset(description=""))
        changed = {name: getattr(changes, name) for name in changes.model_fields_set & Settings.model_fields.keys()}
        merged = {name: {**getattr(self, name), **getattr(changes, name)} for name in ("set", "defaults")}
        return self.model_copy(update=changed | merged)

    def overrides(self, point: Point) -> tuple[Override, ...]:
        """The point as the overrides of a request."""
        named = [(tunable_at(path, self.parts), value) for path, value in point.items()]
        return tuple(Override(f"{each.owner}.{each.name}", value, f"space {self.name},") for each, value in named)

    def explored(self, mode: str) -> tuple[dict[str, Choice], dict[str, Value]]:
        """What a mode varies, and the default point: a value for each parameter that is active in it. Raises MisplacedError, also where a parent does
        not stand before its children."""
        grid = {path: Choice(choice=values) for path, values in self.grid.items()}
        varied, point = grid if mode == "grid" else self.search, dict[str, Value]()
        for place, (path, drawn) in enumerate(varied.items()):
            with placed(mode, path, "when"):
                for parent, values in drawn.when.items():
                    if parent not in [*varied][:place]:
                        raise ValueError(f"{parent} is not in search before {path}; add it there, or leave it out")
                    if not all(map(varied[parent].holds, values)):
                        raise MisplacedError([parent], f"{parent} is {varied[parent].described()}")
            if not drawn.active(point):
                continue
            if path not in self.defaults:
                raise MisplacedError([mode, path], f"has no default; add {path} to defaults")
            point[path] = self.defaults[path]
            if not drawn.holds(point[path]):
                wrong = f"{point[path]!r} is outside of the {mode}: {drawn.described()}"
                raise MisplacedError(["defaults", path], wrong)
        return varied, point


def space_names() -> tuple[str, ...]:
    """The names of the packaged spaces, sorted."""
    return tuple(sorted(packaged_files("search_spaces")))


def load_space(name_or_path: str | Path, where: str = "") -> Space:
    """A packaged space by name, or a user's own by path (it ends in .yaml or .yml, or holds a slash).

    `where`: how errors name who asked for it. Raises UserError for an unknown name (with the closest one) and for a file
    that is no space (file, line, key).
    """
    return load_named(name_or_path, Space, "search_spaces", "space", where)


# -------------------------------------------------------------------------------------------------- as it is explored


class ResolvedSpace(Space):
    """A space as it is explored: under one preset, in one mode, and small enough to travel.

    `preset`: of the space; `table_preset`: the preset of `table`. `row` '' lets the table add one. `parameters` by path,
    parents before children. `given`: overrides of all points: of `set`, then what `defaults` says of what the mode does not vary.
    `defaults`: the point that is tried first. `trials`: of a grid its points. `origins`: where a request has from what it takes from it.
    """

    preset: str
    table_preset: str
    mode: str
    sampler: str
    parameters: dict[str, Choice]
    given: tuple[Override, ...]
    origins: dict[str, str]

    @property
    def first_points(self) -> tuple[dict[str, Value], ...]:
        """What a study asks for itself: the default point; of a whole grid then the others in the order of the file, the last parameter fastest."""
        if self.sampler != "grid":
            return (self.defaults,)
        product = itertools.product(*(drawn.choice for drawn in self.parameters.values()))
        points = [dict(zip(self.parameters, values, strict=True)) for values in product]
        return (self.defaults, *(point for point in points if point != self.defaults))

    def define(self, trial: Any) -> dict[str, Value]:
        """The point that an optuna trial proposes: parameters without effect under their parents' values are left out."""
        point: dict[str, Value] = {}
        for path, drawn in self.parameters.items():
            if drawn.active(point):
                point[path] = drawn.suggest(trial, path)
        return point

    def bench(self, base: Request, point: Point) -> Request:
        """The bench that runs one point. `base`: of the search's request."""
        judged = {name: getattr(base, name) or getattr(self, name) for name in ("tasks", "sizes", "seeds")}
        own = all(map(is_own, judged["tasks"] or [""])) and not self.table.endswith(YAML)
        taken = {name: origin for name, origin in self.origins.items() if not getattr(base, name)}
        return replace(
            base,
            table=self.table,
            preset=self.table_preset,
            methods=(self.row,) if self.row else base.methods or (self.method,),
            protocol=base.protocol or (OWN_TABLE if own else None),
            subsets=base.subsets or (tuple(range(self.subsets)) if self.subsets else None),
            **judged,
            overrides=(*self.given, *base.overrides, *self.overrides(point)),
            origins={**base.origins, **taken},
        )

    def identity(self) -> dict[str, Any]:
        """Everything that decides which points are proposed and how they are judged, as JSON: the study's name is its hash."""
        parameters: list[dict[str, Any]] = []
        for path, each in self.parameters.items():
            span: list[Any] = []
            if isinstance(each, Range):
                step = each.step and float(each.step)
                span = [float(each.low), float(each.high), each.log, step, isinstance(each.low, int)]
            parameters.append({"path": path, "choices": each.choice, "range": span, "when": each.when})
        judged = {"metrics": [self.metric] if self.metric else [], "directions": ["maximize"]}
        own = {name: getattr(self, name) for name in ("method", "mode", "defaults", "sampler", "racing")}
        return {**own, **judged, "parameters": parameters}


def requested_space(request: TuneRequest) -> ResolvedSpace:
    """The space that a request names, as it is explored. Raises UserError for an unknown name, and where the space is for
    another method."""
    method = request.method.lower()
    if method in space_names() and not set(method.split("+")) <= METHODS.keys():
        fix = f"tune the method {load_space(method).method} with --space {method}"
        raise UserError(f"tune {method}: is a space and no method; {fix}.")
    methods_named(method, "tune")
    if not request.space and method not in space_names():
        fix = "write one and name it with --space"
        raise UserError(f"tune {method}: no packaged space varies this method; {fix}.")
    named = request.space or method
    space = load_space(named, request.base.origin("space"))
    if method != space.method:
        raise UserError(
            f"--space {named}: the space {space.name} is for the method {space.method}, and not for {method}; tune "
            f"{space.method}, or name a space for {method}."
        )
    return resolve_space(space, request)


def resolve_space(space: Space, request: TuneRequest) -> ResolvedSpace:
    """`space` under the preset and the other fields of a request.

    Without `mode` it is a search where the file has one. A grid is run whole, in order and without racing, unless a sampler, which draws from its
    values, or a rule is asked for. Raises UserError for a preset that there is none of, and for fields that exclude each other.
    """
    preset = request.preset or DEFAULT_PRESET
    if space.presets and preset not in space.presets:
        raise unknown("preset", preset, space.presets, f"--preset of space {space.name}")
    shown, changes = space.under(preset), space.presets.get(preset)
    mode = request.mode or ("search" if shown.search else "grid")
    sampler = request.sampler or ("grid" if mode == "grid" else "tpe")
    parameters, defaults = shown.explored(mode)
    if not parameters:
        fix = f"take --{'search' if mode == 'grid' else 'grid'}"
        raise UserError(f"--{mode}: the space {space.name} has no {mode} under preset {preset}; {fix}.")
    if request.trials is not None and sampler == "grid":
        raise UserError("--trials: a grid ends by itself; leave it out, or draw from the grid with --sampler random.")
    place = f"space {space.name}, preset {preset}, key {{}}".format
    rows = load_table(shown.table, place("table")).rows
    row = shown.row or next((row.name for row in rows if row.method == shown.method and not row.pre_train), "")
    shared = [replace(each, origin=place(f"set.{each.key}"), in_file=True) for each in overrides_of(shown.set)]
    fixed = shown.overrides({path: value for path, value in shown.defaults.items() if path not in parameters})
    origins = {key: place(key) for key in ("tasks", "sizes", "subsets") if getattr(shown, key)}
    origins |= {"methods": place("row")} if shown.row else {}
    origins |= {"preset": place("table_preset")} if changes or request.preset is None else {}
    points = math.prod(drawn.num_values for drawn in parameters.values())
    explored: dict[str, Any] = {
        "preset": preset,
        "table_preset": (changes and changes.table_preset) or preset,
        "mode": mode,
        "sampler": sampler,
        "row": row,
        "parameters": parameters,
        "given": (*shared, *(each for each in fixed if each.key not in shown.set)),
        "origins": origins,
        "defaults": defaults,
        "metric": request.metric or shown.metric,
        "trials": int(points if sampler == "grid" else min(request.trials or shown.trials, points)),
        "racing": request.racing or ("none" if mode == "grid" else shown.racing),
    }
    return ResolvedSpace.model_construct(**dict(shown) | explored)


# ------------------------------------------------------------------------------------------------- against a request


def check_varied(space: ResolvedSpace, rows: Iterable[ResolvedRow], overrides: Sequence[Override]) -> None:
    """Raises UserError for a parameter that a tuned row does not read or sets itself, and for one of the `overrides` of all points that every
    point would replace. One of an exclusive pair, such as steps, replaces the other."""
    varied = space.overrides(dict.fromkeys(space.parameters, 0))
    for row, each in itertools.product(rows, varied):
        sets = each.key in replaced(row.own_values)
        if sets or each.group not in row.groups:
            why = "sets it itself" if sets else "does not read it"
            raise UserError(f"space {space.name}, {space.mode} {each.key}: the row {row.own.name} {why}; leave it out.")
        for other in overrides:
            if each.key in replaced(other.keys):
                what = f"the {space.mode} of {space.name} varies {each.key} itself"
                raise UserError(f"{other.place}: {what}; leave one of them out.")


def check_metric(resolved: ResolvedSpace, tasks: Mapping[str, Task], request: TuneRequest) -> None:
    """Raises UserError for a metric that a task does not have. `tasks`: those of the search by name."""
    where = "--metric" if request.metric else f"space {resolved.name}, metric"
    for name, task in tasks.items() if resolved.metric else ():
        if resolved.metric not in task.metrics:
            known = ", ".join(task.metrics)
            raise UserError(f"{where} {resolved.metric}: the task {name} does not have it; it has {known}.")
