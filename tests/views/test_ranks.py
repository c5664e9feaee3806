"""Rank intervals and sets of the best: those of the pairwise tests, also over columns, and the same in every format."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from requested import resolve_table
from views.runs import filled, render, result

from harness.statistics.difference import difference
from harness.views.caption import Caption
from harness.views.cells import Grid
from harness.views.differences import differences
from harness.views.ranks import OVER, Rank, ranks, ranks_view, sets_of_the_best
from harness.views.runs import run_places

ROWS = ("FT", "SCL", "TAPT")
TASKS = ("sst2", "rte", "mrpc", "cola")


def grid(
    shifts: dict[str, float], noise: float = 0.01, seed: int = 0, tasks: tuple[str, ...] = TASKS, without: Any = None
) -> Grid:
    r = resolve_table("few_shot", "paper", methods=ROWS, tasks=tasks, sizes=(20,))
    rng = np.random.default_rng(seed)
    runs = [
        result(r, row, 20, column, s, t, 0.5 + shifts[row] + noise * rng.normal(), key="k")
        for row in ROWS
        for column in r.columns
        for s, t in r.replicates_at(20)
        if (row, column, s) != without
    ]
    return filled(r, runs)


def test_over_the_columns_ranks_are_those_of_the_pairwise_tests() -> None:
    """Tables of tasks x seeds; one-sided p times the number of ordered pairs, for the marks times the number of a row's tests."""
    g = grid({"FT": 0.0, "SCL": 0.02, "TAPT": 0.03}, seed=2)
    r, scores, p = g.resolved, g.results.set_index(["row", "column", "subset", "seed"])["test"], {}
    table = {
        row: np.array([[np.mean([scores[row, c, s, t] for s in r.subsets]) for t in r.seeds] for c in r.columns])
        for row in ROWS
    }
    for one, other in itertools.permutations(ROWS, 2):
        test = difference(table[one] - table[other], 0.01)
        p[one, other] = (test.p or 0) / 2 if test.difference > 0 else 1.0
    out = {row for row in ROWS if any(p[other, row] * 2 < 0.05 for other in ROWS if other != row)}
    assert 0 < len(out) < len(ROWS)
    for row in ROWS:
        above, below = (sum(p[pair] * 6 < 0.05 for pair in p if pair[side] == row) for side in (1, 0))
        best = row not in out
        assert ranks(g)[20, row, OVER] == Rank(1 if best else 1 + above, 3 - below, 3, best)


@pytest.mark.parametrize("seed", range(30))
def test_marks_and_verdicts_never_contradict_each_other(seed: int) -> None:
    """In tables of rows that differ by something and by how much they vary, reference rows among them, one of them sometimes unfinished or part of a larger bench."""
    rng, rows = np.random.default_rng(seed), (*ROWS, "TF-IDF", "Majority")
    r = resolve_table("few_shot", "paper", methods=(*ROWS, "tfidf", "majority"), tasks=("sst2", "rte"), sizes=(20,))
    shifts, noises = dict(zip(rows, rng.normal(0, 0.03, 5), strict=True)), rng.choice([0.003, 0.02, 0.06], 5)
    runs = [
        result(r, row, 20, column, s, t, round(0.5 + shifts[row] + noise * rng.normal(), 2), key="k")
        for row, noise in zip(rows, noises, strict=True)
        for column in r.columns
        for s, t in r.replicates_at(20)
    ]
    wide = filled(resolve_table("few_shot", "paper"))
    g = filled(r, runs[: -len(r.seeds)] if seed % 3 == 0 else runs)
    g = replace(g, elsewhere=frozenset(run_places(wide) if seed % 2 else ()))
    marked, own, first = sets_of_the_best(g), [*differences(g).frame.itertuples()], next(iter(r.printed_rows))
    for column in g.columns:
        values = {row: v for row in rows if (v := g.cells[20, row, column].value) is not None}
        top, best = max(values, key=lambda row: values[row]), {row for _, row, other in marked if other == column}
        against_top = [*differences(g, top).frame.itertuples()]
        shown = [c for c in own if c.column == column]
        lower = {c.row if c.verdict == "lower" else c.against for c in shown if c.verdict in ("lower", "higher")}
        assert not best & lower, "none is marked that a row is higher than"
        assert not best or top in best, "none is marked whose number is below that of one that is not"
        for c in (*shown, *(each for each in against_top if each.column == column and first not in (each.row, top))):
            other = c.row if c.against == top else c.against
            if best and top in (c.row, c.against):
                tied = c.verdict in ("not separable", "equivalent") and other in values and other not in lower
                assert (other in best) == tied
        found: dict[Any, Rank] = {row: ranks(g)[20, row, column] for row in values}
        assert all(found[row].low == 1 for row in best)
        for c in (c for c in shown if {c.row, c.against} <= found.keys() and c.verdict != "higher"):
            assert found[c.row].high >= found[c.against].low, "a rank tells no rows apart that their verdict does not"


