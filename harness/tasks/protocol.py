"""What a protocol is: which rows of a task are trained on, selected on and tested on; and the samplers of training rows.

Every choice is by smallest hash of row content under a named scope, so it is the same wherever the files come from and in
whatever order, and any subset can be had without the ones before it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.tasks.rows import Rows, Scope, scoped
from harness.tasks.sources import TextSource
from harness.tasks.task import OWN_TEST, Task


@dataclass(frozen=True, eq=False)
class EvaluationSets:
    """`dev` for selection, `tests` by evaluation name (after selection only).

    `dev` of a protocol that draws it with each training set: that of the full training set of subset 0.
    `origin` says which of the source's rows they are, as 'dev 72 and test 28 of the 100 rows of validation'; `note` in a sentence or two
    by what they differ from the published sets in size and origin. `rare`: which classes of a user's task have very few rows in a set.
    """

    dev: Rows
    tests: Mapping[str, Rows]
    origin: str
    note: str = ""
    rare: str = ""


@dataclass(frozen=True)
class Protocol(ABC):
    """A published way to split. `version` is bumped by hand when the same source gives other rows."""

    name: str
    version: int
    decisions: tuple[str, ...] = ()
    """Rows of docs/papers.md: what its paper leaves open, and what it decides there."""

    scores_dev: ClassVar[bool] = False
    """Whether dev is also what is scored."""

    size_unit: ClassVar[str] = "training examples"
    """What a size counts, for headings and captions."""

    @property
    def redraws(self) -> bool:
        """Whether the full training set differs between subsets, because each subset has a dev set of its own."""
        return False

    @property
    def num_subsets(self) -> int | None:
        """How many subsets there are, where the protocol says it."""
        return None

    def sizes(self, task: Task, source: TextSource) -> tuple[int, ...]:
        """The sizes of a table that names none. Raises as `training_set` does."""
        return (0,)

    def num_rows(self, task: Task, size: int) -> int:
        """The labelled rows of a training set of a size from 1 on."""
        return size

    def training_seed(self, subset: int, seed: int) -> int:
        """The seed of everything random in a run on a subset, under one of its table's seeds."""
        return seed

    def evaluation_sets(self, task: Task, source: TextSource) -> EvaluationSets:
        """Dev and test rows of a task, in canonical order, without a text on both sides; kept with the source.

        Raises NotAtHand or UserError as `source.load` does, and UserError when there are too few rows to split.
        """
        return source.once(("evaluation sets", self, task), lambda: self._split(task, source))

    @abstractmethod
    def _split(self, task: Task, source: TextSource) -> EvaluationSets:
        """See `evaluation_sets`."""

    def dev_set(self, task: Task, source: TextSource, size: int, subset: int) -> Rows:
        """What runs on a training set select on, in canonical order: the same rows for all, unless `redraws`."""
        return self.evaluation_sets(task, source).dev

    @abstractmethod
    def training_set(self, task: Task, source: TextSource, size: int, subset: int) -> Rows:
        """The labelled training rows of subset `subset` (from 0) with `size` rows, in canonical order; size 0: all rows.

        Raises UserError, naming task and counts, when there are fewer rows than `size`, or a class cannot be in a subset.
        """

    def text_pool(self, task: Task, source: TextSource, size: int, subset: int) -> Rows:
        """The rows of which a training set can have further texts, its own among them."""
        return self.training_set(task, source, 0, subset)

    def texts(self, task: Task, source: TextSource, size: int, subset: int, num_texts: int) -> Rows:
        """The texts of a training set and further ones of the training rows, `num_texts` in all, without labels and in canonical
        order. Larger numbers hold the texts of smaller ones.

        Raises UserError, naming task and counts, for fewer texts than the training set has, and for more than there are.
        """
        labelled, pool = self.training_set(task, source, size, subset), self.text_pool(task, source, size, subset)
        if not len(labelled) <= num_texts <= len(pool):
            raise UserError(
                f"task {task.name}: {num_texts:,} unlabelled texts are requested for {len(labelled):,} training examples of "
                f"{len(pool):,}; give a number between them."
            )
        others = pool.take(~np.isin(pool.ids, labelled.ids))
        scope: Scope = [task.name, task.version, self.name, self.version, "texts", subset]
        more = others.take(smallest(scoped(others.ids, scope), num_texts - len(labelled)))
        return Rows((*labelled.texts, *more.texts)).unlabelled()


def evaluation_splits(task: Task, source: TextSource) -> dict[str, str]:
    """Source split of each evaluation of a task: of a user's the file 'test' where there is one and the task names no other."""
    tests = task.tests
    unnamed = task.own and not task.splits.test and tests.get(OWN_TEST) == task.splits.validation
    is_test = unnamed and OWN_TEST not in (task.splits.train, task.splits.validation) and source.has(task, OWN_TEST)
    return {OWN_TEST: OWN_TEST} if is_test else tests


# ----------------------------------------------------------------------------------------------------------- samplers

DRAWS = 1000
"""Draws of one subset before a class is called too rare."""


