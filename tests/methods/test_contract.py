"""The contract of every method in METHODS: what its stages read, what moves their keys, and that each hyperparameter is described, checked
and has an effect. What is special to a method is tested in a file of its own."""

from __future__ import annotations

import inspect
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from methods.contexts import (
    CONTEXT,
    ENCODER,
    HEAD,
    HEADLESS,
    alternatives,
    chain,
    effective_with,
    every_hyperparameter,
    every_method,
    keys,
    needed_with,
)

from harness.errors import UserError
from harness.methods import DEFINITIONS, METHODS, Method, definition_of, hyperparameters, mlm_head_stage, objective
from harness.methods import chain as chained
from harness.objectives import build
from harness.specs import Data, Encoder, Optim, Parent, RowSet, Selection

SUPERVISED = {name for name, definition in DEFINITIONS.items() if definition.labelled}
"""A chain's leaf has one of them."""

# ------------------------------------------------------------------------------------------------------------- a method


@every_method
def test_it_is_described(method: type[Method]) -> None:
    assert METHODS[method.name] is method
    assert method.title
    assert re.search(r"20[12]\d", method.citation)
    before, found, after = (inspect.getdoc(sys.modules[method.__module__]) or "").partition("Deviations.")
    assert before.strip()
    assert found
    assert len(after.split()) > 10
    assert hyperparameters(method, method().model_dump(), "test") == method()
    for info in method.model_fields.values():
        assert info.default is not None
        assert info.description
    assert method.skipped(CONTEXT) is None
    reason = method.skipped(replace(CONTEXT, data=replace(CONTEXT.data, num_labels=1)))
    assert reason is None or len(reason.split()) > 3


@every_method
@pytest.mark.parametrize("context", [CONTEXT, HEADLESS], ids=["head", "headless"])
def test_its_stages_follow_one_another_to_fine_tuning(method: type[Method], context: Any) -> None:
    stages = chain(method, context)
    assert chain(method, context) == stages
    uses_head = context is HEADLESS and isinstance(stages[0].init, Parent)
    assert [s.key for s in stages[-1].chain] == [s.key for s in ((HEAD, *stages) if uses_head else stages)]
    assert stages[-1].encoder == ENCODER
    assert all(isinstance(stage.init, Encoder) or stage.init.parts[0] == "encoder" for stage in stages)
    *earlier, leaf = stages
    assert DEFINITIONS[leaf.objective.name].labelled
    assert replace(leaf.data, prompt=None) == context.data
    assert (leaf.selection, leaf.seed) == (context.selection, context.seed)
    assert (leaf.optim, leaf.phase) == (context.fine_tune, "fine-tune")
    for stage in earlier:
        assert not DEFINITIONS[stage.objective.name].labelled
        assert stage.data == (context.translated if method.translates else context.unlabelled)
        assert (stage.selection, stage.optim, stage.phase) == (None, context.post_train, "post-train")


@every_method
def test_labels_selection_and_fine_tuning_move_the_last_key_alone(method: type[Method]) -> None:
    *earlier, leaf = keys(method)
    for change in (
        replace(CONTEXT, data=replace(CONTEXT.data, train=RowSet("1" * 32))),
        replace(CONTEXT, data=replace(CONTEXT.data, dev=RowSet("2" * 32))),
        replace(CONTEXT, data=replace(CONTEXT.data, tests=())),
        replace(CONTEXT, data=replace(CONTEXT.data, num_labels=3)),
        replace(CONTEXT, selection=Selection("mcc", 50)),
        replace(CONTEXT, fine_tune=Optim(9e-5, 64, 700)),
    ):
        *before, last = keys(method, change)
        assert before == earlier
        assert last != leaf


@every_method
def test_what_a_stage_reads_moves_its_key_and_names_of_cells_do_not(method: type[Method]) -> None:
    texts: dict[str, Any] = {"translated" if method.translates else "unlabelled": Data(RowSet("3" * 32), max_length=96)}
    found = keys(method)
    for change in (replace(CONTEXT, **texts), replace(CONTEXT, post_train=Optim(9e-5, 256, 650))):
        moved = [a != b for a, b in zip(found, keys(method, change), strict=True)]
        assert moved == [len(found) > 1] * len(moved)
    sets = {name: getattr(CONTEXT, name) for name in ("data", "unlabelled", "translated")}
    shorter: dict[str, Any] = {name: replace(data, max_length=64) for name, data in sets.items()}
    for change in (replace(CONTEXT, seed=42), replace(CONTEXT, **shorter), replace(CONTEXT, encoder=Encoder("9" * 32))):
        assert not set(found) & set(keys(method, change))
    assert found == keys(method, replace(CONTEXT, task="other", size=7, subset=3))


