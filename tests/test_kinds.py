"""Laws of the kinds of answers: what is written as a label is read back, and strata hold every row."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from harness.answers import SpanReading
from harness.kinds import Kind, Predictions, Spans, kind_of
from harness.specs import Data, RowSet
from harness.tasks.task import TASKS, Task

KINDS = [kind_of(("no", "yes")), kind_of(("a", "b", "c"), (("4", "c"),)), kind_of((), bounds=(0.0, 5.0)), kind_of(())]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.description)
def test_labels_read_back_as_they_are_named_and_every_row_is_in_one_stratum(kind: Kind) -> None:
    labels = np.array([0, 1, 1], dtype=kind.dtype)
    assert [kind.read(str(value)) for value in kind.named(labels)] == labels.tolist()
    assert kind.read("neither") is None
    assert sum(kind.sizes(labels)) == len(labels)
    assert sum(kind.counts(labels).values()) in (0, len(labels))


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_head_of_a_task_has_the_kind_of_the_task(task: Task) -> None:
    kind = task.kind
    other = Data(RowSet("rows"), kind.outputs, spans=task.reading).kind
    assert other is not None
    assert (other.answer, other.outputs, other.dtype) == (kind.answer, kind.outputs, kind.dtype)


@pytest.mark.parametrize(
    ("logits", "decoded", "histogram", "collapsed"),
    [
        ([[0.5, 0.5, 0.1], [0.0, 1.0, 2.0]], [0, 2], [1, 0, 1], False),
        ([[1.0, 0.0], [2.0, 0.0]], [0, 0], [2, 0], True),
        ([[1.5], [-0.5]], [1.5, -0.5], [], False),
    ],
)
def test_predictions_decode_themselves(
    logits: list[list[float]], decoded: list[float], histogram: list[int], collapsed: bool
) -> None:
    predicted = Predictions({"logits": np.array(logits, dtype=np.float32)}, np.zeros(2))
    assert predicted.decoded.tolist() == decoded
    assert (predicted.histogram, predicted.collapsed) == (histogram, collapsed)


def test_probabilities_and_columns_name_the_classes() -> None:
    """What 'harness predict' writes: shares of a softmax, computed in double precision, that sum to 1 however large the logits are."""
    logits = np.array([[0.0, np.log(3.0)], [1000.0, 0.0]], dtype=np.float32)
    predicted = Predictions({"logits": logits}, np.zeros(2))
    np.testing.assert_allclose(predicted.probabilities, [[0.25, 0.75], [1.0, 0.0]], rtol=1e-6)
    found = kind_of(("no", "yes")).columns(predicted)
    assert (found["predicted"], found["probability.yes"]) == (["yes", "no"], predicted.probabilities[:, 1].tolist())
    number = Predictions({"logits": np.array([[1.5], [-0.5]], dtype=np.float32)}, np.zeros(2))
    assert kind_of(()).columns(number) == {"predicted": [1.5, -0.5]}


@pytest.mark.parametrize(
    ("context", "places", "last", "answer", "start"),
    [
        ("the cat sat on Paris", [[0, 3], [3, 7], [7, 11], [11, 14], [14, 20]], 1, "cat", 4),
        ("Ann lives\n\nhere.", [[0, 3], [3, 9], [9, 11], [11, 15], [15, 16]], 2, "lives", 4),
    ],
)
def test_an_answer_begins_and_ends_with_a_character(
    context: str, places: list[list[int]], last: int, answer: str, start: int
) -> None:
    """Byte-level tokenizers count the space before a word as the word's, and have line breaks as tokens of their own, which a span
    may end with."""
    kind = Spans(reading=SpanReading(unanswerable=False))
    outputs = np.full((5, 2), -9.0, dtype=np.float32)
    outputs[1, 0] = outputs[last, 1] = 9.0
    tokens = SimpleNamespace(offsets=np.array([0, 5]), places=np.array(places))
    examples = SimpleNamespace(tokens=tokens, starts=np.array([0, 1]), contexts=[context])
    found = kind.columns(Predictions(kind.assemble(outputs, examples), np.array([answer], dtype=object)))
    assert (found["answer"], found["answer_start"]) == ([answer], [start])


@pytest.mark.parametrize(("slope", "shift"), [(1.0, 0.0), (1000.0, 1e5), (0.001, -3.0)])
def test_moments_are_those_of_the_scores(slope: float, shift: float) -> None:
    scores = np.random.default_rng(3).normal(size=1000) * slope + shift
    mean, spread = kind_of(()).moments(scores.astype(np.float32))
    assert (mean, spread) == (
        pytest.approx(scores.mean(), rel=1e-5),
        pytest.approx(scores.std(), rel=1e-4 + 1e-6 * abs(shift) / slope),
    )
    assert kind_of(()).moments(np.full(3, shift, dtype=np.float32))[1] == 1.0
    assert kind_of(("no", "yes")).moments(np.array([0, 1])) == ()


def test_mistakes_come_worst_first() -> None:
    logits = np.array([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0], [0.0, 3.0]], dtype=np.float32)
    order, name, confidence = kind_of(("no", "yes")).mistakes(Predictions({"logits": logits}, np.array([1, 1, 0, 0])))
    assert (order.tolist(), name) == ([2, 3, 0], "confidence")
    assert (confidence[order] > 0.5).all()
    scores = Predictions({"logits": np.array([[1.0], [5.0], [2.0]], dtype=np.float32)}, np.array([1.5, 1.0, 2.0]))
    order, name, difference = kind_of(()).mistakes(scores)
    assert (order.tolist(), name, difference.tolist()) == ([1, 0, 2], "difference", [0.5, 4.0, 0.0])
