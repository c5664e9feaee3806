"""Aggregation rules against naive loops over plain lists, alone and through a whole table."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from requested import aggregated, resolve_table
from views.runs import filled, render, results

from harness.errors import UserError
from harness.planning.aggregation import NO_SPREAD, RULES, Aggregation, std, subset_means
from harness.planning.resolved import ResolvedRow, ResolvedTable
from harness.planning.table import Row, Table, load_table
from harness.scores import Result
from harness.views.cells import AVERAGE
from harness.views.table import Caption, note_lines

Runs = list[tuple[float, float]]
"""(dev, test) of each run."""

SCORE = st.sampled_from([0.0, 0.25, 0.5, 1.0]) | st.floats(0, 1)
"""Ties are frequent, as on small dev sets."""


# ----------------------------------------------------------------------------------------------------- naive oracles


def naive_mean(values: Sequence[float]) -> float:
    """The sum in exact arithmetic, rounded once, over the number."""
    return float(sum(map(Fraction, values))) / len(values)


def naive_median(values: Sequence[float]) -> float:
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def naive_top(runs: Runs, k: int) -> list[float]:
    """Test scores of the k runs with the highest dev score, found one after another; of equal ones the first."""
    left, found = list(runs), []
    for _ in range(min(k, len(runs))):
        best = next(run for run in left if run[0] == max(dev for dev, _ in left))
        left.remove(best)
        found.append(best[1])
    return found


NAIVE: dict[str, Callable[[Runs, int], tuple[float, list[float]]]] = {
    "mean": lambda runs, k: (naive_mean([t for _, t in runs]), [t for _, t in runs]),
    "median": lambda runs, k: (naive_median([t for _, t in runs]), [t for _, t in runs]),
    "best": lambda runs, k: (naive_top(runs, 1)[0], naive_top(runs, 1)),
    "top_k": lambda runs, k: (naive_mean(naive_top(runs, k)), naive_top(runs, k)),
}
"""Each rule as (value, the test scores that its spread is taken of)."""


def naive_std(values: Sequence[float], ddof: int) -> float | None:
    if len(values) <= ddof:
        return None
    center = sum(map(Fraction, values)) / len(values)
    squares = sum((Fraction(value) - center) ** 2 for value in values)
    return float(squares / (len(values) - ddof)) ** 0.5


@pytest.mark.parametrize("name", ["best", "top_k"])
def test_a_run_without_a_dev_score_is_never_passed_over(name: str) -> None:
    with pytest.raises(ValueError, match="needs the dev score of every run"):
        Aggregation(k=1, select="per_task", select_by="top_k").counted(
            pd.DataFrame([(0.5, 0.5), (math.nan, 0.9)], columns=["dev", "test"]), name
        )


@given(st.lists(st.tuples(st.integers(0, 3), SCORE), min_size=1, max_size=9))
def test_subsets_are_the_clusters(pairs: list[tuple[int, float]]) -> None:
    subsets, values = [subset for subset, _ in pairs], [value for _, value in pairs]
    means = (
        values if len(set(subsets)) == 1 else [naive_mean([v for t, v in pairs if t == s]) for s in sorted({*subsets})]
    )
    assert sorted(subset_means(subsets, values)) == sorted(means)
    expected = naive_std(means, 1)
    assert std(subset_means(subsets, values), 1) == (None if expected is None else pytest.approx(expected, abs=1e-12))


# ------------------------------------------------------------------------------------------------- through the table

POINTS = ("a", "b", "c")


def configured(aggregate: Aggregation, subsets: int = 2, seeds: int = 2) -> ResolvedTable:
    """FT once and TAPT as three configurations of the printed row 'TAPT'; SST-2 and both columns of MNLI."""
    chosen = {"tasks": ("sst2", "mnli"), "sizes": (20,), "methods": ("ft", "tapt"), "subsets": tuple(range(subsets))}
    found = resolve_table("few_shot", "paper", seeds=tuple(range(seeds)), **chosen)
    points = tuple(
        ResolvedRow.of(Row(name=name, method="tapt", configuration_of="TAPT", tasks=found.tasks)) for name in POINTS
    )
    return aggregated(replace(found, rows=(found.rows[0], *points)), aggregate)


def drawn(r: ResolvedTable, seed: int) -> list[Result]:
    """Random scores with many ties; MNLI's two columns share their dev score, as one run does."""
    draw = random.Random(seed)
    dev = {(row, column[:4], *place): draw.randrange(5) / 4 for _, row, column, *place in r.places}
    return [replace(x, dev=dev[x.row, x.column[:4], x.subset, x.seed]) for x in results(r, seed)]


