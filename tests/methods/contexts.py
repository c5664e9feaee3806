"""Contexts that methods make their stages in, values of their hyperparameters, and the built-in ones as parameters of tests."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
from pydantic import ValidationError

from harness.commands.contract import CONTEXT
from harness.methods import METHODS, Method, RunContext, definition_of, hyperparameters, mlm_head_stage
from harness.methods import chain as chained
from harness.specs import Optim, Parent, RowSet, Stage

ENCODER = CONTEXT.encoder
HEAD = mlm_head_stage(ENCODER, RowSet("c" * 32, "prose", 9000, 500.0), Optim(1e-3, 32, 100), 64, 0, frozen=True)
HEADLESS = replace(CONTEXT, mlm_head=Parent(HEAD))


def chain(method: type[Method], context: RunContext = CONTEXT, **values: Any) -> tuple[Stage, ...]:
    return chained([hyperparameters(method, values, "test")], context)


def keys(method: type[Method], context: RunContext = CONTEXT, **values: Any) -> list[str]:
    return [stage.key for stage in chain(method, context, **values)]


def candidates(method: type[Method], name: str) -> list[Any]:
    """Values of a hyperparameter that are not its default, of every kind that its type allows."""
    info = method.model_fields[name]
    default: Any = info.default
    kind = info.annotation
    if typing.get_origin(kind) is typing.Literal:
        values: list[Any] = list(typing.get_args(kind))
    else:
        by_kind = {
            bool: [not default],
            int: [default + 1, default * 2, default + 4],
            float: [default / 2, default + 0.1],
        }
        values = by_kind[kind]  # type: ignore[index]
    return [value for value in dict.fromkeys(values) if value != default]


def allowed(method: type[Method], **values: Any) -> bool:
    try:
        method(**values)
    except ValidationError:
        return False
    return True


def settings(method: type[Method], name: str) -> Iterator[dict[str, Any]]:
    """The defaults, then each other hyperparameter at each of its candidates."""
    yield {}
    for other in method.model_fields:
        yield from ({other: value} for value in candidates(method, other) if other != name)


@lru_cache
def needed_with(method: type[Method], name: str) -> dict[str, Any]:
    """What another value of a hyperparameter needs beside it to be valid: nothing, or another hyperparameter."""
    valid = (
        setting
        for setting in settings(method, name)
        if any(allowed(method, **setting, **{name: value}) for value in candidates(method, name))
    )
    return next(valid)


def alternatives(method: type[Method], name: str) -> list[Any]:
    """Valid values of a hyperparameter that are not its default, beside what `needed_with` says."""
    setting = needed_with(method, name)
    return [value for value in candidates(method, name) if allowed(method, **setting, **{name: value})]


@lru_cache
def effective_with(method: type[Method], name: str) -> dict[str, Any]:
    """What to set beside a hyperparameter so that each of its values has a key of its own: nothing, or another hyperparameter."""
    values = alternatives(method, name)
    for setting in settings(method, name):
        beside = [setting, *({**setting, name: value} for value in values)]
        valid = all(allowed(method, **each) for each in beside)
        if valid and len({keys(method, **each)[-1] for each in beside}) == len(beside):
            return setting
    raise AssertionError(f"{name} changes no key, whatever other hyperparameter is set")


TRAINED = [method for method in METHODS.values() if not definition_of(chain(method)[-1].objective).fitted]
"""What scikit-learn fits is held to laws of its own, in tests/methods/test_reference.py."""
every_method = pytest.mark.parametrize("method", TRAINED, ids=[method.name for method in TRAINED])
every_hyperparameter = pytest.mark.parametrize(
    ("method", "name"),
    [pytest.param(m, name, id=f"{m.name}.{name}") for m in METHODS.values() for name in m.model_fields],
)
