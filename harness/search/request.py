"""What a user asks of a search, as one frozen `TuneRequest`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Annotated

from pydantic import NonNegativeInt
from pydantic.dataclasses import dataclass

from harness.methods import known_methods
from harness.paths import PYTHON
from harness.planning.recipe import Value
from harness.planning.request import Count, Request, Text
from harness.yaml_files import one_of

Point = Mapping[str, Value]
"""One hyperparameter point: values by path ('alpha', 'fine_tune.lr')."""
MODES = ("grid", "search")
Mode = Annotated[str, one_of("mode", MODES)]
Sampler = Annotated[str, one_of("sampler", ("tpe", "random"))]
Racing = Annotated[str, one_of("racing rule", ("paired", "none"))]

SEARCH_FIELDS = ("mode", "space", "preset", "trials", "sampler", "racing", "metric", "seed")
"""The fields of a `TuneRequest` that say which study it is, in the order of a command line."""


@dataclass(frozen=True)
class TuneRequest:
    """A search over a method's space. `method`: 'cmlm', several as 'cmlm+scl', or a method's own file. `base`: what all points share (tasks, sizes,
    subsets, seeds, overrides, encoder, data, execution); its table, preset and methods (but for such a file) are the space's, and its protocol unless all
    tasks are the user's own: these are split as table `own` splits them, so that what selects a point is never test there. `space`: a name or
    the path of a YAML file, '' for the method's own. None keeps the space's. `seed`: of the sampler."""

    method: Text
    base: Request = field(default_factory=Request)
    space: Text = ""
    preset: Text | None = None
    mode: Mode | None = None
    trials: Count | None = None
    sampler: Sampler | None = None
    racing: Racing | None = None
    metric: Text | None = None
    seed: NonNegativeInt = 0
    out: Text | None = None

    def read(self) -> TuneRequest:
        """The same with the method by its name; a file that defines it, which was read, stands in `base.methods` from then on."""
        methods = self.base.methods or ((self.method,) if PYTHON in self.method else ())
        if not methods:
            return self
        return replace(self, method=known_methods(*methods), base=replace(self.base, methods=methods))
