"""What a task's answer is, one class or one score a row, or a span of its context: how labels are read, stratified, counted and named, and how a model's outputs
become predictions. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from harness.answers import (
    SQUAD,
    SpanReading,
    answer_f1,
    answerable,
    answers_of,
    as_label,
    best_spans,
    of_label,
    token_span,
)

Array = NDArray[Any]
Arrays = Mapping[str, Array]

STEPS = 10_000
"""Numbers that a type should tell apart in a standard deviation of scores."""


def number_type(center: float, spread: float) -> Literal["float32", "float64"]:
    """The type of scores that lie about `spread` around `center`: float32 where that tells them apart, and holds their squares."""
    return "float32" if max(STEPS * np.spacing(np.float32(abs(center))), 1e-12) < spread < 1e12 else "float64"


@dataclass(frozen=True)
class Kind:
    """`names`: the classes in the order of their codes, none for scores and spans. `scale`: the lowest and the highest score, where that is
    known. `target_scale`: the mean and the standard deviation of scores that a head is trained in; None where it is trained on labels as they
    are. Labels are arrays [n] of `dtype`."""

    answer: ClassVar[Literal["class", "score", "span"]]
    dtype: ClassVar[type]
    metrics: ClassVar[tuple[str, ...]]  # of a user's task that names none; the first selects checkpoints
    loss: ClassVar[Literal["cross_entropy", "mean_squared_error"]]  # that a head without further terms minimises
    word_loss: ClassVar[Literal["cross_entropy", "kl_divergence"]] = "cross_entropy"  # between label words
    pipeline: ClassVar[str] = "text-classification"  # what the hub calls such tasks
    per_token: ClassVar[bool] = False  # the head has outputs for each token, not for each sequence
    label_column: ClassVar[str] = "label"  # of a user's task that names none
    unit: ClassVar[int | None] = None  # the text column that splits do not cut; None: rows are cut by all their texts

    names: tuple[str, ...] = ()
    scale: tuple[float, float] | None = None
    target_scale: tuple[float, float] | None = None

    @property
    def reads_codes(self) -> bool:
        """Whether a number in a file means the class at that place of `names`."""
        return False

    @property
    def output_type(self) -> Literal["float32", "float64"]:
        """Of predictions, in NumPy and in torch."""
        return "float32"

    @property
    def outputs(self) -> int:
        """Outputs of the head for a sequence, or for each of its tokens: two for a span, its start and its end."""
        return len(self.names) or (2 if self.per_token else 1)

    @property
    def description(self) -> str:
        return f"{len(self.names)} classes" if self.names else "regression"

    @property
    def word_names(self) -> tuple[str, ...]:
        """What label words stand for, in the order of the words: the classes, or the ends of the scale; none where no word can answer."""
        return self.names or tuple(f"{bound:.15g}" for bound in self.scale or ())

    @property
    def allowed(self) -> str:
        """What a label should be, for errors."""
        raise NotImplementedError

    def read(self, value: Any) -> float | None:
        """The label that a value of a file means; None for what is none of the task."""
        raise NotImplementedError

    def strata(self, labels: Array) -> NDArray[np.int64]:
        """The stratum of each row, [n]: samplers and splits keep the shares of the strata. Without classes all rows are one."""
        return labels.astype(np.int64) if self.names else np.zeros(len(labels), dtype=np.int64)

    def sizes(self, labels: Array) -> list[int]:
        """Rows of each stratum."""
        return [*map(int, np.bincount(self.strata(labels), minlength=max(1, len(self.names))))]

    def counts(self, labels: Array) -> dict[str, int]:
        """Rows of each class by name; empty for scores."""
        return dict(zip(self.names, self.sizes(labels), strict=False))

    def sampled_groups(self, labels: Array) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """The group of each row, [n], and the names of the groups, of which K-shot samples take as many rows each: the classes. Without names
        there are none to take."""
        return self.strata(labels), self.names

    def summary(self, labels: Array) -> tuple[float, ...]:
        """The rows of each class, or the lowest and the highest score."""
        return tuple(self.sizes(labels)) if self.names else (float(labels.min()), float(labels.max()))

    def moments(self, labels: Array) -> tuple[float, ...]:
        """Mean and standard deviation of scores; () of other labels."""
        return ()

    def narrowed(self, labels: Array) -> Array:
        """Labels of a file, of type `dtype`, as they are kept."""
        return labels

    def misplaced(self, texts: Sequence[str], label: Any) -> str:
        """What is wrong with a label that does not fit the texts of its row; '' where it does."""
        return ""

    def named(self, labels: Array) -> list[Any] | Array:
        """Labels or decoded predictions [n] as people read them."""
        return [self.names[code] for code in labels] if self.names else labels

    def decoded(self, arrays: Arrays) -> Array:
        """What is predicted of each example, [n], as labels are: the code of the largest logit (of equal ones the lowest), or the score."""
        logits = arrays["logits"]
        return np.asarray(logits.argmax(axis=1) if self.names else logits[:, 0])

    def columns(self, predictions: Predictions) -> dict[str, list[Any]]:
        """What a file of predictions gets, by column."""
        shown = {"predicted": np.asarray(self.named(predictions.decoded)).tolist()}
        shares = zip(self.names, predictions.probabilities.T.tolist(), strict=False)
        return shown | {f"probability.{name}": share for name, share in shares}

    def mistakes(self, predictions: Predictions) -> tuple[NDArray[np.int64], str, Array]:
        """Which examples to look at, the worst mistake first [m], and the measure that orders them, its name and values [n]: those with another
        class than their own, by the probability of the predicted one; of scores all, by how far they are off."""
        if not self.names:
            difference = np.abs(predictions.decoded - predictions.gold)
            return np.argsort(-difference, kind="stable"), "difference", difference
        confidence = predictions.probabilities.max(axis=1)
        order = np.argsort(-confidence, kind="stable")
        return order[(predictions.gold != predictions.decoded)[order]], "confidence", confidence

    def frame(self, predictions: Predictions) -> dict[str, Any]:
        """Gold and predicted label of each example as people read them, and the logit of each class, by column."""
        shown: dict[str, Any] = {"gold": self.named(predictions.gold), "predicted": self.named(predictions.decoded)}
        return shown | {f"logit.{name}": predictions.logits[:, code] for code, name in enumerate(self.names)}

    def collapsed(self, predictions: Predictions) -> bool:
        """Whether one class is predicted for every example, or no answer."""
        return int(np.count_nonzero(predictions.histogram)) == 1

    def targets(self, labels: Array, tokens: Any) -> Array:
        """What the loss reads of the labels [S] of sequences, which are these `Tokens`."""
        return labels

    def word_targets(self, labels: Array) -> Array:
        """What the loss between label words reads of labels [n]: the code of each row's word, or the share of the last of two."""
        return labels

    def sequences(self, tokens: float, max_length: int) -> float:
        """About how many sequences a row of so many `tokens` is, for a plan."""
        return 1.0

    def positions(self, offsets: NDArray[np.int64], sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which of all outputs belong to some `sequences`, in that order; sequences begin and end at `offsets` [S + 1]."""
        return sequences

    def assemble(self, outputs: NDArray[np.float32], examples: Any) -> Arrays:
        """The arrays of predictions from a head's `outputs` [S, C] for all sequences of `Examples`: of an example of several sequences the
        mean."""
        if examples.starts is None:
            return {"logits": outputs}
        counts = np.diff(examples.starts).astype(np.float32)
        return {"logits": np.add.reduceat(outputs, examples.starts[:-1], axis=0) / counts[:, None]}

    def problem(self, arrays: Arrays, gold: Array) -> str:
        """Why predictions have no score, after 'they'; '' where they have one."""
        logits = arrays["logits"]
        if logits.ndim != 2 or gold.shape != logits.shape[:1] or not len(gold):
            return f"have logits {logits.shape} for labels {gold.shape}, and should have [n, c] for [n], n > 0"
        if self.names and not (gold.dtype.kind in "iu" and 0 <= gold.min() <= gold.max() < logits.shape[1]):
            return "are of other classes than their labels"
        return "" if np.isfinite(logits).all() else "are not finite"


@dataclass(frozen=True)
class Classes(Kind):
    """One of several classes a row: a label is the class's code. `labels`: (value in a file, name of its class) pairs."""

    answer = "class"
    dtype = np.int64
    metrics = ("accuracy", "f1_macro", "f1_weighted", "f1_micro", "mcc")
    loss = "cross_entropy"

    labels: tuple[tuple[str, str], ...] = ()

    @property
    def reads_codes(self) -> bool:
        return not self.labels and all(number_of(name) is None for name in self.names)

    @property
    def allowed(self) -> str:
        if self.labels:
            return "one of " + ", ".join(dict.fromkeys([*dict(self.labels), *self.names]))
        return "one of " + ", ".join(f"{code} ({name})" for code, name in enumerate(self.names))

    def read(self, value: Any) -> int | None:
        """By the task's own mapping, by the name of its class, or, without a mapping, by its number."""
        number = number_of(value)
        whole = number is not None and number.is_integer()
        for text in (str(value).strip(), str(int(number)) if number is not None and whole else ""):
            name = dict(self.labels).get(text, text)
            if name in self.names:
                return self.names.index(name)
        if number is None or not whole or not self.reads_codes:
            return None
        return int(number) if 0 <= number < len(self.names) else None


@dataclass(frozen=True)
class Scores(Kind):
    """One number a row, a regression."""

    answer = "score"
    dtype = np.float64
    metrics = ("spearman", "pearson")
    loss = "mean_squared_error"
    word_loss = "kl_divergence"

    @property
    def output_type(self) -> Literal["float32", "float64"]:
        low, high = self.scale or (0.0, 1.0)
        return number_type(*(self.target_scale or (max(abs(low), abs(high)), high - low)))

    @property
    def allowed(self) -> str:
        return f"a number from {self.scale[0]:.15g} to {self.scale[1]:.15g}" if self.scale else "a number"

    def read(self, value: Any) -> float | None:
        low, high = self.scale or (-math.inf, math.inf)
        number = number_of(value)
        fits = number is not None and low <= number <= high and abs(number) <= np.finfo(np.float32).max
        return number if fits else None

    def sampled_groups(self, labels: Array) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Scores below the middle of the scale, without one below the median, and the others."""
        middle = sum(self.scale) / 2 if self.scale else float(np.median(labels))
        return (labels >= middle).astype(np.int64), (f"scores below {middle:.15g}", f"scores from {middle:.15g} on")

    def word_targets(self, labels: Array) -> Array:
        assert self.scale is not None
        low, high = self.scale
        return ((labels - low) / (high - low)).astype(np.float32)

    def moments(self, labels: Array) -> tuple[float, ...]:
        """Exact sums, and six digits of them (of a mean beside which the spread is small, all): the same on every machine."""
        values = labels.astype(np.float64).tolist()
        mean = math.fsum(values) / len(values)
        spread = float(f"{math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values)):.6g}") or 1.0
        precise = labels.dtype == np.float64 and number_type(mean, spread) == "float64"
        return mean if precise else float(f"{mean:.6g}"), spread

    def narrowed(self, labels: Array) -> Array:
        """As float32, where that tells them apart as well."""
        short = labels.astype(np.float32)
        same = len(np.unique(short)) == len(np.unique(labels))
        return short if same and number_type(labels.mean(), labels.std() or 1.0) == "float32" else labels


@dataclass(frozen=True)
class Spans(Kind):
    """The answer to a question, a span of its context, or that there is none. A label is the gold answers as JSON (`answers.as_label`).

    Predictions: `spans` int32 [m, 2], the characters at which the best answers of each example begin and end, the best first, and `scores`
    [m]; those of example i are `starts[i]:starts[i + 1]`. The text of the best one is `text[text_starts[i]:text_starts[i + 1]]`, UTF-8.
    `null` [n], where there are questions without an answer: the score of none. It is predicted where it exceeds the best score.
    """

    answer = "span"
    dtype = np.bytes_
    metrics = ("answer_f1", "exact_match", "hasans_f1", "hasans_exact", "noans_accuracy", "best_f1")
    loss = "cross_entropy"
    pipeline = "question-answering"
    per_token = True
    label_column = "answers"
    unit = 1
    description = "extractive question answering"

    reading: SpanReading = SQUAD

    @property
    def allowed(self) -> str:
        form = '{"text": ["..."], "answer_start": [0]}'
        return f"{form}, with empty lists where there is no answer" if self.reading.unanswerable else form

    def read(self, value: Any) -> Any:
        answers = answers_of(value)
        return None if answers is None or not (answers or self.reading.unanswerable) else as_label(answers)

    def misplaced(self, texts: Sequence[str], label: Any) -> str:
        for text, start in of_label(label):
            if texts[1][start : start + len(text)] != text:
                at = texts[1].find(text)
                where = f"begins at {at:,}" if at >= 0 else "is not in it"
                return f"the answer '{text[:60]}' does not stand at character {start:,} of its context ({where}); correct it."
        return ""

    def summary(self, labels: Array) -> tuple[float, ...]:
        answered = int(answerable(labels).sum())
        return answered, len(labels) - answered

    def named(self, labels: Array) -> list[Any] | Array:
        if labels.dtype.kind != "S":
            return labels
        return [" | ".join(dict.fromkeys(text for text, _ in of_label(label))) for label in labels.tolist()]

    def targets(self, labels: Array, tokens: Any) -> Array:
        """The first and last token [S, 2] of the first gold answer, counted in the sequence; (0, 0) where it is not inside."""
        windows = zip(labels.tolist(), tokens.offsets[:-1], tokens.offsets[1:], strict=True)
        return np.array([token_span(label, tokens.places[a:b]) for label, a, b in windows], dtype=np.int64)

    def sequences(self, tokens: float, max_length: int) -> float:
        """Windows, as of a short question."""
        shared = min(self.reading.stride, max_length // 2)
        return max(1.0, (tokens - shared) / (max_length - shared))

    def positions(self, offsets: NDArray[np.int64], sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.concatenate([np.arange(offsets[each], offsets[each + 1]) for each in sequences])

    def assemble(self, outputs: NDArray[np.float32], examples: Any) -> Arrays:
        """From `outputs` [T, 2]. The null score is the smallest over the windows of an example of start + end at their first tokens."""
        tokens, starts, longest = examples.tokens, examples.starts, self.reading.answer
        null = np.minimum.reduceat(outputs[tokens.offsets[:-1]].sum(axis=1), starts[:-1])
        spans, scores, counts, texts = [], [], [0], [b""]
        for example, context in enumerate(examples.contexts):
            cuts = [slice(*tokens.offsets[at : at + 2]) for at in range(starts[example], starts[example + 1])]
            best = best_spans([(outputs[cut], tokens.places[cut]) for cut in cuts], longest)
            # some tokenizers have line breaks as tokens of their own
            spans += [(start, start + len(context[start:end].rstrip())) for _, start, end in best]
            scores += [score for score, *_ in best]
            counts.append(len(best))
            texts.append((context[best[0][1] : best[0][2]] if best else "").strip().encode("utf-8", "surrogatepass"))
        found: dict[str, Array] = {
            "spans": np.array(spans, dtype=np.int32).reshape(-1, 2),
            "scores": np.array(scores, dtype=np.float32),
            "starts": np.cumsum(counts, dtype=np.int64),
            "text": np.frombuffer(b"".join(texts), dtype=np.uint8).copy(),
            "text_starts": np.cumsum([*map(len, texts)], dtype=np.int64),
        }
        return found | ({"null": null} if self.reading.unanswerable else {})

    def problem(self, arrays: Arrays, gold: Array) -> str:
        count = len(arrays["starts"]) - 1
        if count != len(gold) or not count:
            return f"are of {count} examples for {len(gold)} labels"
        numbers = [arrays[name] for name in ("scores", "null") if name in arrays]
        return "" if all(np.isfinite(each).all() for each in numbers) else "are not finite"

    def texts(self, arrays: Arrays) -> list[str]:
        """The best answer of each example, whether or not it is predicted."""
        whole, cuts = arrays["text"].tobytes(), arrays["text_starts"].tolist()
        return [whole[a:b].decode("utf-8", "surrogatepass") for a, b in pairwise(cuts)]

    def best(self, arrays: Arrays) -> Array:
        """The score of the best answer of each example, [n]; -inf where the context holds none."""
        scores, starts = np.append(arrays["scores"], -np.inf), arrays["starts"]
        return np.where(np.diff(starts) > 0, scores[starts[:-1]], -np.inf)

    def margins(self, arrays: Arrays) -> Array:
        """By how much the null score exceeds the best answer's, [n]; without null scores -inf."""
        best = self.best(arrays)
        return arrays["null"] - best if "null" in arrays else np.where(np.isfinite(best), -np.inf, np.inf)

    def decoded(self, arrays: Arrays) -> Array:
        """The text of each answer, '' for none."""
        return np.where(self.margins(arrays) <= 0, np.array(self.texts(arrays), dtype=object), "")

    def confidence(self, arrays: Arrays) -> Array:
        """The probability of what is predicted among the best answers and, where there may be none, none; [n]."""
        shares = np.ones(len(arrays["starts"]) - 1)
        for example in np.flatnonzero(np.isfinite(self.best(arrays))):
            scores = arrays["scores"][slice(*arrays["starts"][example : example + 2])].astype(np.float64)
            scores = np.append(scores, arrays["null"][example]) if "null" in arrays else scores
            shares[example] = 1 / np.exp(scores - scores.max()).sum()
        return shares

    def columns(self, predictions: Predictions) -> dict[str, list[Any]]:
        """The answer, the character that it begins at (None without one), and its probability among the best ones."""
        arrays, answers = predictions.arrays, predictions.decoded.tolist()
        ends = np.append(arrays["spans"][:, 1], -1)[arrays["starts"][:-1]].tolist()
        # some tokenizers count the space before a word as the word's
        starts = [end - len(answer) if answer else None for end, answer in zip(ends, answers, strict=True)]
        return {"answer": answers, "answer_start": starts, "probability": self.confidence(arrays).tolist()}

    def mistakes(self, predictions: Predictions) -> tuple[NDArray[np.int64], str, Array]:
        """Those whose answer is not wholly right, by F1 and then by the probability of what is predicted."""
        f1 = answer_f1(predictions.gold, predictions.decoded.tolist())
        order = np.lexsort((-self.confidence(predictions.arrays), f1))
        return order[(f1 < 1)[order]], "f1", f1

    def collapsed(self, predictions: Predictions) -> bool:
        """Whether no question is answered though some have an answer."""
        return not any(predictions.decoded) and bool(answerable(predictions.gold).any())

    def frame(self, predictions: Predictions) -> dict[str, Any]:
        """Gold answers, the predicted one, F1, and the scores of the best answer and of none."""
        arrays, shown = predictions.arrays, super().frame(predictions)
        shown |= {"f1": answer_f1(predictions.gold, predictions.decoded.tolist()), "score": self.best(arrays)}
        return shown | ({"null_score": arrays["null"]} if "null" in arrays else {})


def kind_of(
    classes: tuple[str, ...],
    labels: tuple[tuple[str, str], ...] = (),
    bounds: tuple[float, float] | None = None,
    spans: SpanReading | None = None,
) -> Kind:
    """The kind of a task: without classes and spans it is a regression."""
    if spans:
        return Spans(reading=spans)
    return Classes(classes, labels=labels) if classes else Scores(scale=bounds)


def kind_of_outputs(outputs: int, names: tuple[str, ...] = (), bounds: tuple[float, ...] = ()) -> Kind:
    """The kind of a head: classes of which the names are not known are named by their codes."""
    scale = (bounds[0], bounds[1]) if bounds else None
    return Scores(scale=scale) if outputs == 1 else Classes(names or tuple(map(str, range(outputs))))


def number_of(value: Any) -> float | None:
    """A finite number, given as such or as text; None for anything else."""
    if not isinstance(value, (bool, int, float, str)):
        return None
    if isinstance(value, str) and "_" in value:  # Python would read 1_0 as 10
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


@dataclass(frozen=True)
class Predictions:
    """What is predicted of n examples, in the row set's canonical order. `arrays`: named by the kind, of classes and scores `logits`
    float32 [n, outputs], see `Spans` for its own; `gold` [n]: the labels."""

    arrays: Arrays
    gold: Array

    @property
    def kind(self) -> Kind:
        """As the arrays tell it: classes are named by their codes."""
        if "logits" not in self.arrays:
            return Spans(reading=SpanReading(unanswerable="null" in self.arrays))
        return kind_of_outputs(self.logits.shape[-1])

    @property
    def logits(self) -> Array:
        return self.arrays["logits"]

    @property
    def decoded(self) -> Array:
        return self.kind.decoded(self.arrays)

    @property
    def problem(self) -> str:
        return self.kind.problem(self.arrays, self.gold)

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Of each class, [n, C]."""
        logits = self.logits.astype(np.float64)
        shares: NDArray[np.float64] = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        return shares

    @property
    def histogram(self) -> list[int]:
        """How many examples each class is predicted for; empty for scores."""
        return [*self.kind.counts(self.decoded).values()]

    @property
    def collapsed(self) -> bool:
        return self.kind.collapsed(self)

    def difference(self, other: Predictions) -> float:
        """The largest difference of two numbers in the same place; 0 where both are bit-identical, infinite where they are not as many."""
        pairs = [(array, other.arrays[name]) for name, array in self.arrays.items()]
        same = all(one.shape == two.shape for one, two in pairs)
        return max(float(np.abs(one - two).max(initial=0)) for one, two in pairs) if same else math.inf
