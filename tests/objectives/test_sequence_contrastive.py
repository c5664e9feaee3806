"""COCO-LM's sequence contrast against a loop written from equation 3."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objectives.formulas import assert_connected_zero, cosine, leaf, normal
from torch import Tensor

from harness.objectives.losses import sequence_contrastive


def naive(corrupted: Tensor, cropped: Tensor, temperature: float) -> float:
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
def test_equals_the_loop(num_pairs: int, temperature: float, seed: int) -> None:
    a, b = normal(num_pairs, 4, seed=seed), normal(num_pairs, 4, seed=seed + 1)
    loss = sequence_contrastive(a, b, temperature=temperature)
    assert loss.shape == ()
    assert loss.dtype == torch.float64
    assert loss.item() == pytest.approx(naive(a, b, temperature), rel=1e-11, abs=1e-14)


@pytest.mark.parametrize("num_pairs", [1, 2, 4])
def test_gradient(num_pairs: int) -> None:
    inputs = leaf(normal(num_pairs, 3)), leaf(normal(num_pairs, 3, seed=1))
    assert torch.autograd.gradcheck(lambda a, b: sequence_contrastive(a, b, temperature=0.4), inputs)


def test_one_sequence_and_none_are_a_connected_zero() -> None:
    for num_pairs in (0, 1):
        a, b = leaf(normal(num_pairs, 3)), leaf(normal(num_pairs, 3, seed=1))
        loss = sequence_contrastive(a, b, temperature=0.3)
        assert_connected_zero(loss, a, b)
        assert not loss.signbit()
