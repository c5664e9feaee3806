"""COCO-LM's token losses against loops written from section 3.3 and equation 2, and every limit of the printed mixture."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objectives.formulas import assert_connected_zero, assert_finite_gradients, chance, integers, leaf, normal
from torch import Tensor

from harness.objectives.losses import corrective_lm, replaced_token_detection


class Case(NamedTuple):
    copy_logits: Tensor
    lm_logits: Tensor
    x_original: Tensor
    x_corrupted: Tensor
    masked: Tensor
    real: Tensor

    def loss(self, **options: Any) -> Tensor:
        same = self.x_original == self.x_corrupted
        chosen = (each[self.masked] for each in (self.x_original, same))
        return corrective_lm(self.copy_logits[self.masked], self.lm_logits, *chosen, **options)

    def detection(self) -> Tensor:
        return replaced_token_detection(self.copy_logits, self.x_original, self.x_corrupted, self.real)


def batch(*lengths: int, vocabulary: int = 7, probability: float = 0.5, seed: int = 0) -> Case:
    """About half of the masked tokens are replaced; the padding of both texts differs."""
    shape = (len(lengths), max(lengths))
    real = torch.arange(shape[1])[None] < torch.tensor(lengths)[:, None]
    masked = real & chance(probability, *shape, seed=seed)
    x_original = integers(vocabulary, *shape, seed=seed + 1)
    replaced = ~real | masked & chance(0.6, *shape, seed=seed + 2)
    x_corrupted = torch.where(replaced, integers(vocabulary, *shape, seed=seed + 3), x_original)
    lm_logits = leaf(normal(int(masked.sum()), vocabulary, seed=seed + 4))
    return Case(leaf(2 * normal(*shape, seed=seed + 5)), lm_logits, x_original, x_corrupted, masked, real)


def one(copy_logit: float, lm_logits: list[float], same: bool, dtype: torch.dtype = torch.float64) -> Case:
    """One masked token; the original is id 0."""
    true = torch.ones(1, 1, dtype=torch.bool)
    ids = torch.zeros(1, 1, dtype=torch.long)
    copy, lm = torch.tensor([[copy_logit]], dtype=dtype), torch.tensor([lm_logits], dtype=dtype)
    return Case(leaf(copy), leaf(lm), ids, ids + (not same), true, true)


def sigmoid(z: float) -> float:
    return 1.0 / (1.0 + math.exp(-z))


def naive(case: Case) -> tuple[float, float]:
    copy = lm = 0.0
    num_real, row = 0, 0
    for b in range(case.real.shape[0]):
        for i in range(case.real.shape[1]):
            p_copy = sigmoid(case.copy_logits[b, i].item())
            original = int(case.x_original[b, i])
            same = original == int(case.x_corrupted[b, i])
            if case.real[b, i]:
                num_real += 1
                copy -= math.log(p_copy if same else 1 - p_copy)
            if case.masked[b, i]:
                logits = case.lm_logits[row].tolist()
                row += 1
                softmax = math.exp(logits[original]) / sum(math.exp(value) for value in logits)
                lm -= math.log(same * p_copy + (1 - p_copy) * softmax)
    return copy / max(num_real, 1), lm / max(row, 1)


class TestFormula:
    @settings(max_examples=40)
    @given(
        lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
        probability=st.sampled_from([0.0, 0.15, 0.7, 1.0]),
        stop_gradient=st.booleans(),
        seed=st.integers(0, 10_000),
    )
    def test_equals_the_loop(self, lengths: list[int], probability: float, stop_gradient: bool, seed: int) -> None:
        case = batch(*lengths, probability=probability, seed=seed)
        made = case.loss(stop_gradient=stop_gradient), case.detection()
        copy, lm = naive(case)
        for loss, expected in zip(made, (lm, copy), strict=True):
            assert loss.shape == ()
            assert loss.dtype == torch.float64
            assert loss.item() == pytest.approx(expected, rel=1e-11, abs=1e-13)


class TestCopy:
    @pytest.mark.parametrize("garbage", [1e30, math.inf, math.nan])
    def test_padding_reaches_nothing(self, garbage: float) -> None:
        case = batch(6, 2, 4)
        spoilt = leaf(case.copy_logits.detach().masked_fill(~case.real, garbage))
        other = case._replace(copy_logits=spoilt, x_corrupted=case.x_corrupted.masked_fill(~case.real, 3))
        pairs = [(each.loss(stop_gradient=False), each.detection()) for each in (case, other)]
        for mine, others in zip(*pairs, strict=True):
            assert torch.equal(mine, others)
            (gradient,) = torch.autograd.grad(mine, (case.copy_logits,), retain_graph=True)
            (same,) = torch.autograd.grad(others, (spoilt,), retain_graph=True)
            assert torch.equal(gradient, same)
            assert not same[~case.real].any()


class TestMixture:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("same", [True, False])
    @pytest.mark.parametrize(("z", "gap"), [(-1e4, 1e4), (1e4, -1e4), (1e4, 1e4), (100.0, -1e4)])
    def test_extreme_logits(self, z: float, gap: float, same: bool, dtype: torch.dtype) -> None:
        """A probability below the least float, e^-10000, keeps its loss, 10000."""
        case = one(z, [gap, 0.0], same, dtype)
        log_1, log_0 = min(z, 0.0) - math.log1p(math.exp(-abs(z))), min(-z, 0.0) - math.log1p(math.exp(-abs(z)))
        terms = [log_0 + min(gap, 0.0) - math.log1p(math.exp(-abs(gap)))] + [log_1] * same
        expected = max(terms) + math.log(sum(math.exp(term - max(terms)) for term in terms))
        for stop_gradient in (True, False):
            lm = case.loss(stop_gradient=stop_gradient)
            assert lm.item() == pytest.approx(-expected, rel=1e-6, abs=1e-30)
            assert_finite_gradients(lm, case.copy_logits, case.lm_logits)

    def test_gradient_where_the_probability_underflows(self) -> None:
        """-log(p_copy(0) softmax) is -log p_copy(0) - log softmax: the slopes stay 1."""
        case = one(1e4, [-1e4, 0.0], same=False)
        copy, lm = torch.autograd.grad(case.loss(stop_gradient=False), (case.copy_logits, case.lm_logits))
        assert copy.item() == 1.0
        assert lm.tolist() == [[-1.0, 1.0]]

    def test_rows_that_do_not_count_reach_nothing(self) -> None:
        case = batch(6, 2, 4)
        more = case._replace(masked=case.real, lm_logits=leaf(normal(int(case.real.sum()), 7, seed=3)))
        inside = case.masked[case.real]
        with torch.no_grad():
            more.lm_logits[inside] = case.lm_logits
        counted = more.loss(counted=inside, stop_gradient=False)
        torch.testing.assert_close(counted, case.loss())
        copy, lm = torch.autograd.grad(counted, (more.copy_logits, more.lm_logits))
        assert not copy[~case.masked].any()
        assert not lm[~inside].any()


class TestStopGradient:
    def test_lm_moves_copy_logits_only_where_it_is_not_stopped(self) -> None:
        case = batch(6, 2, 4)
        stopped, whole = (case.loss(stop_gradient=stop) for stop in (True, False))
        assert torch.equal(stopped, whole)
        (gradient,) = torch.autograd.grad(stopped, (case.copy_logits,), retain_graph=True)
        assert torch.equal(gradient, torch.zeros_like(gradient))
        (gradient,) = torch.autograd.grad(whole, (case.copy_logits,), retain_graph=True)
        assert torch.equal(gradient != 0, case.masked)
        gradients = [torch.autograd.grad(lm, (case.lm_logits,))[0] for lm in (stopped, whole)]
        assert torch.equal(*gradients)
        assert gradients[0].abs().sum() > 0


class TestDegenerate:
    @pytest.mark.parametrize("stop_gradient", [True, False])
    def test_nothing_is_a_connected_zero(self, stop_gradient: bool) -> None:
        case = batch(4, 2)
        unmasked = case._replace(lm_logits=leaf(normal(0, 7)), masked=torch.zeros_like(case.masked))
        padding = unmasked._replace(real=torch.zeros_like(case.real))
        options = {"stop_gradient": stop_gradient}
        for nothing in (unmasked, padding, Case(*(leaf(t[:0]) if t.is_floating_point() else t[:0] for t in unmasked))):
            assert_connected_zero(nothing.loss(**options), nothing.copy_logits, nothing.lm_logits)
        assert_connected_zero(padding.detection(), padding.copy_logits)