def smallest(hashes: NDArray[np.uint64], count: int) -> NDArray[np.int64]:
    """Indices [count] of the smallest hashes, in the order of `hashes` [n]."""
    if count >= len(hashes):
        return np.arange(len(hashes))
    return np.sort(np.argpartition(hashes, count)[:count])


def draw(task: Task, rows: Rows, size: int, scope: Scope) -> Rows:
    """`size` of the rows, each class among them, in canonical order: those with the smallest hash under the scope and a salt, which
    starts at 0 and grows until every class is in.

    Raises UserError, naming task and counts, where there are not as many rows, or a class cannot be in.
    """
    counts = _require(task, rows, size)
    for salt in range(DRAWS):
        drawn = smallest(scoped(rows.ids, [*scope, salt]), size)
        if all(task.kind.sizes(rows.gold[drawn])):
            return rows.take(drawn).sorted()
    raise _too_few(
        task, int(np.argmin(counts)), counts, f"and is in none of {DRAWS:,} draws of {size}; give larger --sizes"
    )


def require_classes(task: Task, rows: Rows) -> list[int]:
    """Training examples of each stratum. Raises UserError where a class has none."""
    counts = task.kind.sizes(rows.gold)
    for code, name in enumerate(task.classes):
        if not counts[code]:
            raise UserError(f"task {task.name}: no training example has the class {code} ({name}); add examples of it.")
    return counts


def draw_stratified(task: Task, rows: Rows, size: int, scope: Scope) -> Rows:
    """`size` of the rows in canonical order, each class with its share of them to within one row; of a regression any rows.

    Raises UserError as `draw` does.
    """
    counts = _require(task, rows, size)
    hashes = scoped(rows.ids, scope)
    shares = quotas(counts, size)
    if 0 in shares:
        raise _too_few(task, shares.index(0), counts, f"and its share of {size} is none; give larger --sizes")
    return rows.take(of_classes(hashes, task.kind.strata(rows.gold), shares)).sorted()


def draw_per_class(task: Task, rows: Rows, size: int, scope: Scope) -> Rows:
    """`size` of the rows in canonical order, as many of each class.

    Raises UserError as `draw` does, and for a regression, for a size that the classes do not divide, and for a class with too few
    rows.
    """
    if not task.classes:
        raise without_classes(task)
    counts = _require(task, rows, size)
    each, rest = divmod(size, len(counts))
    if rest:
        raise UserError(
            f"task {task.name}: {size} training examples are not the same number of each of its {len(counts)} classes; give a "
            f"multiple of {len(counts)}."
        )
    if min(counts) < each:
        fix = f"give sizes up to {min(counts) * len(counts)}"
        raise _too_few(task, int(np.argmin(counts)), counts, f"and {each} of each class are requested; {fix}")
    return rows.take(of_classes(scoped(rows.ids, scope), rows.gold, [each] * len(counts))).sorted()


SAMPLERS = {"uniform": draw, "stratified": draw_stratified, "per_class": draw_per_class}
"""What a protocol's `sampler` names."""


def quotas(counts: list[int], size: int, available: list[int] | None = None) -> list[int]:
    """`size` rows over classes with `counts` rows, each its share to within one row (largest remainders; of equal ones the lower
    code first). `available`: at most so many of each (left out: `counts`); what a class lacks, classes with more rows give.

    `size` is at most the sum of `available`.
    """
    total, most = sum(counts), counts if available is None else available
    found = [min(count * size // total, limit) for count, limit in zip(counts, most, strict=True)]
    order = sorted(range(len(counts)), key=lambda code: (-(counts[code] * size % total), code))
    while sum(found) < size:
        for code in order:
            if found[code] < most[code] and sum(found) < size:
                found[code] += 1
    return found


def of_classes(hashes: NDArray[np.uint64], codes: NDArray[np.int64], shares: list[int]) -> NDArray[np.int64]:
    """Indices of the rows with the smallest `hashes` [n], `shares` of each class of `codes` [n]."""
    found = []
    for code, share in enumerate(shares):
        members = np.flatnonzero(codes == code)
        found.append(members[smallest(hashes[members], share)])
    return np.sort(np.concatenate(found))


def _require(task: Task, rows: Rows, size: int) -> list[int]:
    """Training examples of each class. Raises UserError where there are fewer rows or more classes than `size`, or a class has no
    row."""
    if size > len(rows):
        raise UserError(
            f"task {task.name}: {size:,} training examples are requested and there are {len(rows):,}; give smaller --sizes, or "
            "0 for all of them."
        )
    if size < len(task.classes):
        raise UserError(
            f"task {task.name}: {size} training examples cannot hold its {len(task.classes)} classes; ask for more."
        )
    return require_classes(task, rows)


def _too_few(task: Task, code: int, counts: list[int], what: str) -> UserError:
    return UserError(
        f"task {task.name}: class {code} ({task.classes[code]}) has {counts[code]} of {sum(counts):,} training examples, {what}."
    )


def without_classes(task: Task) -> UserError:
    return UserError(
        f"task {task.name}: {task.kind.description} has no classes to draw the same number of; take another protocol."
    )
