"""The contract of every method in METHODS. What is special to a method is tested in a file of its own."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from methods.contexts import every_hyperparameter, every_method

from harness.contract.methods import (
    CONTEXT,
    ENCODER,
    HEAD,
    HEADLESS,
    OF_HYPERPARAMETER,
    OF_METHOD,
    alternatives,
    chain,
    keys,
    needed_with,
)
from harness.errors import UserError
from harness.methods import METHODS, Method, hyperparameters, mlm_head_stage
from harness.methods import chain as chained
from harness.objectives import DEFINITIONS, build, definition_of, objective
from harness.specs import Data, Parent, RowSet

SUPERVISED = {name for name, definition in DEFINITIONS.items() if definition.labelled}
"""A chain's leaf has one of them."""


@every_method
def test_a_method_keeps_the_contract(method: Method) -> None:
    assert METHODS[method.name] is method
    for law in OF_METHOD:
        law(method)


@every_hyperparameter
def test_a_hyperparameter_keeps_the_contract(method: Method, name: str) -> None:
    for law in OF_HYPERPARAMETER:
        law(method, name)


@every_hyperparameter
def test_a_misspelt_hyperparameter_is_answered_with_its_name(method: Method, name: str) -> None:
    with pytest.raises(UserError, match=f"^table x, row Y, key {name}x: unknown key. Did you mean '{name}'"):
        hyperparameters(method, {name + "x": 1}, "table x, row Y")


def test_what_a_method_decides_stands_in_the_table_of_the_papers() -> None:
    rows = re.findall(r"(?m)^\| ([A-Z]\d+) \|", (Path(__file__).parents[2] / "docs/papers.md").read_text())
    assert {row for method in METHODS.values() for row in method.decisions} <= set(rows)


@every_method
def test_versions_of_objectives(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bumping an objective changes the stages that use it and those after it, no other."""
    for name in {stage.objective.name for stage in chain(method)}:
        before = keys(method)
        with monkeypatch.context() as patch:
            patch.setattr(DEFINITIONS[name], "version", DEFINITIONS[name].version + 1)
            after = chain(method)
        uses = [any(s.objective.name == name for s in stage.chain) for stage in after]
        assert [stage.key != key for stage, key in zip(after, before, strict=True)] == uses
        assert keys(method) == before


def test_objectives_have_versions_modules_and_are_all_asked_for() -> None:
    asked = {HEAD.objective.name} | {
        stage.objective.name
        for method in METHODS.values()
        for name in [None, *method.Hyperparameters.model_fields]
        for value in ([None] if name is None else alternatives(method, name))
        for stage in chain(method, HEADLESS, **({} if name is None else {**needed_with(method, name), name: value}))
    }
    assert asked | {"mlm"} <= set(DEFINITIONS)
    assert set(DEFINITIONS) == asked | SUPERVISED
    assert all(isinstance(d.version, int) and d.version >= 1 for d in DEFINITIONS.values())


def test_a_stage_of_another_version_of_an_objective_is_not_built() -> None:
    old = replace(chain(METHODS["ft"])[0].objective, version=99)
    with pytest.raises(ValueError, match="version 1 here, the stage was recorded by 99"):
        build(old, None, None, None, 0.1, 31)


def test_a_record_with_a_value_that_is_gone_is_read_and_not_built() -> None:
    spec = chain(METHODS["taco"])[0].objective
    old = replace(spec, params={**spec.params, "embedding": "word"})
    assert definition_of(old) == definition_of(spec)
    with pytest.raises(ValueError, match="has only embedding layer here, the stage was recorded with word"):
        build(old, None, None, None, 0.1, 31)


def test_a_classifier_on_the_mlm_head_starts_from_a_trained_one() -> None:
    """Of the stage before it, or of the stage that replaces the encoder's own."""
    on_the_head = replace(METHODS["ft"], classify=lambda h, context: objective("mlm", p_m=0.15))
    after = chained([(METHODS["tapt"], METHODS["tapt"].Hyperparameters()), (on_the_head, None)], CONTEXT)[-1]
    assert isinstance(after.init, Parent)
    assert after.init.parts == ("encoder", "mlm_head")
    assert chain(on_the_head, HEADLESS)[-1].init == Parent(HEAD, parts=("encoder", "mlm_head"))
    assert chain(on_the_head)[-1].init == ENCODER


def test_the_mlm_head_stage_trains_the_head_alone() -> None:
    assert (HEAD.objective.name, dict(HEAD.objective.params)) == ("mlm_head", {"p_m": 0.15})
    whole = mlm_head_stage(ENCODER, HEAD.data.train, HEAD.optim, HEAD.data.max_length, HEAD.seed)
    assert whole.objective == chain(METHODS["mlm"])[0].objective
    assert (HEAD.phase, HEAD.seed, HEAD.selection, HEAD.init) == ("mlm-head", 0, None, ENCODER)
    assert HEAD.data == Data(RowSet("c" * 32), max_length=64)
