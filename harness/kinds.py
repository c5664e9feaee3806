"""What a task's answer is, one class or one score a row: how labels are read, stratified, counted and named, and how a model's outputs
become predictions. No torch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Kind(ABC):
    """`names`: the classes in the order of their codes, none for scores. Labels are arrays [n] of `dtype`."""

    answer: ClassVar[Literal["class", "score"]]
    dtype: ClassVar[type]
    metrics: ClassVar[tuple[str, ...]]
    """Of a user's task that names none; the first selects checkpoints."""
    loss: ClassVar[Literal["cross_entropy", "mean_squared_error"]]
    """What a head without further terms minimises."""

    names: tuple[str, ...] = ()

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Outputs of the head for a sequence."""

    @property
    @abstractmethod
    def description(self) -> str:
        """In a word or two, for people."""

    @property
    @abstractmethod
    def allowed(self) -> str:
        """What a label should be, for errors."""

    @abstractmethod
    def read(self, value: Any) -> float | None:
        """The label that a value of a file means; None for what is none of the task."""

    @abstractmethod
    def strata(self, labels: Array) -> NDArray[np.int64]:
        """The stratum of each row, [n]: samplers and splits keep the shares of the strata."""

    @abstractmethod
    def summary(self, labels: Array) -> tuple[float, ...]:
        """The rows of each class, or the lowest and the highest score."""

    @abstractmethod
    def named(self, labels: Array) -> list[Any] | Array:
        """Labels or decoded predictions [n] as people read them."""

    @abstractmethod
    def decoded(self, arrays: Arrays) -> Array:
        """What is predicted of each example, [n], as labels are."""

    @abstractmethod
    def columns(self, predictions: Predictions) -> dict[str, list[Any]]:
        """What a file of predictions gets, by column."""

    @abstractmethod
    def mistakes(self, predictions: Predictions) -> tuple[NDArray[np.int64], str, Array]:
        """Which examples to look at, the worst mistake first [m]; and the measure that orders them: its name and values [n]."""

    def sizes(self, labels: Array) -> list[int]:
        """Rows of each stratum."""
        sizes: list[int] = np.bincount(self.strata(labels), minlength=max(1, len(self.names))).tolist()
        return sizes

    def sampled_groups(self, labels: Array) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """The group of each row, [n], and the names of the groups, of which K-shot samples take as many rows each: the strata."""
        return self.strata(labels), self.names or ("the task",)

    def counts(self, labels: Array) -> dict[str, int]:
        """Rows of each class by name; empty for scores."""
        return dict(zip(self.names, self.sizes(labels), strict=False))

    def assemble(self, outputs: NDArray[np.float32], starts: NDArray[np.int64] | None) -> Arrays:
        """The arrays of predictions from a head's `outputs` [S, C] for all sequences: of an example of several sequences the mean.
        `starts` [n + 1]: where each example's sequences start; None where each has one."""
        if starts is None:
            return {"logits": outputs}
        counts = np.diff(starts).astype(np.float32)
        return {"logits": np.add.reduceat(outputs, starts[:-1], axis=0) / counts[:, None]}

    def problem(self, arrays: Arrays, gold: Array) -> str:
        """Why predictions have no score, after 'they'; '' where they have one."""
        logits = arrays["logits"]
        if logits.ndim != 2 or gold.shape != logits.shape[:1] or not len(gold):
            return f"have logits {logits.shape} for labels {gold.shape}, and should have [n, c] for [n], n > 0"
        return "" if np.isfinite(logits).all() else "are not finite"

    def frame(self, predictions: Predictions) -> dict[str, Any]:
        """Gold and predicted label of each example as people read them, and the logit of each class, by column."""
        shown: dict[str, Any] = {"gold": self.named(predictions.gold), "predicted": self.named(predictions.decoded)}
        return shown | {f"logit.{name}": predictions.logits[:, code] for code, name in enumerate(self.names)}