def test_a_row_that_is_clearly_best_is_first_and_equal_rows_have_any_rank() -> None:
    found = ranks(grid({"FT": 0.0, "SCL": 0.2, "TAPT": -0.2}))
    assert [(found[20, row, OVER].low, found[20, row, OVER].high) for row in ROWS] == [(2, 2), (1, 1), (3, 3)]
    found = ranks(grid({"FT": 0.0, "SCL": 0.0, "TAPT": 0.0}))
    assert {(rank.low, rank.high, rank.best) for rank in found.values()} == {(1, 3, False)}


def test_over_columns_needs_three_tasks_and_complete_rows() -> None:
    """MNLI's two test sets are of one task."""
    shifts = {"FT": 0.0, "SCL": 0.2, "TAPT": -0.2}
    for tasks, count in (("sst2", "rte"), 0), (("sst2", "mnli"), 0), (("sst2", "rte", "mnli"), 3):
        assert sum(place[2] == OVER for place in ranks(grid(shifts, tasks=tasks))) == count
    found = ranks(grid(shifts, without=("TAPT", "rte", 0)))
    assert {row for _, row, column in found if column == OVER} == {"FT", "SCL"}
    assert {row for _, row, column in found if column == "rte"} == {"FT", "SCL"}
    assert {row for _, row, column in found if column == "sst2"} == set(ROWS)


def test_over_columns_rows_are_compared_on_the_subsets_that_all_have() -> None:
    """Equal rows; two subsets are 20 points harder, and SCL's runs there collapsed: without them it would look better. Where all of a row's runs of a column did, it
    has no rank."""
    r = resolve_table("few_shot", "paper", methods=ROWS, tasks=TASKS, sizes=(20,))
    rng = np.random.default_rng(0)
    runs = [
        result(
            *(r, row, 20, column, s, t, 0.5 - 0.2 * (s < 2) + 0.01 * rng.normal()),
            key="k",
            collapsed=(row == "SCL" and s < 2) or (row == "TAPT" and column == "rte"),
        )
        for row in ROWS
        for column in r.columns
        for s, t in r.replicates_at(20)
    ]
    found = ranks(replace(filled(r, runs), collapsed=False))
    over = {row: (rank.low, rank.high) for (_, row, column), rank in found.items() if column == OVER}
    assert over == {"FT": (1, 2), "SCL": (1, 2)}


def test_marks_and_ranks_are_in_every_format() -> None:
    g = grid({"FT": 0.0, "SCL": 0.2, "TAPT": -0.2})
    caption = Caption(1)
    assert "*" in render(g, caption, "text")
    assert render(g, caption, "md").count("**") >= 2 * len(g.columns)
    assert render(g, caption, "latex").count("\\textbf") >= len(g.columns)
    cells = json.loads(render(g, caption, "json"))["cells"]
    assert {(cell["row"], cell["in_best_set"], cell["rank_low"], cell["rank_high"]) for cell in cells} == {
        ("FT", False, 2, 2),
        ("SCL", True, 1, 1),
        ("TAPT", False, 3, 3),
    }
    frame = ranks_view(g).frame
    assert set(frame["column"]) == {*g.columns, OVER}
    assert frame[frame["best"]]["row"].unique().tolist() == ["SCL"]
    read = json.loads(str(ranks_view(g).written("json")))["ranks"]
    assert [each["rank_low"] for each in read] == frame["rank_low"].tolist()
