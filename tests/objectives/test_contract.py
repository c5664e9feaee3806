"""The contract of every objective in tiny.OBJECTIVES."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.encoders.models.text_encoder import Batch
from harness.encoders.tokens import ClozeExamples, Examples, Tokens
from harness.objectives import DEFINITIONS, definition_of
from harness.objectives.base import TrainingObjective, Views
from harness.objectives.masked import MaskedViews
from harness.training import loop
from harness.training.loop import Scoring, autocast, train, trainable

CPU = torch.device("cpu")
NO_DRAW = [name for name, spec in tiny.OBJECTIVES.items() if "p_m" not in spec.params and name != "prompt"]
"""What these see is what the batch holds. All others draw masks, or demonstrations, which fall by place in the batch."""
CONTRASTS = {name: s for name, s in tiny.OBJECTIVES.items() if {"contrast_group", "contrast"} & s.params.keys()}
CONTRASTS = {name: s for name, s in CONTRASTS.items() if s.params.get("contrast", True)}
"""Objectives that contrast something, by whatever name."""
PER_MASKED = ("where", "targets", "uniforms", "replacements")
every_objective = pytest.mark.parametrize("name", tiny.OBJECTIVES)


@dataclass(frozen=True)
class Example:
    """An objective, and a batch as the loop would give it."""

    module: TrainingObjective
    examples: Examples
    labels: NDArray[Any] | None

    def views(self, seed: int = 1, step: int = 1) -> Views:
        return self.module.prepare(self.examples, self.labels, tiny.draw_of(seed, step))

    def terms(self, views: Views | None = None, measures: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        views = views or self.views()
        return self.module(Batch.of(views.tokens, CPU, views.ids), views, measures)

    def loss(self, views: Views | None = None) -> Tensor:
        return self.module.loss(self.terms(views))


def example(
    folder: Path, name: str, rows: list[tuple[str, ...]] | None = None, dropout: float = 0.0, **params: Any
) -> Example:
    """On nine texts, unless told otherwise: two contrast groups of four, and one sequence alone."""
    spec = tiny.OBJECTIVES[name]
    spec = replace(spec, params={**spec.params, **params})
    rows = tiny.texts(9, seed=4)[0] if rows is None else rows
    labels = np.arange(len(rows)) % 2 if DEFINITIONS[spec.name].labelled else None
    whole = [*rows, *(("w7 " + row[0],) for _ in range(1, tiny.views_in(spec)) for row in rows)]
    examples = tiny.read(folder, whole, spec)
    return Example(tiny.built(folder, spec, dropout=dropout), examples, labels)


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def flat(value: Any) -> Any:
    """What a view holds, in a form that can be compared."""
    if isinstance(value, Tokens):
        return [flat(part) for part in vars(value).values()]
    if isinstance(value, dict):
        return [(name, flat(part)) for name, part in sorted(value.items())]
    return value.tolist() if isinstance(value, np.ndarray) else value


def seen(views: Views) -> Any:
    return [flat(part) for part in vars(views).values()]


@every_objective
class TestObjectiveContract:
    """The contract."""

    def test_terms_are_scalars_and_the_loss_their_weighted_sum(self, name: str, bert: Path) -> None:
        one = example(bert, name)
        terms = one.terms()
        assert terms.keys() == one.module.weights.keys()
        assert all(t.shape == () and t.dtype == torch.float32 and torch.isfinite(t) for t in terms.values())
        assert all(weight > 0 for weight in one.module.weights.values())
        expected = sum(one.module.weights[n] * t.item() for n, t in terms.items())
        assert one.module.loss(terms).item() == pytest.approx(expected, rel=1e-6)

    def test_what_is_trained_has_a_gradient_and_nothing_else(self, name: str, bert: Path) -> None:
        """Frozen: the MLM head where no term uses it, the encoder under its auxiliary or its head, an auxiliary that has
        converged."""
        one, spec = example(bert, name), tiny.OBJECTIVES[name]
        one.loss().backward()
        found, chosen = gradients(one.module), trainable(one.module)
        assert found.keys() == chosen.keys()
        assert all(torch.isfinite(g).all() and g.any() for g in found.values())
        frozen = () if "masked_lm" in one.module.weights or spec.name == "prompt" else ("encoder.model.cls.",)
        frozen += ("encoder.",) if spec.name == "auxiliary_mlm" else ()
        frozen += ("auxiliary.",) if spec.params.get("replacements") == "converged" else ()
        frozen += ("encoder.model.bert.",) if spec.name == "mlm_head" else ()
        names = dict(one.module.named_parameters()).keys()
        assert names - chosen.keys() == {n for n in names if n.startswith(frozen or ("none",))}

    def test_seed_and_step_decide_what_it_sees(self, name: str, bert: Path) -> None:
        one, again = example(bert, name, dropout=0.1), example(bert, name, dropout=0.1)
        before = one.examples.tokens.ids.copy()
        views = {at: one.views(*at) for at in ((1, 1), (1, 2), (2, 1))}
        torch.randn(3)
        assert seen(again.views(1, 1)) == seen(views[1, 1])
        distinct = {repr(seen(v)) for v in views.values()}
        assert len(distinct) == (1 if name in NO_DRAW else 3)
        assert np.array_equal(one.examples.tokens.ids, before)
        values = []
        for instance in (one, again):
            torch.manual_seed(5)
            values.append(instance.terms(views[1, 1]))
        assert same(*values)

    def test_the_order_of_rows_does_not_matter(self, name: str, bert: Path) -> None:
        """Where one contrast group is the whole batch. Masks, crops and replacements are drawn by place in the batch and
        stay there when rows move, so this is a law of what draws nothing; for the others see TestSeparable."""
        if name not in NO_DRAW:
            assert seen(example(bert, name).views()) != seen(example(bert, name).views(1, 2))
            return
        cut = "contrast_group" in tiny.OBJECTIVES[name].params
        one = example(bert, name, **({"contrast_group": 9} if cut else {}))
        order = np.random.default_rng(0).permutation(9)
        moved = Example(one.module, one.examples.take(order), None if one.labels is None else one.labels[order])
        for term, value in one.terms().items():
            assert moved.terms()[term].item() == pytest.approx(value.item(), abs=1e-5)

    def test_measures_change_nothing(self, name: str, bert: Path) -> None:
        """No term, no gradient, and no random draw that comes later."""
        ends = []
        for measured in (False, True):
            one = example(bert, name, dropout=0.2)
            measures: dict[str, Tensor] | None = {} if measured else None
            torch.manual_seed(3)
            terms = one.terms(measures=measures)
            state = torch.get_rng_state()
            one.module.loss(terms).backward()
            ends.append((terms, gradients(one.module), {"rng": state}))
            if measures is not None:
                assert all(m.shape == () and not m.requires_grad for m in measures.values())
                assert not any(m.isinf() for m in measures.values())
                assert not measures.keys() & terms.keys()
        assert all(same(a, b) for a, b in zip(*ends, strict=True))

    def test_measuring_at_every_step_trains_the_same_weights(
        self, name: str, bert: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spec, ends = tiny.OBJECTIVES[name], []
        supervised = DEFINITIONS[spec.name].labelled
        for every in (1, 1000):
            monkeypatch.setattr(loop, "MEASURE_EVERY", every)
            stage, inputs = (tiny.fine_tuning if supervised else tiny.post_training)(bert, spec)
            module = tiny.built(bert, spec)
            outcome = train(module, inputs, stage.optim, 1, scoring=Scoring.of(stage, tiny.METRICS))
            ends.append((module.state_dict(), [{**e, "measures": 0} for e in outcome.history]))
            kept = [e.get("measures") for e in outcome.history]
            if name not in ("cross_entropy", "prompt"):
                assert all(kept) if every == 1 else kept[0]
                assert all(np.isfinite(value) for found in kept if found for value in found.values())
        assert same(ends[0][0], ends[1][0])
        assert ends[0][1] == ends[1][1]

    @pytest.mark.parametrize("dropout", [0.0, 0.1])
    @pytest.mark.parametrize(("precision", "near"), [("bf16", 0.2), ("fp16", 0.02)])
    def test_half_precision(self, name: str, precision: str, near: float, dropout: float, bert: Path) -> None:
        one = example(bert, name, dropout=dropout)
        measures: dict[str, Tensor] = {}
        with autocast(CPU, precision):
            terms = one.terms(measures=measures)
            loss = one.module.loss(terms)
        loss.backward()
        assert all(t.dtype == torch.float32 and torch.isfinite(t) for t in terms.values())
        assert all(torch.isfinite(g).all() for g in gradients(one.module).values())
        if dropout == 0:
            for term, value in one.terms().items():  # sampled tokens may differ, so it is not bit-identical
                assert terms[term].item() == pytest.approx(value.item(), rel=near, abs=near / 2)

    @pytest.mark.parametrize(
        ("rows", "p_m"),
        [([("w1 w2 w3 w4 good",)], 0.5), ([("",)], 0.15), ([("",)] * 5, 1.0), ([("",), ("w1 w2",)], 1e-9)],
        ids=["one sequence", "one of no word", "no words", "nothing masked"],
    )
    def test_degenerate_batches(self, name: str, rows: list[tuple[str, ...]], p_m: float, bert: Path) -> None:
        spec = tiny.OBJECTIVES[name]
        one = example(bert, name, rows, **({"p_m": p_m} if "p_m" in spec.params else {}))
        measures: dict[str, Tensor] = {}
        terms = one.terms(measures=measures)
        one.module.loss(terms).backward()
        assert all(torch.isfinite(t) for t in terms.values())
        found = gradients(one.module)
        assert found
        assert all(torch.isfinite(g).all() for g in found.values())
        assert not any(m.isinf() for m in measures.values())


@pytest.mark.parametrize(("kind", "name"), tiny.ALLOWED)
def test_flops_are_what_the_plan_counted(kind: str, name: str, folders: dict[str, Path]) -> None:
    """With the share of tokens that was really masked. A plan knows neither special tokens, which are not predicted, nor
    that a crop keeps whole tokens, and the first one besides."""
    one = example(folders[kind], name, [(" ".join(["w1"] * 20),)] * 9)
    if tiny.views_in(tiny.OBJECTIVES[name]) > 1:
        first, _ = one.examples.side_by_side()
        one = replace(one, examples=tiny.examples(first.take(np.tile(np.arange(9), 2)), 2))
    if isinstance(one.examples, ClozeExamples):  # with demonstrations they have different lengths
        one = replace(one, examples=replace(one.examples, draws=0))
    views, spec = one.views(), tiny.OBJECTIVES[name]
    length = int(one.examples.tokens.lengths[0])
    assert set(one.examples.tokens.lengths) == {length}
    if isinstance(views, MaskedViews):
        spec = replace(spec, params={**spec.params, "p_m": len(views.where) / (9 * length)})
    expected = definition_of(spec).step_flops(tiny.shape_of(kind), 9, length)
    assert views.flops > 0
    rounded = {"crop_ratio", "token_prediction"} & {key for key, value in spec.params.items() if value}
    assert views.flops == pytest.approx(expected, rel=0.05 if rounded else 1e-9)


@pytest.mark.parametrize("name", CONTRASTS)
class TestContrasts:
    """Measures that tell a collapsed encoder from one that learns."""

    def test_what_is_measured(self, name: str, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        one, measures = example(bert, name), {}
        one.terms(measures=measures)
        expected = {"embedding_std", "positive_cosine", "negative_cosine", "collapsed_value"}
        expected |= {"predictor_cosine"} if tiny.OBJECTIVES[name].params.get("contrast") == "simsiam" else set()
        assert expected <= measures.keys()
        assert all(torch.isfinite(measures[key]) for key in expected)
        assert all(-1.001 < measures[key] < 1.001 for key in expected if key.endswith("cosine"))

    @pytest.mark.parametrize("rows", [1, 4, 8, 9, 10])
    def test_a_collapsed_encoder_rests_at_the_collapsed_value(self, name: str, rows: int, bert: Path) -> None:
        """Whole groups, a smaller last one, a sequence alone. SimSiam's predictor gives back what it gets."""
        one = example(bert, name, tiny.texts(rows, seed=4)[0])
        collapse(one.module)
        measures: dict[str, Tensor] = {}
        terms = one.terms(measures=measures)
        contrast = terms[one.module.contrasted]
        assert contrast.item() == pytest.approx(measures["collapsed_value"].item(), abs=1e-5)
        assert measures["embedding_std"].item() == pytest.approx(0, abs=1e-5)
        for key in ("positive_cosine", "negative_cosine", "predictor_cosine"):
            assert key not in measures or measures[key].isnan() or measures[key].item() == pytest.approx(1, abs=1e-5)

    def test_an_encoder_that_is_not_collapsed_does_not(self, name: str, bert: Path) -> None:
        one, measures = example(bert, name), {}
        terms = one.terms(measures=measures)
        contrast = terms[one.module.contrasted]
        assert abs(contrast.item() - measures["collapsed_value"].item()) > 1e-3
        assert measures["embedding_std"] > 0.05


