"""The contract of every method in METHODS. What is special to a method is tested in a file of its own."""

from __future__ import annotations

import importlib
import inspect
import math
import types
from dataclasses import FrozenInstanceError, replace
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
from pydantic import ValidationError

from harness.errors import UserError
from harness.methods import METHODS, Method, RunContext, hyperparameters, mlm_head_stage
from harness.methods import chain as chained
from harness.objectives import DEFINITIONS, build, objective
from harness.specs import Data, Encoder, Optim, Parent, RowSet, Selection
from harness.yaml_files import Strict

SUPERVISED = {name for name, definition in DEFINITIONS.items() if definition.labelled}
"""A chain's leaf has one of them."""


@every_method
class TestMethodContract:
    """The contract."""

    def test_it_is_frozen_data_with_a_name_a_title_and_a_citation(self, method: Method) -> None:
        assert METHODS[method.name] is method
        assert method.name == method.name.lower()
        assert method.title
        assert any(year in method.citation for year in map(str, range(2015, 2030))), "the citation names its year"
        with pytest.raises(FrozenInstanceError):
            method.name = "other"
        with pytest.raises(ValidationError):
            setattr(method.Hyperparameters(), next(iter(method.Hyperparameters.model_fields), "x"), 1)

    def test_its_module_tells_what_deviates(self, method: Method) -> None:
        module = importlib.import_module(method.Hyperparameters.__module__)
        text = inspect.getdoc(module) or ""
        before, found, after = text.partition("Deviations.")
        assert before.strip(), "what the method is"
        assert found, "a block that begins with 'Deviations.'"
        assert len(after.split()) > 10

    def test_defaults_are_valid(self, method: Method) -> None:
        values = method.Hyperparameters().model_dump()
        assert hyperparameters(method, values, "test") == method.Hyperparameters()

    def test_its_hyperparameters_are_strict(self, method: Method) -> None:
        assert issubclass(method.Hyperparameters, Strict)
        with pytest.raises(UserError) as caught:
            hyperparameters(method, {"learning_rate_of_mine": 1}, "table x, row Y")
        assert str(caught.value).startswith("table x, row Y, key learning_rate_of_mine: unknown key.")
        for name in method.Hyperparameters.model_fields:
            with pytest.raises(UserError, match=f"Did you mean '{name}'"):
                hyperparameters(method, {name + "x": 1}, "here")

    def test_each_hyperparameter_is_described(self, method: Method) -> None:
        for name, info in method.Hyperparameters.model_fields.items():
            assert info.default is not None
            assert info.description, f"{method.name}.{name}"

    def test_the_leaf_is_supervised_and_reads_the_contexts_data(self, method: Method) -> None:
        leaf = chain(method)[-1]
        assert leaf.objective.name in SUPERVISED
        assert (replace(leaf.data, prompt=None), leaf.selection, leaf.seed) == (
            CONTEXT.data,
            CONTEXT.selection,
            CONTEXT.seed,
        )
        assert leaf.optim == CONTEXT.fine_tune
        assert leaf.phase == "fine-tune"

    @pytest.mark.parametrize("context", [CONTEXT, HEADLESS], ids=["with an MLM head", "with a trained MLM head"])
    def test_parents_come_before_children_and_all_begins_at_the_encoder(
        self, method: Method, context: RunContext
    ) -> None:
        stages = chain(method, context)
        uses_head = context is HEADLESS and isinstance(stages[0].init, Parent)
        whole = (HEAD, *stages) if uses_head else stages
        assert [s.key for s in stages[-1].chain] == [s.key for s in whole]
        assert stages[-1].encoder == ENCODER
        for stage in stages:
            assert isinstance(stage.init, Encoder) or stage.init.parts[0] == "encoder"

    def test_stages_are_deterministic(self, method: Method) -> None:
        assert keys(method) == keys(method)
        assert chain(method) == chain(method)

    def test_earlier_stages_read_unlabelled_rows_alone(self, method: Method) -> None:
        """Whatever has to do with labels, selection or fine-tuning leaves their keys alone; the leaf's own change."""
        changes = [
            replace(CONTEXT, data=replace(CONTEXT.data, train=RowSet("1" * 32))),
            replace(CONTEXT, data=replace(CONTEXT.data, dev=RowSet("2" * 32))),
            replace(CONTEXT, data=replace(CONTEXT.data, tests=())),
            replace(CONTEXT, data=replace(CONTEXT.data, num_labels=3)),
            replace(CONTEXT, selection=Selection("mcc", 50)),
            replace(CONTEXT, fine_tune=Optim(9e-5, 64, 700)),
        ]
        *earlier, leaf = chain(method)
        for stage in earlier:
            assert stage.objective.name not in SUPERVISED
            assert stage.data == (CONTEXT.translated if method.translates else CONTEXT.unlabelled)
            assert (stage.selection, stage.optim, stage.phase) == (None, CONTEXT.post_train, "post-train")
        for change in changes:
            assert [s.key for s in earlier] == keys(method, change)[:-1]
            assert leaf.key != keys(method, change)[-1]

    def test_texts_and_post_training_recipe_matter_where_there_is_post_training(self, method: Method) -> None:
        texts = {"translated" if method.translates else "unlabelled": Data(RowSet("3" * 32), max_length=96)}
        for change in (
            replace(CONTEXT, **texts),
            replace(CONTEXT, post_train=Optim(9e-5, 256, 650)),
        ):
            expected = len(chain(method)) > 1
            assert [a != b for a, b in zip(keys(method), keys(method, change), strict=True)] == [expected] * len(
                chain(method)
            )

    def test_seed_length_and_encoder_flow_into_every_stage(self, method: Method) -> None:
        assert all(stage.seed == CONTEXT.seed for stage in chain(method))
        assert CONTEXT.translated
        sets = {"data": CONTEXT.data, "unlabelled": CONTEXT.unlabelled, "translated": CONTEXT.translated}
        shorter: dict[str, Any] = {name: replace(each, max_length=64) for name, each in sets.items()}
        for change in (
            replace(CONTEXT, seed=42),
            replace(CONTEXT, **shorter),
            replace(CONTEXT, encoder=Encoder("9" * 32)),
        ):
            assert not set(keys(method)) & set(keys(method, change))

    def test_the_cells_labels_do_not_change_a_key(self, method: Method) -> None:
        assert keys(method) == keys(method, replace(CONTEXT, task="other", size=7, subset=3))

    def test_versions_of_objectives(self, method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
        """Bumping an objective changes the stages that use it and those after it, no other."""
        for name in {stage.objective.name for stage in chain(method)}:
            before = keys(method)
            with monkeypatch.context() as patch:
                patch.setattr(DEFINITIONS[name], "version", DEFINITIONS[name].version + 1)
                after = chain(method)
            uses = [any(s.objective.name == name for s in stage.chain) for stage in after]
            assert [stage.key != key for stage, key in zip(after, before, strict=True)] == uses
            assert keys(method) == before

    def test_it_says_in_a_sentence_what_it_skips(self, method: Method) -> None:
        assert method.unfit(CONTEXT) is None
        reason = method.unfit(replace(CONTEXT, data=replace(CONTEXT.data, num_labels=1)))
        assert reason is None or len(reason.split()) > 3


@every_hyperparameter
class TestHyperparameterContract:
    """The contract of each hyperparameter of each method."""

    def test_it_changes_the_key(self, method: Method, name: str) -> None:
        """At the defaults, or beside one other hyperparameter: then all of its values do, or none."""
        setting, values = effective_with(method, name), alternatives(method, name)
        made = [keys(method, **setting), *(keys(method, **setting, **{name: value}) for value in values)]
        assert len({tuple(k) for k in made}) == 1 + len(values)
        assert len({k[-1] for k in made}) == 1 + len(values)
        if setting and not needed_with(method, name):
            assert all(keys(method, **{name: value}) == keys(method) for value in values)

    def test_numbers_are_coerced(self, method: Method, name: str) -> None:
        """An int for a float, a float for an int, text from a command line: one value, one key."""
        kind = method.Hyperparameters.model_fields[name].annotation
        setting = effective_with(method, name)
        whole: Any = {float: 1, int: 4, bool: True}.get(kind)
        if isinstance(kind, types.GenericAlias) or whole is None:
            return
        try:
            method.Hyperparameters(**{**setting, name: whole})
        except ValidationError:
            return
        made = keys(method, **setting, **{name: whole})
        assert keys(method, **setting, **{name: float(whole)}) == made
        assert keys(method, **setting, **{name: str(whole)}) == made
        assert type(getattr(hyperparameters(method, {**setting, name: whole}, "x"), name)) is kind

    def test_the_objective_holds_it_as_declared(self, method: Method, name: str) -> None:
        kind = method.Hyperparameters.model_fields[name].annotation
        for stage in chain(method, **effective_with(method, name)):
            if name in stage.objective.params and kind in (int, float, bool):
                assert type(stage.objective.params[name]) is kind

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1, "many words", None, [1]])
    def test_what_it_cannot_be_is_refused_in_a_sentence(self, method: Method, name: str, bad: Any) -> None:
        with pytest.raises(UserError) as caught:
            hyperparameters(method, {name: bad}, "row X")
        message = str(caught.value)
        assert message.startswith("row X")
        assert message.endswith(".")
        assert message.count("\n") == 0


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


def test_an_objective_without_a_version_is_an_error() -> None:
    with pytest.raises(KeyError):
        objective("nothing")


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
