"""Cells against a naive loop, incomplete cells, Avg, verdicts, and rendering that is the same for any order."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from requested import aggregated, resolve_table
from scipy import stats
from views.runs import filled, render, result, results, rows_of

from harness.planning.resolved import ResolvedTable
from harness.planning.table import table_names
from harness.scores import Result
from harness.views.cells import family
from harness.views.table import Caption, note_lines

CAPTION = Caption(num_runs=9, hardware=("CPU b", "CPU a"))


def resolved(preset: str = "paper", average: bool = False, **overrides: Any) -> ResolvedTable:
    overrides = {"tasks": ("mnli", "sst2"), "sizes": (20, 100), **overrides}
    found = resolve_table("few_shot", preset, **overrides)
    return aggregated(found, average="per_replicate" if average else "none")


def drop(runs: Sequence[Result], **place: Any) -> list[Result]:
    return [x for x in runs if any(getattr(x, k) != v for k, v in place.items())]


def test_an_average_counts_replicates() -> None:
    """The other numbers of a cell, for every rule: `tests/planning/test_aggregation.py`."""
    r = resolved(average=True)
    runs = results(r)
    grid = filled(r, runs)
    assert grid.columns == ("sst2", "mnli", "mnli_mm", "avg")
    scores = grid.results.query("row == 'TAPT' and size == 100").set_index(["column", "subset", "seed"])["test"]
    by_column = scores.unstack("column")
    cell = grid.cells[100, "TAPT", "avg"]
    assert cell.value == pytest.approx(by_column.mean(axis=1).mean(), abs=1e-14)
    assert cell.spread == pytest.approx(by_column.mean(axis=1).std(), abs=1e-14)
    partly = filled(r, drop(runs, row="TAPT", size=100, column="mnli", subset=0)).cells
    assert (partly[100, "TAPT", "avg"].value, partly[100, "TAPT", "avg"].done) == (None, 12)
    assert partly[20, "TAPT", "avg"].value is not None
    assert "avg" not in filled(resolved(average=True, tasks=("sst2",)), []).columns


@pytest.mark.parametrize(("tasks", "paper"), [(None, 0.777), (("sst2", "rte"), None)])
def test_an_average_is_held_against_one_of_the_same_columns_alone(tasks: tuple[str, ...] | None, paper: Any) -> None:
    cell = filled(resolve_table("taco_base", "paper", tasks=tasks), []).cells[0, "MLM-100k", "avg"]
    assert (cell.paper, bool(cell.verdict)) == (paper, paper is not None)


def test_a_table_may_show_the_median_of_its_runs() -> None:
    r = aggregated(resolved(sizes=(100,)), center="median", spread="none", average="per_replicate")
    grid = filled(r, results(r), rows_of(r))
    for column in r.columns:
        cell = grid.cells[100, "FT", column]
        assert (cell.verdict, cell.half_width) == ("not comparable", None)
        assert cell.why == ("the interval of a verdict holds for the mean of all runs of one configuration",)
    text = render(grid, CAPTION, "text")
    assert "Test scores in points (x100): median over 5 subsets x 3 seeds." in text
    assert "does 'harness compare' find a row below the best" in text, (
        "marks are decided by paired differences, whatever the rule of a cell"
    )
    of_means = "A cell of this table is the median of its runs; {} are of their means."
    assert of_means.format("marks") in note_lines(grid, CAPTION)
    assert "are of their means" not in "".join(note_lines(filled(resolved(), results(resolved())), CAPTION))


@pytest.mark.parametrize(
    "broken",
    [
        {"status": "failed", "test": None, "reason": "out of\nmemory"},
        {"status": "diverged", "test": None, "reason": "loss is NaN"},
        {"test": float("nan")},
        {"status": "failed", "test": 0.9},
        None,
    ],
)
def test_an_incomplete_cell_has_no_mean(broken: dict[str, Any] | None) -> None:
    r = resolved(tasks=("sst2",), sizes=(20,), methods=("ft", "scl"))
    first, *others = results(r)
    runs = [replace(first, **broken), *others] if broken else others
    grid = filled(r, runs, rows_of(r))
    cell = grid.cells[first.size, first.row, first.column]
    assert (cell.value, cell.spread, cell.done, cell.verdict) == (None, None, 14, "incomplete")
    assert len(cell.notes) == (1 if broken else 0)
    text = render(grid, CAPTION, "text")
    assert "14/15" in text
    assert ("subset0 seed31" in text) == bool(broken)


def constant(r: ResolvedTable, row: str, shift: float, noise: float = 0.005) -> list[Result]:
    """Runs of one row whose subset means spread by `noise` around the paper's value plus `shift`."""
    (size,) = r.sizes
    paper = r.paper_value(size, row, "sst2")
    assert paper
    return [result(r, row, size, "sst2", s, t, paper[0] + shift + noise * (s - 2)) for s, t in r.replicates]


