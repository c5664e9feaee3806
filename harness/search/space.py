"""A method's search space as data: the paper's grid, wider distributions, the paper's point, what is judged, and presets.

One YAML file under `search_spaces/` each, read by `load_space`. `resolve_space` parses it for a request, under one preset, into one
flat object. Imports no optuna: callers pass trials in.
"""

from __future__ import annotations

import itertools
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError, model_validator

from harness.errors import UserError, hint, unknown
from harness.methods import METHODS, methods_named
from harness.paths import named_path
from harness.planning.recipe import EXCLUSIVE, PHASES, Count, Number, Phase, Scalar, Seed, Size, Value
from harness.planning.request import OWN_TABLE, YAML, Override, Request, is_own, overrides_of
from harness.planning.row import Row
from harness.planning.table import load_table
from harness.search.request import Mode, Point, TuneRequest
from harness.tasks.metrics import METRICS
from harness.yaml_files import (
    MisplacedError,
    Places,
    Strict,
    describe_errors,
    load_named,
    one_of,
    packaged_files,
    placed,
)

if TYPE_CHECKING:
    from harness.tasks.task import Task

OTHER: dict[Mode, Mode] = {"grid": "search", "search": "grid"}
SAMPLERS = ("tpe", "gp", "random", "grid")
RACINGS = ("none", "asha", "median", "paired")
MOST_POINTS = 10_000


def _listed(value: object) -> object:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"should be a list of values, not {value!r}")
    if not value:
        raise ValueError("the list is empty; give it a value, or leave the parameter out")
    return value


Values = Annotated[tuple[Scalar, ...], BeforeValidator(_listed)]
OneOrMore = Annotated[Values, BeforeValidator(lambda value: [value] if isinstance(value, Value) else value)]


class Distribution(Strict):
    """What a parameter is drawn from: a list of values, or the numbers from `low` to `high`, whole ones where `Tunable.read` found a whole number.

    `log`: evenly in the logarithm. `step`: low, low + step and so on. `when`: the values of other searched parameters under
    which this one has an effect; otherwise it is left out of the point.
    """

    choice: Values | None = None
    low: Number | None = None
    high: Number | None = None
    log: bool = False
    step: Annotated[Number, Field(gt=0)] | None = None
    when: dict[str, OneOrMore] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [name for name in ("low", "high", "step") if getattr(self, name) is not None] + ["log"] * self.log
        if self.choice is not None:
            if given:
                raise MisplacedError(given[:1], f"choice and {given[0]} are both given; keep one")
            return self
        if self.low is None or self.high is None:
            lacking = ("low" if self.low is None else "high") if given else "choice, or low and high"
            raise MisplacedError([], f"needs {lacking}")
        low, high, step = *self.ends, self.step
        if low >= high:
            raise MisplacedError(["low"], f"low {low:.15g} should be less than high {high:.15g}")
        if self.log and low <= 0:
            raise MisplacedError(["low"], f"low {low:.15g} has no logarithm; take more than 0, or leave log out")
        if step and self.log:
            raise MisplacedError(["step"], "log and step are both given; keep one")
        if step and (last := stepped(low, step, max(1, steps_in(low, high, step)))) != high:
            raise MisplacedError(["high"], f"high {high:.15g} is not on a step of {step:.15g}; set it to {last:.15g}")
        return self

    @property
    def ends(self) -> tuple[float, float]:
        assert self.low is not None  # validated
        assert self.high is not None
        return self.low, self.high

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int)

    @property
    def num_values(self) -> float:
        """How many values it can take; infinite for a continuous range."""
        if self.choice:
            return len(self.choice)
        step = self.step or (1 if self.whole else None)
        return math.inf if step is None else steps_in(*self.ends, step) + 1

    def active(self, point: Point) -> bool:
        """Its parents, as far as the point goes, have values under which it has an effect."""
        return all(parent in point and point[parent] in values for parent, values in self.when.items())

    def holds(self, value: Value) -> bool:
        if self.choice:
            return value in self.choice
        low, high = self.ends
        if isinstance(value, (bool, str)) or not low <= value <= high:
            return False
        return self.step is None or stepped(low, self.step, steps_in(low, value, self.step)) == value

    def suggest(self, trial: Any, path: str) -> Value:
        """The value that an optuna trial gives the parameter `path`."""
        if self.choice:
            return typing.cast(Value, trial.suggest_categorical(path, list(self.choice)))
        low, high = self.ends
        if self.whole:
            return int(trial.suggest_int(path, low, high, log=self.log, **({"step": self.step} if self.step else {})))
        value = float(trial.suggest_float(path, low, high, log=self.log, step=self.step))
        return value if self.step is None else stepped(low, self.step, round((value - low) / self.step))

    def described(self) -> str:
        """For a reader: '0.1, 0.3, 0.5' or '0.01 to 2 (log)'."""
        if self.choice:
            return ", ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in self.choice)
        how = " (log)" if self.log else f" in steps of {self.step:.15g}" if self.step is not None else ""
        return f"{self.low:.15g} to {self.high:.15g}{how}"