# ----------------------------------------------------------------------------------------------------- a hyperparameter


@every_hyperparameter
def test_each_value_has_a_key(method: type[Method], name: str) -> None:
    """At the defaults, or beside one other hyperparameter: then all of its values do, or none."""
    setting, values = effective_with(method, name), alternatives(method, name)
    if setting and not needed_with(method, name):
        assert all(keys(method, **{name: value}) == keys(method) for value in values)
    kind = method.model_fields[name].annotation
    for stage in chain(method, **setting):
        held = stage.objective.params.get(name)
        assert held is None or kind not in (int, float, bool) or type(held) is kind


@every_hyperparameter
def test_what_it_cannot_be_is_refused_in_a_sentence(method: type[Method], name: str) -> None:
    for bad in (math.nan, math.inf, -math.inf, -1, "many words", None, [1]):
        with pytest.raises(UserError, match=r"^row X.*\.$"):
            hyperparameters(method, {name: bad}, "row X")
    with pytest.raises(UserError, match=f"^table x, row Y, key {name}x: unknown key. Did you mean '{name}'"):
        hyperparameters(method, {name + "x": 1}, "table x, row Y")


# --------------------------------------------------------------------------------------------------- papers and versions


def test_what_a_method_decides_stands_in_the_table_of_the_papers() -> None:
    rows = re.findall(r"(?m)^\| ([A-Z]\d+) \|", (Path(__file__).parents[2] / "docs/papers.md").read_text())
    assert {row for method in METHODS.values() for row in method.decisions} <= set(rows)


@every_method
def test_versions_of_objectives(method: type[Method], monkeypatch: pytest.MonkeyPatch) -> None:
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
        for name in [None, *method.model_fields]
        for value in ([None] if name is None else alternatives(method, name))
        for stage in chain(method, HEADLESS, **({} if name is None else {**needed_with(method, name), name: value}))
    }
    assert asked | {"mlm"} <= set(DEFINITIONS)
    assert set(DEFINITIONS) == asked | SUPERVISED
    assert all(isinstance(d.version, int) and d.version >= 1 for d in DEFINITIONS.values())


def test_a_stage_of_another_version_of_an_objective_is_not_built() -> None:
    old = replace(chain(METHODS["ft"])[0].objective, version=99)
    with pytest.raises(ValueError, match="version 1 here, the stage was recorded by 99"):
        build(old, None, None, None, 31)


def test_a_record_with_a_value_that_is_gone_is_read_and_not_built() -> None:
    spec = chain(METHODS["taco"])[0].objective
    old = replace(spec, params={**spec.params, "embedding": "word"})
    assert definition_of(old) == definition_of(spec)
    with pytest.raises(ValueError, match="has only embedding layer here, the stage was recorded with word"):
        build(old, None, None, None, 31)


def test_a_classifier_on_the_mlm_head_starts_from_a_trained_one() -> None:
    """Of the stage before it, or of the stage that replaces the encoder's own."""

    class OnTheHead(METHODS["ft"]):  # type: ignore[misc]
        def objective(self, batch_size: int = 0) -> Any:
            return objective("mlm", p_m=0.15)

    after = chained([METHODS["tapt"](), OnTheHead()], CONTEXT)[-1]
    assert isinstance(after.init, Parent)
    assert after.init.parts == ("encoder", "mlm_head")
    assert chain(OnTheHead, HEADLESS)[-1].init == Parent(HEAD, parts=("encoder", "mlm_head"))
    assert chain(OnTheHead)[-1].init == ENCODER


def test_the_mlm_head_stage_trains_the_head_alone() -> None:
    assert (HEAD.objective.name, dict(HEAD.objective.params)) == ("mlm_head", {"p_m": 0.15})
    whole = mlm_head_stage(ENCODER, HEAD.data.train, HEAD.optim, HEAD.data.max_length, HEAD.seed)
    assert whole.objective == chain(METHODS["mlm"])[0].objective
    assert (HEAD.phase, HEAD.seed, HEAD.selection, HEAD.init) == ("mlm-head", 0, None, ENCODER)
    assert HEAD.data == Data(RowSet("c" * 32), max_length=64)
