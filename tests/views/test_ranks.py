"""Rank intervals and sets of the best: those of the pairwise tests, and the same in every format."""

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
from harness.views.cells import Grid
from harness.views.differences import differences
from harness.views.ranks import Rank, ranks, ranks_view, sets_of_the_best
from harness.views.table import Caption

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


@pytest.mark.parametrize("seed", range(12))
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
    g = replace(g, elsewhere=frozenset(wide.places if seed % 2 else ()))
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


def test_ranks_are_those_of_the_pairwise_tests() -> None:
    """Two-sided p times the number of all pairs; only complete rows have a rank."""
    g = grid({"FT": 0.0, "SCL": 0.02, "TAPT": 0.03}, seed=2, without=("TAPT", "rte", 0))
    scores = g.results.set_index(["row", "column", "subset", "seed"])["test"]
    for column in TASKS:
        here = [row for row in ROWS if (row, column) != ("TAPT", "rte")]
        above: list[tuple[str, str]] = []
        for one, other in itertools.permutations(here, 2):
            test = difference((scores[one, column] - scores[other, column]).unstack(), 0.01)
            above += [(one, other)] * (test.difference > 0 and (test.p or 0) * 15 < 0.05)
        for row in here:
            over, under = (sum(pair[side] == row for pair in above) for side in (1, 0))
            rank = ranks(g)[20, row, column]
            assert (rank.low, rank.high) == (1 if rank.best else 1 + over, len(here) - under)
        assert {row for _, row, each in ranks(g) if each == column} == {*here}


def test_a_row_that_is_clearly_best_is_first_and_equal_rows_have_any_rank() -> None:
    found = ranks(grid({"FT": 0.0, "SCL": 0.2, "TAPT": -0.2}))
    assert [found[20, row, "sst2"][:2] for row in ROWS] == [(2, 2), (1, 1), (3, 3)]
    found = ranks(grid({"FT": 0.0, "SCL": 0.0, "TAPT": 0.0}))
    assert {(rank.low, rank.high, rank.best) for rank in found.values()} == {(1, 3, False)}


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
    assert set(frame["column"]) == {*g.columns}
    assert frame[frame["best"]]["row"].unique().tolist() == ["SCL"]
    read = json.loads(str(ranks_view(g).written("json")))["ranks"]
    assert [each["rank_low"] for each in read] == frame["rank_low"].tolist()
