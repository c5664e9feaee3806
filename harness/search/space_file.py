"""What a file under `search_spaces/` may say."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from harness.errors import unknown
from harness.methods import methods_named
from harness.planning.recipe import Count, Scalar, Seed, Size
from harness.search.parameters import Distribution
from harness.search.trials import Mode
from harness.tasks.metrics import METRICS
from harness.yaml_files import MisplacedError, Strict, one_of, placed

MODES: tuple[Mode, ...] = ("grid", "search")
SAMPLERS = ("tpe", "gp", "random", "grid")
RACINGS = ("none", "asha", "median", "paired")
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