def test_verdicts() -> None:
    r = resolved(tasks=("sst2",), sizes=(1000,))
    runs = constant(r, "FT", 0.005) + constant(r, "TAPT", 0.08) + constant(r, "CMLM", -0.2) + constant(r, "SCL", 0)
    cells = filled(r, runs, {"sst2": 372}).cells
    assert {k[1]: c.verdict for k, c in cells.items()} == {
        "FT": "agrees",
        "SCL": "not comparable",
        "CSSL": "not comparable",
        "TAPT": "higher",
        "CMLM": "lower",
    }
    # the paper's sd over its 5 subsets is 0.97 points; the sd of -2..2 with ddof 1 is sqrt(2.5); of 72 numbers: 3 rows, 3 sizes, 8 columns
    assert family(r) == family(resolve_table("few_shot", "paper")) == 72
    quantile = stats.t.ppf(1 - 0.025 / 72, 4)
    errors = np.array([0.005 * np.sqrt(2.5), 0.0097]) / np.sqrt(5)
    assert cells[1000, "FT", "sst2"].half_width == pytest.approx(quantile * np.hypot(*errors), rel=1e-6)
    for given, part in (({"sst2": 436}, "436 test examples instead of 372"), ({}, "not known")):
        cell = filled(r, runs, given).cells[1000, "FT", "sst2"]
        assert cell.verdict == "not comparable"
        assert part in cell.why[0]
    cell = filled(r, runs, {"sst2": 372}, {"sst2": "another split"}).cells[1000, "FT", "sst2"]
    assert cell.why == ("SST-2: another split",)
    few = resolved("laptop", tasks=("sst2",), sizes=(20,))
    assert filled(few, [], {"sst2": 372}).cells[20, "FT", "sst2"].verdict == "not comparable"


def test_an_interval_has_the_effect_of_the_seeds() -> None:
    """Scores that differ by seed alone: subset means do not vary, yet other seeds would give another mean."""
    r = resolved(tasks=("sst2",), sizes=(1000,))
    paper, spread = r.paper_value(1000, "FT", "sst2") or (0.0, None)
    shift = dict(zip(r.seeds, (-0.01, 0.0, 0.01), strict=True))
    runs = [result(r, "FT", 1000, "sst2", s, seed, paper + 0.005 + shift[seed]) for s, seed in r.replicates]
    cell = filled(r, runs, {"sst2": 372}).cells[1000, "FT", "sst2"]
    ours, theirs = (
        stats.t.ppf(1 - 0.025 / 72, 2) * 0.01 / np.sqrt(3),
        stats.t.ppf(1 - 0.025 / 72, 4) * 0.0097 / np.sqrt(5),
    )
    assert (spread, cell.half_width) == (0.0097, pytest.approx(np.hypot(ours, theirs), rel=1e-6))
    assert cell.verdict == "agrees"


