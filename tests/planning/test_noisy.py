"""Rows whose training sets are augmented by back-translation, and rows that are means of others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from requested import UNREAD, resolve_table
from views.runs import filled, result, rows_of

from harness.planning.recipe import Augment
from harness.planning.resolved import ResolvedTable
from harness.planning.runs import Plan, make_plan
from harness.specs import Run
from harness.tasks.rows import Rows
from harness.tasks.sources import TextSource, open_source
from harness.tasks.translation import Translator

TEMPERATURES = (0.3, 0.5, 0.7, 0.9)
LOSSES = ("CE", "CE + SCL")


def marking(augment: Augment, made: bool) -> Translator:
    """Ways that mark a text, in place of models."""

    def find(rows: Rows) -> Rows:
        marks = [f"{augment.temperature}.{copy}" for copy in range(augment.copies)]
        copies = (tuple(f"{mark}({text})" for text in row) for mark in marks for row in rows.texts)
        return Rows((*rows.texts, *copies), np.tile(rows.gold, 1 + len(marks))).sorted()

    return Translator(f"{augment.copies} copies", find=find if made else lambda rows: None)


def planned(resolved: ResolvedTable, source: TextSource | None = None, made: bool = True) -> Plan:
    return make_plan(resolved, source, UNREAD, translator_of=lambda it: marking(it, made) if it else Translator())


def keys(runs: Sequence[Run]) -> set[str]:
    return {run.stage.key for run in runs}


# ----------------------------------------------------------------------------------------------------- the training sets


def test_only_the_training_sets_of_augmented_rows_change(packaged: dict[str, Path]) -> None:
    source = open_source(None)
    plan = planned(resolve_table("scl_noisy", "quick"), source)
    data = {(run.row, run.subset): run.stage.data for run in plan.runs}
    assert len(data) == 40
    for loss, subset in product(LOSSES, range(10)):
        plain, noisy = data[loss, subset], data[f"{loss} (augmented)", subset]
        assert noisy == data["CE (augmented)", subset]
        assert (noisy.dev, noisy.tests) == (plain.dev, plain.tests)
        few, many = (plan.library[each.train.digest] for each in (plain, noisy))
        assert len(many) == 3 * len(few) == 300
        assert set(few.texts) < set(many.texts)
        labels = dict(zip(few.texts, few.gold, strict=True))
        for (text,), label in zip(many.texts, many.gold, strict=True):
            _, bracket, source_text = text.partition("(")
            copied = text.startswith("None.") and bracket
            assert label == labels[(source_text[:-1],) if copied else (text,)]
    few_shot = make_plan(resolve_table("scl_few_shot", "quick"), source, UNREAD)
    assert keys([run for run in plan.runs if run.row in LOSSES]) == keys([r for r in few_shot.runs if r.size == 100])
    waiting = planned(resolve_table("scl_noisy", "quick"), source, made=False)
    assert len(keys(waiting.runs)) == 40
    assert [(each.name, len(sets)) for each, sets in waiting.untranslated.items()] == [("2 copies", 10)]
    assert {len(rows) for sets in waiting.untranslated.values() for rows in sets} == {100}


# ------------------------------------------------------------------------------------------------------- means of rows


def test_a_mean_of_rows_is_that_of_their_cells_and_its_spread_that_of_their_runs() -> None:
    """By hand: the three best on dev of each row are its first three subsets."""
    r = resolve_table("scl_noisy", "paper", tasks=("sst2",))
    draw = np.random.default_rng(7)
    scores = {row.name: draw.uniform(size=10) for row in r.rows}
    runs = [
        result(r, row, 100, "sst2", subset, 31, scores[row][subset], dev=1 - subset / 10)
        for row, subset in product(scores, range(10))
    ]
    grid = filled(r, runs, rows_of(r))
    for loss in LOSSES:
        cell, members = grid.cells[100, f"{loss} (average)", "sst2"], [f"{loss} (T={each})" for each in TEMPERATURES]
        twelve = [score for row in members for score in scores[row][:3]]
        assert cell.value == pytest.approx(np.mean(twelve))
        assert cell.spread == pytest.approx(np.std(twelve, ddof=1))
        assert (cell.done, cell.expected, cell.verdict) == (40, 40, "not comparable")
    assert grid.cells[100, "CE (average)", "sst2"].paper == 0.913
    assert {row.name: row.augment for row in r.rows}["CE (T=0.3)"] == Augment(copies=3, temperature=0.3)
    missing = filled(r, runs[:-1], rows_of(r)).cells[100, "CE + SCL (average)", "sst2"]
    assert (missing.value, missing.done) == (None, 39)
    skipped = filled(r, runs, rows_of(r), {}, {("CE (T=0.3)", "sst2"): "no translator"})
    assert skipped.cells[100, "CE (average)", "sst2"].skip == "no translator"


def test_a_mean_of_rows_is_left_out_where_a_row_is_not_chosen() -> None:
    assert resolve_table("scl_noisy", "paper", methods=("CE", "CE (T=0.3)")).averages == {}
