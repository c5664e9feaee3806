"""Where values come from: what departs from a paper says so, and published numbers are held against the paper's values."""

from __future__ import annotations

import re

import pytest
from requested import by_letter, resolve_table

from harness.planning.resolved import ResolvedTable, Use
from harness.views.settings import settings_of, settings_view

FP16 = "pre_train.precision=fp16"


def departures(r: ResolvedTable) -> list[Use]:
    return [use for use in r.uses if use.letter == "D"]


def reasons(r: ResolvedTable) -> set[str]:
    """All reasons for no verdict, of any row."""
    return {reason for row in r.rows for reason in r.row_incomparable(row)}


def test_the_papers_value_brings_a_table_closer() -> None:
    ours, theirs = resolve_table("taco_base", "paper"), resolve_table("taco_base", "paper", set=(FP16,))
    assert ours.comparable
    assert theirs.comparable
    assert [(each.path, each.value, each.paper, each.note) for each in departures(ours)] == [
        ("recipe.pre_train.precision", "fp32", "fp16", "Table 5"),
        ("pre_train.corpus", ours.pre_train and ours.pre_train.corpus, "BooksCorpus and English Wikipedia", "4.1"),
    ]
    assert [each.path for each in departures(theirs)] == ["pre_train.corpus"]
    lost = reasons(ours) - reasons(theirs)
    assert lost == {"pre_train.precision fp32 instead of the paper's fp16"}
    assert not reasons(theirs) - reasons(ours)
    assert by_letter(ours)["D"]["recipe.pre_train.precision"] == "fp32"
    assert by_letter(theirs)["P"]["recipe.pre_train.precision"] == "fp16"


@pytest.mark.parametrize(
    ("table", "changed", "path"),
    [
        ("taco_small", {"corpus": "wiki.txt + books.txt"}, "pre_train.corpus"),
        ("scl_noisy", {"translator": "folder/en-de+folder/de-en"}, "translator"),
    ],
)
def test_another_value_than_ours_changes_the_reason_alone(table: str, changed: dict[str, str], path: str) -> None:
    before, after = resolve_table(table, "paper"), resolve_table(table, "paper", **changed)
    assert after.comparable, "the paper's rows stay"
    old, new = (
        {each.path: f"{each.key} {each.value} instead of the paper's {each.paper}" for each in departures(r)}
        for r in (before, after)
    )
    assert old.keys() == new.keys()
    assert (reasons(before) - reasons(after), reasons(after) - reasons(before)) == ({old[path]}, {new[path]})


def test_a_departure_concerns_the_rows_that_depend_on_it() -> None:
    r = resolve_table("scl_noisy", "paper")
    why = {row.name: " ".join(r.row_incomparable(row)) for row in r.rows}
    assert [name for name, text in why.items() if "translator" not in text] == ["CE", "CE + SCL"]


def test_a_caption_and_its_json_have_ours_and_the_papers() -> None:
    r = resolve_table("coco_lm_glue", "paper")
    departing = [setting for setting in settings_of(r) if setting.origin == "D"]
    assert departing
    expected = [(str(each.value), f"{each.note}: {each.paper}") for each in departures(r)]
    assert [(setting.value, setting.note) for setting in departing] == expected
    view = settings_view(r)
    printed = view.written("text")
    assert all(
        re.search(rf"{re.escape(setting.value)} +D {re.escape(setting.note[:20])}", printed) for setting in departing
    )
