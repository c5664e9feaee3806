"""SQuAD's official scores on their edge cases, and the search for answers in logits against a naive one."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.answers import (
    NBEST,
    SpanReading,
    answer_f1,
    answerable,
    answers_of,
    as_label,
    best_over_thresholds,
    best_spans,
    exact_match,
    normal_words,
    of_label,
    token_span,
)
from harness.kinds import Predictions, Spans
from harness.tasks.metrics import score

GOLDS = [["the Norman"], [], ["the"], ["x y"]]


def labels_of(golds: list[list[str]]) -> Any:
    return np.array([as_label([(text, 0) for text in texts]) for texts in golds])


def predictions(texts: list[str], golds: list[list[str]], null: list[float] | None = None) -> Predictions:
    """The best answers as given, each with the score 0; '' and no null scores: none is predicted."""
    nulls = [1.0 if not text else -1.0 for text in texts] if null is None else null
    sizes = [len(text.encode()) for text in texts]
    arrays = {
        "spans": np.array([(0, len(text)) for text in texts], np.int32).reshape(-1, 2),
        "scores": np.zeros(len(texts), np.float32),
        "starts": np.arange(len(texts) + 1),
        "text": np.frombuffer("".join(texts).encode(), np.uint8),
        "text_starts": np.concatenate([[0], np.cumsum(sizes)]),
        "null": np.array(nulls, np.float32),
    }
    return Predictions(arrays, labels_of(golds))


def test_vectors_of_all_scores() -> None:
    first = predictions(["Normans", "", "", "y x"], GOLDS)
    assert score("exact_match", first) == 0.5
    assert score("answer_f1", first) == 0.75
    assert score("hasans_f1", first) == pytest.approx(2 / 3)
    assert score("noans_accuracy", first) == 1.0
    assert answerable(labels_of(GOLDS)).tolist() == [True, False, True, True]
    second = predictions(["Norman", "zzz", "an", "x"], GOLDS, [0, 3, 1, -1])
    assert score("exact_match", second) == 0.75
    assert score("answer_f1", second) == pytest.approx((3 + 2 / 3) / 4)
    refused = predictions(["Norman", "zzz", "an", "x"], GOLDS, [2, 3, 1, 0.5])
    assert score("answer_f1", refused) == 0.5
    assert score("best_f1", refused) == pytest.approx((3 + 2 / 3) / 4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a  an\tthe", []),
        ("theatre and an anthem", ["theatre", "and", "anthem"]),
        ("U.S.A.", ["usa"]),
        ("Ångström's  “quotes”", ["ångströms", "“quotes”"]),
        ("10\u00a0000", ["10", "000"]),
        ("the-a", ["thea"]),
    ],
)
def test_words_are_compared_without_case_articles_and_ascii_punctuation(text: str, words: list[str]) -> None:
    assert normal_words(text) == words


@pytest.mark.parametrize(
    ("text", "golds", "exact", "f1"),
    [
        ("b a c", ["c b"], 0, 1),  # as bags, without the article
        ("x x y", ["x y y"], 0, 2 / 3),
        ("x", ["y", "X!"], 1, 1),  # the best of several
        ("x", ["y", "x z"], 0, 2 / 3),
        ("", [], 1, 1),
        ("x", [], 0, 0),
        ("the", [], 1, 1),  # says nothing
        ("", ["x"], 0, 0),
        ("", ["the", "x"], 0, 0),  # a gold of articles alone is left out beside another
        ("", ["the"], 1, 1),
    ],
)
def test_scores_of_one_question(text: str, golds: list[str], exact: float, f1: float) -> None:
    assert exact_match(labels_of([golds]), [text]).tolist() == [exact]
    assert answer_f1(labels_of([golds]), [text]).tolist() == pytest.approx([f1])


@given(st.lists(st.tuples(*[st.floats(0, 1)] * 2, st.integers(-2, 2)), min_size=1, max_size=12))
def test_the_best_threshold_is_the_best_of_all(values: list[tuple[float, float, int]]) -> None:
    answered, refused, margins = (np.array(column, dtype=np.float64) for column in zip(*values, strict=True))
    cuts = [-math.inf, *margins]
    naive = max(float(np.where(margins <= cut, answered, refused).mean()) for cut in cuts)
    assert best_over_thresholds(answered, refused, margins) == pytest.approx(naive)


# -------------------------------------------------------------------------------------------------------- gold answers

FORMS = [
    {"text": ["is", " it "], "answer_start": [3, 5]},
    [{"text": "is", "answer_start": 3, "id": 7}, {"text": " it ", "answer_start": 5}],
    '{"text": ["is", "it"], "answer_start": [3, 6]}',
]


@pytest.mark.parametrize("form", FORMS)
def test_answers_are_read_in_each_form(form: Any) -> None:
    found = answers_of(form)
    assert found == [("is", 3), ("it", 6)]
    assert of_label(as_label(found)) == found


@pytest.mark.parametrize(
    "form",
    ["x", 3, None, {"text": "is", "answer_start": 3}, {"text": ["a"], "answer_start": []}, [{"text": "a"}], ["a"]]
    + [{"text": [text], "answer_start": [start]} for text, start in ((" ", 0), ("a", -1), ("a", True), ("a", "0"))],
)
def test_anything_else_is_no_answer(form: Any) -> None:
    assert answers_of(form) is None


def test_only_where_every_question_has_an_answer_none_is_an_error() -> None:
    assert Spans().read([]) == b"[]"
    assert Spans(reading=SpanReading(unanswerable=False)).read([]) is None


def test_an_answer_that_is_not_where_it_should_be_is_named() -> None:
    misplaced = partial(Spans().misplaced, ("q", "the cat sat"))
    assert misplaced(as_label([("cat", 4)])) == ""
    assert "at character 5 of its context (begins at 4)" in misplaced(as_label([("cat", 5)]))
    assert "is not in it" in misplaced(as_label([("dog", 4)]))


# ------------------------------------------------------------------------------------------------------ spans of tokens

PLACES = np.array([[-1, -1], [-1, -1], [0, 3], [4, 7], [8, 11], [-1, -1]], np.int32)


@pytest.mark.parametrize(
    ("text", "start", "tokens"),
    [
        ("cat", 4, (3, 3)),
        ("the cat sat", 0, (2, 4)),
        ("at s", 5, (3, 4)),  # within tokens
        ("mat", 12, (0, 0)),  # behind the window
        ("sat on", 8, (0, 0)),  # begins inside, ends behind
    ],
)
def test_the_tokens_of_an_answer(text: str, start: int, tokens: tuple[int, int]) -> None:
    assert token_span(as_label([(text, start)]), PLACES) == tokens
    assert token_span(as_label([]), PLACES) == (0, 0)


@pytest.mark.parametrize("seed", range(3))
def test_the_best_answers_are_those_of_a_naive_search(seed: int) -> None:
    generator = np.random.default_rng(seed)
    longest = 4
    windows = []
    for first, count in ((0, 9), (5, 8)):  # tokens 5 to 8 are in both windows
        places = np.full((count + 3, 2), -1, np.int32)
        places[2 : 2 + count] = [(4 * token, 4 * token + 3) for token in range(first, first + count)]
        windows.append((generator.normal(size=(count + 3, 2)).astype(np.float32), places))
    found: dict[tuple[int, int], float] = {}
    for logits, places in windows:
        for a in range(len(places)):
            for b in range(a, min(len(places), a + longest)):
                if places[a, 0] >= 0 and places[b, 0] >= 0:
                    span = (int(places[a, 0]), int(places[b, 1]))
                    found[span] = max(found.get(span, -math.inf), float(logits[a, 0]) + float(logits[b, 1]))
    naive = sorted(((value, *span) for span, value in found.items()), reverse=True)[:NBEST]
    assert best_spans(windows, longest) == naive


def test_a_window_without_context_has_no_answer_and_nan_is_seen() -> None:
    none = np.full((3, 2), -1, np.int32)
    assert best_spans([(np.zeros((3, 2), np.float32), none)], 30) == []
    scores = best_spans([(np.full((6, 2), np.nan, np.float32), PLACES)], 30)
    assert math.isnan(scores[0][0])


def test_what_is_predicted_and_its_columns() -> None:
    predicted = predictions(["Norman", "zzz"], [["Norman"], []], [-2, 3])
    assert predicted.kind == Spans()
    assert predicted.decoded.tolist() == ["Norman", ""]
    assert predicted.kind.columns(predicted)["answer_start"] == [0, None]
    shares = predicted.kind.columns(predicted)["probability"]
    assert shares == pytest.approx([1 / (1 + math.exp(-2)), 1 / (1 + math.exp(-3))])
    assert not predicted.collapsed
    assert predictions(["x", "y"], [["x"], []], [1, 1]).collapsed
    order, name, f1 = predicted.kind.mistakes(predictions(["x", "b", "x y"], [["z"], ["b"], ["x"]]))
    assert (order.tolist(), name) == ([0, 2], "f1")
    assert f1.tolist() == pytest.approx([0, 1, 2 / 3])
    other = predictions(["Norman", "zzz"], [["Norman"], []], [-2, 3.5])
    assert predicted.difference(predicted) == 0.0
    assert predicted.difference(other) == 0.5
    assert predicted.difference(predictions(["Norma", "zzz"], [["Norman"], []])) == math.inf