def steps_in(low: float, high: float, step: float) -> int:
    """How often `step` fits, counted in decimals: 0.8 holds 0.1 eight times."""
    return int((Decimal(str(high)) - Decimal(str(low))) // Decimal(str(step)))


def stepped(low: float, step: float, count: int) -> float:
    """low + count * step as one would write it: 0.3 and not 0.30000000000000004, which would be another run."""
    return float(Decimal(str(low)) + count * Decimal(str(step)))


@dataclass(frozen=True)
class Tunable:
    """What a path names: a hyperparameter of `owner`, or a field of the recipe phase `owner`. `path`: 'name' where the space's method has one part,
    'part.name' where it has several, 'phase.field' of a recipe."""

    path: str
    owner: str
    name: str

    @property
    def model(self) -> type[BaseModel]:
        return METHODS.get(self.owner, Phase)

    @property
    def kind(self) -> type[Value]:
        """The first plain type of the field's annotation; of a `Literal` str."""
        found: Any = self.model.model_fields[self.name].annotation
        while typing.get_origin(found) in (Annotated, typing.Union, types.UnionType):
            found = typing.get_args(found)[0]
        return found if found in (bool, int, float) else str

    def value(self, value: Value) -> Value:
        """The value as the field reads it: 1 as 1.0 for a number. Raises ValueError with a sentence for a wrong one.

        Rules on several fields of the model are left out: the others may be varied too.
        """
        if isinstance(value, bool) and self.kind in (int, float):
            raise ValueError(f"should be a number, not {str(value).lower()}")
        info = self.model.model_fields[self.name]
        annotation: Any = Annotated[info.annotation, info]
        try:
            return typing.cast(Value, TypeAdapter(annotation).validate_python(value))
        except ValidationError as error:
            sentence = describe_errors(error, self.name).split("\n")[0].partition(": ")[2]
            raise ValueError(sentence.removesuffix(".")) from None

    def read(self, drawn: Distribution) -> Distribution:
        """The same with all values as the model reads them. Raises MisplacedError."""
        if drawn.choice is not None:
            checked: list[Value] = []
            for index, value in enumerate(drawn.choice):
                with placed("choice", index):
                    checked.append(self.value(value))
                    if checked.index(checked[-1]) < index:
                        raise ValueError(f"{value!r} is given twice; keep one")
            return drawn.model_copy(update={"choice": tuple(checked)})
        if self.kind in (str, bool):
            words = "true and false" if self.kind is bool else "words"
            raise ValueError(f"{self.path} takes {words}, which have no range; give a choice: [...]")
        ends: dict[str, Value] = {}
        for name in ("low", "high", "step"):
            with placed(name):
                if (end := getattr(drawn, name)) is not None:
                    if self.kind is int and not end.is_integer():
                        raise ValueError(f"{self.path} is a whole number, and {end:.15g} is not")
                    ends[name] = self.kind(end)
                    if name != "step":
                        self.value(ends[name])
        return drawn.model_copy(update=ends)


def tunable_at(path: str, parts: tuple[str, ...]) -> Tunable:
    """The hyperparameter or recipe field that `path` names, for a method with these parts. Raises ValueError."""
    owner, dot, name = path.partition(".")
    if owner in PHASES and name in Phase.model_fields:
        return Tunable(path, owner, name)
    if not dot and len(parts) == 1:
        owner, name = parts[0], path
    own = {f"{part}.{field}": field for part in parts for field in METHODS[part].model_fields}
    if f"{owner}.{name}" in own:
        return Tunable(name if len(parts) == 1 else f"{owner}.{name}", owner, name)
    takers = [key for key, field in own.items() if field == path]
    if takers:
        raise ValueError(f"the method has several parts; write {' or '.join(takers)} instead of {path}")
    known = sorted(own if len(parts) > 1 else own.values())
    meant = hint(path, [*known, *(f"{phase}.{field}" for phase in PHASES for field in Phase.model_fields)])
    raise ValueError(f"unknown parameter '{path}'.{meant} Known: {', '.join([*known, *(f'{p}.*' for p in PHASES)])}")


# -------------------------------------------------------------------------------------------------------------- the file

Grid = Annotated[Distribution, BeforeValidator(lambda value: {"choice": value} if isinstance(value, list) else value)]
MERGED = ("set", "defaults")
"""Of these a preset changes the entries that it names."""


class Settings(Strict):
    """What a space says, and a preset may change. `table`, `row`: whose protocol, recipe and replicates are used; `sampler`, `racing`,
    `trials`: of the search; `set`: values that all points share, by the keys of overrides; `defaults`: the point that is tried first.

    What a point is judged by is the table's where it is left out: `metric`, one of the tasks' ('': what the table selects
    checkpoints by), `tasks`, `sizes`, `subsets` (a count) and `seeds`.
    """

    table: str = ""
    row: str = ""
    metric: Annotated[str, one_of("metric", METRICS)] = ""
    tasks: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    sizes: Annotated[tuple[Size, ...], Field(min_length=1)] | None = None
    subsets: Count | None = None
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] | None = None
    sampler: Annotated[str, one_of("sampler", [name for name in SAMPLERS if name != "grid"])] = "tpe"
    racing: Annotated[str, one_of("racing", RACINGS)] = "paired"
    trials: Count = 20
    set: dict[str, Scalar] = Field(default_factory=dict)
    defaults: dict[str, Scalar] = Field(default_factory=dict)
    grid: dict[str, Grid] = Field(default_factory=dict)
    search: dict[str, Distribution] = Field(default_factory=dict)


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
    default_preset: str = "quick"
    presets: dict[str, SpacePreset] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        with placed("method"):
            methods_named(self.method)
        if self.presets and self.default_preset not in self.presets:
            raise MisplacedError(["default_preset"], str(unknown("preset", self.default_preset, self.presets)))
        return self

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.method.split("+"))

    def under(self, preset: str) -> Self:
        """The space with the changes of a preset; without presets of its own, for any preset of its table."""
        changes = self.presets.get(preset, SpacePreset(description=""))
        changed = {name: getattr(changes, name) for name in changes.model_fields_set & Settings.model_fields.keys()}
        merged = {name: {**getattr(self, name), **getattr(changes, name)} for name in MERGED}
        return self.model_copy(update=changed | merged)

    def said_at(self, preset: str, *loc: int | str) -> tuple[int | str, ...]:
        """Where the file says what holds at `loc` under a preset: in the preset or in the space."""
        changes, (key, *below) = self.presets.get(preset), loc
        said = changes and key in changes.model_fields_set
        if said and key in MERGED and below:
            said = below[0] in getattr(changes, str(key))
        return ("presets", preset, *loc) if said else loc


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
    parents before children. `shared`: overrides of all points. `fixed`: what `defaults` says of what only the other mode varies, overrides of all
    points too. `defaults`: the point that is tried first. `trials`: of a grid its points. `origins`: where the file says what a request takes from it.
    """

    preset: str
    table_preset: str
    mode: Mode
    parameters: dict[str, Distribution]
    shared: tuple[Override, ...]
    fixed: tuple[Override, ...]
    origins: dict[str, str]

    @property
    def offered(self) -> dict[str, Distribution]:
        """What a sampler draws from: the parameters, with the default's value where a grid lacks it, so that the default point can be told."""
        lacking = {
            path: drawn.model_copy(update={"choice": (*drawn.choice, self.defaults[path])})
            for path, drawn in self.parameters.items()
            if drawn.choice and path in self.defaults and not drawn.holds(self.defaults[path])
        }
        return self.parameters | lacking

    @property
    def num_points(self) -> float:
        """How many points there are at the most; infinite where a parameter is continuous."""
        return math.prod(drawn.num_values for drawn in self.offered.values())

    def grid_points(self) -> tuple[dict[str, Value], ...]:
        """The default point, then the others in the order of the file, the last parameter fastest."""
        product = itertools.product(*(drawn.choice or () for drawn in self.parameters.values()))
        points = [dict(zip(self.parameters, values, strict=True)) for values in product]
        return (dict(self.defaults), *(point for point in points if point != self.defaults))

    def define(self, trial: Any) -> dict[str, Value]:
        """The point that an optuna trial proposes: parameters without effect under their parents' values are left out."""
        point: dict[str, Value] = {}
        for path, drawn in self.offered.items():
            if drawn.active(point):
                point[path] = drawn.suggest(trial, path)
        return point

    def overrides(self, point: Point) -> tuple[Override, ...]:
        """The point as the overrides of a request."""
        return _overrides(point, self.parts, f"space {self.name},")

    def bench(self, base: Request, point: Point) -> Request:
        """The bench that runs one point. `base`: of the search's request."""
        tasks = base.tasks or self.tasks or ()
        own = bool(tasks) and all(map(is_own, tasks)) and not self.table.endswith(YAML)
        taken = {name: origin for name, origin in self.origins.items() if not getattr(base, name)}
        return replace(
            base,
            table=self.table,
            preset=self.table_preset,
            methods=(self.row,) if self.row else base.methods or (self.method,),
            protocol=base.protocol or (OWN_TABLE if own else None),
            tasks=base.tasks or self.tasks,
            sizes=base.sizes or self.sizes,
            subsets=base.subsets or (tuple(range(self.subsets)) if self.subsets else None),
            seeds=base.seeds or self.seeds,
            overrides=(*self.shared, *self.fixed, *base.overrides, *self.overrides(point)),
            origins={**base.origins, **taken},
        )

    def identity(self) -> dict[str, Any]:
        """Everything that decides which points are proposed and how they are judged, as JSON: the study's name is its hash."""

        def described(path: str, drawn: Distribution) -> dict[str, Any]:
            numbers = [None if each is None else float(each) for each in (drawn.low, drawn.high, drawn.step)]
            return {
                "path": path,
                "choices": list(drawn.choice or ()),
                "range": [] if drawn.choice else [*numbers[:2], drawn.log, numbers[2], drawn.whole],
                "when": {parent: list(values) for parent, values in drawn.when.items()},
            }

        return {
            "method": self.method,
            "mode": self.mode,
            "parameters": [described(path, drawn) for path, drawn in self.parameters.items()],
            "defaults": dict(self.defaults),
            "metrics": [self.metric] if self.metric else [],
            "directions": ["maximize"],
            "sampler": self.sampler,
            "racing": self.racing,
        }


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
    own = named.endswith(YAML) and named_path(named).is_file()
    return resolve_space(space, request, Places(Path(named)) if own else None)


