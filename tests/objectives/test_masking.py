"""Masks under injected randomness."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.objectives.masking import corrupt, select
from harness.streams import stream

MASK = 103


class TestSelect:
    def test_exact(self) -> None:
        maskable = np.array([True, True, True, False, True])
        uniforms = np.array([0.0, 0.149, 0.15, 0.0, 0.99])
        selected = select(maskable, 0.15, uniforms)
        assert selected.tolist() == [True, True, False, False, False]  # strict: u = p is not selected
        assert selected.dtype == maskable.dtype

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


IDS = [10, 11, 12, 13, 14, 15]
SELECTED = [True, True, True, True, True, False]
ACTIONS = [0.0, 0.799, 0.8, 0.899, 0.9, 0.0]
RANDOM = [90, 91, 92, 93, 94, 95]


class TestCorrupt:
    def test_bands(self) -> None:
        given = map(np.array, (IDS, SELECTED, ACTIONS, RANDOM))
        assert corrupt(*given, mask_id=MASK).tolist() == [MASK, MASK, 92, 93, 14, 15]
