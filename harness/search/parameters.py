"""What a space varies: paths of hyperparameters and recipe fields, and the values that each may take. Pure."""

from __future__ import annotations

import contextlib
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError, model_validator

from harness.errors import UserError, unknown
from harness.methods import METHODS, Method, hyperparameters
from harness.tables.recipe import Number, Phase, Scalar, Value
from harness.tables.values import PHASES
from harness.yaml_files import MisplacedError, Strict, describe_errors

Kind = Literal["number", "whole", "word", "bool"]


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
            raise MisplacedError(["low"], f"low {self.low:g} should be less than high {self.high:g}")
        if self.log and self.low <= 0:
            raise MisplacedError(["low"], f"low {self.low:g} has no logarithm; take more than 0, or leave log out")
        if self.step is None:
            return self
        if self.log:
            raise MisplacedError(["step"], "log and step are both given; keep one")
        if not 0 < self.step <= self.high - self.low + 1e-12:
            raise MisplacedError(
                ["step"], f"step {self.step:g} should be more than 0 and at most high - low, {self.high - self.low:g}"
            )
        if (last := stepped(self.low, self.step, steps_in(self.low, self.high, self.step))) != self.high:
            raise MisplacedError(["high"], f"high {self.high:g} is not on a step of {self.step:g}; set it to {last:g}")
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

    `path`: 'name' where the space's method has one part, 'part.name' where it has several, 'phase.field' of a recipe.
    `choices`: of a choice or a grid's list; empty for a range. `extra`: the default's value where the grid lacks it, so that a
    sampler can be told of the default point. `when`: values of its parents under which it is active.
    """

    path: str
    choices: tuple[Value, ...] = ()
    extra: tuple[Value, ...] = ()
    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None
    integer: bool = False
    when: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)

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
        how = " (log)" if self.log else f" in steps of {self.step:g}" if self.step is not None else ""
        return f"{self.low:g} to {self.high:g}{how}"


# ------------------------------------------------------------------------------------------------------------- paths


@dataclass(frozen=True)
class Tunable:
    """What a path names: a hyperparameter of `owner`, or a field of the recipe phase `owner`."""

    path: str
    owner: str
    name: str

    @property
    def method(self) -> Method | None:
        return METHODS.get(self.owner)

    @property
    def model(self) -> type[BaseModel]:
        return self.method.Hyperparameters if self.method else Phase

    @property
    def kind(self) -> Kind:
        return _kind(self.model.model_fields[self.name].annotation)

    def value(self, value: Value) -> Value:
        """The value as the model reads it: 1 as 1.0 for a number. Raises ValueError with a sentence for a wrong one.

        A value that is only wrong beside others is right: the others may be varied too.
        """
        read: BaseModel
        try:
            if self.method is None:
                read = Phase.model_validate({self.name: value})
            else:
                read = hyperparameters(self.method, {self.name: value}, self.name)
            return typing.cast(Value, getattr(read, self.name))
        except ValidationError as error:
            message = describe_errors(error, Phase, self.name)
        except UserError as error:
            message = str(error)
            if not isinstance(value, bool):
                with contextlib.suppress(ValidationError):
                    return self._alone(value)
        sentence = message.split("\n")[0].partition(": ")[2]
        raise ValueError(sentence.removeprefix(f"{self.name} ").removesuffix("."))

    def _alone(self, value: Value) -> Value:
        """As the field reads it, without the model's rules on several fields."""
        info = self.model.model_fields[self.name]
        kind: Any = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        return typing.cast(Value, TypeAdapter(kind).validate_python(value))


def _kind(annotation: Any) -> Kind:
    """Of `Annotated[...]`, `... | None` and the like: the first plain type in it."""
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return "word"
    if origin in (Annotated, typing.Union, types.UnionType):
        return _kind(typing.get_args(annotation)[0])
    kinds: dict[Any, Kind] = {bool: "bool", int: "whole", float: "number"}
    return kinds.get(annotation, "word")


def tunable_at(path: str, parts: tuple[str, ...]) -> Tunable:
    """The hyperparameter or recipe field that `path` names, for a method with these parts. Raises ValueError."""
    owner, dot, name = path.partition(".")
    if owner in PHASES and name in Phase.model_fields:
        return Tunable(path, owner, name)
    if not dot and len(parts) == 1:
        owner, name = parts[0], path
    if owner in parts and name in METHODS[owner].Hyperparameters.model_fields:
        return Tunable(name if len(parts) == 1 else f"{owner}.{name}", owner, name)
    takers = [part for part in parts if path in METHODS[part].Hyperparameters.model_fields]
    if takers:
        raise ValueError(
            f"the method has several parts; write {' or '.join(f'{part}.{path}' for part in takers)} instead of {path}"
        )
    own = [
        name if len(parts) == 1 else f"{part}.{name}"
        for part in parts
        for name in METHODS[part].Hyperparameters.model_fields
    ]
    fields = [f"{phase}.{name}" for phase in PHASES for name in Phase.model_fields]
    hint = str(unknown("parameter", path, [*own, *fields])).partition(" Known:")[0]
    raise ValueError(f"{hint} Known: {', '.join([*sorted(own), *(f'{phase}.*' for phase in PHASES)])}")


def checked_values(tunable: Tunable, values: tuple[Value, ...], loc: list[int | str]) -> tuple[Value, ...]:
    """The values of a choice or a grid as the model reads them. Raises MisplacedError."""
    found: list[Value] = []
    for index, value in enumerate(values):
        try:
            read = tunable.value(value)
        except ValueError as error:
            raise MisplacedError([*loc, index], str(error)) from None
        if read in found:
            raise MisplacedError([*loc, index], f"{value!r} is given twice; keep one")
        found.append(read)
    return tuple(found)


def sampled_parameter(tunable: Tunable, spec: Distribution, loc: list[int | str]) -> Parameter:
    """A distribution as a parameter, `when` left out. Raises MisplacedError."""
    if spec.choice is not None:
        return Parameter(tunable.path, checked_values(tunable, spec.choice, [*loc, "choice"]))
    assert spec.low is not None  # Distribution has seen to it
    assert spec.high is not None
    if tunable.kind in ("word", "bool"):
        words = "true and false" if tunable.kind == "bool" else "words"
        raise MisplacedError(loc, f"{tunable.path} takes {words}, which have no range; give a choice: [...]")
    ends = {"low": spec.low, "high": spec.high, **({} if spec.step is None else {"step": spec.step})}
    for name, end in ends.items():
        if tunable.kind == "whole" and not end.is_integer():
            raise MisplacedError([*loc, name], f"{tunable.path} is a whole number, and {end:g} is not")
        try:
            if name != "step":
                tunable.value(int(end) if tunable.kind == "whole" else end)
        except ValueError as error:
            raise MisplacedError([*loc, name], str(error)) from None
    return Parameter(
        tunable.path, low=spec.low, high=spec.high, log=spec.log, step=spec.step, integer=tunable.kind == "whole"
    )
