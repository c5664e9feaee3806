"""Differences of two rows and their tests: against scipy, closed forms and degenerate input, which gets a sentence."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.statistics.crossed import difference, full_grid, holm

answers = st.integers(-20, 20).map(lambda count: count / 256)


class TestHolm:
    @given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.data())
    def test_those_of_a_part_of_the_family_are_no_smaller(self, values: list[float], data: st.DataObject) -> None:
        whole = holm(values)
        kept = sorted(data.draw(st.sets(st.sampled_from(range(len(values))), min_size=1)))
        part = holm([values[k] for k in kept], len(values))
        assert all(p >= whole[k] for p, k in zip(part, kept, strict=True))
        assert holm(values, len(values)) == whole

    @given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
    def test_rejects_as_the_step_down_procedure(self, values: list[float]) -> None:
        adjusted = holm(values)
        ordered = sorted(range(len(values)), key=lambda k: values[k])
        for level in (0.01, 0.05, 0.3):
            rejected: set[int] = set()
            for rank, place in enumerate(ordered):
                if values[place] * (len(values) - rank) >= level:
                    break
                rejected.add(place)
            assert {k for k, p in enumerate(adjusted) if p < level} == rejected


def _choices(levels: range) -> list[list[int]]:
    """Every choice of at least one of them, in ascending order."""
    return [[*chosen] for count in range(1, len(levels) + 1) for chosen in itertools.combinations(levels, count)]


class TestDesign:
    @given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 4))))
    @example({*itertools.product(range(6), range(3))} - {(0, 0), (1, 0), (2, 1)})
    def test_no_other_grid_is_larger(self, pairs: set[tuple[int, int]]) -> None:
        """Against every choice of subsets and seeds; of equally large grids the longest smaller side, the most subsets, the lowest indices."""
        grids = [
            (-len(subsets) * len(seeds), -min(len(subsets), len(seeds)), -len(subsets), subsets, seeds)
            for subsets, seeds in itertools.product(_choices(range(6)), _choices(range(5)))
            if pairs.issuperset(itertools.product(subsets, seeds))
        ]
        assert full_grid(pairs) == (min(grids)[3:] if grids else ([], []))

    def test_of_many_subsets_and_seeds_with_holes(self) -> None:
        """All intersections of 30 rows with holes would never be tried."""
        draw = random.Random(0)
        pairs = {pair for pair in itertools.product(range(30), range(30)) if draw.random() < 0.9}
        subsets, seeds = full_grid(pairs)
        assert {*itertools.product(subsets, seeds)} <= pairs
        assert len(subsets) * len(seeds) >= 13 * 13


class TestDifference:
    def test_gives_every_figure(self) -> None:
        d = np.random.default_rng(0).normal(0.02, 0.01, size=(5, 3))
        found = difference(d, 0.01)
        assert found.low is not None
        assert found.high is not None
        assert found.low < found.difference < found.high
        assert not found.why
        assert all(value is not None for name, value in vars(found).items() if name != "item_share")

    def test_equivalence_is_the_interval_in_the_region(self) -> None:
        rng = np.random.default_rng(0)
        for _ in range(50):
            d = rng.normal(0, 0.01, size=(4, 3))
            found, ninety = difference(d, 0.008), difference(d, 0.008, level=0.9)
            assert ninety.low is not None
            assert ninety.high is not None
            inside = ninety.low > -0.008 and ninety.high < 0.008
            assert (found.equivalence_p or 0) < 0.05 if inside else (found.equivalence_p or 0) >= 0.05

    @pytest.mark.parametrize(
        ("values", "why"),
        [
            ([[0.1]], "one pair of runs has no spread"),
            (np.zeros((5, 3)), "the rows have equal scores in all 15 pairs of runs"),
            (np.full((2, 2), 0.25), "the difference is the same in all 4 pairs of runs"),
            ([[0.1, -0.1], [-0.1, 0.1]], "the means of the subsets and of the seeds do not vary"),
        ],
    )
    def test_degenerate_input_has_a_sentence_and_no_nan(self, values: object, why: str) -> None:
        found = difference(np.asarray(values), 0.01)
        assert why in found.why
        assert found.low is found.p is None
        assert math.isfinite(found.difference)

    @given(
        st.tuples(st.integers(1, 4), st.integers(1, 4)).flatmap(
            lambda shape: st.lists(
                st.lists(answers, min_size=shape[1], max_size=shape[1]), min_size=shape[0], max_size=shape[0]
            )
        )
    )
    def test_is_never_nan_and_turns_with_its_sign(self, rows: list[list[float]]) -> None:
        d = np.asarray(rows)
        found, turned = difference(d, 0.01), difference(-d, 0.01)
        assert bool(found.why) == (found.p is None)
        assert all(math.isfinite(value) for value in vars(found).values() if isinstance(value, float))
        assert turned.difference == pytest.approx(-found.difference)
        assert turned.p == (None if found.p is None else pytest.approx(found.p))
        assert (turned.improvement or 0) + (found.improvement or 0) == pytest.approx(1)