@dataclass(frozen=True)
class Classes(Kind):
    """One of several classes a row: a label is the class's code. `labels`: (value in a file, name of its class) pairs."""

    answer = "class"
    dtype = np.int64
    metrics = ("accuracy", "f1_macro", "f1_weighted", "f1_micro", "mcc")
    loss = "cross_entropy"

    labels: tuple[tuple[str, str], ...] = ()

    @property
    def outputs(self) -> int:
        return len(self.names)

    @property
    def description(self) -> str:
        return f"{len(self.names)} classes"

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
        if number is None or not whole or self.labels or any(number_of(name) is not None for name in self.names):
            return None
        return int(number) if 0 <= number < len(self.names) else None

    def strata(self, labels: Array) -> NDArray[np.int64]:
        return labels.astype(np.int64)

    def summary(self, labels: Array) -> tuple[float, ...]:
        return tuple(self.sizes(labels))

    def named(self, labels: Array) -> list[Any] | Array:
        return [self.names[code] for code in labels]

    def decoded(self, arrays: Arrays) -> Array:
        """The code of the largest logit; ties: the lowest code."""
        codes: Array = arrays["logits"].argmax(axis=1)
        return codes

    def columns(self, predictions: Predictions) -> dict[str, list[Any]]:
        shares = {f"probability.{name}": predictions.probabilities[:, code] for code, name in enumerate(self.names)}
        return {"predicted": [*self.named(predictions.decoded)]} | {
            name: share.tolist() for name, share in shares.items()
        }

    def mistakes(self, predictions: Predictions) -> tuple[NDArray[np.int64], str, Array]:
        """Those with another class than their own, by the probability of the predicted one."""
        confidence = predictions.probabilities.max(axis=1)
        order = np.argsort(-confidence, kind="stable")
        return order[(predictions.gold != predictions.decoded)[order]], "confidence", confidence


@dataclass(frozen=True)
class Scores(Kind):
    """One number a row, a regression. `bounds`: the lowest and the highest, where it has any."""

    answer = "score"
    dtype = np.float32
    metrics = ("spearman", "pearson")
    loss = "mean_squared_error"

    bounds: tuple[float, float] | None = None

    @property
    def outputs(self) -> int:
        return 1

    @property
    def description(self) -> str:
        return "regression"

    @property
    def allowed(self) -> str:
        return f"a number from {self.bounds[0]:g} to {self.bounds[1]:g}" if self.bounds else "a number"

    def read(self, value: Any) -> float | None:
        low, high = self.bounds or (-math.inf, math.inf)
        number = number_of(value)
        fits = number is not None and low <= number <= high and abs(number) <= np.finfo(np.float32).max
        return number if fits else None

    def strata(self, labels: Array) -> NDArray[np.int64]:
        """All rows are one stratum: draws are uniform."""
        return np.zeros(len(labels), dtype=np.int64)

    def sampled_groups(self, labels: Array) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Scores below the middle of the bounds, without bounds below the median, and the others."""
        middle = sum(self.bounds) / 2 if self.bounds else float(np.median(labels))
        return (labels >= middle).astype(np.int64), (f"scores below {middle:g}", f"scores from {middle:g} on")

    def summary(self, labels: Array) -> tuple[float, ...]:
        return float(labels.min()), float(labels.max())

    def named(self, labels: Array) -> list[Any] | Array:
        return labels

    def decoded(self, arrays: Arrays) -> Array:
        return arrays["logits"][:, 0]

    def columns(self, predictions: Predictions) -> dict[str, list[Any]]:
        return {"predicted": predictions.decoded.tolist()}

    def mistakes(self, predictions: Predictions) -> tuple[NDArray[np.int64], str, Array]:
        """All examples, by how far the prediction is off."""
        difference = np.abs(predictions.decoded - predictions.gold)
        return np.argsort(-difference, kind="stable"), "difference", difference


def kind_of(
    classes: tuple[str, ...], labels: tuple[tuple[str, str], ...] = (), bounds: tuple[float, float] | None = None
) -> Kind:
    """The kind of a task: without classes it is a regression."""
    return Classes(classes, labels) if classes else Scores(bounds=bounds)


def kind_of_outputs(outputs: int, names: tuple[str, ...] = ()) -> Kind:
    """The kind of a head: classes of which the names are not known are named by their codes."""
    return Scores() if outputs == 1 else Classes(names or tuple(map(str, range(outputs))))


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
    float32 [n, outputs]; `gold` [n]: the labels."""

    arrays: Arrays
    gold: Array

    @property
    def kind(self) -> Kind:
        """As the arrays tell it: classes are named by their codes."""
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
        """Whether one class is predicted for every example."""
        return int(np.count_nonzero(self.histogram)) == 1

    def difference(self, other: Predictions) -> float:
        """The largest difference of two numbers in the same place; 0 where both are bit-identical."""
        return max(float(np.abs(array - other.arrays[name]).max()) for name, array in self.arrays.items())