def resolve_space(space: Space, request: TuneRequest, places: Callable[..., str] | None = None) -> ResolvedSpace:
    """`space` under the preset and the other fields of a request. `places`: of the space's file.

    Without `mode` it is a search where the file has one, and the grid with `sampler` 'grid'. A grid is run in order and
    without racing unless a sampler or a rule is asked for; another sampler draws from the grid's values.
    Raises UserError for what is wrong in what is explored, for an unknown word and for fields that exclude each other.
    """
    sampler, preset = request.sampler, request.preset or space.default_preset
    if space.presets and preset not in space.presets:
        raise unknown("preset", preset, space.presets, f"--preset of space {space.name}")
    for what, known in {"sampler": SAMPLERS, "racing": RACINGS, "mode": OTHER, "metric": METRICS}.items():
        if (word := getattr(request, what)) is not None and word not in known:
            raise unknown(what, word, known, f"--{what}")
    shown, changes = space.under(preset), space.presets.get(preset)
    mode = request.mode or ("grid" if shown.grid and (sampler == "grid" or not shown.search) else "search")
    chosen = sampler or ("grid" if mode == "grid" else shown.sampler)

    def place(*loc: int | str) -> str:
        loc = space.said_at(preset, *loc)
        return places(*loc) if places else f"space {space.name}, key {'.'.join(map(str, loc))}"

    try:
        row = _row(shown)
        parameters = _varied(shown, mode, row)
        defaults, fixed = _defaults(space, shown, mode, parameters)
    except MisplacedError as error:
        raise UserError(f"{place(*error.loc)}: {str(error).removesuffix('.')}.") from None
    if sampler == "grid" and mode == "search":
        fix = "take --grid" if shown.grid else "list values under grid in the space"
        raise UserError(f"--sampler grid: a search draws its points, and has no list of them; {fix}.")
    if not parameters:
        fix = f"take --{OTHER[mode]}"
        raise UserError(f"--{mode}: the space {space.name} has no {mode} under preset {preset}; {fix}.")
    if request.trials is not None and chosen == "grid":
        raise UserError("--trials: a grid ends by itself; leave it out, or draw from the grid with --sampler random.")
    origins = {key: place(key) for key in ("tasks", "sizes", "subsets") if getattr(shown, key)}
    if changes or request.preset is None:
        key = "table_preset" if changes and changes.table_preset else "presets" if changes else "default_preset"
        origins["preset"] = place(key, *[preset] * (key == "presets"))
    shared = zip(shown.set, overrides_of(shown.set), strict=True)
    explored: dict[str, Any] = {
        "preset": preset,
        "table_preset": (changes and changes.table_preset) or preset,
        "mode": mode,
        "row": row.name if row else "",
        "parameters": parameters,
        "shared": tuple(replace(each, origin=place("set", key), in_file=True) for key, each in shared),
        "fixed": tuple(each for each in fixed if each.key not in shown.set),
        "origins": origins,
        "defaults": defaults,
        "metric": request.metric or shown.metric,
        "trials": request.trials or shown.trials,
        "sampler": chosen,
        "racing": request.racing or ("none" if mode == "grid" else shown.racing),
    }
    resolved = ResolvedSpace.model_construct(**dict(shown) | explored)
    return resolved.model_copy(update={"trials": len(resolved.grid_points())}) if chosen == "grid" else resolved


