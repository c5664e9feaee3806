"""A method's search space as data: the paper's grid, wider distributions, the paper's point, what is judged, and presets.

One YAML file under `search_spaces/` each (`space_file.py`), read by `load_space`. `resolve_space` parses it for a request, under one preset, into one
flat object. Imports no optuna: callers pass trials in.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import UserError, unknown
from harness.methods import METHODS, methods_named
from harness.paths import named_path
from harness.planning.recipe import EXCLUSIVE, PHASES, Value
from harness.planning.request import OWN_TABLE, YAML, Override, Request, is_own, overrides_of
from harness.planning.row import Row
from harness.planning.table import load_table
from harness.search.request import TuneRequest
from harness.search.space_file import MODES, RACINGS, SAMPLERS, Distribution, Space, Tunable, tunable_at
from harness.search.trials import Mode, Point
from harness.tasks.metrics import METRICS
from harness.yaml_files import MisplacedError, Places, load_named, packaged_files, placed

if TYPE_CHECKING:
    from harness.tasks.task import Task

MOST_POINTS = 10_000


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
    Raises UserError for what is wrong in the space under this preset, for an unknown word and for fields that exclude each other.
    """
    mode, sampler, preset = request.mode, request.sampler, request.preset or space.default_preset
    if space.presets and preset not in space.presets:
        raise unknown("preset", preset, space.presets, f"--preset of space {space.name}")
    for what, known in {"sampler": SAMPLERS, "racing": RACINGS, "mode": MODES, "metric": METRICS}.items():
        if (word := getattr(request, what)) is not None and word not in known:
            raise unknown(what, word, known, f"--{what}")
    shown, changes = space.under(preset), space.presets.get(preset)

    def place(*loc: int | str) -> str:
        loc = space.said_at(preset, *loc)
        return places(*loc) if places else f"space {space.name}, key {'.'.join(map(str, loc))}"

    try:
        row = _row(shown)
        varied = {mode: _varied(shown, mode, row) for mode in MODES}
        given = _defaults(space, shown, varied)
        points = {mode: _point(mode, varied[mode], given) for mode in MODES}
    except MisplacedError as error:
        raise UserError(f"{place(*error.loc)}: {str(error).removesuffix('.')}.") from None
    if mode is None:
        mode = "grid" if shown.grid and (sampler == "grid" or not shown.search) else "search"
    if sampler == "grid" and mode == "search":
        fix = "take --grid" if shown.grid else "list values under grid in the space"
        raise UserError(f"--sampler grid: a search draws its points, and has no list of them; {fix}.")
    other: Mode = "search" if mode == "grid" else "grid"
    if not varied[mode]:
        raise UserError(f"--{mode}: the space {space.name} has no {mode} under preset {preset}; take --{other}.")
    chosen = sampler or ("grid" if mode == "grid" else shown.sampler)
    if request.trials is not None and chosen == "grid":
        raise UserError("--trials: a grid ends by itself; leave it out, or draw from the grid with --sampler random.")
    origins = {key: place(key) for key in ("tasks", "sizes", "subsets") if getattr(shown, key)}
    if changes or request.preset is None:
        key = "table_preset" if changes and changes.table_preset else "presets" if changes else "default_preset"
        origins["preset"] = place(key, *[preset] * (key == "presets"))
    shared = zip(shown.set, overrides_of(shown.set), strict=True)
    others = {path: value for path, value in points[other].items() if path not in varied[mode]}
    fixed = _overrides(others, space.parts, f"space {space.name}, key defaults,")  # unless `set` says it
    explored: dict[str, Any] = {
        "preset": preset,
        "table_preset": (changes and changes.table_preset) or preset,
        "mode": mode,
        "row": row.name if row else "",
        "parameters": varied[mode],
        "shared": tuple(replace(each, origin=place("set", key), in_file=True) for key, each in shared),
        "fixed": tuple(each for each in fixed if each.key not in shown.set),
        "origins": origins,
        "defaults": points[mode],
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
                when[parent.path], choice = parent.values(values), found[parent.path]
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
        "post_train": any(METHODS[part].train for part in parts if part in METHODS),
        "pre_train": bool(row and row.pre_train),
    }
    if not trains[owner]:
        raise ValueError(f"{row.name if row else shown.method} has no {owner}; leave it out")


def _partner(name: str) -> str:
    """The other field of an exclusive pair, such as steps of epochs; '' where there is none."""
    return next((other for pair in EXCLUSIVE if name in pair for other in pair if other != name), "")


def _defaults(space: Space, shown: Space, varied: Mapping[Mode, Mapping[str, Distribution]]) -> dict[str, Value]:
    """The values of `defaults` by path. Raises MisplacedError for one of what no preset varies, and for one that the search does not draw."""
    if not any(varied.values()):
        raise MisplacedError(["search"], "there is neither a grid nor a search; give one of them")
    elsewhere = [key for each in space.presets.values() for key in (*each.grid, *each.search)]
    given: dict[str, Value] = {}
    for key, value in shown.defaults.items():
        with placed("defaults", key):
            tunable = tunable_at(key, shown.parts)
            path, given[tunable.path] = tunable.path, tunable.value(value)
            if {key, path}.isdisjoint([*varied["grid"], *varied["search"], *elsewhere]):
                raise ValueError("neither grid nor search varies it; vary it, or leave it out")
            drawn = varied["search"].get(path)
            if drawn and not drawn.holds(given[path]):
                raise ValueError(f"{given[path]!r} is outside of the search: {drawn.described()}")
    return given


def _point(mode: Mode, parameters: Mapping[str, Distribution], given: Point) -> dict[str, Value]:
    """The default point: a value for each parameter that is active in it. Raises MisplacedError."""
    point: dict[str, Value] = {}
    for path, drawn in parameters.items():
        if drawn.active(point):
            if path not in given:
                raise MisplacedError([mode, path], f"has no default; add {path} to defaults")
            point[path] = given[path]
    return point


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


# ------------------------------------------------------------------------------------------------------------- files


def space_names() -> tuple[str, ...]:
    """The names of the packaged spaces, sorted."""
    return tuple(sorted(packaged_files("search_spaces")))


def load_space(name_or_path: str | Path, where: str = "") -> Space:
    """A packaged space by name, or a user's own by path (it ends in .yaml or .yml, or holds a slash).

    `where`: how errors name who asked for it. Raises UserError for an unknown name (with the closest one) and for a file
    that is no space (file, line, key).
    """
    return load_named(name_or_path, Space, "search_spaces", "space", where)
