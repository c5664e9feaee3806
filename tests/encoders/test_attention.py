"""Packed attention is attention within each sequence and head: values, gradients, dropout, and where things lie."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.encoders.kernels.attention import packed_attention
from harness.encoders.models.batch import Batch

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


def attended(q: Tensor, k: Tensor, v: Tensor, packed: Batch, window: int | None = None) -> Tensor:
    """[1, T', H, D] of each, as a model gives them: transposed views."""
    views = [each.transpose(1, 2) for each in (q, k, v)]
    return packed_attention(MODULE, *views, None, SCALE, batch=packed, sliding_window=window)[0]


def expected(given_: list[Tensor], lengths: list[int], window: int | None = None) -> tuple[Tensor, list[Tensor]]:
    """Values [1, T, H, D] and gradients in double precision, a sequence and a head at a time; `given_` are q, k, v and the gradient of what
    comes out. With a window, of keys less than so many tokens away."""
    q, k, v, gradient = (each[:, : sum(lengths)].detach().double() for each in given_)
    leaves = [each.clone().requires_grad_() for each in (q, k, v)]
    sequences, start = [], 0
    for length in lengths:
        q, k, v = (each[0, start : start + length] for each in leaves)
        place, heads = torch.arange(length), []
        far = (place[:, None] - place).abs() >= (window or length)
        for head in range(HEADS):
            scores = (SCALE * q[:, head] @ k[:, head].T).masked_fill(far, float("-inf"))
            heads.append(scores.softmax(dim=-1) @ v[:, head])
        sequences.append(torch.stack(heads, dim=1))
        start += length
    out = torch.cat(sequences)[None]
    out.backward(gradient)
    return out.detach(), [each.grad for each in leaves if each.grad is not None]


def close(found: Tensor, exact: Tensor) -> None:
    torch.testing.assert_close(found.double(), exact, atol=1e-6, rtol=1e-5)


@settings(max_examples=80, deadline=None)
@given(
    lengths=st.sampled_from(list(LENGTHS.values())) | st.lists(st.integers(1, 40), min_size=1, max_size=20),
    more=st.sampled_from([0, 16]),
    first=st.booleans(),
    window=st.sampled_from([None, 1, 3, 12, 100]),
)
def test_is_the_plain_one(lengths: list[int], more: int, first: bool, window: int | None) -> None:
    """What fills up behind the tokens is never read, whatever its gradient, and gets none. Of first tokens alone a gradient to any other state
    is a gradient to nothing. A query at padding may have nothing but padding in its window."""
    packed, total = tiny.packed(lengths), sum(lengths)
    rows = packed.first if first else torch.arange(total)
    q, k, v, gradient = drawn(total + more)
    leaves = [each.requires_grad_() for each in (q, k, v)]
    found = attended(*leaves, packed.only_first() if first else packed, window)
    found.backward(gradient)
    assert found.shape == q.shape
    gradient = torch.zeros_like(gradient).index_copy(1, rows, gradient.index_select(1, rows))
    out, gradients = expected([*leaves, gradient], lengths, window)
    close(found.detach()[:, rows], out[:, rows])
    for leaf, exact in zip(leaves, gradients, strict=True):
        assert leaf.grad is not None
        close(leaf.grad[:, :total], exact)
        assert not leaf.grad[:, total:].any()
    with torch.inference_mode(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(MODULE, "training", False)
        close(attended(*(each.detach() for each in leaves), packed, window)[:, :total], out)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("first_tokens_only", [False, True])
@pytest.mark.parametrize("lengths", [[3, 1, 2], [2, 2]], ids=str)
def test_gradient_check(lengths: list[int], first_tokens_only: bool, dropout: float) -> None:
    packed = tiny.packed(lengths)
    packed = packed.only_first() if first_tokens_only else packed
    generator = torch.Generator().manual_seed(1)
    total = sum(lengths)
    leaves = [
        torch.randn(1, 2, total + 1, 2, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)
    ]

    def once(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert q.requires_grad
        torch.manual_seed(5)
        return packed_attention(MODULE, q, k, v, None, None, dropout, batch=packed)[0]

    assert torch.autograd.gradcheck(once, leaves)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_comes_back_as_it_went_in(dtype: torch.dtype) -> None:
    lengths = LENGTHS["mixed"]
    halves = [each.to(dtype) for each in drawn(sum(lengths))]
    q, k, v = (each.requires_grad_() for each in halves[:3])
    with torch.autocast("cpu", dtype=dtype):
        found = attended(q, k, v, tiny.packed(lengths))
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
        found = attended(q, k, v, tiny.packed(lengths))
    torch.testing.assert_close(found.double(), out, atol=2e-2, rtol=2e-2)


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
        packed_attention(MODULE, *views, mask, SCALE, batch=tiny.packed([7]), **given)
