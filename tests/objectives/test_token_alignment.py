"""TACO's loss against a loop written from equations 6 to 8, and what padding, missing pairs and stop-gradient may do."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objectives.formulas import assert_connected_zero, assert_finite_gradients, chance, cosine, integers, leaf, normal
from torch import Tensor

from harness.objectives import losses
from harness.objectives.losses import token_alignment


class Case(NamedTuple):
    h: Tensor
    e: Tensor
    positives: Tensor
    negatives: Tensor
    real: Tensor

    def loss(self, temperature: float = 0.3, detach_contrast: bool = False, **options: Any) -> Tensor:
        return token_alignment(*self, temperature=temperature, detach_contrast=detach_contrast, **options)


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


def torch_loop(case: Case, temperature: float, detach_contrast: bool) -> Tensor:
    """The same loop with gradients; every token has all its pairs."""
    g = case.h - case.e
    contrast = g.detach() if detach_contrast else g
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

    @pytest.mark.parametrize("detach_contrast", [False, True])
    def test_gradient_equals_that_of_the_loop(self, detach_contrast: bool) -> None:
        case = batch(5, 3, 4)
        one, two = case.loss(detach_contrast=detach_contrast), torch_loop(case, 0.3, detach_contrast)
        torch.testing.assert_close(one, two)
        expected = torch.autograd.grad(two, (case.h, case.e))
        torch.testing.assert_close(torch.autograd.grad(one, (case.h, case.e)), expected)

    @pytest.mark.parametrize("missing", [0.0, 0.5])
    def test_gradient(self, missing: float) -> None:
        case = batch(4, 2, 3, missing=missing)

        def loss(h: Tensor, e: Tensor) -> Tensor:
            return case._replace(h=h, e=e).loss()

        assert torch.autograd.gradcheck(loss, (case.h, case.e))

    def test_only_the_difference_of_h_and_e_counts(self) -> None:
        case = batch(5, 3, 4)
        shift = normal(3, 5, 4, seed=9)
        torch.testing.assert_close(case._replace(h=case.h + shift, e=case.e + shift).loss(), case.loss())
        of_h, of_e = torch.autograd.grad(case.loss(), (case.h, case.e))
        torch.testing.assert_close(of_h, -of_e)


class TestClosedForms:
    @pytest.mark.parametrize("temperature", [0.01, 0.07, 1.0])
    @pytest.mark.parametrize("num_negatives", [1, 50])
    def test_identical_embeddings_give_log_of_negatives_and_one(self, temperature: float, num_negatives: int) -> None:
        case = batch(5, 3, 4, num_negatives=num_negatives)
        same = case._replace(h=case.e + normal(4, seed=9))
        assert same.loss(temperature).item() == pytest.approx(math.log(num_negatives + 1))

    def test_orthogonal_embeddings_give_log_of_negatives_and_one(self) -> None:
        h = torch.eye(6, dtype=torch.float64).reshape(2, 3, 6)
        positives = torch.tensor([[1, 2, 0]] * 2)
        negatives = torch.stack([1 - torch.arange(2)[:, None, None].expand(2, 3, 4), integers(3, 2, 3, 4)], dim=3)
        case = Case(h, torch.zeros_like(h), positives, negatives, torch.ones(2, 3, dtype=torch.bool))
        assert case.loss(0.1).item() == pytest.approx(math.log(5))

    def test_one_context_a_sequence(self) -> None:
        """Tokens of one sequence share g, sequences are orthogonal: what TACO strives for."""
        h = torch.eye(3, dtype=torch.float64)[:, None].expand(3, 4, 3)
        own = torch.arange(3)[:, None, None]
        negatives = torch.stack([(own + 1 + integers(2, 3, 4, 7)) % 3, integers(4, 3, 4, 7)], dim=3)
        case = Case(h, 0 * h, torch.tensor([[1, 2, 3, 0]] * 3), negatives, torch.ones(3, 4, dtype=torch.bool))
        assert case.loss(0.5).item() == pytest.approx(math.log1p(7 * math.exp(-2)))
        assert case._replace(h=-h).loss(0.5).item() == pytest.approx(math.log1p(7 * math.exp(-2)))

    def test_missing_negatives_are_left_out_of_the_sum(self) -> None:
        case = batch(2, 2, num_negatives=4)
        negatives = case.negatives.clone()
        negatives[0, 0, 1:], negatives[0, 1, :2], negatives[1, 1, 3] = -1, -1, -1  # 1, 2, 4 and 3 are left
        case = case._replace(h=case.e + 1.0, negatives=negatives)
        assert case.loss().item() == pytest.approx(math.log(2 * 3 * 5 * 4) / 4)

    def test_a_token_without_a_pair_adds_nothing_but_counts(self) -> None:
        case = batch(2, 2, num_negatives=4)
        positives, negatives = case.positives.clone(), case.negatives.clone()
        positives[0, 0], negatives[1, 1] = -1, -1
        case = case._replace(h=case.e + 1.0, positives=positives, negatives=negatives)
        assert case.loss().item() == pytest.approx(math.log(5) * 2 / 4)


class TestAnchors:
    def test_all_real_tokens_by_default(self) -> None:
        case = batch(5, 2, 4, missing=0.2)
        assert torch.equal(case.loss(), case.loss(anchors=case.real))
        assert torch.equal(case.loss(), case.loss(anchors=torch.ones_like(case.real)))  # padding is never an anchor

    def test_parts_weighted_by_their_anchors_are_the_whole(self) -> None:
        case = batch(5, 2, 4, missing=0.2)
        part = chance(0.4, 3, 5, seed=3)
        counts = [(case.real & chosen).sum() for chosen in (part, ~part)]
        whole = sum(n * case.loss(anchors=chosen) for n, chosen in zip(counts, (part, ~part), strict=True))
        torch.testing.assert_close(whole / case.real.sum(), case.loss())

    def test_contrast_groups_weighted_by_their_tokens_are_the_whole(self) -> None:
        one, two = batch(5, 2, seed=1), batch(3, 5, seed=2)
        moved = two.negatives + torch.tensor([2, 0]) * (two.negatives >= 0)
        joined = [torch.cat(pair) for pair in zip(one, two._replace(negatives=moved), strict=True)]
        whole = (7 * one.loss() + 8 * two.loss()) / 15
        torch.testing.assert_close(Case(*joined).loss(), whole)

    def test_a_token_that_is_no_anchor_still_serves_as_contrast(self) -> None:
        case = batch(4, 4)
        anchors = torch.zeros(2, 4, dtype=torch.bool)
        anchors[0, 0] = True
        case.positives[0, 0] = 3
        (gradient,) = torch.autograd.grad(case.loss(anchors=anchors), (case.h,))
        assert gradient[0, 3].abs().sum() > 0


class TestStopGradient:
    def test_value_is_the_same(self) -> None:
        case = batch(5, 3, 4, missing=0.2)
        assert torch.equal(case.loss(detach_contrast=True), case.loss(detach_contrast=False))

    @pytest.mark.parametrize("detach_contrast", [False, True])
    def test_positives_and_negatives_get_a_gradient_only_where_it_is_not_stopped(self, detach_contrast: bool) -> None:
        case = batch(4, 4)
        anchors = torch.zeros(2, 4, dtype=torch.bool)
        anchors[0, 0] = True
        case.positives[0, 0], case.negatives[0, 0] = 2, torch.tensor([1, 3])
        loss = case.loss(detach_contrast=detach_contrast, anchors=anchors)
        for gradient in torch.autograd.grad(loss, (case.h, case.e)):
            reached = gradient.abs().sum(dim=2) > 0
            expected = anchors.clone()
            if not detach_contrast:
                expected[0, 2], expected[1, 3] = True, True
            assert torch.equal(reached, expected)


class TestPadding:
    @pytest.mark.parametrize("detach_contrast", [False, True])
    @pytest.mark.parametrize("garbage", [1e30, -5.0, math.inf, math.nan])
    def test_what_stands_there_reaches_nothing(self, garbage: float, detach_contrast: bool) -> None:
        case = batch(5, 2, 4)
        other = case._replace(
            h=leaf(case.h.detach().masked_fill(~case.real[..., None], garbage)),
            e=leaf(case.e.detach().masked_fill(~case.real[..., None], garbage)),
        )
        one, two = case.loss(detach_contrast=detach_contrast), other.loss(detach_contrast=detach_contrast)
        assert torch.equal(one, two)
        expected = torch.autograd.grad(one, (case.h, case.e))
        gradients = torch.autograd.grad(two, (other.h, other.e))
        for gradient, same in zip(gradients, expected, strict=True):
            assert torch.equal(gradient, same)
            assert not gradient[~case.real].any()

    def test_more_of_it_changes_nothing(self) -> None:
        case = batch(5, 2, 4)
        wide = Case(
            *(torch.nn.functional.pad(tensor, (0, 0, 0, 3), value=7.0) for tensor in case[:2]),
            torch.nn.functional.pad(case.positives, (0, 3), value=-1),
            torch.nn.functional.pad(case.negatives, (0, 0, 0, 0, 0, 3), value=-1),
            torch.nn.functional.pad(case.real, (0, 3)),
        )
        torch.testing.assert_close(wide.loss(), case.loss())

    def test_a_pair_with_padding_counts_as_none(self) -> None:
        case = batch(5, 2, 4)
        into, without = case.positives.clone(), case.positives.clone()
        into[1, 0], without[1, 0] = 4, -1
        assert torch.equal(case._replace(positives=into).loss(), case._replace(positives=without).loss())
        into, without = case.negatives.clone(), case.negatives.clone()
        into[0, 0, 1], without[0, 0, 1] = torch.tensor([1, 3]), -1
        assert torch.equal(case._replace(negatives=into).loss(), case._replace(negatives=without).loss())


class TestDegenerate:
    @pytest.mark.parametrize("detach_contrast", [False, True])
    def test_nothing_to_tell_is_a_connected_zero(self, detach_contrast: bool) -> None:
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
            loss = nothing.loss(detach_contrast=detach_contrast, **options)
            assert_connected_zero(loss, nothing.h, nothing.e)
            assert not loss.signbit()

    @pytest.mark.parametrize("detach_contrast", [False, True])
    def test_zero_vectors_have_cosine_zero(self, detach_contrast: bool) -> None:
        case = batch(4, 4)
        for zeros in ([0], [0, 1, 2, 3]):
            h = case.h.detach().clone()
            h[:, zeros] = case.e.detach()[:, zeros]
            zeroed = case._replace(h=leaf(h))
            loss = zeroed.loss(detach_contrast=detach_contrast)
            assert loss.item() == pytest.approx(naive(zeroed, 0.3))
            (gradient,) = torch.autograd.grad(loss, (zeroed.h,))
            assert torch.isfinite(gradient).all()
            assert not gradient[:, zeros].any()

    def test_the_anchor_as_its_own_positive(self) -> None:
        case = batch(4, 4)
        own = case._replace(positives=torch.arange(4).expand(2, 4))
        assert own.loss().item() == pytest.approx(naive(own, 0.3))
        assert_finite_gradients(own.loss(), own.h, own.e)

    def test_tiny_temperature_is_finite(self) -> None:
        case = batch(4, 4)
        h, e = leaf(case.h.float()), leaf(case.e.float())
        assert_finite_gradients(case._replace(h=h, e=e).loss(1e-6), h, e)

    def test_scale_of_each_token_does_not_matter(self) -> None:
        case = batch(4, 4)
        g = (case.h - case.e).detach().float()
        scales = torch.tensor([1e-9, 3.0, 1e30, 1e-3])[None, :, None]  # the squares under- and overflow
        zero = torch.zeros_like(g)
        torch.testing.assert_close(case._replace(h=scales * g, e=zero).loss(), case._replace(h=g, e=zero).loss())

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision_is_finite_and_close(self, dtype: torch.dtype) -> None:
        case = batch(6, 4, 5, width=32)
        h, e = leaf(case.h.to(dtype)), leaf(case.e.to(dtype))
        loss = case._replace(h=h, e=e).loss()
        assert_finite_gradients(loss, h, e)
        assert loss.item() == pytest.approx(case.loss().item(), abs=0.02)

    @pytest.mark.parametrize("which", [0, 1])
    def test_nan_is_not_hidden(self, which: int) -> None:
        case = batch(4, 2)
        for position in ((0, 0), (0, 3), (1, 1)):
            spoilt = case[which].detach().clone()
            spoilt[position][0] = math.nan
            positives = case.positives.clone()
            positives[position] = -1  # not even at a token that adds nothing
            tensors = [spoilt if i == which else tensor for i, tensor in enumerate(case)]
            assert Case(*tensors)._replace(positives=positives).loss().isnan()


class TestEquivariance:
    def test_order_of_sequences(self) -> None:
        case = batch(5, 2, 4, missing=0.2)
        order = torch.tensor([2, 0, 1])
        place = order.argsort()
        moved = torch.stack([place[case.negatives[..., 0].clamp(min=0)], case.negatives[..., 1]], dim=3)
        moved = moved.masked_fill(case.negatives < 0, -1)[order]
        shuffled = Case(leaf(case.h[order]), leaf(case.e[order]), case.positives[order], moved, case.real[order])
        one, two = case.loss(), shuffled.loss()
        torch.testing.assert_close(one, two)
        expected = torch.autograd.grad(one, (case.h,))[0][order]
        torch.testing.assert_close(torch.autograd.grad(two, (shuffled.h,))[0], expected)

    def test_order_of_negatives(self) -> None:
        case = batch(5, 2, 4, missing=0.2)
        torch.testing.assert_close(case._replace(negatives=case.negatives.flip(2)).loss(), case.loss())

    def test_narrow_integers(self) -> None:
        case = batch(5, 2, 4, missing=0.2)
        narrow = case._replace(positives=case.positives.to(torch.int16), negatives=case.negatives.to(torch.int32))
        assert torch.equal(narrow.loss(), case.loss())


class TestSlices:
    @pytest.mark.parametrize("detach_contrast", [False, True])
    @pytest.mark.parametrize("size", [1, 40, 100])
    def test_slices_change_nothing(self, size: int, detach_contrast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        case = batch(5, 2, 4, missing=0.2)
        whole = case.loss(detach_contrast=detach_contrast)
        expected = torch.autograd.grad(whole, (case.h, case.e))
        monkeypatch.setattr(losses, "_SLICE", size)
        sliced = case.loss(detach_contrast=detach_contrast)
        torch.testing.assert_close(sliced, whole)
        torch.testing.assert_close(torch.autograd.grad(sliced, (case.h, case.e)), expected)

    def test_gathered_vectors_are_not_kept_for_the_gradient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        case = batch(8, 8, 8, num_negatives=50, width=16)
        monkeypatch.setattr(losses, "_SLICE", 1600)
        kept = [0]
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
            case.loss()
        assert 0 < sum(kept) < 24 * 51 * 16 / 2  # the pairs' cosines and indices, not their vectors

    def test_slices_are_one_graph_and_run_without_data(self, monkeypatch: pytest.MonkeyPatch) -> None:
        case = batch(5, 2, 4)
        monkeypatch.setattr(losses, "_SLICE", 100)
        torch.compiler.reset()
        compiled = torch.compile(Case.loss, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(case), case.loss())
        assert Case(*(tensor.to("meta") for tensor in case)).loss().device.type == "meta"


class TestArguments:
    @pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
    def test_bad_temperature(self, temperature: float) -> None:
        with pytest.raises(ValueError, match="temperature"):
            batch(3, 2).loss(temperature)

    @pytest.mark.parametrize("name", Case._fields)
    def test_bad_shapes(self, name: str) -> None:
        case = batch(3, 2)
        for bad in (getattr(case, name)[:1], getattr(case, name)[0]):
            with pytest.raises(ValueError, match=r"must (be|have)"):
                case._replace(**{name: bad}).loss()

    def test_bad_kinds(self) -> None:
        case = batch(3, 2)
        with pytest.raises(ValueError, match="h must be a tensor of floats"):
            case._replace(h=case.h.long()).loss()
        with pytest.raises(ValueError, match="real must be a tensor of booleans"):
            case._replace(real=case.real.long()).loss()
        with pytest.raises(ValueError, match="anchors must be"):
            case.loss(anchors=case.real[:1])
        with pytest.raises(ValueError, match=r"negatives must be \[B, L, K, 2\]"):
            case._replace(negatives=case.negatives[..., :1]).loss()

    def test_an_index_out_of_range_is_an_error(self) -> None:
        case = batch(3, 2)
        for name in ("positives", "negatives"):
            bad = getattr(case, name).clone()
            bad[0, 0] = 3  # position 3 of sequence 3; never position 0 of the next sequence
            with pytest.raises(IndexError):
                case._replace(**{name: bad}).loss()