def _overrides(point: Point, parts: tuple[str, ...], origin: str) -> tuple[Override, ...]:
    named = [(tunable_at(path, parts), value) for path, value in point.items()]
    return tuple(Override((each.owner, each.name), value, origin=origin) for each, value in named)


# ----------------------------------------------------------------------------------- what is varied, and by default


def _row(shown: Space) -> Row | None:
    """The row of the space's table that is tuned: the one that is named, or the first one of the method. Raises MisplacedError."""
    with placed("table"):
        rows = load_table(shown.table).rows
    if not shown.row:
        return next((row for row in rows if row.method == shown.method and not row.pre_train), None)
    with placed("row"):
        chosen = next((row for row in rows if row.name == shown.row), None)
        if chosen is None:
            raise unknown("row", shown.row, [row.name for row in rows])
        if not set(shown.parts) <= {*chosen.parts, "ft"}:
            raise ValueError(f"the row {shown.row} trains {' and '.join(chosen.parts)}, and not {shown.method}")
    return chosen


def _varied(shown: Space, mode: Mode, row: Row | None) -> dict[str, Distribution]:
    """What a mode varies, by path and parents before children. Raises MisplacedError for what cannot be varied."""
    found: dict[str, Distribution] = {}
    for key, drawn in getattr(shown, mode).items():
        with placed(mode, key):
            tunable = tunable_at(key, shown.parts)
            if tunable.path in found:
                raise ValueError(f"{tunable.path} is given twice; keep one")
            _check_effect(tunable, found, row, shown)
            if mode == "grid" and (drawn.choice is None or drawn.when):
                raise ValueError("a grid takes a list of values; write the values out, or move it to search")
            found[tunable.path] = tunable.read(drawn)
    points = math.prod(len(drawn.choice or ()) for drawn in found.values())
    if mode == "grid" and points > MOST_POINTS:
        most = f"{MOST_POINTS:,} is the most; take fewer values, or search"
        raise MisplacedError([mode], f"has {points:,} points, and {most}")
    for path, drawn in found.items():
        when = {}
        for key, values in drawn.when.items():
            with placed(mode, path, "when", key):
                parent = tunable_at(key, shown.parts)
                if parent.path not in found:
                    raise ValueError(f"{parent.path} is not in search; add it there, or leave the condition out")
                read, choice = parent.read(Distribution(choice=values)), found[parent.path]
                when[parent.path] = read.choice or ()
                if never := [value for value in when[parent.path] if not choice.holds(value)]:
                    raise ValueError(f"{parent.path} is never {never[0]!r}; it is {choice.described()}")
        found[path] = drawn.model_copy(update={"when": when})
    ordered: dict[str, Distribution] = {}
    while waiting := {path: drawn for path, drawn in found.items() if path not in ordered}:
        ready = next((path for path, drawn in waiting.items() if drawn.when.keys() <= ordered.keys()), None)
        if ready is None:
            path, drawn = next(iter(waiting.items()))
            parents = ", ".join(drawn.when)
            raise MisplacedError([mode, path, "when"], f"{path} depends on itself through {parents}")
        ordered[ready] = found[ready]
    return ordered