def test_runs_with_one_score_get_a_verdict_from_a_printed_spread_alone() -> None:
    printed, none = resolved(tasks=("sst2",), sizes=(1000,)), resolve_table("full_size", "paper", tasks=("sst2",))
    cell = filled(printed, constant(printed, "FT", 0.001, noise=0), {"sst2": 372}).cells[1000, "FT", "sst2"]
    assert cell.verdict == "agrees"
    runs = [result(none, "FT", 0, "sst2", *place, 0.9) for place in none.replicates_at(0)]
    cell = filled(none, runs, rows_of(none)).cells[0, "FT", "sst2"]
    assert (cell.verdict, cell.why) == ("not comparable", ("the runs have one score and no spread",))


def test_an_average_stands_beside_the_papers_where_all_of_its_columns_are_here() -> None:
    for tasks, paper in ((("sst2", "cola", "mrpc", "rte", "qnli", "mnli"), 0.897), (("sst2", "mnli"), None)):
        r = resolve_table("scl_full_size", "paper", tasks=tasks)
        cell = filled(r, [replace(run, dev=run.test) for run in results(r)]).cells[0, "CE", "avg"]
        assert (cell.paper, cell.verdict) == (paper, "not comparable" if paper else "")
        assert r.paper_value(0, "CE", "avg") == (paper and (paper, None))


def test_collapsed_runs_count_and_are_reported() -> None:
    r = resolved(tasks=("sst2",), sizes=(20,), methods=("FT",))
    runs = results(r)
    runs[3] = replace(runs[3], collapsed=True)
    cell = filled(r, runs).cells[20, "FT", "sst2"]
    values = [x.test for x in runs]
    assert (cell.collapsed, cell.done) == (1, 15)
    assert cell.value == pytest.approx(np.mean(values))
    assert "a: 1 run collapsed" in render(filled(r, runs), CAPTION, "md")


def messy(r: ResolvedTable) -> list[Result]:
    runs = results(r)
    for i in range(0, len(runs), 17):
        runs[i] = replace(runs[i], status="failed", test=None, reason=f"reason {i % 3} & 5% of_it | *x*")
    for i in range(5, len(runs), 23):
        runs[i] = replace(runs[i], collapsed=True)
    return runs


def test_the_order_of_replicates_changes_no_byte() -> None:
    r = resolved(average=True)
    runs, other = messy(r), replace(CAPTION, hardware=CAPTION.hardware[::-1])
    first, formats = filled(r, runs, rows_of(r)), ("text", "latex", "json")
    random.Random(0).shuffle(runs)
    second = filled(r, runs, rows_of(r))
    for format in formats:
        assert render(second, other, format) == render(first, CAPTION, format)


def test_tables_show_points_with_two_decimals_and_the_papers_row() -> None:
    r = resolved(tasks=("sst2",), sizes=(20,))
    skipped = {("CSSL", "sst2"): "needs a translator"}
    text = render(filled(r, constant(r, "FT", 0, noise=0), {"sst2": 372}, skipped=skipped), CAPTION, "text")
    assert re.search(r"^FT +66\.04 ± 0\.00$", text, re.M)
    assert re.search(r"^FT \(paper\) +66\.04 ± 6\.38$", text, re.M)
    assert re.search(r"^CSSL +— \[a\]$", text, re.M)
    assert "a: CSSL not run: needs a translator." in text
    assert "(ddof 1) over 5 subsets x 3 seeds" in text
    assert "9 training runs on 2 kinds of machines." in text
    assert "(paper)" not in render(filled(resolved("laptop"), []), CAPTION, "text")


@pytest.mark.parametrize("table", [name for name in table_names() if name != "own"])
def test_each_table_can_be_shown_before_its_first_run(table: str) -> None:
    r = resolve_table(table, "quick")
    shown = render(filled(r), Caption(num_runs=0), "text")
    assert all(title in shown for title in r.printed_rows)
