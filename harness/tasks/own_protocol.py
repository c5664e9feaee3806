"""Protocols for a user's own data: labelled rows in one file, or with a test or dev set of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.tasks.overlap import normal_ids
from harness.tasks.protocol import (
    EvaluationSets,
    Protocol,
    once,
    own_test_rows,
    own_tests,
)
from harness.tasks.rows import Rows, Scope, mix, scoped
from harness.tasks.samplers import draw, require_classes
from harness.tasks.sources import WHOLE, TextSource
from harness.tasks.task import Task
from harness.tasks.text_buffer import Ids
from harness.tasks.unlabelled import without


@dataclass(frozen=True, eq=False)
class _Parts:
    """What is cut once: the labelled `pool` to train on (and to draw dev from, where `dev` is None), dev, and the tests. `cut`: which
    rows they are, and `repeated`: which say again what another says, in words."""

    pool: Rows
    dev: Rows | None
    tests: Mapping[str, Rows]
    cut: tuple[str, ...]
    repeated: tuple[str, ...]


@dataclass(frozen=True)
class OwnProtocol(Protocol):
    """Splits of a user's own data. Scopes hold no name of a task or file: the same rows give the same sets and keys.

    * Test: the task's test set where it has one (a file, or a split 'test'; a task that is not the user's: its evaluation sets), else
      the quarter of the labelled rows whose normalised text has the lowest hash, at most 5,000 rows.
    * Dev: the task's validation set where it has one, else by `dev`
        'once': the fifth of the other rows with the lowest hash, at most 1,000 rows;
        'redrawn': such a fifth for each subset, under the subset's own scope, so that full training sets differ as well;
        'as large as training': for each subset, as many rows as it trains on (of the full set half of the rows);
        'folds': subset k of `folds` holds fold k of its labelled rows out and trains on the others. A size counts both here, and
        the rows of a size are the same in all folds.
    * Training: the other labelled rows. Subset k of size N: the N rows with the smallest hash of (N, k, salt) and row; the salt
      grows until every class is in.

    Rows with one normalised text stay on one side. Where the user gives a test or dev set, labelled rows with a text of it are left
    out of training, and dev rows with a text of test out of dev.
    """

    dev: Literal["once", "redrawn", "as large as training", "folds"] = "once"
    folds: int = 5

    TEST_SHARE: ClassVar[float] = 0.25
    MOST_TEST: ClassVar[int] = 5000
    DEV_SHARE: ClassVar[float] = 0.2
    MOST_DEV: ClassVar[int] = 1000

    @property
    def redraws(self) -> bool:
        return self.dev != "once"

    @property
    def num_subsets(self) -> int | None:
        return self.folds if self.dev == "folds" else None

    def sizes(self, task: Task, source: TextSource) -> tuple[int, ...]:
        """Two points of a learning curve, then all rows: the largest of 10, 20, 50, 100, ... up to half of the rows, and up to a quarter
        of that, where they hold each class twice."""
        most = len(self.training_set(task, source, 0, 0))
        if self.dev == "folds":
            most = len(self._parts(task, source).pool)
        large = _round_below(most // 2)
        found = [_round_below(large // 4), large]
        return (*(size for size in found if size >= 2 * max(1, len(task.classes))), 0)

    def _split(self, task: Task, source: TextSource) -> EvaluationSets:
        """See `Protocol`."""
        parts, dev = self._parts(task, source), self.dev_set(task, source, 0, 0)
        training = self.training_set(task, source, 0, 0)
        lines = [*parts.cut, self._dev_words(parts, dev, training), *parts.repeated]
        return EvaluationSets(dev, parts.tests, False, "", "; ".join(lines))

    def dev_set(self, task: Task, source: TextSource, size: int, subset: int) -> Rows:
        """See `Protocol`."""
        parts = self._parts(task, source)
        if parts.dev is not None:
            return parts.dev
        held_out, pool = self._held_out(task, parts.pool, size, subset), parts.pool
        if self.dev == "folds":
            pool = self._budget(task, parts.pool, size)
        if not held_out.any():
            raise UserError(
                f"task {task.name}: of {len(pool):,} labelled rows none is left for dev; give more rows, or a dev set of your own."
            )
        return pool.take(held_out).sorted().named(f"{task.name}/dev")

    def training_set(self, task: Task, source: TextSource, size: int, subset: int) -> Rows:
        """See `Protocol`."""
        if size < 0 or subset < 0 or (self.num_subsets and subset >= self.num_subsets):
            raise UserError(
                f"task {task.name}: size {size}, subset {subset}: both are counted from 0 up"
                + (f", and there are {self.num_subsets} subsets." if self.num_subsets else ".")
            )
        parts, name = self._parts(task, source), f"{task.name}/{f'n{size}' if size else 'full'}/subset{subset}"
        rows = self._budget(task, parts.pool, size) if self.dev == "folds" else parts.pool
        if parts.dev is None:
            rows = rows.take(~self._held_out(task, parts.pool, size, subset))
        if self.dev == "folds" or not size:
            require_classes(task, rows)
            return rows.sorted().named(name)
        return draw(task, rows, size, self._scope("train", size, subset), _FEWER).named(name)

    def _scope(self, *what: str | int) -> Scope:
        return ["own", self.version, *what]

    def _budget(self, task: Task, pool: Rows, size: int) -> Rows:
        """The labelled rows of one size that the folds divide."""
        return draw(task, pool, size, self._scope("labelled", size), _FEWER) if size else pool

    def _held_out(self, task: Task, pool: Rows, size: int, subset: int) -> NDArray[np.bool_]:
        """Which rows of the pool (of the budget, for folds) are the dev rows of a subset."""
        if self.dev == "folds":
            rows = self._budget(task, pool, size)
            folds = _folds(scoped(normal_ids(rows)[:, 0], self._scope("folds", size)), self.folds)
            return np.equal(folds, subset)
        ids = scoped(normal_ids(pool)[:, 0], self._scope("dev", subset))
        if self.dev == "redrawn":
            return _lowest_share(ids, self.DEV_SHARE, self.MOST_DEV)
        if 2 * size > len(pool):
            raise UserError(
                f"task {task.name}: {size:,} training and as many dev examples are requested, and there are {len(pool):,} labelled "
                f"rows beside test; give sizes up to {len(pool) // 2:,}."
            )
        return _lowest(ids, size or len(pool) // 2)

    def _parts(self, task: Task, source: TextSource) -> _Parts:
        return once(source, (self, task), lambda: self._cut(task, source))

    def _cut(self, task: Task, source: TextSource) -> _Parts:
        whole = source.has(task, WHOLE)
        pool = source.load(task, WHOLE if whole else task.train)
        labelled = f"{len(pool):,} labelled rows"
        tests, words, repeated = self._given_tests(task, source), [], tuple(_repeated(pool))
        if not tests:
            held_out = _lowest_share(
                scoped(normal_ids(pool)[:, 0], self._scope("test")), self.TEST_SHARE, self.MOST_TEST
            )
            if not held_out.any() or held_out.all():
                raise UserError(
                    f"task {task.name}: of {len(pool):,} labelled rows {held_out.sum()} are drawn for test; give more rows, or a test "
                    "set of your own."
                )
            tests = {"test": pool.take(held_out)}
            pool = pool.take(~held_out)
            words.append(f"test {len(tests['test']):,} of the {labelled}, drawn once by their text")
        else:
            words += [f"{name} all {len(rows):,} rows of {_place(task, name)}" for name, rows in tests.items()]
            words.append(labelled)
        dev = None
        if task.own and (task.dev in dict(task.files) or (not whole and self._has_dev(task, source))):
            if self.dev != "once":
                raise UserError(
                    f"task {task.name}: protocol {self.name} draws dev from the labelled rows, and the task has a dev set; take protocol "
                    "own, or leave its dev set out."
                )
            given = source.load(task, task.dev)
            dev = without(given, *tests.values())
            words.append(f"dev all {len(given):,} rows of {_place(task, task.dev)}")
            if len(dev) < len(given):
                words.append(f"{len(given) - len(dev):,} of them left out, their text is in test")
        rest = without(pool, *tests.values(), *([dev] if dev is not None else []))
        if len(rest) < len(pool):
            words.append(f"{len(pool) - len(rest):,} labelled rows left out, their text is in test or dev")
        if dev is None and self.dev == "once":
            held_out = _lowest_share(scoped(normal_ids(rest)[:, 0], self._scope("dev")), self.DEV_SHARE, self.MOST_DEV)
            dev, rest = rest.take(held_out), rest.take(~held_out)
        if (dev is not None and not len(dev)) or not len(rest):
            raise UserError(
                f"task {task.name}: no row is left for {'training' if not len(rest) else 'dev'} beside test; give more labelled rows."
            )
        sets = {name: rows.sorted().named(f"{task.name}/{name}") for name, rows in tests.items()}
        return _Parts(
            rest, None if dev is None else dev.sorted().named(f"{task.name}/dev"), sets, tuple(words), repeated
        )

    @staticmethod
    def _has_dev(task: Task, source: TextSource) -> bool:
        return task.dev not in own_tests(task, source).values() and source.has(task, task.dev)

    @staticmethod
    def _given_tests(task: Task, source: TextSource) -> dict[str, Rows]:
        """The test sets that a task has; a user's task has none where its only other split is dev."""
        splits = own_tests(task, source) if task.own else dict(task.tests)
        if task.own and not task.names_test and list(splits.values()) == [task.dev]:
            return {}
        return {name: own_test_rows(task, split, source) for name, split in splits.items()}

    def _dev_words(self, parts: _Parts, dev: Rows, training: Rows) -> str:
        left = f"{len(training):,} left for training"
        if self.dev == "once":
            given = any(word.startswith("dev ") for word in parts.cut)
            return left if given else f"dev {len(dev):,} of the others, drawn once by their text; {left}"
        if self.dev == "redrawn":
            return f"dev {100 * self.DEV_SHARE:.0f} % of the others, drawn anew for each subset ({len(dev):,} of the first); {left} there"
        if self.dev == "folds":
            return (
                f"dev one of {self.folds} folds of the others for each subset ({len(dev):,} of the first); {left} there; a size counts "
                "training and dev examples"
            )
        return f"dev as many of the others as are trained on, drawn anew for each subset; at most {left}"