def _check_effect(tunable: Tunable, before: Mapping[str, Distribution], row: Row | None, shown: Space) -> None:
    """Raises ValueError for a path that changes nothing here, or whose value another one replaces."""
    owner, name = tunable.owner, tunable.name
    other = f"{owner}.{_partner(name)}"
    if other in before:
        raise ValueError(f"{tunable.path} replaces {other}, which is varied too; keep one")
    if owner in METHODS:
        if row and any(key in row.set for key in (f"{owner}.{name}", *[name] * (owner == row.parts[0]))):
            raise ValueError(f"the row {row.name} of table {shown.table} sets {name} itself; leave it out")
        return
    parts = (row.method if row else shown.method).split("+")
    trains = {
        "fine_tune": True,
        "post_train": any(not METHODS[part].labelled for part in parts if part in METHODS),
        "pre_train": bool(row and row.pre_train),
    }
    if not trains[owner]:
        raise ValueError(f"{row.name if row else shown.method} has no {owner}; leave it out")


def _partner(name: str) -> str:
    """The other field of an exclusive pair, such as steps of epochs; '' where there is none."""
    return next((other for pair in EXCLUSIVE if name in pair for other in pair if other != name), "")


def _defaults(
    space: Space, shown: Space, mode: Mode, parameters: Mapping[str, Distribution]
) -> tuple[dict[str, Value], tuple[Override, ...]]:
    """The default point, a value for each parameter that is active in it, and the values of what only the other mode varies. Raises MisplacedError
    for a value of what no preset varies, and for one that the search does not draw."""
    if not (shown.grid or shown.search):
        raise MisplacedError(["search"], "there is neither a grid nor a search; give one of them")
    elsewhere = {key for each in space.presets.values() for key in (*each.grid, *each.search)}
    others, given, fixed = set[str](), dict[str, Value](), dict[str, Value]()
    for key in getattr(shown, OTHER[mode]):
        with placed(OTHER[mode], key):
            others.add(tunable_at(key, shown.parts).path)
    for key, value in shown.defaults.items():
        with placed("defaults", key):
            tunable = tunable_at(key, shown.parts)
            path, read = tunable.path, tunable.value(value)
            if {key, path}.isdisjoint({*parameters, *others, *elsewhere}):
                raise ValueError("neither grid nor search varies it; vary it, or leave it out")
            if drawn := parameters.get(path):
                given[path] = read
                if mode == "search" and not drawn.holds(read):
                    raise ValueError(f"{read!r} is outside of the search: {drawn.described()}")
            elif path in others:
                fixed[path] = read
    point: dict[str, Value] = {}
    for path, drawn in parameters.items():
        if drawn.active(point):
            if path not in given:
                raise MisplacedError([mode, path], f"has no default; add {path} to defaults")
            point[path] = given[path]
    return point, _overrides(fixed, space.parts, f"space {space.name}, key defaults,")  # unless `set` says it


