"""What a space varies: paths of hyperparameters and recipe fields, and the values that each may take. Pure."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError, model_validator

from harness.errors import hint
from harness.methods import METHODS
from harness.planning.recipe import PHASES, Number, Phase, Scalar, Value
from harness.yaml_files import MisplacedError, Strict, describe_errors, placed


def _values(value: object) -> object:
    if isinstance(value, Mapping):
        raise ValueError("a grid takes a list of values; write the values out, or move it to search")
    return _listed(value)


def _listed(value: object) -> object:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"should be a list of values, not {value!r}")
    if not value:
        raise ValueError("the list is empty; give it a value, or leave the parameter out")
    return value


def as_list(value: object) -> object:
    """One value where a list may stand."""
    return value if isinstance(value, (list, tuple)) or value is None else [value]


GridValues = dict[str, Annotated[tuple[Scalar, ...], BeforeValidator(_values)]]


class Distribution(Strict):
    """What a search draws a parameter from: a list of values, or the numbers from `low` to `high`.

    `log`: evenly in the logarithm. `step`: low, low + step and so on. `when`: the values of other searched parameters under
    which this one has an effect; otherwise it is left out of the point.
    """

    choice: Annotated[tuple[Scalar, ...], BeforeValidator(_listed)] | None = None
    low: Number | None = None
    high: Number | None = None
    log: bool = False
    step: Number | None = None
    when: dict[str, Annotated[tuple[Scalar, ...], BeforeValidator(as_list)]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [name for name in ("low", "high", "step") if getattr(self, name) is not None] + ["log"] * self.log
        if self.choice is not None:
            if given:
                raise MisplacedError([given[0]], f"choice and {given[0]} are both given; keep one")
            return self
        if self.low is None or self.high is None:
            missing = "low" if self.low is None else "high"
            raise MisplacedError([], f"needs {'choice, or low and high' if not given else missing}")
        if self.low >= self.high:
            raise MisplacedError(["low"], f"low {self.low:.15g} should be less than high {self.high:.15g}")
        if self.log and self.low <= 0:
            raise MisplacedError(["low"], f"low {self.low:.15g} has no logarithm; take more than 0, or leave log out")
        if self.step is None:
            return self
        if self.log:
            raise MisplacedError(["step"], "log and step are both given; keep one")
        if not 0 < self.step <= self.high - self.low + 1e-12:
            raise MisplacedError(
                ["step"],
                f"step {self.step:.15g} should be more than 0 and at most high - low, {self.high - self.low:.15g}",
            )
        if (last := stepped(self.low, self.step, steps_in(self.low, self.high, self.step))) != self.high:
            raise MisplacedError(
                ["high"], f"high {self.high:.15g} is not on a step of {self.step:.15g}; set it to {last:.15g}"
            )
        return self


def steps_in(low: float, high: float, step: float) -> int:
    """How often `step` fits, counted in decimals: 0.8 holds 0.1 eight times."""
    return int((Decimal(str(high)) - Decimal(str(low))) // Decimal(str(step)))


def stepped(low: float, step: float, count: int) -> float:
    """low + count * step as one would write it: 0.3 and not 0.30000000000000004, which would be another run."""
    return float(Decimal(str(low)) + count * Decimal(str(step)))


@dataclass(frozen=True)
class Parameter:
    """One path that a space varies, checked and in its canonical form.

    `path`: 'name' where the space's method has one part, 'part.name' where it has several, 'phase.field' of a recipe; `key`: as
    an override names it. `choices`: of a choice or a grid's list; empty for a range. `extra`: the default's value where the grid
    lacks it, so that a sampler can be told of the default point. `when`: values of its parents under which it is active. `loc`:
    its keys in the space's file.
    """

    path: str
    key: tuple[str, str] = ("", "")
    choices: tuple[Value, ...] = ()
    extra: tuple[Value, ...] = ()
    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None
    integer: bool = False
    when: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    loc: tuple[str, ...] = field(default=(), compare=False)

    @property
    def offered(self) -> tuple[Value, ...]:
        """What a sampler chooses from."""
        return (*self.choices, *self.extra)

    @property
    def num_values(self) -> float:
        """How many values it can take; infinite for a continuous range."""
        if self.choices:
            return len(self.offered)
        step = self.step or (1 if self.integer else None)
        return math.inf if step is None else steps_in(self.low, self.high, step) + 1

    def active(self, point: Mapping[str, Value]) -> bool:
        """Its parents, as far as the point goes, have values under which it has an effect."""
        return all(parent in point and point[parent] in values for parent, values in self.when.items())

    def holds(self, value: Value) -> bool:
        if self.choices:
            return value in self.choices
        if isinstance(value, (bool, str)) or not self.low <= value <= self.high:
            return False
        return self.step is None or stepped(self.low, self.step, steps_in(self.low, value, self.step)) == value

    def suggest(self, trial: Any) -> Value:
        """The value that an optuna trial gives it."""
        if self.choices:
            return typing.cast(Value, trial.suggest_categorical(self.path, list(self.offered)))
        if self.integer:
            step = {} if self.step is None else {"step": int(self.step)}
            return int(trial.suggest_int(self.path, int(self.low), int(self.high), log=self.log, **step))
        value = float(trial.suggest_float(self.path, self.low, self.high, log=self.log, step=self.step))
        return value if self.step is None else stepped(self.low, self.step, round((value - self.low) / self.step))

    def described(self) -> str:
        """For a reader: '0.1, 0.3, 0.5' or '0.01 to 2 (log)'."""
        if self.choices:
            return ", ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in self.choices)
        how = " (log)" if self.log else f" in steps of {self.step:.15g}" if self.step is not None else ""
        return f"{self.low:.15g} to {self.high:.15g}{how}"


# ------------------------------------------------------------------------------------------------------------- paths


@dataclass(frozen=True)
class Tunable:
    """What a path names: a hyperparameter of `owner`, or a field of the recipe phase `owner`."""

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

    def parameter(self, spec: Distribution | tuple[Value, ...], loc: tuple[str, ...]) -> Parameter:
        """The values of a grid, or what a search draws from, as a parameter, `when` left out. Raises MisplacedError."""
        parameter = Parameter(self.path, (self.owner, self.name), loc=loc)
        if isinstance(spec, tuple):
            return replace(parameter, choices=self.values(spec))
        if spec.choice is not None:
            with placed("choice"):
                return replace(parameter, choices=self.values(spec.choice))
        if self.kind in (str, bool):
            words = "true and false" if self.kind is bool else "words"
            raise ValueError(f"{self.path} takes {words}, which have no range; give a choice: [...]")
        assert spec.low is not None  # Distribution has seen to it
        assert spec.high is not None
        for name, end in (("low", spec.low), ("high", spec.high), ("step", spec.step or 1.0)):
            with placed(name):
                if self.kind is int and not end.is_integer():
                    raise ValueError(f"{self.path} is a whole number, and {end:.15g} is not")
                if name != "step":
                    self.value(self.kind(end))
        integer = self.kind is int
        return replace(parameter, low=spec.low, high=spec.high, log=spec.log, step=spec.step, integer=integer)


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