def collapse(module: Any) -> None:
    """All states of the encoder at one point; embeddings at zero."""
    point = torch.linspace(-1, 2, module.encoder.hidden_size)

    def states(batch: Batch, wanted: Tensor | None = None) -> Tensor:
        return point.expand(len(batch.ids if wanted is None else wanted), -1)

    module.encoder.forward = states
    module.encoder.forward_with_embeddings = lambda batch: (states(batch), torch.zeros_like(states(batch)))
    module.encoder.word_embeddings = lambda ids: torch.zeros(len(ids), len(point))
    if hasattr(getattr(module, "contrast", None), "outer"):
        inner = nn.functional.gelu(module.contrast.inner(point)).detach()
        module.contrast.outer.weight.data = point[:, None] * inner / inner.square().sum()


class TestSeparable:
    """A sequence that is longer than all others, and adds nothing to a loss, changes nothing: not by its padding."""

    LONG = ("w3 " * 40).strip()

    def pair(self, folder: Path, name: str, rows: int = 8, **params: Any) -> tuple[Example, Views, Example, Views]:
        """(alone, its views, beside the long one, views). Streams are read from the front: the first rows' draws agree."""
        texts = tiny.texts(rows, seed=4)[0]
        alone, beside = example(folder, name, texts, **params), example(folder, name, [*texts, (self.LONG,)], **params)
        return alone, alone.views(), beside, beside.views()

    def cut(self, views: Any, size: int) -> Any:
        """Without the predictions of tokens after the first `size`."""
        inside = views.where < size
        kept = {k: v[inside] for k, v in vars(views).items() if k in PER_MASKED and v is not None}
        return replace(views, **kept)

    @pytest.mark.parametrize(
        ("kind", "name"), [p for p in tiny.ALLOWED if p[1] in ("mlm", "mlm_head", "mlm-tp", "auxiliary_mlm")]
    )
    def test_tokens(self, kind: str, name: str, folders: dict[str, Path]) -> None:
        alone, views, beside, wider = self.pair(folders[kind], name)
        wider = self.cut(wider, len(alone.examples.tokens.ids))
        assert np.array_equal(views.where, wider.where)
        assert beside.loss(wider).item() == pytest.approx(alone.loss(views).item(), abs=2e-6)

    @pytest.mark.parametrize("name", ["electra-shallow", "electra-narrow", "coco_lm-no_contrast"])
    def test_replaced_tokens(self, name: str, bert: Path) -> None:
        alone, views, beside, wider = self.pair(bert, name)
        size = len(alone.examples.tokens.ids)
        wider, module = self.cut(wider, size), beside.module
        judge: Any = module.judge
        module.judge = lambda seen, measures: judge(
            replace(
                seen,
                **{name: getattr(seen, name)[:size] for name in ("states", "original", "ids", "masked")},
            ),
            measures,
        )
        expected = alone.terms(views)
        for term, value in beside.terms(wider).items():
            assert value.item() == pytest.approx(expected[term].item(), abs=2e-6)

    @pytest.mark.parametrize("name", ["cssl-simclr", "coco_lm-random", "coco_lm-projection"])
    def test_a_contrast_group_of_its_own(self, name: str, bert: Path) -> None:
        """It has no negatives and adds 0 to the sum; the mean is over one sequence more."""
        alone, views, beside, wider = self.pair(bert, name)
        if isinstance(views, MaskedViews):
            wider = self.cut(wider, len(alone.examples.tokens.ids))
        expected = alone.terms(views)["contrast"].item() * 8 / 9
        assert beside.terms(wider)["contrast"].item() == pytest.approx(expected, abs=2e-6)

    @pytest.mark.parametrize("name", ["taco", "taco-word"])
    def test_token_alignment(self, name: str, bert: Path) -> None:
        alone, views, beside, wider = self.pair(bert, name)
        wider = self.cut(wider, len(alone.examples.tokens.ids))
        for key in (
            "positives",
            "negatives",
        ):  # drawn for a padded view, whose width is another: put those of the eight
            drawn, small = np.full_like(getattr(wider, key), -1), getattr(views, key)
            drawn[:8, : small.shape[1]] = small
            wider = replace(wider, **{key: drawn})
        expected = alone.terms(views)
        found = beside.terms(wider)
        share = views.anchors.sum() / wider.anchors.sum()
        assert found["masked_lm"].item() == pytest.approx(expected["masked_lm"].item(), abs=2e-6)
        assert found["contrast"].item() == pytest.approx(expected["contrast"].item() * share, abs=5e-6)