def naive_cell(r: ResolvedTable, runs: list[Result], names: Sequence[str], column: str) -> tuple[Any, ...]:
    """(value, scores, configurations, {(configuration, subset, seed): (dev, test)} of the runs that count), by loops."""
    a = r.aggregate
    judge, k = NAIVE[a.select_by or a.center], a.k or 0
    first = next(c for c in r.columns if r.columns[c].task == r.columns[column].task)
    kept: dict[tuple[str, int, int], tuple[float, float]] = {}
    selected: list[str] = []
    for subset in r.subsets:
        best, highest = list(names), -1.0
        for name in names if a.select != "none" else ():
            seen = [s for s in r.subsets if a.select == "per_task" or s == subset]
            dev = [x.dev or 0.0 for s in seen for x in runs if (x.row, x.column, x.subset) == (name, first, s)]
            value = judge([(d, d) for d in dev], k)[0]
            if value > highest:
                best, highest = [name], value
        selected += best
        for name in best:
            for x in runs:
                if (x.row, x.column, x.subset) == (name, column, subset):
                    kept[x.row, x.subset, x.seed] = (x.dev or 0.0, x.test or 0.0)
    order = {name: i if a.select == "none" else 0 for i, name in enumerate(names)}
    ordered = dict(sorted(kept.items(), key=lambda item: (order[item[0][0]], item[0][1:])))
    value, scores = NAIVE[a.center](list(ordered.values()), k)
    return value, scores, list(dict.fromkeys(selected)), ordered


def aggregation(center: str, by: str | None, select: Any, average: Any, over: Any, ddof: Any) -> Aggregation:
    by = None if select == "none" else by
    return Aggregation(
        center=center,
        k=2 if "top_k" in (center, by) else None,
        spread="none" if center in NO_SPREAD else "std",
        ddof=ddof,
        select=select,
        select_by=by,
        average=average,
        average_over=over,
    )


AGGREGATIONS = st.builds(
    aggregation,
    st.sampled_from(sorted(RULES)),
    st.sampled_from([None, *RULES]),
    st.sampled_from(["none", "per_task", "per_subset"]),
    st.sampled_from(["per_replicate", "of_cells"]),
    st.sampled_from([None, (("mnli", "mnli_mm"), "sst2"), ("sst2", "mnli_mm")]),
    st.integers(0, 1),
)


@settings(max_examples=12)
@given(aggregate=AGGREGATIONS, seed=st.integers(0, 10**6))
def test_every_cell_of_a_table_is_that_of_naive_loops(aggregate: Aggregation, seed: int) -> None:
    r = configured(aggregate)
    runs = drawn(r, seed)
    grid = filled(r, runs)
    for title, names in (("FT", ["FT"]), ("TAPT", POINTS)):
        found = {column: naive_cell(r, runs, names, column) for column in r.columns}
        for column, (value, scores, selected, _) in found.items():
            cell = grid.cells[20, title, column]
            assert cell.value == value
            spread = naive_std(scores, aggregate.ddof)
            assert cell.spread == (None if spread is None else pytest.approx(spread, abs=1e-12))
            assert cell.expected == cell.done == len(names) * 4
            choosing = len(names) > 1 and aggregate.select != "none"
            assert set(cell.selected) == (set(selected) if choosing else set())
        groups = [(g,) if isinstance(g, str) else g for g in aggregate.average_over or r.columns]
        cell = grid.cells[20, title, AVERAGE]
        if aggregate.average == "of_cells":
            expected = naive_mean([naive_mean([found[c][0] for c in group]) for group in groups])
            assert (cell.value, cell.spread) == (expected, None)
            continue
        by_column = {column: found[column][3] for group in groups for column in group}
        if aggregate.select != "none":
            by_column = {
                column: {place[1:]: each for place, each in kept.items()} for column, kept in by_column.items()
            }
        replicates = []
        for place in by_column[groups[0][0]]:
            dev, test = (naive_mean([naive_mean([by_column[c][place][i] for c in g]) for g in groups]) for i in (0, 1))
            replicates.append((dev, test))
        assert cell.value == NAIVE[aggregate.center](replicates, aggregate.k or 0)[0]


@settings(max_examples=6)
@given(seed=st.integers(0, 10**6), select=st.sampled_from(["per_task", "per_subset"]))
def test_test_scores_decide_nothing(seed: int, select: Any) -> None:
    r = configured(Aggregation(select=select))
    runs = drawn(r, seed)
    other = [replace(x, test=1 - (x.test or 0)) for x in runs]
    ours, theirs = (filled(r, each).cells for each in (runs, other))
    assert [cell.selected for cell in ours.values()] == [cell.selected for cell in theirs.values()]


