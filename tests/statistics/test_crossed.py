"""Mean squares, components and standard errors of the crossed design, against statsmodels, closed forms and naive loops."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.statistics.crossed import (
    component_interval,
    half_width,
    item_variance,
    mean_squares,
    p_value,
    t_inference,
    variance_interval,
)

shapes = st.tuples(st.integers(1, 6), st.integers(1, 5))


def scores(shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    subsets, seeds = rng.normal(size=(*shape[:-1], 1)), rng.normal(size=(*shape[:-2], 1, shape[-1]))
    return 2 * subsets + 1.5 * seeds + rng.normal(size=shape)


def naive(y: np.ndarray) -> tuple[float, float, float]:
    """Sums of squares, number by number."""
    a, b = y.shape
    mean = sum(y[s, r] for s in range(a) for r in range(b)) / (a * b)
    rows = [sum(y[s, r] for r in range(b)) / b for s in range(a)]
    columns = [sum(y[s, r] for s in range(a)) / a for r in range(b)]
    subset = sum(b * (row - mean) ** 2 for row in rows)
    seed = sum(a * (column - mean) ** 2 for column in columns)
    rest = sum((y[s, r] - rows[s] - columns[r] + mean) ** 2 for s in range(a) for r in range(b))
    return subset, seed, rest


@given(shapes, st.integers(0, 2**32 - 1))
def test_mean_squares_are_those_of_a_loop(shape: tuple[int, int], seed: int) -> None:
    y = scores(shape, seed)
    found = mean_squares(y)
    squares = (found.subset, found.seed, found.residual)
    assert float(found.mean) == pytest.approx(y.mean())
    for square, total, degrees in zip(squares, naive(y), found.degrees, strict=True):
        assert float(square) == pytest.approx(total / max(1, degrees))
        assert degrees or not square


@given(shapes, st.integers(0, 2**32 - 1))
def test_order_and_leading_axes_do_not_matter(shape: tuple[int, int], seed: int) -> None:
    many = scores((3, *shape), seed)
    variances, degrees = t_inference(mean_squares(many))
    rng = np.random.default_rng(seed)
    for k, y in enumerate(many):
        alone = t_inference(mean_squares(y))
        moved = t_inference(mean_squares(y[rng.permutation(shape[0])][:, rng.permutation(shape[1])] + 5))
        swapped = t_inference(mean_squares(y.T))
        assert variances[k] == pytest.approx(alone[0])
        assert moved[0] == pytest.approx(alone[0])
        assert swapped[0][::-1] == pytest.approx(alone[0])
        assert degrees == alone[1] == moved[1] == swapped[1][::-1]


@pytest.mark.parametrize("shape", [(7, 1), (1, 4)])
def test_one_seed_or_one_subset_is_the_t_test(shape: tuple[int, int]) -> None:
    y = scores(shape, 3)
    expected = stats.ttest_1samp(y.ravel(), 0)
    variances, degrees = t_inference(mean_squares(y))
    assert degrees == (y.size - 1,)
    assert float(p_value(y.mean(), variances, degrees)) == pytest.approx(expected.pvalue)
    low, high = expected.confidence_interval(0.9)
    assert 2 * float(half_width(variances, degrees, 0.9)) == pytest.approx(high - low)


parts = st.lists(st.tuples(st.floats(1e-6, 1e3), st.integers(1, 60)), min_size=1, max_size=4)


class TestSeveralParts:
    @given(parts, st.floats(0.001, 100), st.floats(1e-6, 0.999))
    def test_p_is_below_alpha_exactly_where_the_interval_excludes_the_value(
        self, given_parts: list[tuple[float, int]], distance: float, alpha: float
    ) -> None:
        variances, degrees = zip(*given_parts, strict=True)
        p, half = float(p_value(distance, variances, degrees)), float(half_width(variances, degrees, 1 - alpha))
        assert 0 < p <= 1
        if abs(distance - half) > 1e-9 * half:
            assert (p < alpha) == (distance > half)
        if 1e-12 < p < 1 - 1e-9:  # at its own p the interval ends at the value
            assert float(half_width(variances, degrees, 1 - p)) == pytest.approx(distance, rel=1e-3)

    def test_is_t_of_the_part_that_has_all_the_variance(self) -> None:
        nearly = [1.0, 1e-12]
        assert float(half_width(nearly, [4, 2])) == pytest.approx(stats.t.ppf(0.975, 4))
        assert float(p_value(2.0, nearly, [4, 2])) == pytest.approx(2 * stats.t.sf(2.0, 4), rel=1e-6)

    @given(st.integers(2, 6), st.integers(2, 5), st.integers(0, 2**32 - 1))
    def test_is_the_sum_of_squared_quantiles(self, num_subsets: int, num_seeds: int, seed: int) -> None:
        """Banerjee's interval from the two t intervals that each take one factor as all there is."""
        y = scores((num_subsets, num_seeds), seed)
        half = 0.0
        for means in (y.mean(axis=1), y.mean(axis=0)):
            half += (stats.sem(means) * stats.t.ppf(0.975, len(means) - 1)) ** 2
        assert float(half_width(*t_inference(mean_squares(y)))) == pytest.approx(half**0.5)

    def test_without_variance(self) -> None:
        assert p_value([0.0, 1.0], np.zeros((2, 2)), (4, 2)).tolist() == [1.0, 0.0]
        assert half_width(np.zeros((3, 0)), ()).tolist() == [0.0] * 3


