"""What a user asks of a search, as one frozen `TuneRequest`, and the bench requests of its points."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from harness.errors import UserError
from harness.methods import METHODS, methods_named
from harness.search.space import Mode, ResolvedSpace, check_method, load_space, resolve_space, space_names
from harness.search.trials import Point
from harness.tables.request import Override, Request
from harness.tables.table import EXCLUSIVE, PHASES


@dataclass(frozen=True)
class TuneRequest:
    """A search over a method's space. `method`: 'cmlm', or several as 'cmlm+scl'. `base`: what all points share (tasks, sizes,
    subsets, seeds, overrides, encoder, data, execution); its table, preset and methods are the space's. `space`: a name or
    the path of a YAML file, '' for the method's own. None keeps the space's. `seed`: of the sampler."""

    method: str
    base: Request = field(default_factory=Request)
    space: str = ""
    preset: str | None = None
    mode: Mode | None = None
    trials: int | None = None
    sampler: str | None = None
    racing: str | None = None
    metrics: tuple[str, ...] | None = None
    seed: int = 0
    out: str | None = None

    def resolve(self) -> ResolvedSpace:
        """The space as it is explored. Raises UserError for an unknown name, and where the space is for another method."""
        method = self.method.lower()
        if method in space_names() and not set(method.split("+")) <= METHODS.keys():
            other = load_space(method).method
            raise UserError(f"tune {method}: is a space and no method; take harness tune {other} --space {method}.")
        methods_named(method, "tune")
        if not self.space and method not in space_names():
            raise UserError(f"tune {method}: no packaged space varies this method; write one and name it with --space.")
        named, where = self.space or method, self.base.origin("space")
        space = load_space(named, where)
        check_method(space, self.method, f"{where} {named}")
        return resolve_space(
            space,
            preset=self.preset,
            mode=self.mode,
            sampler=self.sampler,
            racing=self.racing,
            trials=self.trials,
            metrics=self.metrics,
        )

    def bench(self, space: ResolvedSpace, point: Point) -> Request:
        """The bench that runs one point."""
        base = self.base
        subsets = tuple(range(space.subsets)) if space.subsets else None
        return replace(
            base,
            table=space.table,
            preset=space.table_preset,
            methods=(space.row or space.method,),
            tasks=base.tasks or space.tasks,
            sizes=base.sizes or space.sizes,
            subsets=base.subsets or subsets,
            seeds=base.seeds or space.seeds,
            overrides=(*space.set, *base.overrides, *space.overrides(point)),
        )


def check_overrides(overrides: Iterable[Override], space: ResolvedSpace) -> None:
    """Raises UserError for an override of what the space varies, which every point would replace, and of the other field of
    an exclusive pair, such as steps where the space varies epochs."""
    varied = {p.path: p.choices[0] if p.choices else p.low for p in space.parameters}
    keys = {override.key for override in space.overrides(varied)}
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
