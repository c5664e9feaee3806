"""What a user asks of a search, as one frozen `TuneRequest`."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.planning.request import Request
from harness.search.trials import Mode


@dataclass(frozen=True)
class TuneRequest:
    """A search over a method's space. `method`: 'cmlm', or several as 'cmlm+scl'. `base`: what all points share (tasks, sizes,
    subsets, seeds, overrides, encoder, data, execution); its table, preset and methods are the space's, and its protocol unless all
    tasks are the user's own: these are split as table `own` splits them, so that what selects a point is never test there. `space`: a name or
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