_FEWER = "give smaller --sizes, or 0 for all of them"


def _place(task: Task, name: str) -> str:
    """The file of a split as captions name it, else the split's name."""
    found = dict(task.files).get(name)
    return Path(found).name if found else dict(task.tests).get(name, name)


def _repeated(rows: Rows) -> Iterable[str]:
    """How many rows say again what another says, and how many say something else of its text."""
    distinct = _distinct(rows.text_ids)
    if distinct == len(rows):
        return
    labels = mix(rows.gold.astype(np.float64).view(np.uint64))
    pairs = _distinct(rows.text_ids ^ labels)
    if pairs < len(rows):
        yield f"labelled rows that repeat the text and label of another: {len(rows) - pairs:,}"
    if pairs > distinct:
        yield f"with the text of another and a different label: {pairs - distinct:,}"


def _distinct(ids: Ids) -> int:
    """How many different ids there are, by sorting: NumPy's `unique` hashes, which takes 1.2 s instead of 0.01 s for a million."""
    return int(np.count_nonzero(np.diff(np.sort(ids)))) + 1


def _lowest_share(ids: Ids, share: float, most: int) -> NDArray[np.bool_]:
    """Mask [n] of the ids in the lowest `share` of all values, so that further rows move none out; where these are more than `most`,
    of the lowest that many. Equal ids stay together."""
    chosen = ids < np.uint64(int(share * 2**64))
    return _lowest(ids, most) if chosen.sum() > most else chosen


def _lowest(ids: Ids, count: int) -> NDArray[np.bool_]:
    """Mask [n] of the `count` lowest ids; of equal ones at the end none, so that they stay together."""
    if count >= len(ids):
        return np.ones(len(ids), dtype=np.bool_)
    return np.asarray(ids < np.partition(ids, count)[count])


def _folds(ids: Ids, folds: int) -> NDArray[np.int64]:
    """The fold [n] of each row: by the rank of its id, the same for equal ids."""
    _, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
    before = np.cumsum(counts) - counts
    return np.asarray((before * folds // len(ids))[inverse], dtype=np.int64)


def _round_below(most: int) -> int:
    """The largest of 10, 20, 50, 100, ... that is not above `most`; 0 where none is."""
    found, power = 0, 10
    while power <= most:
        found = max(step * power for step in (1, 2, 5) if step * power <= most)
        power *= 10
    return found