# ------------------------------------------------------------------------------------------------- against a request


def check_overrides(overrides: Iterable[Override], space: ResolvedSpace) -> None:
    """Raises UserError for an override of what the space varies, which every point would replace, and of the other field of
    an exclusive pair, such as steps where the space varies epochs."""
    keys = {each.key for each in _overrides(dict.fromkeys(space.parameters, 0), space.parts, "")}
    for override in overrides:
        key, group, name = override.key, override.path[0], ".".join(override.path[1:])
        what = f"{override.place}: the {space.mode} of {space.name} varies"
        for phase in PHASES[:2] if group == "optim" else (group,):
            if f"{phase}.{name}" in keys:
                raise UserError(f"{what} {key} itself; leave one of them out.")
            if (other := f"{phase}.{_partner(name)}") in keys:
                raise UserError(
                    f"{what} {other}, which replaces {name}; leave {key} out, or tune over a space of your own without {other}."
                )


def check_metric(resolved: ResolvedSpace, tasks: Mapping[str, Task], request: TuneRequest) -> None:
    """Raises UserError for a metric that a task does not have. `tasks`: those of the search by name."""
    where = "--metric" if request.metric else f"space {resolved.name}, metric"
    for name, task in tasks.items() if resolved.metric else ():
        if resolved.metric not in task.metrics:
            known = ", ".join(task.metrics)
            raise UserError(f"{where} {resolved.metric}: the task {name} does not have it; it has {known}.")
