"""A difference by hardware: within each kind, whether the kinds differ, and the reason where that cannot be told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from analysis.runs import filled
from analysis.test_comparison import resolved, shifted
from scipy.stats import f_oneway, ttest_ind

from harness.analysis.cells import Grid
from harness.analysis.schema import Result
from harness.analysis.sites import SiteComparison, by_hardware
from harness.report.document import FORMATS
from harness.report.sites import rendered_sites, sentence, site_frame
from harness.statistics.groups import group_test

Place = Callable[[Result], str | None]


def compared(place: Place, gap: float = 0.0, **more: Any) -> tuple[Grid, SiteComparison]:
    """SCL against FT, whose difference is higher by `gap` on 'A'."""
    r = resolved(methods=("FT", "SCL"), **more)
    runs = [replace(run, hardware=place(run)) for run in shifted(r, {"FT": 0.0, "SCL": 0.01})]
    runs = [
        replace(run, test=(run.test or 0) + gap) if (run.row, run.hardware) == ("SCL", "A") else run for run in runs
    ]
    grid = filled(r, runs)
    (found,) = by_hardware(grid)[1]
    return grid, found


def by_subset(run: Result) -> str:
    return "A" if run.subset < 2 else "B"


def test_the_test_is_that_of_the_subsets_means() -> None:
    rng = np.random.default_rng(0)
    groups = [rng.normal(size=(units, 3)) for units in (4, 2, 3)]
    assert group_test(groups).p == pytest.approx(f_oneway(*(each.mean(axis=1) for each in groups)).pvalue)
    two = group_test(groups[:2])
    expected = ttest_ind(*(each.mean(axis=1) for each in groups[:2]))
    ends = expected.confidence_interval()
    assert two.p == pytest.approx(expected.pvalue)
    assert [two.gap - two.half_width, two.gap + two.half_width] == pytest.approx([ends.low, ends.high])
    shared = np.array([5.0, -3.0, 0.0])  # effects of seeds
    assert group_test([each + shared for each in groups]).p == pytest.approx(group_test(groups).p)
    with pytest.raises(ValueError, match="leave no spread"):
        group_test([groups[0][:1], groups[1][:1]])


def test_sites_with_whole_subsets_are_compared() -> None:
    grid, found = compared(by_subset, gap=0.1)
    assert [(site.hardware, site.difference.num_subsets, site.difference.num_seeds) for site in found.sites] == [
        ("A", 2, 3),
        ("B", 3, 3),
    ]
    assert found.unit == "subsets"
    assert found.gap == pytest.approx(0.1, abs=0.02)
    assert found.interval is not None
    assert found.interval.low > 0
    said = sentence(found, grid)
    assert said.startswith("SCL - FT, SST-2, 20 training examples: A and B differ: +"), said
    grid, found = compared(by_subset)
    assert "A and B cannot be told apart: " in sentence(found, grid)
    assert found.p_holm == found.p


def test_sites_with_whole_seeds_are_compared_over_seeds() -> None:
    seeds = resolved().seeds
    _, found = compared(lambda run: "A" if run.seed == seeds[0] else "B", gap=0.1)
    assert (found.unit, found.gap) == ("seeds", pytest.approx(0.1, abs=0.02))


SEEDS = resolved().seeds


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (lambda run: "A" if run.row == "FT" else "B", "each pair is of two kinds of hardware, so that"),
        (lambda run: "A", "all pairs that ran on one kind of hardware ran on the same"),
        (lambda run: None, "no replicate is done in both rows with its hardware recorded"),
        (lambda run: "A" if (run.subset + run.seed) % 2 else "B", "the kinds share subsets and seeds; train whole"),
        (
            lambda run: {True: "A", False: "B"}[run.subset < 2] if (run.subset < 2) == (run.seed == SEEDS[0]) else None,
            "the kinds have no seeds in common, so that a gap may be one of the seeds",
        ),
        (lambda run: {0: "A", 1: "B"}.get(run.subset), "one of the subsets on each kind has no spread"),
    ],
    ids=["rows", "one", "unknown", "scattered", "both", "single"],
)
def test_what_cannot_be_told_is_said(place: Place, said: str) -> None:
    grid, found = compared(place)
    assert found.p is None
    assert f"no verdict on hardware: {said}" in sentence(found, grid)


def test_pairs_of_two_kinds_are_left_out_and_counted() -> None:
    grid, found = compared(lambda run: "B" if (run.row, run.subset) == ("SCL", 0) else by_subset(run), gap=0.1)
    assert found.across == 3
    assert sentence(found, grid).endswith("(3 pairs of two kinds of hardware left out).")
    assert found.sites[0].difference.num_subsets == 1


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_has_the_sites(format: str) -> None:
    grid, found = compared(by_subset)
    text = rendered_sites([found], grid, "FT", format)
    assert text.endswith("\n")
    if format == "json":
        assert [row["hardware"] for row in json.loads(text)["sites"]] == ["A", "B"]
    frame = site_frame([found])
    assert list(frame["num_subsets"]) == [2, 3]
    assert "hardware" in site_frame([])
