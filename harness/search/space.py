"""A method's search space as data: the paper's grid, wider distributions, the paper's point, what is judged, and presets.

One YAML file under `search_spaces/` each (`space_file.py`), read by `load_space`. `resolve_space` turns it and a request into one
flat object. Imports no optuna: callers pass trials in.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import UserError, unknown
from harness.methods import METHODS, methods_named
from harness.planning.recipe import EXCLUSIVE, PHASES, Value
from harness.planning.request import OWN_TABLE, YAML, Override, Request, is_own, overrides_of
from harness.search.parameters import Parameter
from harness.search.request import TuneRequest
from harness.search.space_file import MODES, RACINGS, SAMPLERS, Space, View, known_metric
from harness.search.trials import Mode, Point
from harness.yaml_files import MisplacedError, load_named, packaged_files

if TYPE_CHECKING:
    from harness.tasks.task import Task


@dataclass(frozen=True)
class ResolvedSpace:
    """A space as it is explored: flat, frozen, and small enough to travel.

    `preset`: of the space; `table_preset`: the preset of `table`. `row` '' lets the table add one. `parameters`:
    parents before children. `set`: overrides of all points. `fixed`: what `defaults` says of what only the other mode varies, overrides of all
    points too. `defaults`: the point that is tried first. `metric` '' is what the table selects by.
    `tasks`, `sizes`, `subsets` (a count), `seeds`: None is the table preset's. `trials`: of a grid its points.
    """

    space: Space
    preset: str
    table_preset: str
    mode: Mode
    method: str
    table: str
    row: str
    parameters: tuple[Parameter, ...]
    set: tuple[Override, ...]
    fixed: tuple[Override, ...]
    defaults: dict[str, Value]
    metric: str
    tasks: tuple[str, ...] | None
    sizes: tuple[int, ...] | None
    subsets: int | None
    seeds: tuple[int, ...] | None
    trials: int
    sampler: str
    racing: str

    @property
    def num_points(self) -> float:
        """How many points there are at the most; infinite where a parameter is continuous."""
        return math.prod(parameter.num_values for parameter in self.parameters)

    def grid_points(self) -> tuple[dict[str, Value], ...]:
        """The default point, then the others in the order of the file, the last parameter fastest."""
        if self.mode != "grid":
            raise ValueError("a search has no list of points")
        paths = [parameter.path for parameter in self.parameters]
        product = itertools.product(*(parameter.choices for parameter in self.parameters))
        points = [dict(zip(paths, values, strict=True)) for values in product]
        return (dict(self.defaults), *(point for point in points if point != self.defaults))

    def define(self, trial: Any) -> dict[str, Value]:
        """The point that an optuna trial proposes: parameters without effect under their parents' values are left out."""
        point: dict[str, Value] = {}
        for parameter in self.parameters:
            if parameter.active(point):
                point[parameter.path] = parameter.suggest(trial)
        return point

    def overrides(self, point: Point) -> tuple[Override, ...]:
        """The point as the overrides of a request."""
        keys, origin = {parameter.path: parameter.key for parameter in self.parameters}, f"space {self.space.name},"
        return tuple(Override(keys[path], value, origin=origin) for path, value in point.items())

    def bench(self, base: Request, point: Point) -> Request:
        """The bench that runs one point. `base`: of the search's request."""
        tasks = base.tasks or self.tasks or ()
        own = bool(tasks) and all(map(is_own, tasks)) and not self.table.endswith(YAML)
        subsets = tuple(range(self.subsets)) if self.subsets else None
        return replace(
            base,
            table=self.table,
            preset=self.table_preset,
            methods=(self.row,) if self.row else base.methods or (self.method,),
            protocol=base.protocol or (OWN_TABLE if own else None),
            tasks=base.tasks or self.tasks,
            sizes=base.sizes or self.sizes,
            subsets=base.subsets or subsets,
            seeds=base.seeds or self.seeds,
            overrides=(*self.set, *self.fixed, *base.overrides, *self.overrides(point)),
        )

    def identity(self) -> dict[str, Any]:
        """Everything that decides which points are proposed and how they are judged, as JSON: the study's name is its hash."""
        return {
            "method": self.method,
            "mode": self.mode,
            "parameters": [
                {
                    "path": p.path,
                    "choices": list(p.choices),
                    "range": [] if p.choices else [p.low, p.high, p.log, p.step, p.integer],
                    "when": {parent: list(values) for parent, values in p.when.items()},
                }
                for p in self.parameters
            ],
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
    return resolve_space(space, request)


def resolve_space(space: Space, request: TuneRequest) -> ResolvedSpace:
    """`space` under the preset and the other fields of a request.

    Without `mode` it is a search where the file has one, and the grid with `sampler` 'grid'. A grid is run in order and
    without racing unless a sampler or a rule is asked for; another sampler draws from the grid's values.
    Raises UserError for an unknown word and for fields that exclude each other.
    """
    mode, sampler, racing = request.mode, request.sampler, request.racing
    view = _view(space, request)
    shown = view.space
    for word, known, what in ((sampler, SAMPLERS, "sampler"), (racing, RACINGS, "racing"), (mode, MODES, "mode")):
        if word is not None and word not in known:
            raise unknown(what, word, known, f"--{what}")
    if mode is None:
        mode = "grid" if shown.grid and (sampler == "grid" or not shown.search) else "search"
    if sampler == "grid" and mode == "search":
        raise UserError(f"--sampler grid: {_no_grid(view, '--grid')}")
    if not getattr(shown, mode):
        other = "search" if mode == "grid" else "grid"
        raise UserError(f"--{mode}: the space {space.name} has no {mode} under preset {view.preset}; take --{other}.")
    parameters, defaults = view.parsed[mode]
    if mode == "grid":
        off = {p.path: (defaults[p.path],) for p in parameters if defaults[p.path] not in p.choices}
        parameters = tuple(replace(p, extra=off.get(p.path, ())) for p in parameters)
    chosen = sampler or ("grid" if mode == "grid" else shown.sampler)
    if request.trials is not None and chosen == "grid":
        raise UserError("--trials: a grid ends by itself; leave it out, or draw from the grid with --sampler random.")
    try:
        metric = shown.metric if request.metric is None else known_metric(request.metric)
    except ValueError as error:
        raise UserError(f"--metric: {error}") from None
    resolved = ResolvedSpace(
        space=space,
        preset=view.preset,
        table_preset=view.table_preset,
        mode=mode,
        method=space.method,
        table=shown.table,
        row=view.row.name if view.row else "",
        parameters=parameters,
        set=overrides_of(shown.set, f"space {space.name}, key set,"),
        fixed=view.fixed(mode),
        defaults=defaults,
        metric=metric,
        tasks=shown.tasks,
        sizes=shown.sizes,
        subsets=shown.subsets,
        seeds=shown.seeds,
        trials=request.trials or shown.trials,
        sampler=chosen,
        racing=racing or ("none" if mode == "grid" else shown.racing),
    )
    return replace(resolved, trials=len(resolved.grid_points())) if chosen == "grid" else resolved


def _view(space: Space, request: TuneRequest) -> View:
    """The space under the request's preset; one without presets of its own accepts any preset of its table."""
    preset = request.preset or space.default_preset
    if space.presets and preset not in space.presets:
        raise unknown("preset", preset, space.presets, f"--preset of space {space.name}")
    view = space.under(preset)
    if not space.presets:
        try:
            _ = view.parsed
        except MisplacedError as error:
            raise UserError(f"space {space.name} under preset {preset}: {error}") from None
    return view


def _no_grid(view: View, grid: str) -> str:
    """Why there is no grid over the search's distributions. `grid`: the option that explores the space's own grid."""
    ranges = [parameter for parameter in view.parsed["search"][0] if not parameter.choices]
    fix = f"take {grid}" if view.space.grid else "list values under grid in the space"
    if not ranges:
        return f"a search draws its points; {fix}."
    return f"a grid over a continuous range has no end, and {ranges[0].path} goes from {ranges[0].described()}; {fix}."


def check_overrides(overrides: Iterable[Override], space: ResolvedSpace) -> None:
    """Raises UserError for an override of what the space varies, which every point would replace, and of the other field of
    an exclusive pair, such as steps where the space varies epochs."""
    keys = {".".join(parameter.key) for parameter in space.parameters}
    for override in overrides:
        key, group, name = override.key, override.path[0], ".".join(override.path[1:])
        phases = PHASES[:2] if group == "optim" else (group,)
        same = next((other for pair in EXCLUSIVE if name in pair for other in pair if other != name), name)
        of_pair = [f"{phase}.{same}" for phase in phases if f"{phase}.{same}" in keys]
        what = f"the {space.mode} of {space.space.name} varies"
        if key in keys or any(f"{phase}.{name}" in keys for phase in phases):
            raise UserError(f"{override.place}: {what} {key} itself; leave one of them out.")
        if of_pair:
            raise UserError(
                f"{override.place}: {what} {of_pair[0]}, which replaces {name}; leave {key} out, or tune over a space of your "
                f"own without {of_pair[0]}."
            )


def check_metric(resolved: ResolvedSpace, tasks: Mapping[str, Task], request: TuneRequest) -> None:
    """Raises UserError for a metric that a task does not have. `tasks`: those of the search by name."""
    where = "--metric" if request.metric else f"space {resolved.space.name}, metric"
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
