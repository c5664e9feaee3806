"""Intervals hold the truth as often as they say, and tests err as rarely, on simulated designs.

pytest tests/statistics -m slow -k coverage -rP      # the full size: most shares of docs/statistics.md
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import simulated_designs

from harness.statistics.crossed import mean_squares
from harness.statistics.power import (
    CONFIDENCE,
    LEAST,
    Components,
    Design,
    cheapest,
    detectable,
    power,
    precision,
    upper_components,
)

SIZES = [400, pytest.param(4000, marks=pytest.mark.slow)]


def error(designs: float) -> float:
    """Three Monte-Carlo errors of a share of 95 %, in percentage points."""
    return float(100 * 3 * np.sqrt(0.95 * 0.05 / designs))


@pytest.fixture(scope="module", params=SIZES)
def designs(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def measured(designs: int) -> pd.DataFrame:
    return simulated_designs.measured(designs, 0)


def test_intervals_hold_the_truth_in_every_world(measured: pd.DataFrame, designs: int) -> None:
    print(measured.round(1).to_string())
    assert measured["crossed t"].min() > 95 - error(designs)
    assert measured[["subset", "seed", "interaction"]].min().min() > 95 - error(designs)


def test_equivalence_tests_err_rarely(measured: pd.DataFrame, designs: int) -> None:
    assert measured["equivalence"].max() < 5 + error(designs)


def test_a_family_errs_rarely(designs: int) -> None:
    """Four rows x four columns, also where a factor with two or three levels has most of the variance."""
    found = simulated_designs.family_errors(designs, 0)
    print(found.round(1).to_string())
    assert found.max().max() < 5 + error(designs)


def test_power_is_what_was_planned(designs: int) -> None:
    found = simulated_designs.powers(designs, 0)
    print(found.round(1).to_string())
    assert (found["found"] - 80).abs().max() < 100 * 4 * np.sqrt(0.16 / designs)


def test_a_design_that_is_planned_from_a_pilot_has_the_power_on_average(designs: int) -> None:
    """From a pilot of 3 x 3, which has few degrees of freedom, 78 to 98 %."""
    found = simulated_designs.planned(max(40, designs // 25), 0, [(5, 3)] if designs < 4000 else [(5, 3), (3, 3)])
    print(found.round(0).to_string())
    assert found["power"].min() >= 77.5
    assert found["power"].mean() >= 80


def test_items_hold_the_truth(designs: int) -> None:
    for subsets, seeds in [(5, 3)] if designs < 4000 else [(2, 2), (5, 3), (10, 2)]:
        held, bias = simulated_designs.items_held(max(100, designs // 10), 0, subsets, seeds)
        print(f"{subsets}x{seeds}: interval holds {100 * held:.1f} %, bias {bias:+.1f} %")
        if (subsets, seeds) == (5, 3):
            assert held > 0.87
            assert abs(bias) < 5


def test_a_difference_on_other_test_sets_needs_the_items(designs: int) -> None:
    for runs in (0.02, 0.5) if designs < 4000 else (0.02, 0.1, 0.2, 0.5):
        without, items = simulated_designs.item_differences_held(max(100, designs // 10), 0, runs)
        print(f"runs {runs}: {100 * without:.0f} % hold without items, {100 * items:.0f} % with them")
        assert items > 0.93
        assert without < 0.85 if runs < 0.1 else without > 0.9


class TestPower:
    some = Components(4e-4, 1e-4, 4e-4)

    def test_more_runs_detect_less(self) -> None:
        found = [detectable(precision(self.some, *design)) for design in ((2, 2), (3, 2), (5, 3), (10, 3), (10, 10))]
        assert found == sorted(found, reverse=True)
        half = precision(Components(*(value / 4 for value in vars(self.some).values())), 5, 3)
        assert detectable(half) == pytest.approx(detectable(precision(self.some, 5, 3)) / 2)

    def test_power_at_what_is_detectable(self) -> None:
        design = precision(self.some, 5, 3)
        assert power(detectable(design), design) == pytest.approx(0.8, abs=1e-6)
        assert power(0.0, design) < 0.025
        stricter = precision(self.some, 5, 3, level=0.0125)
        assert detectable(stricter) > detectable(design)

    def test_one_seed_is_the_noncentral_t(self) -> None:
        smp = pytest.importorskip("statsmodels.stats.power")
        design = precision(Components(0.0, 0.0, 1.0), 8, 1)
        assert power(1.2, design) == pytest.approx(smp.TTestPower().power(1.2, 8, 0.05), abs=2e-3)

    def test_the_cheapest_design_is_that_of_a_search(self) -> None:
        def cost(a: int, b: int) -> float:
            return 1.0 + 2 * a + a * b

        found = cheapest([self.some], 0.03, cost)
        assert isinstance(found, Design)
        assert found.detects <= 0.03
        for a in range(LEAST, 31):
            for b in range(LEAST, 11):
                if cost(a, b) < found.cost:
                    assert detectable(precision(self.some, a, b)) > 0.03
        assert cheapest([self.some], 1e-5, cost) is None
        both = cheapest([self.some, Components(16e-4, 0.0, 0.0)], 0.03, cost)
        assert both is not None
        assert both.cost > found.cost

    @pytest.mark.parametrize("wanted", [0.01, 0.03, 1.0])
    @pytest.mark.parametrize("components", [Components(0, 0, 1e-8), Components(4e-4, 0, 4e-4), some])
    def test_no_design_with_two_seeds_or_two_subsets_is_proposed(self, components: Components, wanted: float) -> None:
        for cost in (lambda a, b: a * b, lambda a, b: a + 1e6 * b, lambda a, b: 1e6 * a + b):
            found = cheapest([components], wanted, cost)
            if found is not None:
                assert min(found.num_subsets, found.num_seeds) >= 3

    def test_a_plan_is_made_at_upper_limits(self) -> None:
        """Above the truth in that share of pilots, and the more runs a pilot has the closer to it."""
        rng = np.random.default_rng(0)

        def limits(a: int, b: int) -> np.ndarray:
            y = rng.normal(size=(400, a, 1)) + rng.normal(size=(400, 1, b)) + rng.normal(size=(400, a, b))
            return np.array([[*vars(upper_components(mean_squares(each))).values()] for each in y])

        small, large = limits(5, 3), limits(30, 30)
        assert (small > 1).mean(axis=0) == pytest.approx(CONFIDENCE, abs=0.08)
        assert (large > 1).mean(axis=0) == pytest.approx(CONFIDENCE, abs=0.08)
        assert np.median(large, axis=0) == pytest.approx(1.0, abs=0.2)

    def test_without_variance_anything_is_detected(self) -> None:
        assert detectable(precision(Components(0, 0, 0), 5, 3)) == 0.0


def test_published_cells_that_are_reproduced_exactly_agree(designs: int) -> None:
    """With the published standard deviation and without."""
    tables = max(100, designs // 10)
    found = simulated_designs.published(tables, 0, cells=20)
    print(found.round(1).to_string())
    assert found[["printed spread", "no spread"]].max().max() < 5 + error(tables)
