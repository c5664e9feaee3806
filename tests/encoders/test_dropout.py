"""Dropout from integers keeps each value with its probability, independently of the others; its gradient, the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.encoders.kernels.cpu import Dropout, dropout_mask

MANY = 400_001
"""An odd number: the last integer serves one value alone."""


def keeps(count: int, probability: float, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return dropout_mask(torch.empty(count), probability)


@pytest.mark.parametrize(("count", "probability"), [(7, 0.5), (999, 0.25), (MANY, 0.001), (MANY, 0.1), (MANY, 0.9)])
def test_the_share_that_is_kept(probability: float, count: int) -> None:
    mask = keeps(count, probability)
    kept = mask != 0
    assert mask.dtype == torch.float32
    assert mask.shape == (count,)
    torch.testing.assert_close(mask, kept / (1 - probability))
    spread = (probability * (1 - probability) / count) ** 0.5
    if count > 500:
        assert abs(float(kept.double().mean()) - (1 - probability)) < 5 * spread + 1 / count


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_neighbours_are_independent(probability: float) -> None:
    """Whatever lies 1 to 4 apart; the two halves of one integer, and the end of one and the start of the next."""
    kept = (keeps(MANY, probability) != 0).double()
    whole = (kept - (1 - probability)) / (probability * (1 - probability)) ** 0.5
    pairs = {f"lag {lag}": (whole[:-lag], whole[lag:]) for lag in (1, 2, 3, 4)}
    even = whole[: MANY - 1].view(-1, 2)
    pairs["halves"] = even[:, 0], even[:, 1]
    pairs["ends"] = even[:-1, 1], even[1:, 0]
    for name, (one, other) in pairs.items():
        assert abs(float((one * other).mean())) < 5 / len(one) ** 0.5, name


@pytest.mark.parametrize(
    ("dtype", "probability"), [(torch.float32, 0.1), (torch.float64, 0.5), (torch.bfloat16, 0.999)]
)
def test_values_and_gradient_share_one_mask(probability: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    x, given = (torch.rand(51, 97, generator=generator).add(1).to(dtype) for _ in range(2))
    x.requires_grad_()
    torch.manual_seed(4)
    found = Dropout(probability)(x)
    found.backward(given)
    kept = found.detach() != 0
    assert found.dtype == dtype
    assert 0 < int(kept.sum()) < kept.numel()
    for each, whole in ((found, x), (x.grad, given)):
        assert each is not None
        torch.testing.assert_close(each, torch.where(kept, whole / (1 - probability), 0))


@pytest.mark.parametrize(("probability", "training"), [(0.5, False), (0.0, True), (0.0, False)])
def test_nothing_is_done_or_drawn(probability: float, training: bool) -> None:
    x = torch.ones(100, requires_grad=True)
    before = torch.get_rng_state()
    found = Dropout(probability).train(training)(x)
    found.sum().backward()
    assert torch.equal(found, x)
    assert torch.equal(x.grad, torch.ones(100))  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), before)
