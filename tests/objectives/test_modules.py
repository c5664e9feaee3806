"""The objectives as modules: what they see at equal seed, what they mask, their heads, and their terms."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from objectives.formulas import normal
from torch import Tensor

from harness.encoders.models.batch import Batch
from harness.encoders.models.text_encoder import set_dropout
from harness.encoders.tokens import Examples, Tokeniser
from harness.kinds import Scores, kind_of_outputs
from harness.methods.definition import HEAD
from harness.objectives import build
from harness.objectives.classification import CRITERIA
from harness.objectives.losses import simclr, supervised_contrastive
from harness.specs import Objective

CPU = torch.device("cpu")


def made(folder: Path, spec: Objective, *, seed: int = 1, num_labels: int = 2, dropout: float = 0.0) -> Any:
    encoder = tiny.encoder(folder)
    module = build(spec, encoder, tiny.vocabulary(folder), kind_of_outputs(num_labels), seed)
    set_dropout(module, dropout)
    return module


class TestViews:
    """Settings of CMLM and CSSL that no plain loop of tests/training/test_plain_loop.py has."""

    def test_masks_of_further_views(self, bert: Path) -> None:
        """'w/o CRM' selects tokens of view 0 again; without MLM nothing is predicted."""
        tokens, again = tiny.tokens(bert, tiny.texts(12)[0]), {}
        for masking in ("complementary", "independent"):
            module = made(bert, tiny.changed("cmlm-simsiam", p_m=0.5, p_c=1.0, num_views=1, masking=masking, mlm=False))
            views = module.prepare(Examples(tokens), None, tiny.draw_of())
            first, further = views.tokens.ids.reshape(2, -1) != tokens.ids
            assert first.any()
            again[masking] = (first & further).any()
            assert not (first | further)[tokens.special].any()
            assert not views.num_predicted
            terms = module(views.on(CPU))
            assert terms.keys() == {"contrast"}
            assert module.loss(terms).item() == pytest.approx(0.5 * terms["contrast"].item())
        assert again == {"complementary": False, "independent": True}

    def test_three_views_in_the_data_are_contrasted_as_if_each_were_encoded_by_itself(self, bert: Path) -> None:
        module = made(bert, tiny.changed("cssl-simclr", num_views=2))
        rows = [(f"w{30 + view} {text}",) for view in range(3) for (text,) in tiny.texts(10, seed=4)[0]]
        examples = tiny.examples(tiny.tokens(bert, rows), 3)
        found = module(module.prepare(examples, None, tiny.draw_of()).on(CPU))["contrast"].item()
        views = [examples.tokens.take(np.arange(10) * 3 + view) for view in range(3)]
        h0, *hk = (module.encoder(Batch.of(view, CPU))[view.offsets[:-1]] for view in views)
        groups = [slice(0, 4), slice(4, 8), slice(8, 10)]
        parts = [simclr(h0[g], torch.stack(hk)[:, g], temperature=0.2).item() * len(h0[g]) for g in groups]
        assert found == pytest.approx(sum(parts) / 10, abs=1e-5)

    def test_tacos_embedding_is_what_went_into_the_first_layer(self, bert: Path) -> None:
        """With its dropout: a second pass of the embedding layer would have another."""
        module = tiny.built(bert, tiny.OBJECTIVES["taco"], dropout=0.5)
        batch, entered = Batch.of(tiny.tokens(bert, tiny.texts(9)[0]), CPU), []
        module.encoder.base.embeddings.register_forward_hook(lambda _, __, out: entered.append(out[0]))
        _, embedded = module.encoder.forward_with_embeddings(batch)
        assert len(entered) == 1
        assert torch.equal(embedded, entered[0][: len(embedded)])
        assert (embedded == 0).float().mean() > 0.3


class TestGroups:
    """The global batch is cut into groups of `contrast_group`; the last may be small."""

    @pytest.mark.parametrize(
        ("representation", "reduction", "group"),
        [("first_token", "mean", 4), ("pooled", "mean_valid", 7), ("first_token", "sum", 10), ("pooled", "mean", 16)],
    )
    def test_scl(self, representation: str, reduction: str, group: int, bert: Path) -> None:
        spec = tiny.changed("scl", contrast_group=group, reduction=reduction, representation=representation)
        module, (rows, labels) = made(bert, spec), tiny.texts(10, seed=3)
        tokens = tiny.tokens(bert, rows)
        views = module.prepare(Examples(tokens), labels, tiny.draw_of())
        batch = Batch.of(views.tokens, CPU)
        terms = module(views.on(CPU))
        first = module.encoder(batch, batch.first)
        pooled = module.head.pooled(first)
        features, gold = pooled if representation == "pooled" else first, torch.as_tensor(labels)
        expected = 0.0
        for start in range(0, 10, group):
            part = features[start : start + group], gold[start : start + group]
            value = supervised_contrastive(*part, temperature=0.3, reduction=reduction).item()
            expected += value * (1 if reduction == "sum" else len(part[1]) / 10)
        assert terms["supervised_contrastive"].item() == pytest.approx(expected, rel=1e-5)
        whole = 0.5 * terms["cross_entropy"].item() + 0.5 * expected
        assert module.loss(terms).item() == pytest.approx(whole, rel=1e-5)


class TestHeads:
    @staticmethod
    def heads(folder: Path, spec: Objective, seed: int, noise: int = 0) -> dict[str, torch.Tensor]:
        torch.manual_seed(noise)
        state = made(folder, spec, seed=seed).state_dict()
        return {name: tensor for name, tensor in state.items() if not name.startswith("encoder.")}

    @pytest.mark.parametrize("name", ["cross_entropy", "scl", "cmlm-simsiam", "cssl-simsiam", "coco_lm-random"])
    def test_drawn_from_the_seeds_streams(self, name: str, bert: Path) -> None:
        spec = tiny.OBJECTIVES[name]
        first, again, other = (self.heads(bert, spec, seed, noise) for seed, noise in ((1, 5), (1, 6), (2, 5)))
        matrices = [name for name in first if name.endswith("weight")]
        assert matrices
        assert all(torch.equal(first[name], again[name]) for name in first)
        assert not any(torch.equal(first[name], other[name]) for name in matrices)
        assert len({first[name].flatten()[:4].numpy().tobytes() for name in matrices}) == len(matrices)
        assert all((first[name] == 0).all() for name in first.keys() - set(matrices))

    def test_a_prompt_starts_from_a_classifier_without_its_head(self, bert: Path) -> None:
        made(bert, tiny.OBJECTIVES["prompt"]).load_parts({}, ("encoder", HEAD))


class TestSupervised:
    def test_regression_is_squared_error(self, bert: Path) -> None:
        module, tokens = made(bert, tiny.OBJECTIVES["cross_entropy"], num_labels=1), tiny.tokens(bert, tiny.texts(6)[0])
        gold = np.linspace(0, 5, 6)
        views = module.prepare(Examples(tokens), gold, tiny.draw_of())
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
            module = build(spec, tiny.encoder(bert), vocabulary, Scores(target_scale=unit), 1).eval()
            views = module.prepare(Examples(tokens), unit[0] + unit[1] * gold, tiny.draw_of())
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
        module: Any = build(spec, tiny.encoder(bert), tiny.vocabulary(bert), Scores(scale=(1.0, 5.0)), 1).eval()
        rows, gold = tiny.texts(6, seed=4)[0], np.array([1, 2.9, 3, 5, 4, 1.5], dtype=np.float32)
        examples = tiny.read(bert, rows, spec)
        module.take_training_set(examples, gold)
        assert module._training[1].tolist() == [0, 0, 1, 1, 1, 0]
        batch = Batch.of(examples.tokens, CPU)
        logits = module.logits(batch).double()
        expected = 1 + 4 / (1 + (logits[:, 0] - logits[:, 1]).exp())
        assert torch.allclose(module.predict(batch)[:, 0].double(), expected)
        views = module.prepare(examples, gold, tiny.draw_of())
        loss = module.loss(module(views.on(CPU)))
        loss.backward()
        assert 0 < loss.item() < 5


def passed(folder: Path, rows: int, *, dropout: float, **params: Any) -> tuple[Any, Tensor, Tensor]:
    """(module, what the encoder gave the loss [2B, d], the loss)."""
    module = tiny.built(folder, tiny.changed("simcse", **params), dropout=dropout)
    tokens = tiny.tokens(folder, tiny.texts(rows, seed=4)[0])
    views = module.prepare(Examples(tokens), None, tiny.draw_of())
    assert np.array_equal(views.tokens.ids, np.tile(tokens.ids, 2))
    first: list[Tensor] = []
    module.encoder.register_forward_hook(lambda *given: first.append(given[-1]))
    torch.manual_seed(3)
    loss = module(views.on(CPU))["contrast"]
    return module, first[0].detach(), loss


def equation(states: Tensor, weight: Tensor | None, bias: Tensor | None, temperature: float, group: int) -> Tensor:
    """Equation 4, anchor by anchor, within groups."""
    if weight is not None:
        states = torch.tanh(states @ weight.T + bias)
    rows, terms = len(states) // 2, []
    for i in range(rows):
        others = range(i // group * group, min(i // group * group + group, rows))
        own = [torch.cosine_similarity(states[i], states[rows + j], dim=0) / temperature for j in others]
        terms.append(torch.stack(own).logsumexp(0) - own[i % group])
    return torch.stack(terms).mean()


@pytest.mark.parametrize(("rows", "group", "projection"), [(8, 8, False), (9, 4, True), (3, 8, True)])
def test_value_and_gradient(projection: bool, rows: int, group: int, bert: Path) -> None:
    module, states, loss = passed(bert, rows, dropout=0.2, projection=projection, contrast_group=group, temperature=0.3)
    head = (
        [p.detach().double().requires_grad_() for p in module.projection.parameters()] if projection else [None, None]
    )
    expected = equation(states.double(), *head, 0.3, group)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    if projection:
        found = torch.autograd.grad(loss, list(module.projection.parameters()))
        for gradient, true in zip(found, torch.autograd.grad(expected, head), strict=True):
            torch.testing.assert_close(gradient.double(), true, rtol=1e-3, atol=1e-6)


def test_dropout_alone_makes_the_views(bert: Path) -> None:
    with_it, without = (passed(bert, 6, dropout=p)[1] for p in (0.1, 0.0))
    assert not torch.isclose(with_it[:6], with_it[6:]).all(dim=1).any()
    torch.testing.assert_close(without[:6], without[6:])
