"""Differences of two rows and their tests: against scipy, closed forms and degenerate input, which gets a sentence."""

from __future__ import annotations

import itertools
import math
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.statistics.bootstrap import best_shares, percentile_interval, resampled_means
from harness.statistics.design import full_grid
from harness.statistics.difference import Difference, Interval, SignFlip, difference, improvement_interval
from harness.statistics.sign_flip import MOST_EXACT, SAMPLED, holm, sign_flip, smallest_p

answers = st.integers(-20, 20).map(lambda count: count / 256)


class TestSignFlip:
    @given(st.lists(answers, min_size=2, max_size=8))
    def test_is_scipys_permutation_test(self, values: list[float]) -> None:
        found = stats.permutation_test((values,), np.mean, permutation_type="samples", n_resamples=np.inf)
        ours = float(sign_flip(values))
        assert ours == pytest.approx(found.pvalue)
        assert ours >= smallest_p(len(values))

    def test_five_subsets_have_a_floor(self) -> None:
        assert float(sign_flip([1, 2, 3, 4, 5])) == smallest_p(5) == 0.0625
        assert float(sign_flip([0.0] * 5)) == 1.0

    def test_many_differences_are_sampled(self) -> None:
        k = MOST_EXACT + 1
        values = np.random.default_rng(0).normal(0.2, 1, k)
        normal = 2 * stats.norm.sf(abs(values.sum()) / math.sqrt((values**2).sum()))
        assert float(sign_flip(values)) == pytest.approx(normal, abs=0.02)
        assert float(sign_flip(np.ones(k))) >= smallest_p(k) == 1 / (1 + SAMPLED)


class TestHolm:
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

    def test_of_statsmodels(self) -> None:
        multitest = pytest.importorskip("statsmodels.stats.multitest")
        values = [0.01, 0.04, 0.03, 0.5, 0.005]
        assert holm(values) == pytest.approx(multitest.multipletests(values, method="holm")[1])
        assert holm([]) == []


class TestBootstrap:
    def test_variance_is_owens(self) -> None:
        """The pigeonhole bootstrap's variance of a mean, exactly: of subset means, of seed means, and of what is left."""
        y = np.random.default_rng(0).normal(size=(4, 3)) + np.arange(4)[:, None]
        g = y.mean()
        subset, seed = ((y.mean(1) - g) ** 2).mean(), ((y.mean(0) - g) ** 2).mean()
        rest = ((y - y.mean(1)[:, None] - y.mean(0) + g) ** 2).mean()
        expected = subset / 4 + seed / 3 + rest / 12
        assert resampled_means(y, 200_000).var() == pytest.approx(expected, rel=0.02)

    def test_one_subset_draws_seeds_alone(self) -> None:
        y = np.arange(3.0).reshape(1, 3)
        assert set(np.round(resampled_means(y, 500) * 3)) <= set(range(7))
        assert np.ptp(resampled_means(np.full((1, 1), 2.0), 10)) == 0

    def test_same_seed_same_interval_and_rows_stay_paired(self) -> None:
        y = np.random.default_rng(1).normal(size=(2, 5, 3))
        means = resampled_means(y)
        np.testing.assert_array_equal(means, resampled_means(y))
        np.testing.assert_allclose(means[1] - means[0], resampled_means(y[1] - y[0]))

    def test_percentiles_are_widened_to_t(self) -> None:
        """Of a normal distribution scaled as the resamples of n are: sqrt((n - 1) / n)."""
        normal = stats.norm.ppf((np.arange(200_000) + 0.5) / 200_000)
        low, high = percentile_interval(normal * math.sqrt(8 / 9), 8.0)
        assert (-float(low), float(high)) == pytest.approx((stats.t.ppf(0.975, 8),) * 2, rel=1e-3)

    def test_best_shares_split_ties(self) -> None:
        means = np.array([[1.0, 3.0, 2.0], [1.0, 1.0, 5.0], [0.0, 0.0, 0.0]])
        assert best_shares(means).tolist() == pytest.approx([0.5, 0.5, 0.0])


class TestDesign:
    @given(st.sets(st.tuples(st.integers(0, 4), st.integers(0, 3))))
    def test_is_a_full_grid_of_what_there_is(self, pairs: set[tuple[int, int]]) -> None:
        subsets, seeds = full_grid(pairs)
        assert {*itertools.product(subsets, seeds)} <= pairs
        assert bool(subsets) == bool(seeds)
        assert bool(subsets) or not pairs

    def test_leaves_out_what_costs_least(self) -> None:
        whole = {*itertools.product(range(5), (31, 42, 53))}
        assert full_grid(whole) == ([0, 1, 2, 3, 4], [31, 42, 53])
        assert full_grid(whole - {(2, 42)}) == ([0, 1, 3, 4], [31, 42, 53])
        assert full_grid(whole - {(s, 53) for s in range(4)}) == ([0, 1, 2, 3, 4], [31, 42])


class TestDifference:
    def test_gives_every_figure(self) -> None:
        d = np.random.default_rng(0).normal(0.02, 0.01, size=(5, 3))
        found = difference(d, 0.01)
        assert found.interval is not None
        assert found.interval.low < found.mean < found.interval.high
        assert found.flip == SignFlip(float(sign_flip(d.mean(axis=1))), 0.0625, 5)
        assert not found.why
        assert all(value is not None for name, value in vars(found).items() if name != "item_share")

    def test_equivalence_is_the_interval_in_the_region(self) -> None:
        rng = np.random.default_rng(0)
        for _ in range(50):
            d = rng.normal(0, 0.01, size=(4, 3))
            found, ninety = difference(d, 0.008), difference(d, 0.008, level=0.9)
            assert ninety.interval is not None
            inside = ninety.interval.low > -0.008 and ninety.interval.high < 0.008
            assert (found.equivalence_p or 0) < 0.05 if inside else (found.equivalence_p or 0) >= 0.05

    def test_items_widen_the_interval(self) -> None:
        rng = np.random.default_rng(0)
        right = (rng.random((2, 300, 5, 3)) < rng.random((1, 300, 1, 1))).astype(float)
        each = right[1] - right[0]
        without, items = difference(each.mean(axis=0), 0.01), difference(each.mean(axis=0), 0.01, each)
        assert without.error is not None
        assert items.error is not None
        assert items.error >= without.error
        assert 0 <= (items.item_share or 0) < 1

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
        assert found.interval is found.p is found.flip is found.bootstrap is None
        assert math.isfinite(found.mean)

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
        for field in fields(Difference):
            value = getattr(found, field.name)
            numbers = vars(value).values() if isinstance(value, (Interval, SignFlip)) else [value]
            assert all(math.isfinite(x) for x in numbers if isinstance(x, float)), field.name
        assert turned.mean == pytest.approx(-found.mean)
        assert turned.p == (None if found.p is None else pytest.approx(found.p))
        assert (turned.improvement or 0) + (found.improvement or 0) == pytest.approx(1)

    def test_improvement_is_clopper_and_pearsons_over_subsets(self) -> None:
        d = np.array([[1.0], [1.0], [1.0], [-1.0], [1.0]])
        low, high = improvement_interval(d)
        expected = stats.binomtest(4, 5).proportion_ci(0.95, "exact")
        assert (float(low), float(high)) == pytest.approx((expected.low, expected.high))
        assert float(improvement_interval(np.ones((5, 3)))[1]) == 1.0
        assert float(improvement_interval(np.ones((5, 3)))[0]) == pytest.approx(0.025 ** (1 / 5))
