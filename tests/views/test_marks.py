"""The set of the best: marks never contradict verdicts, and are in every format."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from requested import resolve_table
from views.runs import filled, render, result

from harness.statistics.crossed import difference
from harness.views.cells import Grid, aggregate
from harness.views.differences import differences, ranks_view, sets_of_the_best
from harness.views.table import Caption

ROWS = ("FT", "SCL", "TAPT")


def grid(shifts: dict[str, float]) -> Grid:
    r = resolve_table("few_shot", "paper", methods=ROWS, tasks=("sst2", "rte", "mrpc", "cola"), sizes=(20,))
    rng = np.random.default_rng(0)
    scores = ((size, row, rest, 0.5 + shifts[row] + 0.01 * rng.normal()) for size, row, *rest in r.places)
    return filled(r, [result(r, row, size, *rest, score, key="k") for size, row, rest, score in scores])


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


def test_marks_are_in_every_format() -> None:
    g = grid({"FT": 0.0, "SCL": 0.2, "TAPT": -0.2})
    caption = Caption(1)
    assert "*" in render(g, caption, "text")
    assert render(g, caption, "md").count("**") >= 2 * len(g.columns)
    assert render(g, caption, "latex").count("\\textbf") >= len(g.columns)
    cells = json.loads(render(g, caption, "json"))["cells"]
    assert {cell["row"] for cell in cells if cell["in_best_set"]} == {"SCL"}
    assert not sets_of_the_best(grid({"FT": 0.0, "SCL": 0.0, "TAPT": 0.0}))


def test_ranks_are_those_of_the_pairwise_tests() -> None:
    """Two-sided p times the number of all pairs; only complete rows have a rank."""
    whole = grid({"FT": 0.0, "SCL": 0.02, "TAPT": 0.03})
    lost = (whole.results["row"] == "TAPT") & (whole.results["column"] == "rte") & (whole.results["subset"] == 0)
    g = aggregate(whole.resolved, whole.results[~lost])
    scores = g.results.set_index(["row", "column", "subset", "seed"])["test"].sort_index()
    frame, marked = ranks_view(g).frame.set_index(["column", "row"]).sort_index(), sets_of_the_best(g)
    assert {
        column: {*of.index.get_level_values("row")} for column, of in frame.groupby(level="column") if column != "avg"
    } == {column: {*ROWS} - ({"TAPT"} if column == "rte" else set()) for column in g.resolved.columns}
    for (column, row), rank in frame.drop("avg", level="column", errors="ignore").iterrows():
        tests = [
            difference((scores[other, column] - scores[row, column]).unstack(), 0.01)
            for other in frame.loc[column].index
            if other != row
        ]
        sure = [test.difference for test in tests if (test.p or 0) * 15 < 0.05]
        low, best = 1 + sum(each > 0 for each in sure), (20, row, column) in marked
        assert (rank.rank_low, rank.rank_high, rank.best) == (
            1 if best else low,
            len(tests) + 1 - sum(each < 0 for each in sure),
            best,
        )
