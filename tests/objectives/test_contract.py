"""The contract of every objective in tiny.OBJECTIVES, and that every parameter in a key is read: another would move keys and no number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from methods.contexts import alternatives, chain, effective_with, every_hyperparameter

from harness.commands.contract import OF_OBJECTIVE, Subject, seen, unread
from harness.encoders.tokens.cloze import ClozeExamples
from harness.methods import DEFINITIONS, Method, definition_of, objective
from harness.objectives.base import embedding_std
from harness.specs import Objective
from harness.training.update import trainable

NO_DRAW = [name for name, spec in tiny.OBJECTIVES.items() if "p_m" not in spec.params and name != "prompt"]
"""What these see is what the batch holds. All others draw masks, or demonstrations, which fall by place in the batch."""
CONTRASTS = {name: s for name, s in tiny.OBJECTIVES.items() if {"contrast_group", "contrast"} & s.params.keys()}
CONTRASTS = {name: s for name, s in CONTRASTS.items() if s.params.get("contrast", True)}
"""Objectives that contrast something, by whatever name."""
COUNTED = [
    pair
    for pair in tiny.ALLOWED
    if pair[0] == "bert" or pair[1] in ("cross_entropy", "mlm", "electra-narrow", "coco_lm")
]
"""Each objective, and on each kind of encoder those whose FLOPs read another part of its shape."""
every_objective = pytest.mark.parametrize("name", tiny.OBJECTIVES)


@every_objective
def test_it_keeps_the_contract(name: str, bert: Path) -> None:
    for law in OF_OBJECTIVE:
        law(partial(tiny.subject, bert, name))


@every_objective
def test_what_is_frozen(name: str, bert: Path) -> None:
    """The MLM head where no term uses it, the encoder under its auxiliary or its head, an auxiliary that has converged."""
    one, spec = tiny.subject(bert, name), tiny.OBJECTIVES[name]
    frozen = () if "masked_lm" in one.module.weights or spec.name == "prompt" else ("encoder.model.cls.",)
    frozen += ("encoder.",) if spec.name == "auxiliary_mlm" else ()
    frozen += ("auxiliary.",) if spec.params.get("replacements") == "converged" else ()
    frozen += ("encoder.model.bert.",) if spec.name in ("mlm_head", "frozen_head") else ()
    names = dict(one.module.named_parameters()).keys()
    assert names - trainable(one.module).keys() == {n for n in names if n.startswith(frozen or ("none",))}


@every_objective
def test_seed_and_step_are_drawn_from(name: str, bert: Path) -> None:
    one = tiny.subject(bert, name)
    distinct = {repr(seen(one.batch(*at))) for at in ((1, 1), (1, 2), (2, 1))}
    assert len(distinct) == (1 if name in NO_DRAW else 3)


@pytest.mark.parametrize("name", NO_DRAW)
def test_the_order_of_rows_does_not_matter(name: str, bert: Path) -> None:
    """Where one contrast group is the whole batch. Masks, crops and replacements are drawn by place in the batch and stay there when rows move."""
    cut = "contrast_group" in tiny.OBJECTIVES[name].params
    one = tiny.subject(bert, name, **({"contrast_group": 9} if cut else {}))
    order = np.random.default_rng(0).permutation(9)
    moved = Subject(one.module, one.examples.take(order), None if one.labels is None else one.labels[order])
    for term, value in one.terms().items():
        assert moved.terms()[term].item() == pytest.approx(value.item(), abs=1e-5)


@pytest.mark.parametrize(("kind", "name"), COUNTED)
def test_flops_are_what_the_plan_counted(kind: str, name: str, folders: dict[str, Path]) -> None:
    """With the share of tokens that was really masked. A plan knows neither special tokens, which are not predicted, nor
    that a crop keeps whole tokens, and the first one besides."""
    one = tiny.subject(folders[kind], name, [22] * 9)
    if tiny.views_in(tiny.OBJECTIVES[name]) > 1:
        first, _ = one.examples.side_by_side()
        one = replace(one, examples=tiny.examples(first.take(np.tile(np.arange(9), 2)), 2))
    if isinstance(one.examples, ClozeExamples):  # with demonstrations they have different lengths
        one = replace(one, examples=replace(one.examples, draws=0))
    views, spec = one.batch(), tiny.OBJECTIVES[name]
    length = int(one.examples.tokens.lengths[0])
    assert set(one.examples.tokens.lengths) == {length}
    if "predicted" in views.placed:
        spec = replace(spec, params={**spec.params, "p_m": views.num_predicted / (9 * length)})
    definition = definition_of(spec)
    expected = definition.flops(tiny.shape_of(kind), definition.expected(9, length))
    flops = one.module.step_flops(views)
    rounded = {"crop_ratio", "token_prediction"} & {key for key, value in spec.params.items() if value}
    assert flops == pytest.approx(expected, rel=0.05 if rounded else 1e-9)


@pytest.mark.parametrize("name", CONTRASTS)
def test_a_contrast_measures_its_spread(name: str, bert: Path) -> None:
    one = tiny.subject(bert, name)
    one.module.measures = measures = {}
    one.terms()
    assert one.module.measured
    assert measures["embedding_std"] > 0.05


def test_the_spread_is_0_at_one_direction_and_1_on_the_sphere() -> None:
    assert embedding_std(torch.ones(9, 1) * torch.linspace(-1, 2, 64)).item() == pytest.approx(0, abs=1e-6)
    spread = embedding_std(torch.randn(500, 64, generator=torch.Generator().manual_seed(0)))
    assert spread.item() == pytest.approx(1, abs=0.02)


# ------------------------------------------------------------------------------------------------ parameters that are read


UNREAD: dict[str, set[str]] = {}
"""By objective: most points of a method share one."""


def unread_of(folder: Path, spec: Objective) -> set[str]:
    if repr(spec) not in UNREAD:
        rows = tiny.texts(9 * tiny.views_in(spec), seed=4)[0]
        labels = np.arange(9) % 2
        UNREAD[repr(spec)] = unread(
            lambda: Subject(tiny.built(folder, spec), tiny.read(folder, rows, spec), labels), spec
        )
    return UNREAD[repr(spec)]


def specs_of(method: type[Method], name: str) -> Iterator[Objective]:
    setting = effective_with(method, name)
    for more in ({}, *({name: value} for value in alternatives(method, name))):
        for stage in chain(method, **setting, **more):
            if not definition_of(stage.objective).refused(tiny.shape_of("bert")):
                yield stage.objective


@every_hyperparameter
def test_what_a_method_puts_into_a_key_is_read(method: type[Method], name: str, bert: Path) -> None:
    for spec in specs_of(method, name):
        assert not unread_of(bert, spec), f"no code reads these parameters of {spec.name}; drop them from its key"


@every_objective
def test_its_parameters_make_its_identity(name: str) -> None:
    spec = tiny.OBJECTIVES[name]
    assert definition_of(spec).objective() == spec
    with pytest.raises(TypeError, match="alhpa"):
        objective(spec.name, alhpa=0.5)


def test_an_unread_parameter_is_seen(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class More(DEFINITIONS["scl"]):  # type: ignore[misc]
        not_read: float

    spec = tiny.OBJECTIVES["scl"]
    monkeypatch.setitem(DEFINITIONS, "scl", More)
    assert unread_of(bert, replace(spec, params={**spec.params, "not_read": 0.1})) == {"not_read"}
