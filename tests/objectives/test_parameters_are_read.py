"""A parameter that no module reads fails: it would move keys and no number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
from methods.contexts import alternatives, chain, effective_with, every_hyperparameter

from harness.contract.objectives import Subject, unread
from harness.methods import DEFINITIONS, Method, definition_of, objective
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
            if not definition_of(stage.objective).refused(tiny.shape_of("bert")):
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
    class More(DEFINITIONS["scl"]):  # type: ignore[misc]
        not_read: float

    spec = tiny.OBJECTIVES["scl"]
    monkeypatch.setitem(DEFINITIONS, "scl", More)
    assert unread_of(bert, replace(spec, params={**spec.params, "not_read": 0.1})) == {"not_read"}


@pytest.mark.parametrize("name", tiny.OBJECTIVES)
def test_an_identity_is_that_of_its_parameters_and_holds_no_others(name: str) -> None:
    spec = tiny.OBJECTIVES[name]
    assert definition_of(spec).objective() == spec
    with pytest.raises(TypeError, match="alhpa"):
        objective(spec.name, alhpa=0.5)
