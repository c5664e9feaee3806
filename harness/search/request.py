"""What a user asks of a search, as one frozen `TuneRequest`, and the bench requests of its points."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from harness.search.space_file import Mode
from harness.search.trials import Point
from harness.tables.request import Request

if TYPE_CHECKING:
    from harness.search.space import ResolvedSpace


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
