"""The contract of every objective in tiny.OBJECTIVES."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

from harness.contract.objectives import OF_OBJECTIVE, Subject, seen
from harness.encoders.tokens import ClozeExamples
from harness.methods import definition_of
from harness.objectives.base import embedding_std
from harness.training.update import trainable

CPU = torch.device("cpu")
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
class TestObjectiveContract:
    """The contract."""

    def test_it_keeps_the_contract(self, name: str, bert: Path) -> None:
        for law in OF_OBJECTIVE:
            law(partial(tiny.subject, bert, name))

    def test_what_is_frozen(self, name: str, bert: Path) -> None:
        """The MLM head where no term uses it, the encoder under its auxiliary or its head, an auxiliary that has
        converged."""
        one, spec = tiny.subject(bert, name), tiny.OBJECTIVES[name]
        chosen = trainable(one.module)
        frozen = () if "masked_lm" in one.module.weights or spec.name == "prompt" else ("encoder.model.cls.",)
        frozen += ("encoder.",) if spec.name == "auxiliary_mlm" else ()
        frozen += ("auxiliary.",) if spec.params.get("replacements") == "converged" else ()
        frozen += ("encoder.model.bert.",) if spec.name in ("mlm_head", "frozen_head") else ()
        names = dict(one.module.named_parameters()).keys()
        assert names - chosen.keys() == {n for n in names if n.startswith(frozen or ("none",))}

    def test_seed_and_step_are_drawn_from(self, name: str, bert: Path) -> None:
        one = tiny.subject(bert, name)
        distinct = {repr(seen(one.views(*at))) for at in ((1, 1), (1, 2), (2, 1))}
        assert len(distinct) == (1 if name in NO_DRAW else 3)

    def test_the_order_of_rows_does_not_matter(self, name: str, bert: Path) -> None:
        """Where one contrast group is the whole batch. Masks, crops and replacements are drawn by place in the batch and
        stay there when rows move, so this is a law of what draws nothing; for the others see TestSeparable."""
        if name not in NO_DRAW:
            assert seen(tiny.subject(bert, name).views()) != seen(tiny.subject(bert, name).views(1, 2))
            return
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
    one = tiny.subject(folders[kind], name, [(" ".join(["w1"] * 20),)] * 9)
    if tiny.views_in(tiny.OBJECTIVES[name]) > 1:
        first, _ = one.examples.side_by_side()
        one = replace(one, examples=tiny.examples(first.take(np.tile(np.arange(9), 2)), 2))
    if isinstance(one.examples, ClozeExamples):  # with demonstrations they have different lengths
        one = replace(one, examples=replace(one.examples, draws=0))
    views, spec = one.views(), tiny.OBJECTIVES[name]
    length = int(one.examples.tokens.lengths[0])
    assert set(one.examples.tokens.lengths) == {length}
    if "where" in views.predicted:
        spec = replace(spec, params={**spec.params, "p_m": len(views.predicted["where"]) / (9 * length)})
    expected = definition_of(spec).step_flops(tiny.shape_of(kind), 9, length)
    assert views.flops > 0
    rounded = {"crop_ratio", "token_prediction"} & {key for key, value in spec.params.items() if value}
    assert views.flops == pytest.approx(expected, rel=0.05 if rounded else 1e-9)


@pytest.mark.parametrize("name", CONTRASTS)
def test_a_contrast_measures_its_spread(name: str, bert: Path) -> None:
    one, measures = tiny.subject(bert, name), {}
    one.terms(measures=measures)
    assert one.module.measured
    assert measures["embedding_std"] > 0.05
    assert embedding_std(torch.ones(9, 1) * torch.linspace(-1, 2, 64)).item() == pytest.approx(0, abs=1e-6)
    spread = embedding_std(torch.randn(500, 64, generator=torch.Generator().manual_seed(0)))
    assert spread.item() == pytest.approx(1, abs=0.02)
