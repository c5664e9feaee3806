"""The objectives as modules: what they see at equal seed, what they mask, their heads, and their terms."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from numpy.typing import NDArray
from objectives.formulas import normal

from harness.encoders.models.batch import Batch
from harness.encoders.tokens import Examples, Tokeniser, Tokens
from harness.kinds import Scores, kind_of_outputs
from harness.methods import DEFINITIONS, METHODS, RunContext, chain, hyperparameters
from harness.objectives import build
from harness.objectives.base import TrainingObjective, Views
from harness.objectives.classification import CRITERIA
from harness.objectives.losses import simclr, supervised_contrastive
from harness.objectives.masked import MaskedText
from harness.specs import Encoder, Objective, RowSet, Selection, Stage
from harness.streams import stream
from harness.training.loop import train

CPU = torch.device("cpu")


def made(folder: Path, spec: Objective, *, seed: int = 1, num_labels: int = 2, dropout: float = 0.0) -> Any:
    encoder = tiny.encoder(folder)
    encoder.set_dropout(dropout)
    return build(spec, encoder, tiny.vocabulary(folder), kind_of_outputs(num_labels), dropout, seed)


def changed(name: str, **params: Any) -> Objective:
    spec = tiny.OBJECTIVES[name]
    return Objective(spec.name, spec.version, {**spec.params, **params})


def draw_of(seed: int, step: int = 1) -> Callable[..., np.random.Generator]:
    return lambda purpose, *more: stream(seed, purpose, step, *more)


Mask = tuple[int, NDArray[np.bool_], NDArray[Any]]


def prepared(folder: Path, spec: Objective, monkeypatch: pytest.MonkeyPatch, seed: int = 1) -> list[Any]:
    """(tokens, labels, views, [(view, selected, corrupted ids)]) of each step that the loop trains."""
    stage, inputs = (tiny.fine_tuning if DEFINITIONS[spec.name].labelled else tiny.post_training)(
        folder, spec, seed=seed, steps=7
    )
    module: TrainingObjective = made(folder, spec, seed=seed)
    module.measured = False  # of views that are no update's
    steps: list[tuple[Tokens, Any, Views, list[Mask]]] = []
    masks: list[Mask] = []
    prepare, mask = type(module).prepare, MaskedText.mask

    def masked(self: MaskedText, *arguments: Any, **options: Any) -> Any:
        found = mask(self, *arguments, **options)
        masks.append((arguments[3], *found))
        return found

    def spy(self: TrainingObjective, examples: Examples, labels: Any, draw: Any) -> Views:
        masks.clear()
        steps.append((examples.tokens, labels, prepare(self, examples, labels, draw), list(masks)))
        return steps[-1][2]

    with monkeypatch.context() as patch:
        patch.setattr(type(module), "prepare", spy)
        patch.setattr(MaskedText, "mask", masked)
        train(module, inputs, stage.optim, seed)
    assert len(steps) == 7
    return steps


class TestEqualSeed:
    @pytest.mark.parametrize("name", ["cmlm-simsiam", "cmlm-simclr"])
    def test_tapt_and_cmlm_see_the_same_view_0(self, name: str, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        alone = prepared(bert, tiny.OBJECTIVES["mlm"], monkeypatch)
        for params in ({}, {"num_views": 3, "p_c": 0.4}, {"masking": "independent", "mask_only": True}):
            beside = prepared(bert, changed(name, **params), monkeypatch)
            for (tokens, _, mlm, _), (other, _, cmlm, _) in zip(alone, beside, strict=True):
                size = len(tokens.ids)
                assert np.array_equal(tokens.ids, other.ids)
                assert np.array_equal(mlm.ids, cmlm.ids[:size])
                assert np.array_equal(mlm.predicted["where"], cmlm.predicted["where"])
                assert np.array_equal(mlm.predicted["targets"], cmlm.predicted["targets"])
                assert np.array_equal(cmlm.tokens.ids[:size], tokens.ids)

    def test_fine_tuning_sees_the_same_batches(self, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        plain, contrast = (prepared(bert, tiny.OBJECTIVES[name], monkeypatch) for name in ("cross_entropy", "scl"))
        for (tokens, labels, *_), (others, their, *_) in zip(plain, contrast, strict=True):
            assert np.array_equal(tokens.ids, others.ids)
            assert np.array_equal(labels, their)


class TestViews:
    @pytest.mark.parametrize("num_views", [1, 2, 5])
    def test_complementary(self, num_views: int, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        selected_in_views = np.zeros(num_views)
        for tokens, _, views, masks in prepared(bert, changed("cmlm-simsiam", num_views=num_views), monkeypatch):
            assert [view for view, *_ in masks] == list(range(num_views + 1))
            assert np.array_equal(views.ids, np.concatenate([ids for *_, ids in masks]))
            assert np.array_equal(views.tokens.ids, np.tile(tokens.ids, num_views + 1))
            assert np.array_equal(views.tokens.lengths, np.tile(tokens.lengths, num_views + 1))
            _, first, _ = masks[0]
            for view, selected, ids in masks[1:]:
                assert not (selected & first).any()
                assert np.array_equal(ids[~selected], tokens.ids[~selected])
                selected_in_views[view - 1] += selected.sum()
            if num_views > 1:
                assert not np.array_equal(masks[1][1], masks[2][1])
        assert (selected_in_views > 0).all()

    def test_special_tokens_are_masked_where_that_is_set_and_never_the_first(
        self, bert: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """RoBERTa's setting. Of the other tokens the same ones as without it: one stream, a number for each token."""
        plain, special = (prepared(bert, changed(name, p_m=0.5), monkeypatch) for name in ("mlm", "mlm-special"))
        masked = 0
        for (tokens, _, _, [(_, without, _)]), (_, _, views, [(_, selected, _)]) in zip(plain, special, strict=True):
            first = np.isin(np.arange(len(tokens.ids)), tokens.offsets[:-1])
            assert not (without & tokens.special).any()
            assert not selected[first].any()
            assert np.array_equal(selected[~tokens.special], without[~tokens.special])
            assert np.array_equal(views.predicted["where"], np.flatnonzero(selected))
            masked += int((selected & tokens.special).sum())
        assert masked > 0
        tokens = tiny.tokens(bert, tiny.texts(8)[0])
        every = made(bert, changed("mlm-special", p_m=1.0)).prepare(Examples(tokens), None, draw_of(1))
        assert np.array_equal(every.predicted["where"], np.setdiff1d(np.arange(len(tokens.ids)), tokens.offsets[:-1]))

    def test_independent(self, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """'w/o CRM': tokens of view 0 are selected again."""
        steps = prepared(bert, changed("cmlm-simsiam", masking="independent", p_m=0.5), monkeypatch)
        assert any((selected & masks[0][1]).any() for *_, masks in steps for _, selected, _ in masks[1:])

    def test_mask_only_is_of_the_further_views(self, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        mask_id = tiny.vocabulary(bert).mask_id
        steps = prepared(bert, changed("cmlm-simsiam", mask_only=True, p_m=0.5), monkeypatch)
        for *_, masks in steps:
            for _, selected, ids in masks[1:]:
                assert (ids[selected] == mask_id).all()
        assert any((ids[selected] != mask_id).any() for *_, masks in steps for _, selected, ids in masks[:1])

    @pytest.mark.parametrize("kind", tiny.KINDS)
    @pytest.mark.parametrize("name", ["mlm", "cmlm-simsiam"])
    def test_special_tokens_are_never_touched(self, name: str, kind: str, folders: dict[str, Path]) -> None:
        folder = folders[kind]
        tokens = tiny.tokens(folder, tiny.texts(12, pairs=True)[0])
        views = {} if name == "mlm" else {"p_c": 1.0, "masking": "independent"}
        module = made(folder, changed(name, p_m=1.0, **views))
        views = module.prepare(Examples(tokens), None, draw_of(1))
        special = np.tile(tokens.special, len(views.ids) // len(tokens.ids))
        assert np.array_equal(views.ids[special], views.tokens.ids[special])
        assert np.array_equal(views.predicted["where"], np.flatnonzero(~tokens.special))
        assert (views.ids[~special] == module.vocabulary.mask_id).mean() == pytest.approx(0.8, abs=0.1)


class TestMaskedTerm:
    @pytest.mark.parametrize("kind", tiny.KINDS)
    @pytest.mark.parametrize("name", ["mlm", "cmlm-simsiam", "cmlm-simclr"])
    def test_the_head_runs_at_the_masked_positions_alone(self, name: str, kind: str, folders: dict[str, Path]) -> None:
        module = made(folders[kind], tiny.OBJECTIVES[name])
        tokens = tiny.tokens(folders[kind], tiny.texts(8)[0])
        views = module.prepare(Examples(tokens), None, draw_of(1))
        rows: list[tuple[int, ...]] = []
        out = module.encoder.model.get_output_embeddings()
        out.register_forward_hook(lambda _, __, logits: rows.append(tuple(logits.shape)))
        module(views.on(CPU))
        count = len(views.predicted["where"])
        assert 0 < count < int((~tokens.special).sum())
        assert rows == [(count, tiny.vocabulary(folders[kind]).size)]

    @pytest.mark.parametrize("name", ["mlm", "cmlm-simsiam"])
    def test_nothing_selected(self, name: str, bert: Path) -> None:
        """A batch of short texts: the loss is 0, finite and connected."""
        module, tokens = made(bert, changed(name, p_m=1e-9)), tiny.tokens(bert, [("w1",), ("w2",)])
        views = module.prepare(Examples(tokens), None, draw_of(1))
        terms = module(views.on(CPU))
        assert len(views.predicted["where"]) == 0
        assert terms["masked_lm"].item() == 0
        module.loss(terms).backward()
        assert all(torch.isfinite(p.grad).all() for p in module.parameters() if p.grad is not None)

    def test_without_mlm(self, bert: Path) -> None:
        module, tokens = made(bert, changed("cmlm-simsiam", mlm=False)), tiny.tokens(bert, tiny.texts(8)[0])
        views = module.prepare(Examples(tokens), None, draw_of(1))
        terms = module(views.on(CPU))
        assert terms.keys() == {"contrast"}
        assert module.loss(terms).item() == pytest.approx(0.5 * terms["contrast"].item())
        beside = made(bert, tiny.OBJECTIVES["cmlm-simsiam"]).prepare(Examples(tokens), None, draw_of(1))
        assert np.array_equal(views.ids, beside.ids)


class TestGroups:
    """The global batch is cut into groups of `contrast_group`; the last may be small."""

    @pytest.mark.parametrize(
        ("representation", "reduction", "group"),
        [("first_token", "mean", 4), ("pooled", "mean_valid", 7), ("first_token", "sum", 10), ("pooled", "mean", 16)],
    )
    def test_scl(self, representation: str, reduction: str, group: int, bert: Path) -> None:
        spec = changed("scl", contrast_group=group, reduction=reduction, representation=representation)
        module, (rows, labels) = made(bert, spec), tiny.texts(10, seed=3)
        tokens = tiny.tokens(bert, rows)
        views = module.prepare(Examples(tokens), labels, draw_of(1))
        batch = Batch.of(views.tokens, CPU, views.ids)
        terms = module(views.on(CPU))
        first, pooled, _ = module.head(module.encoder, batch)
        features, gold = pooled if representation == "pooled" else first, torch.as_tensor(labels)
        expected = 0.0
        for start in range(0, 10, group):
            part = features[start : start + group], gold[start : start + group]
            value = supervised_contrastive(*part, temperature=0.3, reduction=reduction).item()
            expected += value * (1 if reduction == "sum" else len(part[1]) / 10)
        assert terms["supervised_contrastive"].item() == pytest.approx(expected, rel=1e-5)
        whole = 0.5 * terms["cross_entropy"].item() + 0.5 * expected
        assert module.loss(terms).item() == pytest.approx(whole, rel=1e-5)

    @pytest.mark.parametrize("group", [4, 7, 16])
    def test_simclr(self, group: int, bert: Path) -> None:
        module = made(bert, changed("cmlm-simclr", contrast_group=group, num_views=3))
        tokens = tiny.tokens(bert, tiny.texts(10)[0])
        views = module.prepare(Examples(tokens), None, draw_of(1))
        terms = module(views.on(CPU))
        first = []
        for view in range(4):  # each view through the encoder by itself
            ids = views.ids[view * len(tokens.ids) : (view + 1) * len(tokens.ids)]
            first.append(module.encoder(Batch.of(tokens, CPU, ids))[tokens.offsets[:-1]])
        expected = 0.0
        for start in range(0, 10, group):
            part = slice(start, start + group)
            hk = torch.stack([h[part] for h in first[1:]])
            expected += simclr(first[0][part], hk, temperature=0.2).item() * hk.shape[1] / 10
        assert terms["contrast"].item() == pytest.approx(expected, rel=1e-4)


class TestHeads:
    @staticmethod
    def heads(folder: Path, spec: Objective, seed: int, noise: int = 0) -> dict[str, torch.Tensor]:
        torch.manual_seed(noise)
        state = made(folder, spec, seed=seed).state_dict()
        return {name: tensor for name, tensor in state.items() if not name.startswith("encoder.")}

    @pytest.mark.parametrize(
        "name",
        ["cross_entropy", "scl", "cmlm-simsiam", "cssl-simsiam", "coco_lm-random"],
    )
    def test_drawn_from_the_seeds_streams(self, name: str, bert: Path) -> None:
        spec = tiny.OBJECTIVES[name]
        first, again, other = (self.heads(bert, spec, seed, noise) for seed, noise in ((1, 5), (1, 6), (2, 5)))
        matrices = [name for name in first if name.endswith("weight")]
        assert matrices
        assert all(torch.equal(first[name], again[name]) for name in first)
        assert not any(torch.equal(first[name], other[name]) for name in matrices)
        assert len({first[name].flatten()[:4].numpy().tobytes() for name in matrices}) == len(matrices)
        assert all((first[name] == 0).all() for name in first.keys() - set(matrices))

    def test_ft_and_scl_start_from_the_same_head(self, bert: Path) -> None:
        plain, contrast = (self.heads(bert, tiny.OBJECTIVES[name], 1) for name in ("cross_entropy", "scl"))
        assert plain.keys() == contrast.keys()
        assert all(torch.equal(plain[name], contrast[name]) for name in plain)

    def test_the_predictor_has_no_bias_and_simclr_no_predictor(self, bert: Path) -> None:
        assert self.heads(bert, tiny.OBJECTIVES["cmlm-simsiam"], 1).keys() == {
            "contrast.inner.weight",
            "contrast.outer.weight",
        }
        assert not self.heads(bert, tiny.OBJECTIVES["cmlm-simclr"], 1)
        assert self.heads(bert, tiny.OBJECTIVES["cssl-simsiam"], 1).keys() == {
            "contrast.inner.weight",
            "contrast.outer.weight",
        }
        for name in ("mlm", "mlm-tp", "cssl-simclr", "taco"):
            assert not self.heads(bert, tiny.OBJECTIVES[name], 1)

    @pytest.mark.parametrize("name", ["electra-shallow", "coco_lm"])
    def test_the_detector_has_no_bias_and_one_start(self, name: str, bert: Path) -> None:
        heads = self.heads(bert, tiny.OBJECTIVES[name], 1)
        own = {n for n in heads if not n.startswith("auxiliary.")}
        assert own == {"detector.weight"}
        alone = self.heads(bert, tiny.OBJECTIVES["coco_lm-random"], 1)
        assert torch.equal(heads["detector.weight"], alone["detector.weight"])


class TestSupervised:
    def test_regression_is_squared_error(self, bert: Path) -> None:
        module, tokens = made(bert, tiny.OBJECTIVES["cross_entropy"], num_labels=1), tiny.tokens(bert, tiny.texts(6)[0])
        gold = np.linspace(0, 5, 6)
        views = module.prepare(Examples(tokens), gold, draw_of(1))
        batch = Batch.of(tokens, CPU)
        scores = module.predict(batch)
        assert scores.shape == (6, 1)
        expected = ((scores[:, 0].detach().numpy() - gold) ** 2).mean()
        assert module(views.on(CPU))["cross_entropy"].item() == pytest.approx(expected, rel=1e-5)

    @pytest.mark.parametrize(("mean", "spread"), [(50.0, 20.0), (-3.0, 0.01)])
    def test_standardised_scores_train_a_head_alike_in_any_unit(self, mean: float, spread: float, bert: Path) -> None:
        """Loss and gradients are those of the same scores in units of their deviation, and predictions are in the user's unit."""
        tokens, gold = tiny.tokens(bert, tiny.texts(6)[0]), np.linspace(-1, 2, 6)
        spec, batch = tiny.OBJECTIVES["cross_entropy"], Batch.of(tokens, CPU)
        found = {}
        for unit in ((0.0, 1.0), (mean, spread)):
            vocabulary = Tokeniser(bert).vocabulary
            module = build(spec, tiny.encoder(bert), vocabulary, Scores(trained_in=unit), 0.0, 1).eval()
            views = module.prepare(Examples(tokens), unit[0] + unit[1] * gold, draw_of(1))
            loss = module(views.on(CPU))["cross_entropy"]
            loss.backward()
            found[unit] = loss.item(), module.head.dense.weight.grad, (module.predict(batch)[:, 0] - unit[0]) / unit[1]
        (loss, slope, scores), (other, same, equal) = found.values()
        assert loss == pytest.approx(other, rel=1e-4)
        assert torch.allclose(slope, same, rtol=1e-3, atol=1e-6)
        assert torch.allclose(scores, equal, atol=2e-5)

    @pytest.mark.parametrize("shift", [0.0, 300.0])
    def test_regression_between_two_words_is_the_divergence_of_their_shares(self, shift: float, bert: Path) -> None:
        """By a loop in float64, also where the model is sure and where a score is at an end of the scale; its gradient by differences."""
        gold, logits = np.array([0.0, 1.0, 2.5, 4.9, 5.0]), normal(5, 2, dtype=torch.float64)
        logits[0, 1] += shift
        kind = Scores(scale=(0.0, 5.0))
        shares = torch.as_tensor(kind.word_targets(gold)).double()
        expected = 0.0
        for score, (low, high) in zip(gold, logits.tolist(), strict=True):
            most = max(low, high)
            total = most + math.log(math.exp(low - most) + math.exp(high - most))
            for share, logit in ((1 - score / 5, low), (score / 5, high)):
                expected += share * (math.log(share) - (logit - total)) / 5 if share else 0.0
        found = CRITERIA[kind.word_loss](logits, shares)
        assert found.item() == pytest.approx(expected, rel=1e-6)
        assert torch.autograd.gradcheck(CRITERIA[kind.word_loss], (logits.requires_grad_(), shares))
        exact = torch.stack([1 - shares, shares], dim=1)[1:4].log()
        assert CRITERIA[kind.word_loss](exact, shares[1:4]).item() == pytest.approx(0, abs=1e-12)

    def test_a_score_between_two_words_is_expected_on_the_scale(self, bert: Path) -> None:
        """And a demonstration has the word of the end of the scale that its score is nearer to."""
        spec = tiny.OBJECTIVES["prompt"]
        module: Any = build(spec, tiny.encoder(bert), tiny.vocabulary(bert), Scores(scale=(1.0, 5.0)), 0.0, 1).eval()
        rows, gold = tiny.texts(6, seed=4)[0], np.array([1, 2.9, 3, 5, 4, 1.5], dtype=np.float32)
        examples = tiny.read(bert, rows, spec)
        module.take_training_set(examples, gold)
        assert module._training[1].tolist() == [0, 0, 1, 1, 1, 0]
        batch = Batch.of(examples.tokens, CPU)
        logits = module.head(module.encoder, batch).logits.double()
        expected = 1 + 4 / (1 + (logits[:, 0] - logits[:, 1]).exp())
        assert torch.allclose(module.predict(batch)[:, 0].double(), expected)
        views = module.prepare(examples, gold, draw_of(1))
        loss = module.loss(module(views.on(CPU)))
        loss.backward()
        assert 0 < loss.item() < 5

    def test_dropout_acts_in_the_head(self, bert: Path) -> None:
        module, tokens = made(bert, tiny.OBJECTIVES["cross_entropy"], dropout=0.5), tiny.tokens(bert, tiny.texts(6)[0])
        module.encoder.set_dropout(0.0)
        batch = Batch.of(tokens, CPU)
        module.train()
        assert not torch.equal(module.predict(batch), module.predict(batch))
        module.eval()
        assert torch.equal(module.predict(batch), module.predict(batch))


class TestMethods:
    """Settings without effect leave the key: what is one computation is trained once."""

    CONTEXT = RunContext(
        "sst2",
        20,
        0,
        1,
        tiny.Data(RowSet("t"), 2, 64, RowSet("d"), (RowSet("e"),)),
        tiny.Data(RowSet("u"), max_length=64),
        tiny.optim(batch_size=16),
        tiny.optim(),
        Selection("accuracy"),
        Encoder("e"),
    )

    def stages(self, name: str, **values: Any) -> tuple[Stage, ...]:
        method = METHODS[name]
        return chain([hyperparameters(method, values, "test")], self.CONTEXT)

    def keys(self, name: str, **values: Any) -> list[str]:
        return [stage.key for stage in self.stages(name, **values)]

    def test_mlm_before_fixed_embeddings_is_mlm(self) -> None:
        trained, fixed, pretrained = (self.keys("mlm", embeddings=how) for how in ("trained", "fixed", "pretrained"))
        assert trained == self.keys("mlm")
        assert pretrained[0] == trained[0]
        assert len({trained[0], fixed[0], pretrained[1]}) == 3

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("ft", {}),
            ("scl", {}),
            ("tapt", {}),
            ("cmlm", {}),
            ("cmlm", {"contrast": "simclr"}),
            ("cmlm", {"masking": "independent", "mlm": False}),
            ("mlm", {"token_prediction": True}),
            ("mlm", {"embeddings": "pretrained"}),
            ("taco", {}),
            ("taco", {"weight": 0}),
            ("electra", {}),
            ("coco_lm", {}),
            ("coco_lm", {"replacements": "converged", "auxiliary": "narrow"}),
            ("coco_lm", {"replacements": "random", "lm": "none"}),
            ("coco_lm", {"contrast": False, "lm": "none"}),
        ],
    )
    def test_every_stage_can_be_built(self, name: str, values: dict[str, Any], bert: Path) -> None:
        """What a method writes into its objective is what the module reads."""
        for stage in self.stages(name, **values):
            module = made(bert, stage.objective, num_labels=stage.data.num_labels)
            rows, labels = tiny.texts(4)
            views = module.prepare(Examples(tiny.tokens(bert, rows)), labels, draw_of(1))
            terms = module(views.on(CPU))
            assert terms.keys() == module.weights.keys()
            assert torch.isfinite(module.loss(terms))
