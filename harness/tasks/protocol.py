"""What a protocol is: which rows of a task are trained on, selected on and tested on.

Every choice is by smallest hash of row content under a named scope, so it is the same wherever the files come from and in
whatever order, and any subset can be had without the ones before it.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from harness.errors import UserError
from harness.tasks.rows import Rows, Scope, scoped
from harness.tasks.samplers import Sampler, smallest
from harness.tasks.sources import TextSource
from harness.tasks.task import OWN_TEST, Task

T = TypeVar("T")
_kept: weakref.WeakKeyDictionary[TextSource, dict[Hashable, Any]] = weakref.WeakKeyDictionary()


def once(source: TextSource, key: Hashable, make: Callable[[], T]) -> T:
    """`make()`, kept under `key` as long as the source lives."""
    kept = _kept.setdefault(source, {})
    if key not in kept:
        kept[key] = make()
    found: T = kept[key]
    return found


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

    @property
    def open_points(self) -> tuple[Choice, ...]:
        """What its paper leaves open, and what it decides there."""
        return ()

    @property
    def redraws(self) -> bool:
        """Whether the full training set differs between subsets, because each subset has a dev set of its own."""
        return False

    @property
    def scores_dev(self) -> bool:
        """Whether dev is also what is scored."""
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
            for choice in self.open_points
            if (sampled or not choice.sampled) and (not choice.tasks or set(choice.tasks) & set(tasks))
        )

    def evaluation_sets(self, task: Task, source: TextSource) -> EvaluationSets:
        """Dev and test rows of a task, in canonical order, without a text on both sides; kept with the source.

        Raises NotAtHand or UserError as `source.load` does, and UserError when there are too few rows to split.
        """
        return once(source, ("evaluation sets", self, task), lambda: self._split(task, source))

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

    def _drawn(self, task: Task, source: TextSource, size: int, subset: int, sampler: Sampler, fewer: str) -> Rows:
        """A training set drawn from all training rows by `sampler`, under the scope (task, its version, protocol, its version, size,
        subset); `fewer` is the fix that an error for too few rows gives. Errors as of `training_set`."""
        if size < 0 or subset < 0:
            raise UserError(f"task {task.name}: size {size}, subset {subset}: both are counted from 0 up.")
        rows = source.load(task, task.train)
        if size == 0:
            return rows
        scope: Scope = [task.name, task.version, self.name, self.version, size, subset]
        drawn = sampler(task, rows, size, scope, fewer)
        return drawn.named(f"{task.name}/n{size}/subset{subset}")

    def texts(self, task: Task, source: TextSource, size: int, subset: int, num_texts: int) -> Rows:
        """The texts of a training set and further ones of the training rows, `num_texts` in all, without labels and in canonical
        order. Larger numbers hold the texts of smaller ones.

        Raises UserError, naming task and counts, for fewer texts than the training set has, and for more than there are.
        """
        labelled, pool = (self.training_set(task, source, each, subset) for each in (size, 0))
        if not len(labelled) <= num_texts <= len(pool):
            raise UserError(
                f"task {task.name}: {num_texts:,} unlabelled texts are requested for {len(labelled):,} training examples of "
                f"{len(pool):,}; give a number between them."
            )
        others = pool.take(~np.isin(pool.ids, labelled.ids))
        scope: Scope = [task.name, task.version, self.name, self.version, "texts", subset]
        more = others.take(smallest(scoped(others.ids, scope), num_texts - len(labelled)))
        return Rows((*labelled.texts, *more.texts)).unlabelled()


def shortfalls(task: Task, source: TextSource, splits: Iterable[str]) -> list[str]:
    """A note for each source split that has not the published number of rows."""
    notes = []
    for split in dict.fromkeys(splits):
        official, rows = task.official_rows(split), len(source.load(task, split))
        if official not in (None, rows):
            notes.append(f"{split} has {rows:,} of {official:,} rows")
    return notes


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