def test_components_are_those_of_a_mixed_model() -> None:
    """REML of a balanced crossed model equals the mean squares' estimates where all are positive."""
    smf = pytest.importorskip("statsmodels.formula.api")
    y = scores((6, 5), 1)
    squares = mean_squares(y)
    residual = float(squares.residual)
    ours = [(float(squares.subset) - residual) / 5, (float(squares.seed) - residual) / 6, residual]
    assert min(ours) > 0
    frame = pd.DataFrame({"y": y.ravel(), "s": np.repeat(np.arange(6), 5), "r": np.tile(np.arange(5), 6), "one": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = smf.mixedlm("y ~ 1", frame, groups="one", re_formula="0", vc_formula={"s": "0+C(s)", "r": "0+C(r)"})
        fit = model.fit(reml=True)
    theirs = dict(zip(model.exog_vc.names, fit.vcomp, strict=True))
    assert [theirs["s"], theirs["r"], fit.scale] == pytest.approx(ours, rel=1e-3)
    # the generalised least squares error of the mean is the unbiased one, of which ours keeps the residual in
    unbiased = float(squares.subset + squares.seed - squares.residual) / 30
    assert float(fit.bse_fe.iloc[0]) ** 2 == pytest.approx(unbiased, rel=1e-3)
    assert float(t_inference(squares)[0].sum()) == pytest.approx(unbiased + residual / 30)


def test_intervals_of_components_invert_their_distributions() -> None:
    """At the ends of the interval of the variance, the mean square is an extreme of its chi-squared distribution."""
    low, high = variance_interval(np.asarray(4.0), 8)
    for end, p in ((low, 0.975), (high, 0.025)):
        assert stats.chi2.cdf(8 * 4.0 / end, 8) == pytest.approx(p)
    estimate, low, high = component_interval(np.asarray(9.0), np.asarray(1.0), (4, 8), 3)
    assert float(estimate) == pytest.approx(8 / 3)
    assert float(low) == pytest.approx(4 * (9 - stats.f.ppf(0.975, 4, 8)) / (3 * stats.chi2.ppf(0.975, 4)))
    assert float(high) == pytest.approx(4 * (9 - stats.f.ppf(0.025, 4, 8)) / (3 * stats.chi2.ppf(0.025, 4)))
    assert [*map(float, component_interval(np.asarray(0.1), np.asarray(5.0), (4, 8), 3))] == [0.0, 0.0, 0.0]


def test_the_items_of_one_run_are_the_variance_of_a_mean() -> None:
    right = (np.random.default_rng(0).random(372) < 0.7).astype(float)
    found = item_variance(right.reshape(-1, 1, 1))
    assert found.variance == pytest.approx(right.var(ddof=1) / 372)


def test_the_interval_of_the_items_has_the_runs_in_it() -> None:
    """Where runs lean to one class, all items of a class go together, and which way depends on the runs. Items and runs vary with sd 1, the lean of
    a subset with 1.5."""
    rng = np.random.default_rng(0)
    count, designs, within = 100, 60, 0
    truth = float(stats.norm.cdf((0.5 + rng.normal(size=100_000)) / np.sqrt(1.5**2 + 1)).var()) / count
    classes = np.where(np.arange(count) % 2, 1.0, -1.0)[:, None, None]
    for _ in range(designs):
        margins = 0.5 + rng.normal(size=(count, 1, 1)) + classes * 1.5 * rng.normal(size=(5, 1))
        low, high = item_variance((margins + rng.normal(size=(count, 5, 3)) > 0).astype(float)).interval()
        within += low <= truth <= high
    assert within >= 0.88 * designs


def test_items_are_the_three_way_mean_squares() -> None:
    """Against the sums of squares of the three-way table, written out."""
    rng = np.random.default_rng(1)
    x = (rng.random((40, 4, 3)) < rng.random((40, 1, 1))).astype(float)
    items, a, b = x.shape
    g = x.mean()
    i, s, r = x.mean((1, 2)), x.mean((0, 2)), x.mean((0, 1))
    by_is, by_ir, by_sr = x.mean(2), x.mean(1), x.mean(0)
    of_i = a * b * ((i - g) ** 2).sum() / (items - 1)
    of_is = b * ((by_is - i[:, None] - s + g) ** 2).sum() / ((items - 1) * (a - 1))
    of_ir = a * ((by_ir - i[:, None] - r + g) ** 2).sum() / ((items - 1) * (b - 1))
    rest = x - by_is[:, :, None] - by_ir[:, None] - by_sr + i[:, None, None] + s[:, None] + r - g
    of_rest = (rest**2).sum() / ((items - 1) * (a - 1) * (b - 1))
    expected = (of_i - of_is - of_ir + of_rest) / (a * b * items)
    found = item_variance(x)
    assert found.variance == pytest.approx(expected)
    low, high = found.interval()
    assert 0 <= low < found.variance < high
