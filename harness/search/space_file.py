"""What a file under `search_spaces/` may say: distributions, the paths that they vary, and the space with its presets. Pure."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError, model_validator

from harness.errors import hint, unknown
from harness.methods import METHODS, methods_named
from harness.planning.recipe import PHASES, Count, Number, Phase, Scalar, Seed, Size, Value
from harness.search.trials import Mode
from harness.tasks.metrics import METRICS
from harness.yaml_files import MisplacedError, Strict, describe_errors, one_of, placed

MODES: tuple[Mode, ...] = ("grid", "search")
SAMPLERS = ("tpe", "gp", "random", "grid")
RACINGS = ("none", "asha", "median", "paired")


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
        for loc, sentence in self._mistakes():
            raise MisplacedError(loc, sentence)
        return self

    def _mistakes(self) -> Iterator[tuple[list[str], str]]:
        given = [name for name in ("low", "high", "step") if getattr(self, name) is not None] + ["log"] * self.log
        if self.choice is not None:
            if given:
                yield given[:1], f"choice and {given[0]} are both given; keep one"
            return
        if self.low is None or self.high is None:
            yield [], f"needs {('low' if self.low is None else 'high') if given else 'choice, or low and high'}"
            return
        low, high, step = *self.ends, self.step
        if low >= high:
            yield ["low"], f"low {low:.15g} should be less than high {high:.15g}"
        if self.log and low <= 0:
            yield ["low"], f"low {low:.15g} has no logarithm; take more than 0, or leave log out"
        if step and self.log:
            yield ["step"], "log and step are both given; keep one"
        if step and (last := stepped(low, step, max(1, steps_in(low, high, step)))) != high:
            yield ["high"], f"high {high:.15g} is not on a step of {step:.15g}; set it to {last:.15g}"

    @property
    def ends(self) -> tuple[float, float]:
        assert self.low is not None  # `_mistakes` has seen to it
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

    def active(self, point: Mapping[str, Value]) -> bool:
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


# ------------------------------------------------------------------------------------------------------------- paths


@dataclass(frozen=True)
class Tunable:
    """What a path names: a hyperparameter of `owner`, or a field of the recipe phase `owner`. `path`: 'name' where the space's method has one part,
    'part.name' where it has several, 'phase.field' of a recipe."""

    path: str
    owner: str
    name: str

    @property
    def model(self) -> type[BaseModel]:
        return METHODS[self.owner].Hyperparameters if self.owner in METHODS else Phase

    @property
    def kind(self) -> type[Value]:
        return _kind(self.model.model_fields[self.name].annotation)

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

    def values(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        """The values of a choice or a grid as the model reads them. Raises MisplacedError."""
        checked: list[Value] = []
        for index, value in enumerate(values):
            with placed(index):
                checked.append(self.value(value))
                if checked.index(checked[-1]) < index:
                    raise ValueError(f"{value!r} is given twice; keep one")
        return tuple(checked)

    def read(self, drawn: Distribution) -> Distribution:
        """The same with all values as the model reads them. Raises MisplacedError."""
        if drawn.choice is not None:
            with placed("choice"):
                return drawn.model_copy(update={"choice": self.values(drawn.choice)})
        if self.kind in (str, bool):
            words = "true and false" if self.kind is bool else "words"
            raise ValueError(f"{self.path} takes {words}, which have no range; give a choice: [...]")
        ends: dict[str, Value] = {}
        for name in ("low", "high", "step"):
            if (end := getattr(drawn, name)) is None:
                continue
            with placed(name):
                if self.kind is int and not end.is_integer():
                    raise ValueError(f"{self.path} is a whole number, and {end:.15g} is not")
                ends[name] = self.kind(end)
                if name != "step":
                    self.value(ends[name])
        return drawn.model_copy(update=ends)


def _kind(annotation: Any) -> type[Value]:
    """Of `Annotated[...]`, `... | None` and the like: the first plain type in it; of a `Literal` str."""
    if typing.get_origin(annotation) in (Annotated, typing.Union, types.UnionType):
        return _kind(typing.get_args(annotation)[0])
    return annotation if annotation in (bool, int, float) else str


def tunable_at(path: str, parts: tuple[str, ...]) -> Tunable:
    """The hyperparameter or recipe field that `path` names, for a method with these parts. Raises ValueError."""
    owner, dot, name = path.partition(".")
    if owner in PHASES and name in Phase.model_fields:
        return Tunable(path, owner, name)
    if not dot and len(parts) == 1:
        owner, name = parts[0], path
    if owner in parts and name in METHODS[owner].Hyperparameters.model_fields:
        return Tunable(name if len(parts) == 1 else f"{owner}.{name}", owner, name)
    own = {f"{part}.{name}": name for part in parts for name in METHODS[part].Hyperparameters.model_fields}
    takers = [key for key, name in own.items() if name == path]
    if takers:
        raise ValueError(f"the method has several parts; write {' or '.join(takers)} instead of {path}")
    known = sorted(own if len(parts) > 1 else own.values())
    meant = hint(path, [*known, *(f"{phase}.{name}" for phase in PHASES for name in Phase.model_fields)])
    raise ValueError(f"unknown parameter '{path}'.{meant} Known: {', '.join([*known, *(f'{p}.*' for p in PHASES)])}")


# ------------------------------------------------------------------------------------------------------------- space

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
