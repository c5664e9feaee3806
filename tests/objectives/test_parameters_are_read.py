"""A parameter that no module reads fails: it would move keys and no number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields, make_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from methods.contexts import alternatives, chain, effective_with, every_hyperparameter

from harness import objectives
from harness.encoders.models.text_encoder import Batch
from harness.methods import Method
from harness.objectives.base import TrainingObjective
from harness.objectives.definitions import DEFINITIONS, Config, Definition, StepSize, definition_of
from harness.specs import Objective

READ: dict[str, set[str]] = {}
"""Unread parameters by objective: most points of a method share one."""


def noting(definition: Definition, read: set[str]) -> Definition:
    """The same definition, which notes the names that are read of it. FLOPs do not count."""

    class Noting(type(definition)):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

        def flops(self, config: Config, size: StepSize) -> float:
            return 1.0

    noted: Definition = object.__new__(Noting)
    vars(noted).update(vars(definition))
    read.clear()
    return noted


def unread(folder: Path, spec: Objective) -> set[str]:
    """The parameters that building the objective, preparing a batch and its forward pass do not read."""
    if repr(spec) in READ:
        return READ[repr(spec)]
    read: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objectives, "definition_of", lambda spec: noting(definition_of(spec), read))
        module: TrainingObjective = tiny.built(folder, spec)
    rows = tiny.texts(9 * tiny.views_in(spec), seed=4)[0]
    views = module.prepare(tiny.read(folder, rows, spec), np.arange(9) % 2, tiny.draw_of())
    module(Batch.of(views.tokens, torch.device("cpu"), views.ids), views)
    READ[repr(spec)] = spec.params.keys() - read
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
        assert not unread(bert, spec), (
            f"no code reads these parameters of objective {spec.name}; drop them from its key"
        )


@pytest.mark.parametrize("name", tiny.OBJECTIVES)
def test_parameters_of_objectives_are_read(name: str, bert: Path) -> None:
    assert not unread(bert, tiny.OBJECTIVES[name])


def test_an_unread_parameter_is_seen(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scl = DEFINITIONS["scl"]
    more = make_dataclass("More", [("not_read", float)], bases=(scl,), frozen=True, kw_only=True)
    more.__module__ = scl.__module__
    spec = tiny.OBJECTIVES["scl"]
    monkeypatch.setitem(DEFINITIONS, "scl", more)
    assert unread(bert, replace(spec, params={**spec.params, "not_read": 0.1})) == {"not_read"}


@pytest.mark.parametrize("name", tiny.OBJECTIVES)
def test_parameters_are_checked_where_a_stage_is_planned(name: str) -> None:
    """One that the objective does not have, and one that is missing."""
    spec = tiny.OBJECTIVES[name]
    assert objectives.objective(spec.name, **spec.params) == spec
    with pytest.raises(TypeError, match="alhpa"):
        objectives.objective(spec.name, **spec.params, alhpa=0.5)
    required = [field.name for field in fields(DEFINITIONS[spec.name]) if field.default is MISSING]
    for missing in required:
        with pytest.raises(TypeError, match=missing):
            objectives.objective(spec.name, **{key: value for key, value in spec.params.items() if key != missing})
