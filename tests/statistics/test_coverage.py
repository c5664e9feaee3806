"""The short version of benchmarks/coverage.py: intervals hold the truth as often as they say, tests err as rarely."""

from __future__ import annotations

import importlib
from types import ModuleType

import numpy as np
import pytest

from harness.statistics.power import Components, Design, cheapest, detectable, power, precision

DESIGNS = 2000
ERROR = 100 * 3 * np.sqrt(0.95 * 0.05 / DESIGNS)
"""Three Monte-Carlo errors, in percentage points."""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return importlib.import_module("benchmarks.coverage")


@pytest.fixture(scope="module")
def rows(script: ModuleType) -> dict[tuple[str, str], dict[str, float]]:
    found = script.measured(DESIGNS, 0, 100)
    return {
        (row[0], row[1]): {head: float(value) for head, value in zip(script.HEADS[2:], row[2:], strict=False)}
        for row in found
    }


KNOWN = {
    ("2x3", "large subsets"),
    ("2x3", "heavy subsets"),
    ("5x2", "seeds"),
    ("10x2", "seeds"),
    ("10x2", "both"),
    ("10x3", "seeds"),
}
"""Designs in which one factor has two or three levels and is most of the variance; docs/statistics.md has their figures."""


def test_the_crossed_interval_holds_the_truth(rows: dict[tuple[str, str], dict[str, float]]) -> None:
    for (world, design), figures in rows.items():
        least = 88.0 if (design, world) in KNOWN else 95.0 - ERROR
        assert figures["crossed t"] > least, (world, design)


def test_subset_means_alone_forget_the_seed(rows: dict[tuple[str, str], dict[str, float]]) -> None:
    assert rows["seeds", "5x3"]["subsets alone"] < 75
    assert rows["seeds", "5x3"]["crossed t"] > 95 - ERROR


def test_intervals_of_components_hold_the_truth(rows: dict[tuple[str, str], dict[str, float]]) -> None:
    for place, figures in rows.items():
        for name in ("subset", "seed", "interaction"):
            assert figures.get(name, 95.0) > 95 - ERROR, (place, name)


def test_exact_and_equivalence_tests_err_rarely(rows: dict[tuple[str, str], dict[str, float]]) -> None:
    """The sign-flip test is about the seeds at hand: held where they have no effect of their own."""
    for (world, design), figures in rows.items():
        assert figures["equivalence"] < 5 + ERROR, (world, design)
        if world in ("runs alone", "subsets", "large subsets"):
            assert figures["sign flip"] < 5 + ERROR, (world, design)


def test_power_is_what_was_planned(script: ModuleType) -> None:
    for world, design, _, found in script.powers(DESIGNS, 0):
        assert float(found) == pytest.approx(80, abs=100 * 4 * np.sqrt(0.16 / DESIGNS)), (world, design)


def test_items_hold_the_truth(script: ModuleType) -> None:
    held, bias = script.items_held(100, 0, 5, 3)
    assert held > 0.87
    assert abs(bias) < 5


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
        for a in range(2, 31):
            for b in range(2, 11):
                if cost(a, b) < found.cost:
                    assert detectable(precision(self.some, a, b)) > 0.03
        assert cheapest([self.some], 1e-5, cost) is None
        both = cheapest([self.some, Components(16e-4, 0.0, 0.0)], 0.03, cost)
        assert both is not None
        assert both.cost > found.cost

    def test_without_variance_anything_is_detected(self) -> None:
        assert detectable(precision(Components(0, 0, 0), 5, 3)) == 0.0
