"""A parameter that no module reads fails: it would move keys and no number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields, make_dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import tiny
from methods.contexts import alternatives, chain, effective_with, every_hyperparameter

from harness import objectives
from harness.contract.objectives import Subject, unread
from harness.methods import Method
from harness.objectives.definitions import DEFINITIONS, definition_of
from harness.specs import Objective

READ: dict[str, set[str]] = {}
"""Unread parameters by objective: most points of a method share one."""


def unread_of(folder: Path, spec: Objective) -> set[str]:
    if repr(spec) not in READ:
        rows = tiny.texts(9 * tiny.views_in(spec), seed=4)[0]

        def make() -> Subject:
            return Subject(tiny.built(folder, spec), tiny.read(folder, rows, spec), np.arange(9) % 2)

        READ[repr(spec)] = unread(make, spec)
    return READ[repr(spec)]


def specs_of(method: Method, name: str) -> Iterator[Objective]:
    setting = effective_with(method, name)
    for more in ({}, *({name: value} for value in alternatives(method, name))):
        for stage in chain(method, **setting, **more):
            if not definition_of(stage.objective).unmet(tiny.shape_of("bert")):
                yield stage.objective


@every_hyperparameter
def test_what_a_method_puts_into_a_key_is_read(method: Method, name: str, bert: Path) -> None:
    for spec in specs_of(method, name):
        assert not unread_of(bert, spec), (
            f"no code reads these parameters of objective {spec.name}; drop them from its key"
        )


@pytest.mark.parametrize("name", tiny.OBJECTIVES)
def test_parameters_of_objectives_are_read(name: str, bert: Path) -> None:
    assert not unread_of(bert, tiny.OBJECTIVES[name])


def test_an_unread_parameter_is_seen(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scl = DEFINITIONS["scl"]
    more = make_dataclass("More", [("not_read", float)], bases=(scl,), frozen=True, kw_only=True)
    more.__module__ = scl.__module__
    spec = tiny.OBJECTIVES["scl"]
    monkeypatch.setitem(DEFINITIONS, "scl", more)
    assert unread_of(bert, replace(spec, params={**spec.params, "not_read": 0.1})) == {"not_read"}


@pytest.mark.parametrize("name", tiny.OBJECTIVES)
def test_parameters_are_checked_where_a_stage_is_planned(name: str) -> None:
    """One that the objective does not have, and one that is missing."""
    spec = tiny.OBJECTIVES[name]
    params = {key: value for key, value in spec.params.items() if key not in DEFINITIONS[spec.name].retired}
    assert objectives.objective(spec.name, **params) == spec
    with pytest.raises(TypeError, match="alhpa"):
        objectives.objective(spec.name, **params, alhpa=0.5)
    required = [field.name for field in fields(DEFINITIONS[spec.name]) if field.default is MISSING]
    for missing in required:
        with pytest.raises(TypeError, match=missing):
            objectives.objective(spec.name, **{key: value for key, value in params.items() if key != missing})
