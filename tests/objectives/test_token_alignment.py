"""TACO's loss against a loop written from equations 6 to 8, and what padding, missing pairs and stop-gradient may do."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objectives.formulas import assert_connected_zero, chance, cosine, integers, leaf, normal
from torch import Tensor

from harness.objectives import losses
from harness.objectives.losses import token_alignment


class Case(NamedTuple):
    h: Tensor
    e: Tensor
    positives: Tensor
    negatives: Tensor
    real: Tensor

    def loss(self, temperature: float = 0.3, **options: Any) -> Tensor:
        return token_alignment(*self, temperature=temperature, **options)


def batch(*lengths: int, num_negatives: int = 3, width: int = 4, missing: float = 0.0, seed: int = 0) -> Case:
    """Pairs of real tokens, -1 at padding and at a share `missing` of the others."""
    size, longest = len(lengths), max(lengths)
    lengths_b = torch.tensor(lengths)
    real = torch.arange(longest)[None] < lengths_b[:, None]
    positives = integers(1000, size, longest, seed=seed) % lengths_b.clamp(min=1)[:, None]
    positives = positives.masked_fill(~real | chance(missing, size, longest, seed=seed + 1), -1)
    shape = (size, longest, num_negatives)
    sequences = integers(size, *shape, seed=seed + 2)
    negatives = torch.stack([sequences, integers(1000, *shape, seed=seed + 3) % lengths_b[sequences].clamp(min=1)], 3)
    gone = ~real[:, :, None] | chance(missing, *shape, seed=seed + 4) | (lengths_b[sequences] == 0)
    negatives = negatives.masked_fill(gone[..., None], -1)
    h, e = normal(size, longest, width, seed=seed), normal(size, longest, width, seed=seed + 5)
    return Case(leaf(h), leaf(e), positives, negatives, real)


def naive(case: Case, temperature: float, anchors: Tensor | None = None) -> float:
    g = (case.h - case.e).tolist()
    chosen = (case.real if anchors is None else case.real & anchors).tolist()
    total, count = 0.0, 0
    for b, row in enumerate(chosen):
        for j, is_anchor in enumerate(row):
            if not is_anchor:
                continue
            count += 1
            positive = int(case.positives[b, j])
            others = [(s, p) for s, p in case.negatives[b, j].tolist() if s >= 0 and p >= 0]
            if positive < 0 or not others:
                continue
            own = math.exp(cosine(g[b][j], g[b][positive]) / temperature)
            rest = sum(math.exp(cosine(g[b][j], g[s][p]) / temperature) for s, p in others)
            total -= math.log(own / (own + rest))
    return total / max(count, 1)


def torch_loop(case: Case, temperature: float) -> Tensor:
    """The same loop with gradients; every token has all its pairs."""
    g = case.h - case.e
    contrast = g.detach()
    terms = []
    for b, j in case.real.nonzero().tolist():
        pairs = [(b, int(case.positives[b, j])), *case.negatives[b, j].tolist()]
        scores = [torch.cosine_similarity(g[b, j], contrast[s, p], dim=0) / temperature for s, p in pairs]
        terms.append(torch.stack(scores).logsumexp(0) - scores[0])
    return torch.stack(terms).mean()


class TestFormula:
    @settings(max_examples=40)
    @given(
        lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
        num_negatives=st.integers(1, 5),
        missing=st.sampled_from([0.0, 0.3, 0.8]),
        temperature=st.floats(0.05, 5.0),
        some=st.booleans(),
        seed=st.integers(0, 10_000),
    )
    def test_equals_the_loop(
        self, lengths: list[int], num_negatives: int, missing: float, temperature: float, some: bool, seed: int
    ) -> None:
        case = batch(*lengths, num_negatives=num_negatives, missing=missing, seed=seed)
        anchors = chance(0.4, *case.real.shape, seed=seed) if some else None
        loss = case.loss(temperature, anchors=anchors)
        assert loss.shape == ()
        assert loss.dtype == torch.float64
        assert loss.item() == pytest.approx(naive(case, temperature, anchors), rel=1e-10, abs=1e-12)

    def test_gradient_equals_that_of_the_loop(self) -> None:
        case = batch(5, 3, 4)
        one, two = case.loss(), torch_loop(case, 0.3)
        torch.testing.assert_close(one, two)
        expected = torch.autograd.grad(two, (case.h, case.e))
        torch.testing.assert_close(torch.autograd.grad(one, (case.h, case.e)), expected)


class TestStopGradient:
    def test_positives_and_negatives_get_no_gradient(self) -> None:
        case = batch(4, 4)
        anchors = torch.zeros(2, 4, dtype=torch.bool)
        anchors[0, 0] = True
        case.positives[0, 0], case.negatives[0, 0] = 2, torch.tensor([1, 3])
        loss = case.loss(anchors=anchors)
        for gradient in torch.autograd.grad(loss, (case.h, case.e)):
            reached = gradient.abs().sum(dim=2) > 0
            assert torch.equal(reached, anchors)


class TestPadding:
    @pytest.mark.parametrize("garbage", [1e30, -5.0, math.inf, math.nan])
    def test_what_stands_there_reaches_nothing(self, garbage: float) -> None:
        case = batch(5, 2, 4)
        other = case._replace(
            h=leaf(case.h.detach().masked_fill(~case.real[..., None], garbage)),
            e=leaf(case.e.detach().masked_fill(~case.real[..., None], garbage)),
        )
        one, two = case.loss(), other.loss()
        assert torch.equal(one, two)
        expected = torch.autograd.grad(one, (case.h, case.e))
        gradients = torch.autograd.grad(two, (other.h, other.e))
        for gradient, same in zip(gradients, expected, strict=True):
            assert torch.equal(gradient, same)
            assert not gradient[~case.real].any()

    def test_a_pair_with_padding_counts_as_none(self) -> None:
        case = batch(5, 2, 4)
        into, without = case.positives.clone(), case.positives.clone()
        into[1, 0], without[1, 0] = 4, -1
        assert torch.equal(case._replace(positives=into).loss(), case._replace(positives=without).loss())
        into, without = case.negatives.clone(), case.negatives.clone()
        into[0, 0, 1], without[0, 0, 1] = torch.tensor([1, 3]), -1
        assert torch.equal(case._replace(negatives=into).loss(), case._replace(negatives=without).loss())


class TestDegenerate:
    def test_nothing_to_tell_is_a_connected_zero(self) -> None:
        case = batch(4, 2)
        none = torch.full_like(case.negatives, -1)
        empty = {
            "no anchor": (case, {"anchors": torch.zeros_like(case.real)}),
            "anchors on padding": (case, {"anchors": ~case.real}),
            "all padding": (case._replace(real=torch.zeros_like(case.real)), {}),
            "no positive": (case._replace(positives=torch.full_like(case.positives, -1)), {}),
            "no negative": (case._replace(negatives=none), {}),
            "K = 0": (case._replace(negatives=none[:, :, :0]), {}),
            "neither": (case._replace(positives=case.positives.clamp(max=-1), negatives=none), {}),
            "B = 0": (Case(*(leaf(t[:0]) if t.is_floating_point() else t[:0] for t in case)), {}),
            "L = 0": (Case(*(leaf(t[:, :0]) if t.is_floating_point() else t[:, :0] for t in case)), {}),
        }
        for nothing, options in empty.values():
            loss = nothing.loss(**options)
            assert_connected_zero(loss, nothing.h, nothing.e)
            assert not loss.signbit()


class TestSlices:
    @pytest.mark.parametrize("size", [1, 40, 100])
    def test_slices_change_nothing(self, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        case = batch(5, 2, 4, missing=0.2)
        whole = case.loss()
        expected = torch.autograd.grad(whole, (case.h, case.e))
        monkeypatch.setattr(losses, "_SLICE", size)
        sliced = case.loss()
        torch.testing.assert_close(sliced, whole)
        torch.testing.assert_close(torch.autograd.grad(sliced, (case.h, case.e)), expected)

    def test_gathered_vectors_are_not_kept_for_the_gradient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        case = batch(8, 8, 8, num_negatives=50, width=16)
        monkeypatch.setattr(losses, "_SLICE", 1600)
        kept = [0]
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
            case.loss()
        assert 0 < sum(kept) < 24 * 51 * 16 / 2  # the pairs' cosines and indices, not their vectors