def test_a_row_is_selected_from_when_all_its_configurations_are_done() -> None:
    """Those of a task by its first column: one beside it whose score lacks has no value yet."""
    r = configured(Aggregation(select="per_task", average="of_cells"))
    runs = drawn(r, 1)
    grid = filled(r, [x for x in runs if (x.row, x.column, x.subset) != ("b", "sst2", 0)])
    cell = grid.cells[20, "TAPT", "sst2"]
    assert (cell.value, cell.done, cell.selected) == (None, 10, ())
    assert grid.cells[20, "TAPT", "mnli"].value is not None
    assert grid.cells[20, "TAPT", AVERAGE].value is None
    assert "10/12" in render(grid, Caption(1), "text")
    text = "\n".join(note_lines(grid, Caption(1)))
    assert "TAPT: for each task the configuration with the highest mean of dev scores counts (TAPT MNLI n20: " in text
    lacking = next(i for i, run in enumerate(runs) if run.column == "mnli" and run.row in POINTS)
    runs[lacking] = replace(runs[lacking], test=math.nan)
    cells = filled(r, runs).cells
    assert [cells[20, "TAPT", column].value is None for column in ("sst2", "mnli", "mnli_mm")] == [False, True, True]


# -------------------------------------------------------------------------------------------------------- in a table


def body_of(table: str = "few_shot", **changes: Any) -> dict[str, Any]:
    return {**load_table(table).model_dump(), "origin": {}, **changes}


@pytest.mark.parametrize(
    ("aggregate", "said"),
    [
        ({"center": "maen"}, "unknown rule 'maen'. Did you mean 'mean'?"),
        ({"center": "top_k"}, "top_k needs k, how many runs count"),
        ({"k": 3}, "only a rule like top_k has a k"),
        ({"center": "best"}, "one run has no standard deviation; set spread: none"),
        ({"select_by": "mean"}, "nothing is selected; add select: per_task or per_subset"),
        ({"select": "per_task"}, "no row has configurations to select from; give rows a grid"),
        ({"average_over": ["sst2"]}, "there is no Avg; add average: per_replicate or of_cells"),
        ({"average": "of_cells", "average_over": [["mnli", "mnli_m"]]}, "column 'mnli_m'. Did you mean 'mnli_mm'?"),
    ],
)
def test_a_wrong_rule_is_refused(aggregate: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        Table.model_validate(body_of(aggregate=aggregate))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"averages": {"CE (average)": ["CE", "CE (T=0.4)"]}}, "unknown row 'CE (T=0.4)'"),
        ({"averages": {"CE": ["CE (T=0.3)", "CE (T=0.5)"]}}, "a row has this name"),
        ({"aggregate": {"center": "mean", "average": "of_cells"}}, "means of rows or an Avg of columns, not both"),
    ],
)
def test_wrong_means_of_rows_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        Table.model_validate(body_of("scl_noisy", paper={}, **change))


def test_more_runs_than_there_are_is_refused_before_training() -> None:
    table = Table.model_validate(body_of(aggregate={"center": "top_k", "k": 3}))
    assert resolve_table(table, "quick").aggregate.k == 3
    with pytest.raises(
        UserError, match=r"key aggregate.k: a cell is the mean of the 3 runs .* subsets and seeds give 2;"
    ):
        resolve_table(table, "quick", subsets=(0, 1))


def test_a_printed_row_is_named_as_a_row_is() -> None:
    body, names = body_of(aggregate={"select": "per_task"}), ["CMLM 0.3", "CMLM 0.5"]
    rows = [
        {"name": name, "method": "cmlm", "set": {"alpha": float(name[5:])}, "configuration_of": "CMLM"}
        for name in names
    ]
    body["rows"] = [row for row in body["rows"] if row["name"] != "CMLM"] + rows
    table = Table.model_validate(body)
    for methods, expected in ((("CMLM",), names), (("cmlm",), names), (("CMLM 0.5",), names[1:])):
        found = resolve_table(table, "quick", methods=methods)
        assert [row.name for row in found.rows] == expected
        assert list(found.printed_rows) == ["CMLM"]
    assert found.paper_value(20, "CMLM", "sst2") == (0.7371, 0.0564)
    body["rows"][-1]["configuration_of"] = "FT"
    with pytest.raises(ValueError, match="the row 'FT' is run itself; give the printed row another name"):
        Table.model_validate(body)
