"""Extractive answers: how the gold answers of a question are one label, and how answers are found in logits, normalised and scored.
No torch."""

from __future__ import annotations

import json
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Answer = tuple[str, int]
"""A text, and the character of its context that it begins at."""

NBEST = 20
"""Answers that are kept of an example."""
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class SpanReading:
    """How questions are read with their contexts: two windows of a context share `stride` tokens, or half of what a window has room for
    where that is less; of a question the first `question` tokens are read; an answer has at most `answer` tokens. `unanswerable`:
    whether there are questions that their context does not answer (SQuAD 2.0)."""

    stride: int = 128
    question: int = 64
    answer: int = 30
    unanswerable: bool = True


SQUAD = SpanReading()
"""As COCO-LM's code reads SQuAD 2.0; it takes windows of 384 tokens where its paper says 512."""


def answers_of(value: Any) -> list[Answer] | None:
    """The answers that a value of a file means, without spaces around them: {"text": [...], "answer_start": [...]} as on the hub, a list
    of {"text": ..., "answer_start": ...} as in SQuAD's own files, or one of the two as JSON text. None for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if isinstance(value, dict):
        texts, starts = value.get("text"), value.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            return None
        pairs: list[tuple[Any, Any]] = list(zip(texts, starts, strict=True))
    elif isinstance(value, list) and all(isinstance(each, dict) for each in value):
        pairs = [(each.get("text"), each.get("answer_start")) for each in value]
    else:
        return None
    if not all(isinstance(text, str) and text.strip() and type(at) is int and at >= 0 for text, at in pairs):
        return None
    return [(text.strip(), start + len(text) - len(text.lstrip())) for text, start in pairs]


def as_label(answers: Sequence[Answer]) -> bytes:
    """Answers as one label: JSON in UTF-8, which an array of bytes holds."""
    return json.dumps([list(answer) for answer in answers], ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )


def of_label(label: bytes) -> list[Answer]:
    return [(text, start) for text, start in json.loads(label.decode("utf-8", "surrogatepass"))]


def answerable(labels: Array) -> NDArray[np.bool_]:
    """Which of labels [n] have an answer, [n]."""
    return np.asarray(labels != as_label([]))


def normal_words(text: str) -> list[str]:
    """The words that SQuAD's evaluation compares: in lower case, without ASCII punctuation and English articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def exact_match(labels: Array, texts: Sequence[str] | Array) -> NDArray[np.float64]:
    """(labels [n], predicted texts [n], '' for no answer) -> [n]: 1 where the words are those of a gold answer (Rajpurkar et al. 2018)."""
    return _best(labels, texts, lambda predicted, gold: float(predicted == gold))


def answer_f1(labels: Array, texts: Sequence[str] | Array) -> NDArray[np.float64]:
    """(labels [n], predicted texts [n], '' for no answer) -> [n]: F1 of the words, the largest over the gold answers."""
    return _best(labels, texts, _overlap)


def _overlap(predicted: list[str], gold: list[str]) -> float:
    """F1 of the words as bags; without words on either side 1 where both have none."""
    if not predicted or not gold:
        return float(predicted == gold)
    shared = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * shared / (len(predicted) + len(gold))


def _best(
    labels: Array, texts: Sequence[str] | Array, measure: Callable[[list[str], list[str]], float]
) -> NDArray[np.float64]:
    values = []
    for label, text in zip(labels.tolist(), texts, strict=True):
        # A gold answer of articles alone is left out, as officially; without any answer nothing should be said.
        golds = [words for answer, _ in of_label(label) if (words := normal_words(answer))] or [[]]
        values.append(max(measure(normal_words(text), gold) for gold in golds))
    return np.array(values, dtype=np.float64)


def best_over_thresholds(answered: Array, refused: Array, margins: Array) -> float:
    """The highest mean over examples of what a threshold gives: `answered` [n] of an example whose null score exceeds that of its best
    answer by at most the threshold (`margins` [n]), `refused` [n] of the others. SQuAD's own search counts an answerable question
    that is refused as 0, whatever its gold answer, and cuts between equal margins."""
    order = np.argsort(margins, kind="stable")
    gains = np.concatenate([[0.0], np.cumsum((answered - refused)[order])])
    cuts = np.flatnonzero(np.concatenate([[True], np.diff(margins[order]) != 0, [True]]))
    return float((refused.sum() + gains[cuts].max()) / len(margins))


def token_span(label: bytes, places: NDArray[np.int32]) -> tuple[int, int]:
    """(first, last) token of the first gold answer in one window; (0, 0), its first token, where there is none or it is not inside.
    `places` [L, 2]: see `Tokens`."""
    answers = of_label(label)
    inside = np.flatnonzero(places[:, 0] >= 0)
    if not answers or not len(inside):
        return 0, 0
    text, start = answers[0]
    stop, begins, ends = start + len(text), places[inside, 0], places[inside, 1]
    covering = np.flatnonzero((ends > start) & (begins < stop))
    if not len(covering) or begins[covering[0]] > start or ends[covering[-1]] < stop:
        return 0, 0
    return int(inside[covering[0]]), int(inside[covering[-1]])


def best_spans(
    windows: Sequence[tuple[NDArray[np.float32], NDArray[np.int32]]], longest: int
) -> list[tuple[float, int, int]]:
    """(score, first character, character after the last) of the NBEST best answers of an example, the best first; of equal ones the
    earlier and shorter. Score: the sum of the two logits, the largest over the windows that hold the answer.

    `windows`: (logits [L, 2] of start and end, places [L, 2] of the tokens) of each; an answer has at most `longest` tokens. All pairs are
    compared; the usual scripts take the 20 best starts and ends first. A score that is not a number is the only one.
    """
    found: dict[tuple[int, int], float] = {}
    for logits, places in windows:
        inside = np.flatnonzero(places[:, 0] >= 0)
        if not len(inside):
            continue
        (starts, ends), count = logits[inside].astype(np.float64).T, len(inside)
        padded = np.concatenate([ends, np.full(longest - 1, -np.inf)])
        scores = (starts[:, None] + np.lib.stride_tricks.sliding_window_view(padded, longest)).ravel()
        if np.isnan(scores).any():
            return [(math.nan, 0, 0)]
        rank = max(0, len(scores) - NBEST)
        high = np.flatnonzero(scores >= np.partition(scores, rank)[rank])
        for index in high[np.argsort(-scores[high], kind="stable")][:NBEST].tolist():
            first, last = index // longest, index // longest + index % longest
            if last < count:
                span = int(places[inside[first], 0]), int(places[inside[last], 1])
                found[span] = max(found.get(span, -np.inf), float(scores[index]))
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return [(score, *span) for span, score in ordered[:NBEST]]
