"""Masks under injected randomness, for numpy arrays and torch tensors alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.objectives.masking import corrupt, select
from harness.streams import stream

MASK = 103
KINDS: dict[str, Callable[[Any], Any]] = {"numpy": np.asarray, "torch": torch.as_tensor}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return KINDS[request.param]


def listed(array: Any) -> list[Any]:
    result: list[Any] = array.tolist()
    return result


class TestSelect:
    def test_exact(self, kind: Callable[[Any], Any]) -> None:
        maskable = kind([True, True, True, False, True])
        uniforms = kind([0.0, 0.149, 0.15, 0.0, 0.99])
        selected = select(maskable, 0.15, uniforms)
        assert listed(selected) == [True, True, False, False, False]  # strict: u = p is not selected
        assert isinstance(selected, type(maskable))
        assert selected.dtype == maskable.dtype

    def test_complement_at_probability_one(self, kind: Callable[[Any], Any]) -> None:
        """With p_c = 1 all tokens not selected in view 0 are selected in view 1 (CMLM 3.2)."""
        maskable = stream(2, "maskable").random(200) < 0.9
        view0 = select(kind(maskable), 0.15, kind(stream(2, "view-0").random(200)))
        view1 = select(kind(maskable), 1.0, kind(stream(2, "view-1").random(200)), excluded=view0)
        assert np.array_equal(np.asarray(view0) ^ np.asarray(view1), maskable)

    @settings(max_examples=60)
    @given(length=st.integers(0, 40), p_m=st.floats(0, 1), p_c=st.floats(0, 1), seed=st.integers(0, 999))
    def test_laws(self, length: int, p_m: float, p_c: float, seed: int) -> None:
        maskable = stream(seed, "maskable").random(length) < 0.8
        view0 = select(maskable, p_m, stream(seed, "view-0").random(length))
        for k in (1, 2):
            uniforms = stream(seed, "view-k", k).random(length)
            view = select(maskable, p_c, uniforms, excluded=view0)
            assert not (view & view0).any()
            assert not ((view | view0) & ~maskable).any()
            assert not (view & (uniforms >= p_c)).any()
            assert not (select(maskable, p_c / 2, uniforms, excluded=view0) & ~view).any()  # grows with p

    def test_frequency(self) -> None:
        size, p_m, p_c = 200_000, 0.15, 0.7
        maskable = np.ones(size, dtype=bool)
        view0 = select(maskable, p_m, stream(0, "view-0").random(size))
        view1 = select(maskable, p_c, stream(0, "view-1").random(size), excluded=view0)
        for count, trials, p in ((view0.sum(), size, p_m), (view1.sum(), size - view0.sum(), p_c)):
            assert abs(count - trials * p) < 4 * math.sqrt(trials * p * (1 - p))


IDS = [10, 11, 12, 13, 14, 15]
SELECTED = [True, True, True, True, True, False]
ACTIONS = [0.0, 0.799, 0.8, 0.899, 0.9, 0.0]
RANDOM = [90, 91, 92, 93, 94, 95]


class TestCorrupt:
    def arguments(self, kind: Callable[[Any], Any]) -> tuple[Any, Any, Any, Any]:
        return kind(IDS), kind(SELECTED), kind(ACTIONS), kind(RANDOM)

    def test_bands(self, kind: Callable[[Any], Any]) -> None:
        assert listed(corrupt(*self.arguments(kind), mask_id=MASK)) == [MASK, MASK, 92, 93, 14, 15]

    def test_frequencies(self) -> None:
        size = 200_000
        ids = np.full(size, 1)
        result = corrupt(ids, np.ones(size, dtype=bool), stream(0, "actions").random(size), ids + 1, MASK)
        for token, p in ((MASK, 0.8), (2, 0.1), (1, 0.1)):
            assert abs((result == token).sum() - size * p) < 4 * math.sqrt(size * p * (1 - p))


def test_numpy_and_torch_agree() -> None:
    maskable, uniforms = stream(3, "m").random((4, 9)) < 0.8, stream(3, "u").random((4, 9)).astype(np.float32)
    uniforms[0, 0], maskable[0, 0] = 0.15, True  # float32(0.15) is the bound itself, rounded
    ids, random_ids = stream(3, "ids").integers(5, 90, (4, 9)), stream(3, "r").integers(5, 90, (4, 9))
    actions = stream(3, "a").random((4, 9))
    for p in (0.15, 0.7):
        selected = select(maskable, p, uniforms)
        tensors = select(torch.from_numpy(maskable), p, torch.from_numpy(uniforms))
        assert np.array_equal(selected, tensors)
        assert np.array_equal(
            corrupt(ids, selected, actions, random_ids, MASK),
            corrupt(torch.from_numpy(ids), tensors, torch.from_numpy(actions), torch.from_numpy(random_ids), MASK),
        )
