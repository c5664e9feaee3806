"""What a protocol is: which rows of a task are trained on, selected on and tested on.

Every choice is by smallest hash of row content under a named scope, so it is the same wherever the files come from and in
whatever order, and any subset can be had without the ones before it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.tasks.rows import Rows, Scope, scoped
from harness.tasks.sources import TextSource
from harness.tasks.task import OWN_TEST, Task

DRAWS = 1000
"""Draws of one subset before a class is called too rare."""


@dataclass(frozen=True, eq=False)
class EvaluationSets:
    """`dev` for selection, `tests` by evaluation name (after selection only).

    `dev` of a protocol that draws it with each training set: that of the full training set of subset 0.
    `comparable`: whether these are the published sets by size and origin; `note` says in a sentence or two what differs, or
    is empty, as it is for a task that the paper does not use. `origin` says which of the source's rows they are, as 'dev 72 and
    test 28 of the 100 rows of validation'.
    """

    dev: Rows
    tests: Mapping[str, Rows]
    comparable: bool
    note: str
    origin: str = ""


@dataclass(frozen=True)
class Choice:
    """What a paper leaves open and its protocol decides, for captions.

    `tasks`: those that it concerns (empty: all); `sampled`: it concerns drawn training sets only.
    """

    text: str
    tasks: tuple[str, ...] = ()
    sampled: bool = False


@dataclass(frozen=True)
class Protocol(ABC):
    """A published way to split. `version` is bumped by hand when the same source gives other rows."""

    name: str
    version: int

    CHOICES: ClassVar[tuple[Choice, ...]] = ()

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

    def choices(self, tasks: Collection[str], sampled: bool) -> tuple[str, ...]:
        """What this protocol decides where its paper is silent, for these tasks."""
        return tuple(
            choice.text
            for choice in self.CHOICES
            if (sampled or not choice.sampled) and (not choice.tasks or set(choice.tasks) & set(tasks))
        )

    @abstractmethod
    def evaluation_sets(self, task: Task, source: TextSource) -> EvaluationSets:
        """Dev and test rows of a task, in canonical order, without a text on both sides.

        Raises NotAtHand or UserError as `source.load` does, and UserError when there are too few rows to split.
        """

    def dev_set(self, task: Task, source: TextSource, size: int, subset: int) -> Rows:
        """What runs on a training set select on, in canonical order: the same rows for all, unless `redraws`."""
        return self.evaluation_sets(task, source).dev

    @abstractmethod
    def training_set(self, task: Task, source: TextSource, size: int, subset: int) -> Rows:
        """The labelled training rows of subset `subset` (from 0) with `size` rows, in canonical order; size 0: all rows.

        Raises UserError, naming task and counts, when there are fewer rows than `size`, or a class cannot be in a subset.
        """


def own_tests(task: Task, source: TextSource) -> dict[str, str]:
    """Source split of each evaluation of a user's task: the file 'test' where there is one and the task names no other."""
    tests = dict(task.tests)
    unnamed = not task.names_test and tests.get(OWN_TEST) == task.dev and OWN_TEST not in (task.train, task.dev)
    return {OWN_TEST: OWN_TEST} if unnamed and source.has(task, OWN_TEST) else tests


def own_test_rows(task: Task, split: str, source: TextSource) -> Rows:
    """A user's test set. An error in a file that the task does not name also says why the file is read."""
    try:
        return source.load(task, split)
    except UserError as error:
        if split in dict(task.tests).values():
            raise
        fix = "name another in its YAML" if task.data else "rename the file"
        raise UserError(f"{str(error).rstrip('.')}, or {fix}: by its name it is the test set.") from None


def origin_of(sets: Mapping[str, Rows], splits: Mapping[str, str], task: Task, source: TextSource) -> str:
    """See `EvaluationSets`: the sets of each source split, with its number of rows."""
    found = []
    for split in dict.fromkeys(splits.values()):
        here = {role: len(rows) for role, rows in sets.items() if splits[role] == split}
        total = len(source.load(task, split))
        if list(here.values()) == [total]:
            found.append(f"{next(iter(here))} all {total:,} rows of {split}")
        else:
            named = " and ".join(f"{role} {count:,}" for role, count in here.items())
            found.append(f"{named} of the {total:,} rows of {split}")
    return "; ".join(found)


def smallest(hashes: NDArray[np.uint64], count: int) -> NDArray[np.int64]:
    """Indices [count] of the smallest hashes, in the order of `hashes` [n]."""
    if count >= len(hashes):
        return np.arange(len(hashes))
    return np.sort(np.argpartition(hashes, count)[:count])


def draw(task: Task, rows: Rows, size: int, scope: Scope, fewer: str) -> Rows:
    """`size` of the rows, each class among them, in canonical order: those with the smallest hash under the scope and a salt, which
    starts at 0 and grows until every class is in.

    Raises UserError, naming task and counts, where there are not as many rows (`fewer` says what to do then), or a class cannot be
    in.
    """
    if size > len(rows):
        raise UserError(
            f"task {task.name}: {size:,} training examples are requested and there are {len(rows):,}; {fewer}."
        )
    if size < len(task.classes):
        raise UserError(
            f"task {task.name}: {size} training examples cannot hold its {len(task.classes)} classes; ask for more."
        )
    counts = require_classes(task, rows)
    for salt in range(DRAWS):
        drawn = smallest(scoped(rows.ids, [*scope, salt]), size)
        if task.regression or np.bincount(rows.gold[drawn], minlength=len(task.classes)).all():
            return rows.take(drawn).sorted()
    rare = int(np.argmin(counts))
    raise UserError(
        f"task {task.name}: class {rare} ({task.classes[rare]}) has {counts[rare]} of {len(rows):,} training examples and "
        f"is in none of {DRAWS:,} draws of {size}; ask for more examples a subset."
    )


def require_classes(task: Task, rows: Rows) -> list[int]:
    """Training examples of each class. Raises UserError where a class has none."""
    counts: list[int] = [] if task.regression else np.bincount(rows.gold, minlength=len(task.classes)).tolist()
    for code, name in enumerate(task.classes):
        if not counts[code]:
            raise UserError(f"task {task.name}: no training example has the class {code} ({name}); add examples of it.")
    return counts
