"""Each loss of whole sequences against a loop written from the formula, float64 gradients, closed forms and degenerate batches."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objectives.formulas import assert_finite_gradients, cosine, leaf, normal
from torch import Tensor

from harness.objectives.losses import REDUCTIONS, simclr, simsiam, supervised_contrastive

# The formulas again, one example at a time, in python floats.


def naive_scl(features: Tensor, labels: Tensor, temperature: float, reduction: str) -> float:
    phi, y = features.tolist(), labels.tolist()
    n, total, valid = len(y), 0.0, 0
    for i in range(n):
        same = sum(1 for j in range(n) if y[j] == y[i])
        if same == 1:
            continue
        valid += 1
        denominator = sum(math.exp(cosine(phi[i], phi[k]) / temperature) for k in range(n) if k != i)
        inner = 0.0
        for j in range(n):
            if j != i and y[j] == y[i]:
                inner += math.log(math.exp(cosine(phi[i], phi[j]) / temperature) / denominator)
        total += -inner / (same - 1)
    return total / {"mean": n, "mean_valid": max(valid, 1), "sum": 1}[reduction]


def naive_simclr(h0: Tensor, hk: Tensor, temperature: float) -> float:
    first, others = h0.tolist(), hk.tolist()
    total = 0.0
    for view in others:
        for b in range(len(first)):
            own = math.exp(cosine(view[b], first[b]) / temperature)
            total += math.log(own / sum(math.exp(cosine(candidate, first[b]) / temperature) for candidate in view))
    return -total / (len(others) * len(first))


def naive_simsiam(h0: Tensor, hk: Tensor, z0: Tensor, zk: Tensor) -> float:
    total = 0.0
    for k in range(hk.shape[0]):
        for b in range(h0.shape[0]):
            agreement = cosine(zk[k, b].tolist(), h0[b].tolist()) + cosine(z0[b].tolist(), hk[k, b].tolist())
            total += math.exp(-0.5 * agreement)
    return total / (hk.shape[0] * h0.shape[0])


class TestSupervisedContrastive:
    @pytest.mark.parametrize("reduction", REDUCTIONS)
    @pytest.mark.parametrize("temperature", [0.05, 0.3, 2.0])
    @pytest.mark.parametrize("labels", [[0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 4, 4], [0] * 6, [7, -3, 7, 5, 5, 5]])
    def test_equals_the_formula(self, labels: list[int], temperature: float, reduction: str) -> None:
        features, y = normal(6, 5), torch.tensor(labels)
        loss = supervised_contrastive(features, y, temperature=temperature, reduction=reduction)
        assert loss.shape == ()
        assert loss.dtype == torch.float64
        assert loss.item() == pytest.approx(naive_scl(features, y, temperature, reduction), rel=1e-11)

    @settings(max_examples=40)
    @given(
        labels=st.lists(st.integers(0, 3), min_size=1, max_size=8),
        seed=st.integers(0, 10_000),
        temperature=st.floats(0.05, 5.0),
        reduction=st.sampled_from(REDUCTIONS),
    )
    def test_equals_the_formula_on_any_labels(
        self, labels: list[int], seed: int, temperature: float, reduction: str
    ) -> None:
        features, y = normal(len(labels), 3, seed=seed), torch.tensor(labels)
        loss = supervised_contrastive(features, y, temperature=temperature, reduction=reduction)
        assert loss.item() == pytest.approx(naive_scl(features, y, temperature, reduction), rel=1e-10, abs=1e-12)

    @pytest.mark.parametrize("reduction", REDUCTIONS)
    @pytest.mark.parametrize("labels", [[0, 1, 0, 1, 2], [0, 1, 2, 3, 4], [0] * 5])
    def test_gradient(self, labels: list[int], reduction: str) -> None:
        y = torch.tensor(labels)

        def loss(features: Tensor) -> Tensor:
            return supervised_contrastive(features, y, temperature=0.4, reduction=reduction)

        assert torch.autograd.gradcheck(loss, (leaf(normal(5, 3)),))

    @pytest.mark.parametrize("temperature", [0.01, 0.3])
    def test_identical_embeddings_give_log_of_batch_less_one(self, temperature: float) -> None:
        features = torch.ones(7, 4, dtype=torch.float64)
        labels = torch.tensor([0, 0, 1, 1, 1, 2, 3])  # 5 anchors with a positive

        def loss(reduction: str) -> float:
            return supervised_contrastive(features, labels, temperature=temperature, reduction=reduction).item()

        assert loss("sum") == pytest.approx(5 * math.log(6))
        assert loss("mean") == pytest.approx(5 / 7 * math.log(6))
        assert loss("mean_valid") == pytest.approx(math.log(6))

    def test_orthogonal_embeddings_give_log_of_batch_less_one(self) -> None:
        loss = supervised_contrastive(torch.eye(6), torch.tensor([0, 0, 0, 1, 1, 1]), temperature=0.1)
        assert loss.item() == pytest.approx(math.log(5), rel=1e-6)

    def test_two_opposite_classes(self) -> None:
        features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
        loss = supervised_contrastive(features, torch.tensor([0, 0, 1, 1]), temperature=0.5)
        assert loss.item() == pytest.approx(math.log1p(2 * math.exp(-4)))

    def test_pair_of_one_class_is_zero(self) -> None:
        assert supervised_contrastive(normal(2, 3), torch.tensor([4, 4]), temperature=0.3).item() == 0.0

    @pytest.mark.parametrize("reduction", REDUCTIONS)
    @pytest.mark.parametrize("labels", [[], [0], [0, 1], [3, 1, 2, 0]])
    def test_without_any_positive_is_a_connected_zero(self, labels: list[int], reduction: str) -> None:
        features, y = leaf(normal(len(labels), 3)), torch.tensor(labels, dtype=torch.long)
        with torch.autograd.set_detect_anomaly(True):  # no NaN on the way either
            loss = supervised_contrastive(features, y, temperature=0.3, reduction=reduction)
            (gradient,) = torch.autograd.grad(loss, (features,))
        assert loss.item() == 0.0
        assert not loss.signbit()
        assert torch.equal(gradient, torch.zeros_like(features))

    def test_lonely_anchor_still_serves_as_negative(self) -> None:
        features = leaf(normal(3, 4))
        loss = supervised_contrastive(features, torch.tensor([0, 0, 1]), temperature=0.3)
        (gradient,) = torch.autograd.grad(loss, (features,))
        assert gradient[2].abs().sum() > 0

    def test_reductions_differ_only_by_their_divisor(self) -> None:
        features, labels = normal(6, 4), torch.tensor([0, 0, 1, 1, 2, 3])
        mean, valid, total = (
            supervised_contrastive(features, labels, temperature=0.3, reduction=reduction)
            for reduction in ("mean", "mean_valid", "sum")
        )
        assert total.item() == pytest.approx(6 * mean.item()) == pytest.approx(4 * valid.item())
        assert torch.equal(mean, supervised_contrastive(features, labels, temperature=0.3))

    @pytest.mark.parametrize("reduction", REDUCTIONS)
    def test_permutation(self, reduction: str) -> None:
        features, labels = leaf(normal(7, 4)), torch.tensor([0, 1, 1, 0, 2, 3, 3])
        order = torch.tensor([4, 2, 6, 0, 1, 5, 3])
        shuffled = leaf(features[order])
        one = supervised_contrastive(features, labels, temperature=0.3, reduction=reduction)
        two = supervised_contrastive(shuffled, labels[order], temperature=0.3, reduction=reduction)
        torch.testing.assert_close(one, two)
        torch.testing.assert_close(
            torch.autograd.grad(one, (features,))[0][order], torch.autograd.grad(two, (shuffled,))[0]
        )

    def test_names_of_the_labels_do_not_matter(self) -> None:
        features, labels = normal(6, 4), torch.tensor([0, 1, 1, 0, 2, 2])
        renamed = torch.tensor([9, -1, 4])[labels]
        assert torch.equal(
            supervised_contrastive(features, labels, temperature=0.3),
            supervised_contrastive(features, renamed, temperature=0.3),
        )

    def test_scale_of_each_feature_does_not_matter(self) -> None:
        features, labels = normal(5, 4, dtype=torch.float32), torch.tensor([0, 1, 1, 0, 0])
        scales = torch.tensor([1e-9, 3.0, 1e30, 0.5, 1e-3])[:, None]  # the squares under- and overflow
        torch.testing.assert_close(
            supervised_contrastive(features, labels, temperature=0.3),
            supervised_contrastive(scales * features, labels, temperature=0.3),
        )

    def test_duplicates(self) -> None:
        features = leaf(normal(2, 4).repeat(3, 1))
        labels = torch.tensor([0, 1] * 3)
        loss = supervised_contrastive(features, labels, temperature=0.01)
        assert_finite_gradients(loss, features)
        gap = (1 - cosine(features[0].tolist(), features[1].tolist())) / 0.01
        assert loss.item() == pytest.approx(math.log(2 + 3 * math.exp(-gap)))

    @pytest.mark.parametrize("zeros", [[0], [0, 1], [0, 1, 2, 3]])
    def test_zero_vectors_have_cosine_zero(self, zeros: list[int]) -> None:
        features, labels = normal(4, 3), torch.tensor([0, 1, 0, 1])
        features[zeros] = 0.0
        features = leaf(features)
        loss = supervised_contrastive(features, labels, temperature=0.3)
        assert loss.item() == pytest.approx(naive_scl(features, labels, 0.3, "mean"))
        (gradient,) = torch.autograd.grad(loss, (features,))
        assert torch.isfinite(gradient).all()
        assert torch.equal(gradient[zeros], torch.zeros_like(gradient[zeros]))

    def test_tiny_temperature_is_finite(self) -> None:
        features = leaf(normal(6, 4, dtype=torch.float32))
        assert_finite_gradients(
            supervised_contrastive(features, torch.tensor([0, 1, 1, 0, 2, 3]), temperature=1e-6), features
        )

    def test_nan_is_not_hidden(self) -> None:
        features = normal(4, 3)
        features[0, 0] = math.nan
        assert supervised_contrastive(features, torch.tensor([0, 0, 1, 1]), temperature=0.3).isnan()

    @pytest.mark.parametrize(
        ("features", "labels", "options", "word"),
        [
            (normal(3, 2), torch.zeros(3), {"temperature": 0.0}, "temperature"),
            (normal(3, 2), torch.zeros(3), {"temperature": -1.0}, "temperature"),
            (normal(3, 2), torch.zeros(3), {"temperature": math.nan}, "temperature"),
            (normal(3, 2), torch.zeros(3), {"temperature": math.inf}, "temperature"),
            (normal(3, 2), torch.zeros(3), {"temperature": 1.0, "reduction": "none"}, "reduction"),
            (normal(3), torch.zeros(3), {"temperature": 1.0}, "features"),
            (normal(3, 0), torch.zeros(3), {"temperature": 1.0}, "features"),
            (normal(3, 2).long(), torch.zeros(3), {"temperature": 1.0}, "features"),
            (normal(3, 2), torch.zeros(4), {"temperature": 1.0}, "labels"),
            (normal(3, 2), torch.zeros(3, 1), {"temperature": 1.0}, "labels"),
        ],
    )
    def test_bad_arguments(self, features: Tensor, labels: Tensor, options: dict[str, float], word: str) -> None:
        with pytest.raises(ValueError, match=word):
            supervised_contrastive(features, labels, **options)  # type: ignore[arg-type]


class TestSimclr:
    @pytest.mark.parametrize("temperature", [0.07, 1.0])
    @pytest.mark.parametrize(("num_views", "batch"), [(1, 1), (1, 5), (3, 4), (2, 2)])
    def test_equals_the_formula(self, num_views: int, batch: int, temperature: float) -> None:
        h0, hk = normal(batch, 6), normal(num_views, batch, 6, seed=1)
        loss = simclr(h0, hk, temperature=temperature)
        assert loss.shape == ()
        assert loss.item() == pytest.approx(naive_simclr(h0, hk, temperature), rel=1e-11, abs=1e-15)

    def test_gradient(self) -> None:
        def loss(h0: Tensor, hk: Tensor) -> Tensor:
            return simclr(h0, hk, temperature=0.4)

        assert torch.autograd.gradcheck(loss, (leaf(normal(3, 4)), leaf(normal(2, 3, 4, seed=1))))

    def test_identical_embeddings_give_log_of_batch(self) -> None:
        loss = simclr(torch.ones(5, 3), torch.full((2, 5, 3), 2.0), temperature=0.07)
        assert loss.item() == pytest.approx(math.log(5), rel=1e-6)

    def test_orthogonal_sequences_with_equal_views(self) -> None:
        h0 = torch.eye(5, dtype=torch.float64)
        loss = simclr(h0, h0.expand(3, 5, 5), temperature=0.5)
        assert loss.item() == pytest.approx(math.log1p(4 * math.exp(-2)))

    def test_view_zero_is_the_anchor(self) -> None:
        # Views k of the two sequences coincide, so from view 0 they cannot be told apart: log 2, whatever view 0 is.
        # With the views k as anchors and view 0 as candidates, the loss would depend on view 0.
        hk = normal(1, 1, 4, seed=1).expand(1, 2, 4)
        assert simclr(normal(2, 4), hk, temperature=0.1).item() == pytest.approx(math.log(2))
        assert simclr(hk[0], normal(1, 2, 4), temperature=0.1).item() != pytest.approx(math.log(2))

    @pytest.mark.parametrize("shape", [(2, 1), (1, 0), (0, 3)])
    def test_one_sequence_or_nothing_is_a_connected_zero(self, shape: tuple[int, int]) -> None:
        num_views, batch = shape
        h0, hk = leaf(normal(batch, 4)), leaf(normal(num_views, batch, 4, seed=1))
        loss = simclr(h0, hk, temperature=0.07)
        assert loss.item() == 0.0
        for gradient in torch.autograd.grad(loss, (h0, hk)):
            assert torch.equal(gradient, torch.zeros_like(gradient))

    def test_views_average(self) -> None:
        h0, hk = normal(4, 3), normal(3, 4, 3, seed=1)
        parts = [simclr(h0, hk[k : k + 1], temperature=0.3) for k in range(3)]
        torch.testing.assert_close(simclr(h0, hk, temperature=0.3), torch.stack(parts).mean())

    def test_permutation_of_sequences_and_views(self) -> None:
        h0, hk = leaf(normal(4, 3)), leaf(normal(3, 4, 3, seed=1))
        order, views = torch.tensor([2, 0, 3, 1]), torch.tensor([2, 0, 1])
        shuffled0, shuffled = leaf(h0[order]), leaf(hk[views][:, order])
        one, two = simclr(h0, hk, temperature=0.3), simclr(shuffled0, shuffled, temperature=0.3)
        torch.testing.assert_close(one, two)
        gradient0, gradients = torch.autograd.grad(one, (h0, hk))
        torch.testing.assert_close(
            (gradient0[order], gradients[views][:, order]), torch.autograd.grad(two, (shuffled0, shuffled))
        )

    def test_scale_does_not_matter(self) -> None:
        h0, hk = normal(4, 3, dtype=torch.float32), normal(2, 4, 3, seed=1, dtype=torch.float32)
        scales = torch.tensor([1e-9, 3.0, 1e30, 0.5])[:, None]
        torch.testing.assert_close(
            simclr(h0, hk, temperature=0.3), simclr(scales * h0, scales.flip(0) * hk, temperature=0.3)
        )

    def test_gradient_reaches_both_sides(self) -> None:
        h0, hk = leaf(normal(4, 3)), leaf(normal(2, 4, 3, seed=1))
        for gradient in torch.autograd.grad(simclr(h0, hk, temperature=0.3), (h0, hk)):
            assert (gradient.abs().sum(dim=-1) > 0).all()

    def test_duplicates_and_zero_vectors(self) -> None:
        h0 = normal(4, 3)
        h0[1], h0[2] = h0[0], 0.0
        h0, hk = leaf(h0), leaf(torch.stack([h0, torch.zeros_like(h0)]))
        loss = simclr(h0, hk, temperature=0.07)
        assert loss.item() == pytest.approx(naive_simclr(h0, hk, 0.07))
        assert_finite_gradients(loss, h0, hk)

    @pytest.mark.parametrize(
        ("h0", "hk", "temperature", "word"),
        [
            (normal(3, 2), normal(1, 3, 2), 0.0, "temperature"),
            (normal(3), normal(1, 3, 2), 1.0, "h0"),
            (normal(3, 2), normal(3, 2), 1.0, "hk"),
            (normal(3, 2), normal(1, 4, 2), 1.0, "hk"),
            (normal(3, 2), normal(1, 3, 4), 1.0, "hk"),
            (normal(3, 0), normal(1, 3, 0), 1.0, "h0"),
            (normal(3, 2), normal(1, 3, 2).long(), 1.0, "hk"),
        ],
    )
    def test_bad_arguments(self, h0: Tensor, hk: Tensor, temperature: float, word: str) -> None:
        with pytest.raises(ValueError, match=word):
            simclr(h0, hk, temperature=temperature)


class TestSimsiam:
    @staticmethod
    def views(num_views: int = 2, batch: int = 3, width: int = 4) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return (
            leaf(normal(batch, width, seed=0)),
            leaf(normal(num_views, batch, width, seed=1)),
            leaf(normal(batch, width, seed=2)),
            leaf(normal(num_views, batch, width, seed=3)),
        )

    @pytest.mark.parametrize(("num_views", "batch"), [(1, 1), (1, 5), (3, 4)])
    def test_equals_the_formula(self, num_views: int, batch: int) -> None:
        tensors = self.views(num_views, batch)
        assert simsiam(*tensors).item() == pytest.approx(naive_simsiam(*tensors), rel=1e-12)

    def test_gradient_of_the_predictions(self) -> None:
        h0, hk, z0, zk = self.views()
        assert torch.autograd.gradcheck(lambda a, b: simsiam(h0.detach(), hk.detach(), a, b), (z0, zk))

    def test_no_gradient_reaches_the_targets(self) -> None:
        h0, hk, z0, zk = self.views()
        simsiam(h0, hk, z0, zk).backward()  # type: ignore[no-untyped-call]
        assert [h0.grad, hk.grad] == [None, None]
        for prediction in (z0, zk):
            assert prediction.grad is not None
            assert (prediction.grad.abs().sum(dim=-1) > 0).all()

    def test_encoder_learns_through_the_predictor_alone(self) -> None:
        h0, hk, _, _ = self.views()
        weight = leaf(normal(4, 4, seed=5))
        whole = torch.autograd.grad(simsiam(h0, hk, h0 @ weight, hk @ weight), (h0, hk))
        predictor_only = torch.autograd.grad(simsiam(h0.detach(), hk.detach(), h0 @ weight, hk @ weight), (h0, hk))
        assert all(torch.equal(one, two) for one, two in zip(whole, predictor_only, strict=True))

    def test_range(self) -> None:
        h = normal(5, 4)
        views = h.expand(2, 5, 4)
        assert simsiam(h, views, 3 * h, 0.1 * views).item() == pytest.approx(math.exp(-1))
        assert simsiam(h, views, -h, -views).item() == pytest.approx(math.exp(1))
        assert simsiam(h, views, h, -views).item() == pytest.approx(1.0)
        one, other = torch.eye(4)[:2], torch.eye(4)[2:]
        assert simsiam(one, one[None], other, other[None]).item() == 1.0

    def test_gradient_is_scaled_by_the_loss(self) -> None:
        h0, hk, z0, zk = self.views(1, 1)
        loss = simsiam(h0, hk, z0, zk)
        exponent = -0.5 * (
            torch.cosine_similarity(zk[0, 0], h0[0], dim=0) + torch.cosine_similarity(z0[0], hk[0, 0], dim=0)
        )
        for one, two in zip(torch.autograd.grad(loss, (z0, zk)), torch.autograd.grad(exponent, (z0, zk)), strict=True):
            torch.testing.assert_close(one, loss * two)

    def test_each_prediction_meets_the_other_view(self) -> None:
        h0, hk, z0, zk = (tensor.detach() for tensor in self.views())
        expected = simsiam(h0, hk, z0, zk)
        torch.testing.assert_close(simsiam(hk[0], h0[None], zk[0], z0[None]), simsiam(h0, hk[:1], z0, zk[:1]))
        assert not torch.isclose(simsiam(h0, hk, z0.roll(1, 0), zk), expected)
        assert not torch.isclose(simsiam(h0, hk, z0, zk.roll(1, 1)), expected)

    def test_permutation_of_sequences_and_views(self) -> None:
        h0, hk, z0, zk = (tensor.detach() for tensor in self.views(3, 4))
        order, views = torch.tensor([2, 0, 3, 1]), torch.tensor([2, 0, 1])
        torch.testing.assert_close(
            simsiam(h0[order], hk[views][:, order], z0[order], zk[views][:, order]), simsiam(h0, hk, z0, zk)
        )

    def test_scale_and_duplicates_do_not_matter(self) -> None:
        h0, hk, z0, zk = (tensor.detach().float() for tensor in self.views())
        expected = simsiam(h0, hk, z0, zk)
        torch.testing.assert_close(simsiam(1e-9 * h0, 1e30 * hk, 5 * z0, 1e-4 * zk), expected)
        twice = [tensor.repeat_interleave(2, dim=-2) for tensor in (h0, hk, z0, zk)]
        torch.testing.assert_close(simsiam(*twice), expected)

    def test_zero_vectors(self) -> None:
        h0, hk, _, _ = self.views()
        z0, zk = leaf(torch.zeros_like(h0)), leaf(torch.zeros_like(hk))
        loss = simsiam(h0, hk, z0, zk)
        assert loss.item() == 1.0
        assert_finite_gradients(loss, z0, zk)
        assert_finite_gradients(simsiam(0 * h0, 0 * hk, h0, hk), h0, hk)

    @pytest.mark.parametrize("shape", [(1, 0), (0, 3)])
    def test_nothing_is_a_connected_zero(self, shape: tuple[int, int]) -> None:
        h0, hk, z0, zk = self.views(*shape)
        loss = simsiam(h0, hk, z0, zk)
        assert loss.item() == 0.0
        assert_finite_gradients(loss, z0, zk)

    @pytest.mark.parametrize("position", range(4))
    def test_bad_shapes(self, position: int) -> None:
        good = [tensor.detach() for tensor in self.views()]
        for bad in (good[position][..., :-1], good[position][..., :-1, :], good[position][0], good[position].long()):
            tensors = [*good[:position], bad, *good[position + 1 :]]
            with pytest.raises(ValueError, match="must"):
                simsiam(*tensors)


def test_mixed_precisions_meet_in_the_wider() -> None:
    h0, hk = normal(3, 4), normal(2, 3, 4, seed=1)
    assert simclr(h0.bfloat16(), hk.float(), temperature=0.3).dtype == torch.float32
    assert simclr(h0.float(), hk, temperature=0.3).dtype == torch.float64
    assert simsiam(h0.half(), hk.half(), h0.float(), hk.float()).dtype == torch.float32
