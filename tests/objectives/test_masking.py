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

    def test_excluded(self, kind: Callable[[Any], Any]) -> None:
        maskable, uniforms = kind([True, True, True, False]), kind([0.1, 0.1, 0.9, 0.1])
        excluded = kind([True, False, False, False])
        assert listed(select(maskable, 0.7, uniforms, excluded=excluded)) == [False, True, False, False]

    @pytest.mark.parametrize("shape", [(0,), (7,), (2, 5), (2, 3, 4)])
    def test_probability_zero_and_one(self, kind: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
        uniforms = stream(1, "u").random(shape)
        uniforms.reshape(-1)[:1] = 0.0
        maskable = stream(1, "maskable").random(shape) < 0.6
        assert not np.asarray(select(kind(maskable), 0.0, kind(uniforms))).any()
        assert np.array_equal(select(kind(maskable), 1.0, kind(uniforms)), maskable)
        assert np.array_equal(select(kind(maskable), 1, kind(uniforms), kind(~maskable)), maskable)

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

    def test_numbers_as_masks(self, kind: Callable[[Any], Any]) -> None:
        """Tokenisers give 0/1 masks as integers, for which `~` is not `not`."""
        uniforms = kind([0.1, 0.1, 0.1])
        selected = select(kind([1, 1, 0]), 0.5, uniforms, excluded=kind([0, 1, 0]))
        assert listed(selected) == [True, False, False]
        assert str(selected.dtype).endswith("bool")

    def test_inputs_are_not_modified(self, kind: Callable[[Any], Any]) -> None:
        arrays = [kind([True, False, True]), kind([0.1, 0.2, 0.9]), kind([True, False, False])]
        kept = [listed(array) for array in arrays]
        select(arrays[0], 0.5, arrays[1], arrays[2])
        assert [listed(array) for array in arrays] == kept

    @pytest.mark.parametrize("probability", [-0.01, 1.01, math.nan, math.inf])
    def test_bad_probability(self, kind: Callable[[Any], Any], probability: float) -> None:
        with pytest.raises(ValueError, match="probability"):
            select(kind([True]), probability, kind([0.5]))

    def test_bad_shapes(self, kind: Callable[[Any], Any]) -> None:
        with pytest.raises(ValueError, match="maskable"):
            select(kind([True]), 0.5, kind([0.5, 0.1]))
        with pytest.raises(ValueError, match="excluded"):
            select(kind([True, True]), 0.5, kind([0.5, 0.1]), excluded=kind([[True, True]]))

    def test_mixed_kinds(self) -> None:
        with pytest.raises(ValueError, match="both"):
            select(torch.tensor([True]), 0.5, np.array([0.5]))  # type: ignore[type-var]


IDS = [10, 11, 12, 13, 14, 15]
SELECTED = [True, True, True, True, True, False]
ACTIONS = [0.0, 0.799, 0.8, 0.899, 0.9, 0.0]
RANDOM = [90, 91, 92, 93, 94, 95]


class TestCorrupt:
    def arguments(self, kind: Callable[[Any], Any]) -> tuple[Any, Any, Any, Any]:
        return kind(IDS), kind(SELECTED), kind(ACTIONS), kind(RANDOM)

    def test_bands(self, kind: Callable[[Any], Any]) -> None:
        assert listed(corrupt(*self.arguments(kind), mask_id=MASK)) == [MASK, MASK, 92, 93, 14, 15]

    def test_mask_only(self, kind: Callable[[Any], Any]) -> None:
        assert listed(corrupt(*self.arguments(kind), mask_id=MASK, mask_only=True)) == [MASK] * 5 + [15]

    def test_nothing_selected_is_a_copy(self, kind: Callable[[Any], Any]) -> None:
        ids, selected, actions, random_ids = self.arguments(kind)
        result = corrupt(ids, selected & False, actions, random_ids, MASK)
        result[0] = 7
        assert listed(ids) == IDS

    @pytest.mark.parametrize("mask_only", [False, True])
    def test_inputs_are_not_modified(self, kind: Callable[[Any], Any], mask_only: bool) -> None:
        arguments = self.arguments(kind)
        kept = [listed(array) for array in arguments]
        result = corrupt(*arguments, MASK, mask_only)
        result[:] = 0
        assert [listed(array) for array in arguments] == kept

    @pytest.mark.parametrize("dtype", ["int32", "int64"])
    def test_keeps_the_dtype_of_the_ids(self, dtype: str) -> None:
        _, selected, actions, random_ids = self.arguments(np.asarray)
        result = corrupt(np.array(IDS, dtype=dtype), selected, actions, random_ids, MASK)
        assert result.dtype == dtype
        _, selected, actions, random_ids = self.arguments(torch.as_tensor)
        wanted = getattr(torch, dtype)
        assert corrupt(torch.tensor(IDS, dtype=wanted), selected, actions, random_ids, MASK).dtype == wanted

    @pytest.mark.parametrize("shape", [(0,), (6,), (2, 3), (3, 1, 2)])
    def test_any_shape(self, kind: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
        size = math.prod(shape)
        flat = self.arguments(np.asarray)
        ids, selected, actions, random_ids = (kind(values[:size].reshape(shape)) for values in flat)
        result = corrupt(ids, selected, actions, random_ids, MASK)
        assert tuple(result.shape) == shape
        assert np.array_equal(result, corrupt(*flat, MASK)[:size].reshape(shape))

    def test_frequencies(self) -> None:
        size = 200_000
        ids = np.full(size, 1)
        result = corrupt(ids, np.ones(size, dtype=bool), stream(0, "actions").random(size), ids + 1, MASK)
        for token, p in ((MASK, 0.8), (2, 0.1), (1, 0.1)):
            assert abs((result == token).sum() - size * p) < 4 * math.sqrt(size * p * (1 - p))

    @pytest.mark.parametrize("position", [1, 2, 3])
    def test_bad_shapes(self, kind: Callable[[Any], Any], position: int) -> None:
        arguments = list(self.arguments(kind))
        arguments[position] = arguments[position][:-1]
        with pytest.raises(ValueError, match="shape"):
            corrupt(arguments[0], arguments[1], arguments[2], arguments[3], MASK)

    def test_mixed_kinds(self) -> None:
        ids, *_ = self.arguments(torch.as_tensor)
        _, selected, actions, random_ids = self.arguments(np.asarray)
        with pytest.raises(ValueError, match="both"):
            corrupt(ids, selected, actions, random_ids, MASK)


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
