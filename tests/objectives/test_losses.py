"""Each loss of sequences and masked tokens against a loop written from the formula, float64 gradients, closed forms and degenerate batches."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objectives.formulas import assert_connected_zero, assert_finite_gradients, cosine, leaf, normal
from torch import Tensor

from harness.objectives.losses import masked_lm, sequence_contrastive, simclr, simsiam, supervised_contrastive

REDUCTIONS = ("mean", "mean_valid", "sum")

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
        assert (loss.shape, loss.dtype) == ((), torch.float64)
        assert loss.item() == pytest.approx(naive_scl(features, y, temperature, reduction), rel=1e-10, abs=1e-12)

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


class TestSimclr:
    @pytest.mark.parametrize("temperature", [0.07, 1.0])
    @pytest.mark.parametrize(("num_views", "batch"), [(1, 1), (1, 5), (3, 4), (2, 2)])
    def test_equals_the_formula(self, num_views: int, batch: int, temperature: float) -> None:
        h0, hk = normal(batch, 6), normal(num_views, batch, 6, seed=1)
        loss = simclr(h0, hk, temperature=temperature)
        assert loss.shape == ()
        assert loss.item() == pytest.approx(naive_simclr(h0, hk, temperature), rel=1e-11, abs=1e-15)

    @pytest.mark.parametrize("shape", [(2, 1), (1, 0), (0, 3)])
    def test_one_sequence_or_nothing_is_a_connected_zero(self, shape: tuple[int, int]) -> None:
        num_views, batch = shape
        h0, hk = leaf(normal(batch, 4)), leaf(normal(num_views, batch, 4, seed=1))
        loss = simclr(h0, hk, temperature=0.07)
        assert loss.item() == 0.0
        for gradient in torch.autograd.grad(loss, (h0, hk)):
            assert torch.equal(gradient, torch.zeros_like(gradient))


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

    @pytest.mark.parametrize("shape", [(1, 0), (0, 3)])
    def test_nothing_is_a_connected_zero(self, shape: tuple[int, int]) -> None:
        h0, hk, z0, zk = self.views(*shape)
        loss = simsiam(h0, hk, z0, zk)
        assert loss.item() == 0.0
        assert_finite_gradients(loss, z0, zk)


def naive_masked_lm(logits: Tensor, targets: Tensor) -> float:
    total = 0.0
    for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
        total -= math.log(math.exp(row[target]) / sum(math.exp(value) for value in row))
    return total / len(targets)


class TestMaskedLm:
    def test_equals_the_formula(self) -> None:
        logits, targets = normal(6, 11), torch.tensor([0, 10, 3, 3, 7, 1])
        assert masked_lm(logits, targets).item() == pytest.approx(naive_masked_lm(logits, targets), rel=1e-12)

    def test_nothing_selected_is_a_connected_zero(self) -> None:
        logits = leaf(normal(0, 7))
        loss = masked_lm(logits, torch.zeros(0, dtype=torch.long))
        (gradient,) = torch.autograd.grad(loss, (logits,))
        assert loss.item() == 0.0
        assert gradient.shape == (0, 7)

    @pytest.mark.parametrize("target", [-100, -1, 6])
    def test_no_index_is_ignored(self, target: int) -> None:
        with pytest.raises(IndexError, match="out of bounds"):
            masked_lm(normal(2, 6), torch.tensor([1, target]))


def naive_sequence_contrast(corrupted: Tensor, cropped: Tensor, temperature: float) -> float:
    pairs = list(zip(corrupted.tolist(), cropped.tolist(), strict=True))
    total = 0.0
    for k, (mlm, crop) in enumerate(pairs):
        for anchor, partner in ((mlm, crop), (crop, mlm)):
            own = math.exp(cosine(anchor, partner) / temperature)
            rest = sum(
                math.exp(cosine(anchor, view) / temperature) for j, pair in enumerate(pairs) if j != k for view in pair
            )
            total -= math.log(own / (own + rest))
    return total / (2 * len(pairs))


@settings(max_examples=30)
@given(num_pairs=st.integers(1, 7), temperature=st.floats(0.05, 5.0), seed=st.integers(0, 10_000))
def test_sequence_contrast_equals_the_loop(num_pairs: int, temperature: float, seed: int) -> None:
    a, b = normal(num_pairs, 4, seed=seed), normal(num_pairs, 4, seed=seed + 1)
    loss = sequence_contrastive(a, b, temperature=temperature)
    assert loss.shape == ()
    assert loss.dtype == torch.float64
    assert loss.item() == pytest.approx(naive_sequence_contrast(a, b, temperature), rel=1e-11, abs=1e-14)


def test_one_pair_of_sequences_and_none_are_a_connected_zero() -> None:
    for num_pairs in (0, 1):
        a, b = leaf(normal(num_pairs, 3)), leaf(normal(num_pairs, 3, seed=1))
        loss = sequence_contrastive(a, b, temperature=0.3)
        assert_connected_zero(loss, a, b)
        assert not loss.signbit()
