"""Fixed-count masks, crops, positives and negatives: exact counts, what may never be drawn, and uniform frequencies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from harness.objectives.masking import corrupt, crop, sample_negatives, sample_positives, select, select_fixed
from harness.streams import stream

Ints = NDArray[np.int64]
BELOW_1 = np.nextafter(1.0, 0.0)
LENGTHS = st.lists(st.integers(0, 12), min_size=0, max_size=6).map(lambda lengths: np.array(lengths, dtype=np.int64))


def assert_uniform(drawn: NDArray[Any], allowed: list[int]) -> None:
    """Each value of `allowed` within 4 sigma of its share, and no other value."""
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == sorted(allowed)
    p = 1 / len(allowed)
    assert (np.abs(counts - drawn.size * p) <= 4 * math.sqrt(drawn.size * p * (1 - p))).all()


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
        assert np.array_equal(selected, select_fixed(maskable.astype(int), lengths, probability, uniforms, rounding))


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


def positives(lengths: Ints, window: int, seed: int = 0) -> Ints:
    shape = (len(lengths), int(lengths.max(initial=0)))
    return sample_positives(lengths, window, stream(seed, "u").random(shape))


class TestSamplePositives:
    @settings(max_examples=80)
    @given(
        lengths=LENGTHS,
        window=st.integers(2, 15),
        edge=st.sampled_from([None, 0.0, BELOW_1, np.nextafter(np.float32(1), np.float32(0))]),
        seed=st.integers(0, 999),
    )
    def test_bounds(self, lengths: Ints, window: int, edge: Any, seed: int) -> None:
        if edge is None:
            made = positives(lengths, window, seed)
        else:
            uniforms = np.full((len(lengths), int(lengths.max(initial=0))), edge)
            made = sample_positives(lengths, window, uniforms)
        assert made.dtype == np.int64
        assert made.shape == (len(lengths), lengths.max(initial=0))
        for length, row in zip(lengths.tolist(), made.tolist(), strict=True):
            for j, positive in enumerate(row):
                if j >= length or length < 2:
                    assert positive == -1
                    continue
                assert 0 <= positive < length
                assert 0 < abs(positive - j) <= window // 2

    def test_uniform_among_the_neighbours_inside(self) -> None:
        lengths = np.full(6000, 9)
        lengths[0] = 11  # padding behind all others
        made = positives(lengths, 5)[1:]
        for j in range(9):
            assert_uniform(made[:, j], [i for i in range(9) if 0 < abs(i - j) <= 2])
        assert (made[:, 9:] == -1).all()


def negatives(lengths: Ints, num_negatives: int, group: int, seed: int = 0) -> Ints:
    shape = (len(lengths), int(lengths.max(initial=0)), num_negatives)
    rows, columns = stream(seed, "rows").random(shape), stream(seed, "columns").random(shape)
    return sample_negatives(lengths, num_negatives, rows, columns, group=group)


class TestSampleNegatives:
    @settings(max_examples=60)
    @given(
        lengths=LENGTHS,
        num_negatives=st.integers(1, 5),
        group=st.integers(2, 8),
        edge=st.sampled_from([None, 0.0, BELOW_1]),
        seed=st.integers(0, 999),
    )
    def test_bounds(self, lengths: Ints, num_negatives: int, group: int, edge: float | None, seed: int) -> None:
        shape = (len(lengths), int(lengths.max(initial=0)), num_negatives)
        if edge is None:
            made = negatives(lengths, num_negatives, group, seed)
        else:
            made = sample_negatives(lengths, num_negatives, np.full(shape, edge), np.full(shape, edge), group=group)
        assert made.dtype == np.int64
        assert made.shape == (*shape, 2)
        for b, length in enumerate(lengths.tolist()):
            others = [i for i in range(len(lengths)) if i // group == b // group and i != b]
            for j in range(shape[1]):
                for sequence, position in made[b, j].tolist():
                    if j >= length or not others:
                        assert (sequence, position) == (-1, -1)
                    elif sequence == -1:
                        assert position == -1
                        assert any(lengths[i] == 0 for i in others)
                    else:
                        assert sequence in others
                        assert 0 <= position < lengths[sequence]

    def test_uniform_over_other_sequences_then_over_their_tokens(self) -> None:
        """Not uniform over tokens: a short sequence is drawn as often as a long one."""
        lengths = np.array([3, 8, 2, 5, 4, 6, 7])
        made = negatives(lengths, 4000, group=4)
        for b, others in ((0, [1, 2, 3]), (2, [0, 1, 3]), (3, [0, 1, 2]), (5, [4, 6])):  # the last group has 3
            drawn = made[b, : lengths[b]].reshape(-1, 2)
            assert_uniform(drawn[:, 0], others)
            for sequence in others:
                assert_uniform(drawn[drawn[:, 0] == sequence, 1], list(range(lengths[sequence])))


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
