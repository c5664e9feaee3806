"""Rows compared: pairs, what is left out, Holm over the table's family, verdicts, sentences; the variance of cells by source."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from requested import aggregated, resolve_table
from views.runs import filled, result, results

from harness.errors import UserError
from harness.planning.resolved import ResolvedTable
from harness.scores import Result
from harness.statistics.crossed import difference, holm, mean_squares
from harness.views.cells import Answers, Grid, on_grid
from harness.views.differences import differences, sets_of_the_best
from harness.views.power import resolutions
from harness.views.variance import SOURCES, variance
from harness.views.view import FORMATS, View

TEXTS = [format for format in FORMATS if format not in ("parquet", "png", "svg", "pdf")]
ROWS = ("FT", "SCL", "TAPT")


def resolved(**more: Any) -> ResolvedTable:
    return resolve_table("few_shot", "paper", **{"methods": ROWS, "tasks": ("sst2",), "sizes": (20,), **more})


def shifted(r: ResolvedTable, shifts: dict[str, float], noise: float = 0.01, seed: int = 0) -> list[Result]:
    """Rows that share the effects of subsets and seeds, and differ by a constant and noise."""
    rng = np.random.default_rng(seed)
    common = {replicate: rng.normal(0.7, 0.05) for replicate in r.replicates}
    return [
        result(r, row, size, column, *replicate, common[replicate] + shift + noise * rng.normal(), key="k")
        for size in r.sizes
        for row, shift in shifts.items()
        for column in r.columns
        for replicate in r.replicates_at(size)
    ]


def only(found: View, row: str, column: str = "sst2") -> Any:
    (mine,) = (each for each in found.frame.itertuples() if (each.row, each.column) == (row, column))
    return mine


def text(found: View, format: str = "text") -> str:
    return str(found.written(format)).replace("\n", " ")


def test_differences_are_those_of_the_pairs_and_holm_is_over_what_is_shown() -> None:
    r = resolved(tasks=("sst2", "rte"))
    runs = results(r)
    found = differences(filled(r, runs))
    assert found.about["against"] == "FT"
    assert [*zip(found.frame["row"], found.frame["column"], strict=True)] == [
        (row, column) for column in ("sst2", "rte", "avg") for row in ("SCL", "TAPT")
    ]
    scores = {(x.row, x.column, x.subset, x.seed): x.test or 0 for x in runs}
    for each in found.frame.itertuples():
        columns = ("sst2", "rte") if each.column == "avg" else (str(each.column),)
        d = np.array(
            [
                [np.mean([scores[str(each.row), c, s, t] - scores["FT", c, s, t] for c in columns]) for t in r.seeds]
                for s in r.subsets
            ]
        )
        expected = difference(d, 0.01)
        assert (each.difference, each.p) == (pytest.approx(expected.difference), pytest.approx(expected.p))
    assert found.frame["p_holm"].tolist() == pytest.approx(holm(found.frame["p"].tolist()))


def test_the_papers_difference_is_that_of_its_printed_numbers() -> None:
    r = resolved()
    found = differences(filled(r, shifted(r, dict.fromkeys(ROWS, 0.0))), "SCL")
    printed = {row: (r.paper_value(20, row, "sst2") or (np.nan,))[0] for row in ROWS}
    for row in ("FT", "TAPT"):
        assert only(found, row).paper == pytest.approx(printed[row] - printed["SCL"])


def test_verdicts_and_their_sentences() -> None:
    r = resolved()
    found = differences(filled(r, shifted(r, {"FT": 0.0, "SCL": 0.05, "TAPT": -0.002})), region=0.02)
    assert found.frame["verdict"].tolist() == ["higher", "equivalent"]
    assert found.frame["remark"].tolist() == ["", ""], "the table says all"
    assert found.lines[0] == "SCL is higher than FT in SST-2; TAPT is equivalent to FT in SST-2."
    noisy = differences(filled(r, shifted(r, {"FT": 0.0, "SCL": 0.01}, noise=0.1)), "scl")
    assert noisy.frame[["row", "verdict"]].to_numpy().tolist() == [["FT", "not separable"], ["TAPT", "no verdict"]]
    assert noisy.about["against"] == "SCL"


def test_a_verdict_names_the_runs_that_collapsed_and_what_it_is_without_them() -> None:
    r = resolved()
    runs = shifted(r, {"FT": 0.0, "SCL": -0.03, "TAPT": -0.05})
    grid = filled(r, [replace(x, collapsed=x.row == "SCL" and x.subset in r.subsets[:3]) for x in runs])
    found, without = differences(grid), differences(replace(grid, collapsed=False))
    scl = only(found, "SCL")
    assert (scl.verdict, scl.collapsed, only(without, "SCL").verdict) == ("lower", 9, "not separable")
    said = "9 of 15 runs of SCL collapsed, without them not separable"
    assert found.lines[0] == f"SCL is lower than FT in SST-2 ({said}); TAPT is lower than FT in SST-2."
    assert said in scl.remark
    assert "collapsed" not in only(found, "TAPT").remark + without.lines[0]
    frame = differences(grid, "SCL").frame.set_index("row")
    assert frame["collapsed_against"].tolist() == [9, 9]
    assert frame["verdict_without_collapsed"]["FT"] == "not separable"


def test_intervals_end_where_the_scale_does_and_beside_a_verdict_say_that_they_are_unadjusted() -> None:
    r = resolved(tasks=("sst2", "cola"), subsets=(0, 1), seeds=(31, 42))
    grid = filled(r, shifted(r, {"FT": 0.0, "SCL": 0.1, "TAPT": 0.02}, noise=0.3))
    found = differences(grid)
    frame = found.frame.set_index("column")[["low", "high"]].abs().max(axis=1)
    assert frame.groupby(level=0).max().to_dict() == {"sst2": 1.0, "cola": 2.0, "avg": 2.0}
    cells = [grid.interval(column, on_grid(runs)[0][0]) for (*_, column), runs in grid.scores.items()]
    assert all(-1 <= each[0] <= each[1] <= 1 for each in cells if each)
    assert sum("cut where the scale ends" in line for line in found.lines) == 1
    assert all(text(found, format).count("Unadjusted 95") == 1 for format in ("text", "md", "latex"))


def test_pairs_across_hardware_are_counted_where_they_are_compared() -> None:
    """An average is of other hardware where one of its columns is; what does not name its hardware is not said to differ, nor what is left out."""
    r = resolved(tasks=("sst2", "rte"))

    def device(x: Result) -> str | None:
        apart = (x.row, x.column, x.subset) == ("SCL", "rte", r.subsets[0])
        return None if x.row == "TAPT" else "site B" if apart else "site A"

    runs = [replace(x, hardware=device(x)) for x in results(r)]
    found = differences(filled(r, runs))
    across = found.frame[found.frame["across_hardware"] > 0]
    assert across[["row", "column", "across_hardware"]].to_numpy().tolist() == [["SCL", "rte", 3], ["SCL", "avg", 3]]
    told = found.frame["remark"].str.contains("3 of 15 pairs ran on different")
    assert found.frame.index[told].tolist() == across.index.tolist()
    assert sum("Machines round differently" in line for line in found.lines) == 1
    dropped = [x for x in runs if not (x.row == "FT" and x.subset == r.subsets[0])]
    for others in dropped, [replace(x, hardware="site A") for x in runs]:
        assert not any("Machines" in line for line in differences(filled(r, others)).lines)


@pytest.mark.parametrize("format", FORMATS)
def test_the_order_of_results_changes_no_byte(format: str) -> None:
    r = resolved()
    runs = results(r)
    first = differences(filled(r, runs)).written(format)
    assert differences(filled(r, runs[::-1])).written(format) == first
    if format in TEXTS:
        assert "nan" not in str(first).lower()


def test_what_is_missing_is_left_out_and_said() -> None:
    r = resolved()
    runs = shifted(r, dict.fromkeys(ROWS, 0.0))
    gone = [x for x in runs if (x.row, x.subset, x.seed) != ("SCL", 2, 42)]
    failed = [replace(x, status="failed", test=None) if (x.row, x.subset) == ("TAPT", 0) else x for x in gone]
    found = differences(filled(r, failed))
    assert found.frame[["num_subsets", "num_seeds"]].to_numpy().tolist() == [[4, 3], [4, 3]]
    scl, tapt = found.frame["remark"]
    assert "of 15 runs each, 1 of SCL missing or failed: compared over 4 subsets x 3 seeds" in scl
    assert "3 of TAPT missing or failed" in tapt
    nothing = only(differences(filled(r, [x for x in runs if x.row != "SCL"])), "SCL")
    assert np.isnan(nothing.difference)
    assert nothing.remark == "of 15 runs each, 15 of SCL missing or failed: no replicate is done in both rows"


@pytest.mark.parametrize(
    ("design", "noise", "says"),
    [
        ({"subsets": (0,), "seeds": (31,)}, 0.01, "examples: one pair of runs has no spread"),
        ({"subsets": (0,)}, 0.01, "one subset says nothing about others"),
        ({"seeds": (31,)}, 0.01, "one seed says nothing about others"),
        ({}, 0.0, "in all 15 pairs of runs"),
    ],
)
def test_degenerate_designs_have_a_sentence(design: dict[str, Any], noise: float, says: str) -> None:
    r = resolved(**design)
    found = differences(filled(r, shifted(r, {"FT": 0.0, "SCL": 0.0, "TAPT": 0.02}, noise=noise)))
    assert says in text(found)
    assert not any("nan" in text(found, format).lower() for format in TEXTS)


def test_one_row_is_refused() -> None:
    r = resolved(methods=("FT",))
    with pytest.raises(UserError, match="has one row here; name two or more with --methods"):
        differences(filled(r, results(r)))


def test_a_filter_lowers_no_p() -> None:
    """The places of the whole bench stay in the family, whatever rows, columns and sizes are selected of it."""
    r = resolved(tasks=("sst2", "rte"), sizes=(20, 100))
    runs = shifted(r, {"FT": 0.0, "SCL": 0.01, "TAPT": 0.008}, noise=0.02)
    whole = filled(r, runs)
    elsewhere = frozenset(whole.places)
    bench, place = differences(whole), ["size", "row", "column"]
    assert bench.about["family"] == 2 * 3 * 2
    adjusted = bench.frame.set_index(place)["p_holm"]
    for filters in ({"methods": ("FT", "SCL")}, {"tasks": ("rte",)}, {"sizes": (100,)}):
        part = resolve_table("few_shot", "paper", **{"methods": ROWS, "tasks": r.tasks, "sizes": r.sizes, **filters})
        found = differences(replace(filled(part, runs), elsewhere=elsewhere))
        assert found.about["family"] == bench.about["family"]
        ours = found.frame[found.frame["column"] != "avg"].set_index(place)[
            "p_holm"
        ]  # of fewer columns it is another one
        assert (ours >= adjusted.loc[ours.index]).all()
        assert f"the 12 comparisons with FT that the table's benches plan, {len(found.frame)} of them shown" in text(
            found
        )


def test_reference_rows_change_nothing_of_the_others() -> None:
    """They are a family of their own, also those of a bench that are not shown; the best of a column is one of them where it is higher."""
    r = resolved(tasks=("sst2", "rte"))
    further = {"Majority": -0.3, "TF-IDF": 0.2}
    shifts = {"FT": 0.0, "SCL": 0.03, "TAPT": -0.02}
    wide = resolve_table("few_shot", "paper", methods=(*ROWS, "majority", "tfidf"), tasks=r.tasks, sizes=r.sizes)
    runs = shifted(r, shifts)
    with_further = filled(wide, [*runs, *shifted(wide, further, seed=1)])
    alone, beside = differences(filled(r, runs)), differences(with_further)
    families = [(found.about["family"], found.about["reference_family"]) for found in (alone, beside)]
    assert families == [(6, 0), (6, 6)]
    of_reference = beside.frame["row"].isin([*further])
    assert beside.frame[~of_reference].reset_index(drop=True).equals(alone.frame)
    assert of_reference.sum() == 6
    elsewhere = differences(replace(filled(r, runs), elsewhere=frozenset(with_further.places)))
    assert elsewhere.frame.equals(alone.frame)
    assert only(beside, "TF-IDF").verdict == "higher"
    assert "those with a reference row by themselves: the 6 comparisons with FT" in text(beside)
    assert "SCL" in {row for _, row, _ in sets_of_the_best(filled(r, runs))}
    assert {row for _, row, _ in sets_of_the_best(with_further)} == {"TF-IDF"}
    assert resolutions(with_further) == resolutions(filled(r, runs))


def test_what_is_skipped_is_not_in_the_family_and_what_is_missing_is() -> None:
    r = resolved(tasks=("sst2", "rte"))
    runs = [x for x in shifted(r, dict.fromkeys(ROWS, 0.0)) if x.column == "sst2"]
    assert differences(filled(r, runs)).about["family"] == 6
    assert differences(filled(r, runs, skipped={("TAPT", "rte"): "no texts"})).about["family"] == 4
    assert differences(filled(r, runs, skipped={("FT", "rte"): "no texts"})).about["family"] == 2
    assert resolutions(filled(r, runs, skipped={("TAPT", "rte"): "no texts"}))[1] == 4


def right_or_wrong(r: ResolvedTable, rows: tuple[str, ...] = ROWS) -> tuple[list[Result], Answers]:
    rng = np.random.default_rng(0)
    items = rng.random(200)
    answers = {
        (20, row, "sst2", *replicate): rng.random(200) < 0.3 + 0.5 * items for row in rows for replicate in r.replicates
    }
    return [result(r, k[1], 20, "sst2", *k[3:], float(v.mean())) for k, v in answers.items()], answers


def test_items_are_a_factor_where_their_answers_are_known() -> None:
    r = resolved()
    runs, answers = right_or_wrong(r)
    grid = filled(r, runs)
    plain, items = differences(grid), differences(replace(grid, answers=answers), unit="A test item is one example.")
    assert (items.frame["error"] >= plain.frame["error"]).all()
    assert items.frame["item_share"].notna().all()
    part = replace(grid, answers={k: v for k, v in answers.items() if k[1] != "SCL"})
    unknown = differences(part, unit="An item.")
    assert np.isnan(only(unknown, "SCL").item_share)
    assert "Test items are no factor in SST-2: " in text(unknown)


def decomposition(grid: Grid, answers: Answers) -> pd.DataFrame:
    return variance(replace(grid, answers=answers)).frame.set_index(["row", "source"])


@pytest.mark.parametrize(
    ("design", "says"),
    [
        ({"subsets": (0, 1, 2, 3)}, "not known, because the runs differ more than the items"),
        ({"subsets": (0,), "seeds": (31, 42)}, "not known from two runs"),
    ],
)
def test_no_variance_of_the_items_where_it_is_not_known(design: dict[str, Any], says: str) -> None:
    """Runs that predict one class only, half of the subsets each: every item is right in half of the runs."""
    r = resolved(**design)
    classes = np.arange(200) % 2 == 0
    answers = {(20, "FT", "sst2", s, t): classes == (s % 2) for s, t in r.replicates}
    runs = [result(r, k[1], 20, "sst2", *k[3:], float(v.mean()) + 0.01 * k[3]) for k, v in answers.items()]
    grid = filled(r, runs)
    row = decomposition(grid, answers).loc["FT", "test items"]
    assert row[["variance", "low", "high", "share"]].isna().all()
    assert f"Test items: {says}" in text(variance(replace(grid, answers=answers)))


def test_variance_is_that_of_the_mean_squares() -> None:
    r = resolved()
    runs, answers = right_or_wrong(r)
    grid = filled(r, runs)
    frame = decomposition(grid, answers)
    scores = np.array([[answers[20, "FT", "sst2", s, t].mean() for t in r.seeds] for s in r.subsets])
    squares = mean_squares(scores)
    assert frame.loc[("FT", "interaction"), "variance"] == pytest.approx(float(squares.residual))
    expected = max(0.0, float(squares.subset - squares.residual) / 3)
    assert frame.loc[("FT", "subset"), "variance"] == pytest.approx(expected)
    # items whose chance of a right answer has a variance of 0.25 / 12
    assert frame.loc[("FT", "test items"), "variance"] == pytest.approx(0.25 / 12 / 200, rel=0.3)
    assert frame.groupby("row")["share"].sum().tolist() == pytest.approx([1.0] * 3)
    assert ((frame["low"] <= frame["variance"]) & (frame["variance"] <= frame["high"])).all()
    assert all(source.capitalize() in text(variance(replace(grid, answers=answers))) for source in SOURCES)


@pytest.mark.parametrize(
    ("design", "why"), [({"subsets": (0,)}, "not known from one subset"), ({"seeds": (31,)}, "not known from one seed")]
)
def test_variance_of_one_subset_or_one_seed_says_what_is_not_known(design: dict[str, Any], why: str) -> None:
    r = resolved(**design)
    runs, _ = right_or_wrong(r)
    grid = filled(r, runs)
    frame = decomposition(grid, {})
    assert why in set(frame["why"])
    assert frame.loc[("FT", "interaction")].isna()["variance"]
    said = text(variance(grid), "md")
    assert why in said
    assert "nan" not in said.lower()
    single = resolved(subsets=(0,), seeds=(31,))
    assert variance(filled(single, results(single))).frame.empty


def of_two_points(select: Any = "per_task") -> tuple[ResolvedTable, list[Result]]:
    """FT at 0.8; SCL with two points: A at 0.85, and B, which is better on dev where it does not collapse (subset 0) and worse on test."""
    r = resolved(methods=("FT", "SCL"))
    twins = tuple(replace_row(r, name, title) for name, title in (("FT", "FT"), ("SCL a", "SCL"), ("SCL b", "SCL")))
    r = aggregated(replace(r, rows=twins), select=select)
    rng = np.random.default_rng(0)
    runs = []
    for row in r.rows:
        for subset, seed in r.replicates:
            fell = row.name == "SCL b" and subset > 0
            test = {"FT": 0.8, "SCL a": 0.85, "SCL b": 0.6}[row.name] + 0.005 * rng.normal()
            dev = 0.5 if fell else 0.95 if row.name == "SCL b" else 0.9
            runs.append(result(r, row.name, 20, "sst2", subset, seed, test, dev=dev, collapsed=fell))
    return r, runs


def test_a_configuration_is_selected_from_all_runs_also_where_collapsed_ones_are_left_out() -> None:
    """Of the runs of B that did not collapse B would be selected, which is 20 points lower."""
    r, runs = of_two_points()
    grid = filled(r, runs)
    both = [only(differences(each), "SCL").difference for each in (grid, replace(grid, collapsed=False))]
    assert [round(each, 2) for each in both] == [0.05, 0.05]
    without_dev = filled(r, [replace(run, dev=None) if run.row == "FT" else run for run in runs])
    assert only(differences(without_dev), "SCL").difference == both[0], (
        "rows without a choice need no dev scores, as those of another system"
    )
    cell = grid.cells[20, "SCL", "sst2"]
    assert cell.selected == ("SCL a",)


def test_an_incomplete_grid_has_no_selected_configuration() -> None:
    r, runs = of_two_points()
    part = [run for run in runs if run.row != "SCL a"]
    said = only(differences(filled(r, part)), "SCL").remark
    assert "15 of SCL missing, failed or not selected yet" in said
    assert filled(r, part).counted["row"].unique().tolist() == ["FT"]


def test_where_all_configurations_count_a_replicate_without_one_is_in_no_mean() -> None:
    """A, which is 5 points higher, is missing in one replicate: its mean would be that of B alone."""
    r, runs = of_two_points("none")
    grid = filled(r, [run for run in runs if (run.row, run.subset, run.seed) != ("SCL a", 0, r.seeds[0])])
    assert {*grid.scores[20, "SCL", "sst2"].index} == {*r.replicates} - {(0, r.seeds[0])}
    said = only(differences(grid), "SCL").remark
    assert f"of {len(r.replicates)} runs each, 1 of SCL missing, failed or not selected yet" in said


def replace_row(r: ResolvedTable, name: str, title: str) -> Any:
    row = next(row for row in r.rows if row.title == title)
    return row.model_copy(update={"name": name, "configuration_of": title if name != title else ""})


@pytest.mark.parametrize(("table", "preset"), [("taco_base", "paper"), ("scl_full_size", "grid")])
def test_an_average_over_tasks_that_have_configurations_of_their_own(table: str, preset: str) -> None:
    """A grid that differs by task, and a configuration that is selected for each task: the cell of Avg is filled, and compared as the mean over
    columns of the runs that count."""
    r = resolve_table(table, preset)
    runs = results(r)
    grid = filled(r, [replace(run, dev=1 - (run.test or 0)) for run in runs])
    assert grid.complete
    means = grid.counted.groupby(["row", "column"])["test"].mean()

    def naive(values: Any, row: str) -> float:
        return float(np.mean([np.mean([values(row, column) for column in group]) for group in r.average_over]))

    frame = differences(grid).frame
    for each in frame[frame["column"] == "avg"].itertuples():
        assert "missing" not in str(each.remark)
        expected = naive(lambda row, column: means[row, column], str(each.row))
        expected -= naive(lambda row, column: means[row, column], str(each.against))
        assert each.difference == pytest.approx(expected, abs=1e-12)
    if r.aggregate.average == "of_cells":
        for row in r.printed_rows:
            cell = grid.cells[0, row, "avg"]
            assert cell.value == pytest.approx(naive(lambda row, column: grid.cells[0, row, column].value, row))
    one_less = filled(r, [replace(run, dev=1 - (run.test or 0)) for run in runs[:-1]])
    cell = one_less.cells[0, r.titles[runs[-1].row], "avg"]
    assert (cell.value, cell.done) == (None, cell.expected - 1)
