"""Fixed-count masks, crops, positives and negatives: exact counts, what may never be drawn, and uniform frequencies."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from harness.objectives.masking import corrupt, crop, sample_negatives, sample_positives, select, select_fixed
from harness.streams import stream

Ints = NDArray[np.int64]
BELOW_1 = np.nextafter(1.0, 0.0)
LENGTHS = st.lists(st.integers(0, 12), min_size=0, max_size=6).map(lambda lengths: np.array(lengths, dtype=np.int64))


class TestSelectFixed:
    @settings(max_examples=60)
    @given(lengths=LENGTHS, probability=st.floats(0, 1), seed=st.integers(0, 999), coarse=st.booleans())
    def test_equals_the_loop(self, lengths: Ints, probability: float, seed: int, coarse: bool) -> None:
        total = int(lengths.sum())
        maskable = stream(seed, "maskable").random(total) < 0.7
        uniforms, rounding = stream(seed, "u").random(total), stream(seed, "r").random(len(lengths))
        if coarse:
            uniforms = np.floor(uniforms * 3) / 3  # ties
        expected = np.zeros(total, dtype=bool)
        start = 0
        for length, extra in zip(lengths.tolist(), rounding.tolist(), strict=True):
            candidates = sorted((uniforms[t], t) for t in range(start, start + length) if maskable[t])
            for _, t in candidates[: int(probability * length + extra)]:
                expected[t] = True
            start += length
        selected = select_fixed(maskable, lengths, probability, uniforms, rounding)
        assert selected.dtype == bool
        assert np.array_equal(selected, expected)


class TestCrop:
    @settings(max_examples=60)
    @given(
        lengths=LENGTHS,
        ratio=st.floats(0, 1, exclude_min=True),
        seed=st.integers(0, 999),
        edge=st.sampled_from([None, 0.0, BELOW_1]),
    )
    def test_equals_the_loop(self, lengths: Ints, ratio: float, seed: int, edge: float | None) -> None:
        uniforms = stream(seed, "crop").random(len(lengths)) if edge is None else np.full(len(lengths), edge)
        indices: list[int] = []
        kept = []
        start = 0
        for length, u in zip(lengths.tolist(), uniforms.tolist(), strict=True):
            n = length - 1
            span = max(1, int(ratio * n)) if n >= 1 else 0
            first = start + 1 + int(u * (n - span + 1))
            indices += [start] * (length > 0) + list(range(first, first + span))
            kept.append(min(length, 1) + span)
            start += length
        made, new_lengths = crop(lengths, ratio, uniforms)
        assert made.tolist() == indices
        assert new_lengths.tolist() == kept
        assert made.dtype == new_lengths.dtype == np.int64


EDGES = st.sampled_from([None, 0.0, BELOW_1])


def uniforms_of(*shape: int, seed: int, edge: float | None) -> NDArray[np.float64]:
    return stream(seed, "u").random(shape) if edge is None else np.full(shape, edge)


class TestSampledPairs:
    @settings(max_examples=80)
    @given(lengths=LENGTHS, window=st.integers(2, 15), edge=EDGES, seed=st.integers(0, 999))
    def test_positives_are_drawn_among_the_neighbours(
        self, lengths: Ints, window: int, edge: float | None, seed: int
    ) -> None:
        uniforms = uniforms_of(len(lengths), int(lengths.max(initial=0)), seed=seed, edge=edge)
        expected = np.full(uniforms.shape, -1)
        for b, length in enumerate(lengths):
            for j in range(length):
                near = [i for i in range(length) if 0 < abs(i - j) <= window // 2]
                expected[b, j] = near[int(uniforms[b, j] * len(near))] if near else -1
        assert np.array_equal(sample_positives(lengths, window, uniforms), expected)

    @settings(max_examples=60)
    @given(
        lengths=LENGTHS, num_negatives=st.integers(1, 5), group=st.integers(2, 8), edge=EDGES, seed=st.integers(0, 999)
    )
    def test_negatives_are_drawn_among_the_others_and_then_among_their_tokens(
        self, lengths: Ints, num_negatives: int, group: int, edge: float | None, seed: int
    ) -> None:
        """A short sequence as often as a long one; none where the one drawn has no token."""
        shape = (len(lengths), int(lengths.max(initial=0)), num_negatives)
        rows, columns = (uniforms_of(*shape, seed=seed + more, edge=edge) for more in (0, 1))
        expected = np.full((*shape, 2), -1)
        for b, length in enumerate(lengths):
            others = [i for i in range(len(lengths)) if i // group == b // group and i != b]
            for j, k in np.ndindex(length, num_negatives) if others else ():
                sequence = others[int(rows[b, j, k] * len(others))]
                if lengths[sequence]:
                    expected[b, j, k] = sequence, int(columns[b, j, k] * lengths[sequence])
        assert np.array_equal(sample_negatives(lengths, rows, columns, group=group), expected)


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
