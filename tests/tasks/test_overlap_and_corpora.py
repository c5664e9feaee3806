"""Shared texts are found through tokenisation and case; corpora hold nothing of the sets that are scored."""

from __future__ import annotations

import numpy as np
import pytest

from harness.tasks.overlap import count_overlap, normal_ids, normalised, without
from harness.tasks.packaged import boolq_prose
from harness.tasks.protocols import PROTOCOLS
from harness.tasks.rows import Rows
from harness.tasks.sources import TextSource
from harness.tasks.task import TASKS


def rows(*texts: tuple[str, ...] | str) -> Rows:
    return Rows(tuple((text,) if isinstance(text, str) else text for text in texts))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("It does n't , really .", "it doesn't, really"),
        ("``quoted'' text", '"quoted"  text'),
        ("STRASSE", "straße"),
        ("full\u00a0width \uff21", "Full width A"),
        ("a - b", "a\u2013b"),
        (" ? ! ", "?!"),
        ("caf\u00e9", "cafe\u0301"),
        ("coffee \u2615\ufe0f", "coffee \u2615"),
        ("दिन।", "“दिन”"),
    ],
)
def test_the_same_text_in_two_spellings(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)
    assert count_overlap(rows(one), rows(other)) == 1


@pytest.mark.parametrize("symbol", ["\U0001f600", "\u2665", "\u20ac", "\u2192", "\u2265", "\U0001f44d\U0001f3ff"])
def test_a_symbol_is_part_of_a_text_but_draws_nothing_else(symbol: str) -> None:
    one, other = rows("So it is.", ("so it is, \u00e9")), rows(f"so it is {symbol}", f"So it is {symbol} \u00e9")
    assert count_overlap(one, other) == count_overlap(rows(f"so it is {symbol}\U0001f622"), other) == 0
    assert count_overlap(rows(f"{symbol} SO IT IS!"), other) == 1
    assert len(without(one, other)) == 2
    assert normal_ids(one).tolist() == normal_ids(other).tolist()
    pairs = rows(("a", f"b {symbol}"), (f"a {symbol}", "b"), ("a", "b"))
    assert [count_overlap(pairs.take([at]), pairs) for at in range(3)] == [1, 1, 1]
    assert (count_overlap(rows("b"), pairs), count_overlap(rows(f"b {symbol}"), pairs)) == (2, 1)
    assert count_overlap(rows("", "\U0001f622"), rows(symbol)) == 0


def test_every_ascii_character_is_treated_as_in_other_text() -> None:
    """ASCII has a faster way: beside a letter that is not, the same characters stay."""
    for code in range(128):
        assert normalised(f"a{chr(code)}b") + "é" == normalised(f"a{chr(code)}bé"), code


def test_rows_of_the_second_are_counted() -> None:
    training, evaluation = rows("A.", "b", "b"), rows("a", "a !", "c", "B")
    assert count_overlap(training, evaluation) == 3
    assert count_overlap(evaluation, training) == 3
    assert count_overlap(rows("x"), evaluation) == 0
    assert count_overlap(rows(), evaluation) == count_overlap(evaluation, rows()) == 0


def test_pairs_are_compared_whole_and_in_order() -> None:
    training = rows(("q", "p"), ("q", "r"))
    assert count_overlap(training, rows(("Q", "P."), ("q", "s"), ("p", "q"), ("r", "r"))) == 1
    assert count_overlap(rows(("ab", "c")), rows(("a", "bc"))) == 0


def test_a_corpus_is_compared_with_any_text_of_a_pair() -> None:
    corpus, evaluation = rows("P.", "unheard"), rows(("q", "p"), ("p", "q"), ("q", "r"))
    assert count_overlap(corpus, evaluation) == 2
    assert count_overlap(evaluation, corpus) == 1


def test_packaged_tasks_have_the_counts_of_their_sources(packages: TextSource) -> None:
    labels = np.concatenate([packages.load(TASKS["movies"], split).gold for split in ("train", "validation")])
    assert np.bincount(labels).tolist() == [5061, 4982]
    labels = np.concatenate([packages.load(TASKS["products"], split).gold for split in ("train", "validation")])
    assert np.bincount(labels).tolist() == [1218, 1725]
    assert [len(packages.load(TASKS["boolq"], split)) for split in ("train", "validation")] == [9427, 3270]
    labels = np.concatenate([packages.load(TASKS["boolq"], split).gold for split in ("train", "validation")])
    assert np.bincount(labels).tolist() == [4790, 7907]


@pytest.mark.parametrize("task", ["movies", "products"])
def test_a_packaged_split_shares_no_text(packages: TextSource, task: str) -> None:
    train, validation = (packages.load(TASKS[task], split) for split in ("train", "validation"))
    assert count_overlap(train, validation) == 0
    assert len(validation) / (len(train) + len(validation)) == pytest.approx(0.25, abs=0.02)


def test_boolq_prose_holds_no_scored_passage(packages: TextSource) -> None:
    prose = boolq_prose()
    assert prose.labels is None
    assert prose.columns == 1
    assert count_overlap(prose, packages.load(TASKS["boolq"], "validation")) == 0
    for protocol in (PROTOCOLS["cmlm_few_shot"], PROTOCOLS["cmlm_full_size"]):
        sets = protocol.evaluation_sets(TASKS["boolq"], packages)
        assert count_overlap(prose, sets.dev) == count_overlap(prose, sets.tests["test"]) == 0
    assert len({normalised(text) for (text,) in prose.texts}) == len(prose) > 9000
    train = packages.load(TASKS["boolq"], "train")
    assert count_overlap(prose, train) > 7000  # the others share a passage with dev
