"""Packed attention is attention within each sequence and head: values, gradients, dropout, and where things lie."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.encoders.kernels.attention import packed_attention
from harness.encoders.kernels.packing import Packing

HEADS, DEPTH, SCALE = 3, 5, 0.4
LENGTHS = {
    "mixed": [4, 9, 1, 12, 3, 9, 8, 2],
    "equal": [6, 6, 6],
    "single tokens": [1, 1, 1, 1],
    "one": [7],
    "one token": [1],
    "falling": [13, 8, 5, 3, 2, 1],
}
MODULE = nn.Module()


def drawn(tokens: int, count: int = 4, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """[1, T', H, D] each."""
    generator = torch.Generator().manual_seed(tokens)
    return [torch.randn(1, tokens, HEADS, DEPTH, generator=generator, dtype=dtype) for _ in range(count)]


def attended(q: Tensor, k: Tensor, v: Tensor, packed: Packing, dropout: float = 0.0) -> Tensor:
    """[1, T', H, D] of each, as a model gives them: transposed views."""
    views = [each.transpose(1, 2) for each in (q, k, v)]
    return packed_attention(MODULE, *views, None, SCALE, dropout, packing=packed)[0]


def plain(q: Tensor, k: Tensor, v: Tensor, lengths: list[int], window: int | None = None) -> Tensor:
    """[1, T, H, D], a sequence and a head at a time; with a window, keys less than so many tokens away."""
    sequences, start = [], 0
    for length in lengths:
        own, heads = slice(start, start + length), []
        for head in range(HEADS):
            scores = SCALE * q[0, own, head] @ k[0, own, head].T
            for i, j in product(range(length), repeat=2) if window else ():
                if abs(i - j) >= window:
                    scores[i, j] = float("-inf")
            heads.append(scores.softmax(dim=-1) @ v[0, own, head])
        sequences.append(torch.stack(heads, dim=1))
        start += length
    return torch.cat(sequences)[None]


def expected(given_: list[Tensor], lengths: list[int]) -> tuple[Tensor, list[Tensor]]:
    """Values and gradients in double precision; `given_` are q, k, v and the gradient of what comes out."""
    q, k, v, gradient = (each[:, : sum(lengths)].detach().double() for each in given_)
    leaves = [each.clone().requires_grad_() for each in (q, k, v)]
    out = plain(*leaves, lengths)
    out.backward(gradient)
    return out.detach(), [each.grad for each in leaves if each.grad is not None]


def close(found: Tensor, exact: Tensor) -> None:
    torch.testing.assert_close(found.double(), exact, atol=1e-6, rtol=1e-5)


def learned(packed: Packing, more: int) -> tuple[list[Tensor], Tensor, Tensor, int]:
    """Leaves q, k, v with the gradients of attention over T tokens and `more` behind them: (leaves, the gradient that was
    given, what was found, T)."""
    total = int(packed.lengths.sum())
    q, k, v, gradient = drawn(total + more)
    leaves = [each.requires_grad_() for each in (q, k, v)]
    found = attended(q, k, v, packed)
    found.backward(gradient)
    assert found.shape == q.shape
    return leaves, gradient, found.detach(), total


def same_gradients(leaves: list[Tensor], gradients: list[Tensor], total: int) -> None:
    for leaf, exact in zip(leaves, gradients, strict=True):
        assert leaf.grad is not None
        close(leaf.grad[:, :total], exact)
        assert not leaf.grad[:, total:].any()


some_lengths = st.sampled_from(list(LENGTHS.values())) | st.lists(st.integers(1, 40), min_size=1, max_size=20)


@settings(max_examples=25, deadline=None)
@given(lengths=some_lengths, more=st.sampled_from([0, 16]))
def test_is_the_plain_one(lengths: list[int], more: int) -> None:
    """What fills up behind the tokens is never read, whatever its gradient, and gets none."""
    leaves, gradient, found, total = learned(tiny.packing(lengths), more)
    out, gradients = expected([*leaves, gradient], lengths)
    close(found[:, :total], out)
    same_gradients(leaves, gradients, total)


@settings(max_examples=25, deadline=None)
@given(lengths=some_lengths, more=st.sampled_from([0, 16]))
def test_first_tokens_alone(lengths: list[int], more: int) -> None:
    """Their states as before; a gradient to any other state is a gradient to nothing."""
    packed = tiny.packing(lengths)
    leaves, gradient, found, total = learned(packed.only_first(), more)
    alone = torch.zeros_like(gradient).index_copy(1, packed.first, gradient.index_select(1, packed.first))
    out, gradients = expected([*leaves, alone], lengths)
    close(found[:, packed.first], out[:, packed.first])
    same_gradients(leaves, gradients, total)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("first_tokens_only", [False, True])
@pytest.mark.parametrize("lengths", [[3, 1, 2], [2, 2]], ids=str)
def test_gradient_check(lengths: list[int], first_tokens_only: bool, dropout: float) -> None:
    packed = tiny.packing(lengths)
    packed = packed.only_first() if first_tokens_only else packed
    generator = torch.Generator().manual_seed(1)
    total = sum(lengths)
    leaves = [
        torch.randn(1, 2, total + 1, 2, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)
    ]

    def once(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert q.requires_grad
        torch.manual_seed(5)
        return packed_attention(MODULE, q, k, v, None, None, dropout, packing=packed)[0]

    assert torch.autograd.gradcheck(once, leaves)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_comes_back_as_it_went_in(dtype: torch.dtype) -> None:
    lengths = LENGTHS["mixed"]
    halves = [each.to(dtype) for each in drawn(sum(lengths))]
    q, k, v = (each.requires_grad_() for each in halves[:3])
    with torch.autocast("cpu", dtype=dtype):
        found = attended(q, k, v, tiny.packing(lengths))
    found.backward(halves[3])
    out, gradients = expected(halves, lengths)
    for one, exact in zip((found.detach(), q.grad, k.grad, v.grad), (out, *gradients), strict=True):
        assert one is not None
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), exact, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("trained", [False, True])
def test_scores_beyond_fp16(trained: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of up to some millions, where fp16 ends at 65,504: they are float32, and the softmax picks one key."""
    monkeypatch.setattr(MODULE, "training", trained)
    lengths = LENGTHS["mixed"]
    q, k, v, _ = ((each * scale).half() for each, scale in zip(drawn(sum(lengths)), (2e3, 2e3, 1, 1), strict=True))
    out, _ = expected([q, k, v, v], lengths)
    with torch.autocast("cpu", dtype=torch.float16):
        found = attended(q, k, v, tiny.packing(lengths))
    torch.testing.assert_close(found.double(), out, atol=2e-2, rtol=2e-2)


class TestWindow:
    """Local attention, also where a query at padding has nothing but padding in its window."""

    @staticmethod
    def local(q: Tensor, k: Tensor, v: Tensor, packed: Packing, window: int, training: bool = True) -> Tensor:
        views = [each.transpose(1, 2) for each in (q, k, v)]
        module = nn.Module().train(training)
        return packed_attention(module, *views, None, SCALE, packing=packed, sliding_window=window)[0]

    @pytest.mark.parametrize("window", [1, 3, 12, 100])
    @pytest.mark.parametrize("shape", LENGTHS)
    def test_is_attention_within_the_window(self, shape: str, window: int) -> None:
        lengths = LENGTHS[shape]
        q, k, v, weights = drawn(sum(lengths), dtype=torch.float64)
        for each in (q, k, v):
            each.requires_grad_()
        expected = plain(q, k, v, lengths, window)
        found = self.local(q, k, v, tiny.packing(lengths), window)
        torch.testing.assert_close(found, expected)
        wanted = torch.autograd.grad((expected * weights).sum(), (q, k, v))
        for got, one in zip(torch.autograd.grad((found * weights).sum(), (q, k, v)), wanted, strict=True):
            torch.testing.assert_close(got, one)
        with torch.inference_mode():
            again = self.local(*(each.detach() for each in (q, k, v)), tiny.packing(lengths), window, training=False)
        torch.testing.assert_close(again, expected.detach())

    def test_first_tokens_alone(self) -> None:
        lengths = LENGTHS["mixed"]
        q, k, v = drawn(sum(lengths), 3)
        packed = tiny.packing(lengths)
        found = self.local(q, k, v, packed.only_first(), 3)
        torch.testing.assert_close(found[:, packed.first], plain(q, k, v, lengths, 3)[:, packed.first])


@pytest.mark.parametrize(
    "given",
    [
        {"attention_mask": torch.zeros(1, 1, 7, 7)},
        {"head_mask": torch.ones(HEADS)},
        {"cu_seq_lens_q": torch.tensor([0, 7])},
        {"softcap": 30.0},
        {"is_causal": True},
    ],
    ids=lambda given: next(iter(given)),
)
def test_what_would_be_another_computation_is_refused(given: dict[str, Any]) -> None:
    views = [each.transpose(1, 2) for each in drawn(7, 3)]
    mask = given.pop("attention_mask", None)
    with pytest.raises(ValueError, match="packed attention does not compute"):
        packed_attention(MODULE, *views, mask, SCALE, packing=tiny.packing([7]), **given)
