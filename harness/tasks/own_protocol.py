"""Protocols for a user's own data: labelled rows in one file, or with a test or dev set of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.tasks.overlap import unit_ids, without
from harness.tasks.protocol import (
    EvaluationSets,
    Protocol,
    draw,
    evaluation_splits,
    of_classes,
    quotas,
    require_classes,
)
from harness.tasks.rows import Rows, Scope, scoped
from harness.tasks.sources import ALL_ROWS, TextSource
from harness.tasks.task import Task
from harness.wording import some_of


class Parts(NamedTuple):
    """What is cut once: the labelled `pool` to train on (and to draw dev from, where `dev` is None), dev and the tests. `cut`: which rows they
    are, and `repeated`: which say again what another says, in words."""

    pool: Rows
    dev: Rows | None
    tests: Mapping[str, Rows]
    cut: tuple[str, ...]
    repeated: tuple[str, ...]


@dataclass(frozen=True)
class OwnProtocol(Protocol):
    """Splits of a user's own data. Scopes hold no name of a task or file: the same rows give the same sets and keys.

    * Test: the task's test set where it has one (a file, or a split 'test'; a task that is not the user's: its evaluation sets), else
      a quarter of the labelled rows' normalised texts, at most 5,000.
    * Dev: the task's validation set where it has one, else by `dev`
        'once': a fifth of the other texts, at most 1,000;
        'redrawn': such a fifth for each subset, under the subset's own scope, so that full training sets differ as well;
        'folds': subset k of `folds` holds fold k of its labelled rows out and trains on the others. A size counts both here, and
        the rows of a size are the same in all folds;
        'k_shot': see `KShotProtocol`.
    * Training: the other labelled rows. Subset k of size N: the N rows with the smallest hash of (N, k, salt) and row; the salt
      grows until every class is in.

    What is drawn for test and dev is stratified: of each class the texts with the lowest hash, its share to within one text, and one
    at least stays for training (a regression has no classes). Rows with one normalised text stay on one side. Where the user gives a
    test or dev set, labelled rows with a text of it are left out of training, and dev rows with a text of test out of dev.

    Version 1 was not stratified: it took the texts with the lowest hash of all.
    """

    dev: Literal["once", "redrawn", "folds", "k_shot"] = "once"
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
        least = 2 * max(1, len(task.classes))
        return (*(size for size in (_round_below(large // 4), large) if size >= least), 0)

    def _split(self, task: Task, source: TextSource) -> EvaluationSets:
        parts, k_shot = self._parts(task, source), self.dev == "k_shot"
        size = self.sizes(task, source)[0] if k_shot else 0
        dev, training = self.dev_set(task, source, size, 0), self.training_set(task, source, size, 0)
        lines = [*parts.cut, self._dev_words(parts.pool, dev, training), *parts.repeated]
        sampled = {} if k_shot else {"training": training, "dev": dev}
        rare = rare_classes(task, {**sampled, **parts.tests}) if task.own else ""
        return EvaluationSets(dev, parts.tests, "; ".join(lines), rare=rare)

    def dev_set(self, task: Task, source: TextSource, size: int, subset: int) -> Rows:
        return self._drawn(task, source, size, subset)[1]

    def training_set(self, task: Task, source: TextSource, size: int, subset: int) -> Rows:
        if self.num_subsets and subset >= self.num_subsets:
            raise UserError(f"task {task.name}: subset {subset}: there are {self.num_subsets} subsets, from 0 on.")
        rows, _ = self._drawn(task, source, size, subset)
        if self.dev in ("folds", "k_shot") or not size:
            require_classes(task, rows)
            return rows.sorted()
        return draw(task, rows, size, self._scope("train", size, subset))

    def text_pool(self, task: Task, source: TextSource, size: int, subset: int) -> Rows:
        """See `Protocol`. The dev sets of another size may be other rows: those of this one are left out."""
        dev = self.dev_set(task, source, size, subset)
        return without(self._parts(task, source).pool, dev, unit=task.kind.unit)

    def _scope(self, *what: str | int) -> Scope:
        return ["own", self.version, *what]

    def _drawn(self, task: Task, source: TextSource, size: int, subset: int) -> tuple[Rows, Rows]:
        """The rows that a subset's training rows are drawn from, those of its size for folds, and its dev rows."""
        parts = self._parts(task, source)
        if parts.dev is not None:
            return parts.pool, parts.dev
        pool = parts.pool
        if self.dev == "folds":
            pool = draw(task, pool, size, self._scope("labelled", size)) if size else pool
            held_out = _Texts(task, pool).fold(self._scope("folds", size), self.folds, subset)
        else:
            held_out = _Texts(task, pool).share(self._scope("dev", subset), self.DEV_SHARE, self.MOST_DEV)
        if not held_out.any():
            raise UserError(
                f"task {task.name}: of {len(pool):,} labelled rows none is left for dev; give more rows, or a dev set of your own."
            )
        return pool.take(~held_out), pool.take(held_out).sorted()

    def _parts(self, task: Task, source: TextSource) -> Parts:
        return source.once((self, task), lambda: self._cut(task, source))

    def _cut(self, task: Task, source: TextSource) -> Parts:
        whole, unit = source.has(task, ALL_ROWS), task.kind.unit
        pool = source.load(task, ALL_ROWS if whole else task.splits.train)
        labelled, repeated = f"{len(pool):,} labelled rows", tuple(_repeated(pool))
        splits, dev = evaluation_splits(task, source), None
        if task.own and not task.splits.test and list(splits.values()) == [task.splits.validation]:
            splits = {}  # a user's task has no test set where its only other split is dev
        tests = {name: source.load(task, split) for name, split in splits.items()}
        words = [f"{name} all {len(rows):,} rows of {_place(task, name)}" for name, rows in tests.items()]
        if tests:
            words.append(labelled)
        else:
            held_out = _Texts(task, pool).share(self._scope("test"), self.TEST_SHARE, self.MOST_TEST)
            if not held_out.any() or held_out.all():
                raise UserError(
                    f"task {task.name}: of {len(pool):,} labelled rows {held_out.sum()} are drawn for test; give more rows, or a test "
                    "set of your own."
                )
            tests, pool = {"test": pool.take(held_out)}, pool.take(~held_out)
            words.append(f"test {len(tests['test']):,} of the {labelled}, drawn once by {_drawn_by(task)}")
        other = task.splits.validation in task.files or not (whole or task.splits.validation in splits.values())
        if task.own and other and source.has(task, task.splits.validation):
            if self.dev != "once":
                raise UserError(
                    f"task {task.name}: protocol {self.name} draws dev from the labelled rows, and the task has a dev set; take protocol "
                    "own, or leave its dev set out."
                )
            rows = source.load(task, task.splits.validation)
            dev = without(rows, *tests.values(), unit=unit)
            words.append(f"dev all {len(rows):,} rows of {_place(task, task.splits.validation)}")
            if len(dev) < len(rows):
                words.append(f"{len(rows) - len(dev):,} of them left out, their text is in test")
        rest = without(pool, *tests.values(), *([dev] if dev is not None else []), unit=unit)
        if len(rest) < len(pool):
            words.append(f"{len(pool) - len(rest):,} labelled rows left out, their text is in test or dev")
        if dev is None and self.dev == "once" and len(rest):
            held_out = _Texts(task, rest).share(self._scope("dev"), self.DEV_SHARE, self.MOST_DEV)
            dev, rest = rest.take(held_out), rest.take(~held_out)
            words.append(f"dev {len(dev):,} of the others, drawn once by {_drawn_by(task)}")
        if (dev is not None and not len(dev)) or not len(rest):
            role = "training" if not len(rest) else "dev"
            raise UserError(f"task {task.name}: no row is left for {role} beside test; give more labelled rows.")
        sets = {name: rows.sorted() for name, rows in tests.items()}
        return Parts(rest, None if dev is None else dev.sorted(), sets, tuple(words), repeated)

    def _dev_words(self, pool: Rows, dev: Rows, training: Rows) -> str:
        left = f"{len(training):,} left for training"
        first = f"({len(dev):,} of the first); {left} there"
        return {
            "once": left,
            "redrawn": f"dev {100 * self.DEV_SHARE:.0f} % of the others, drawn anew for each subset {first}",
            "folds": f"dev one of {self.folds} folds of the others for each subset {first}; a size counts training and dev examples",
            "k_shot": f"training and dev examples drawn anew for each subset from {len(pool):,} texts of them",
        }[self.dev]


RARE, SHOWN_CLASSES = 5, 6
"""With fewer rows a class is named in a warning; how many classes such a warning names."""


def _drawn_by(task: Task) -> str:
    """What rows are drawn by as a whole: their text, or that of the column that several share."""
    unit = task.kind.unit
    return "their text" if unit is None else f"their {task.columns[unit]}"


def _place(task: Task, name: str) -> str:
    file = task.files.get(name)
    return Path(file).name if file else task.tests.get(name, name)


def _repeated(rows: Rows) -> Iterable[str]:
    """How many rows say again what another says, and how many say something else of its text."""
    order = np.lexsort((rows.gold, rows.text_ids))
    texts, labels = rows.text_ids[order], rows.gold[order]
    same, alike = texts[1:] == texts[:-1], labels[1:] == labels[:-1]
    if repeated := np.count_nonzero(same & alike):
        yield f"labelled rows that repeat the text and label of another: {repeated:,}"
    if others := np.count_nonzero(same & ~alike):
        yield f"with the text of another and a different label: {others:,}"


class _Texts:
    """The distinct normalised texts of rows (of question answering the contexts), each with a class: the lowest code among its rows, 0 where
    there are no classes."""

    def __init__(self, task: Task, rows: Rows) -> None:
        self._ids, self._text_of = np.unique(unit_ids(rows, task.kind.unit), return_inverse=True)
        self._codes = np.full(len(self._ids), np.iinfo(np.int64).max)
        np.minimum.at(self._codes, self._text_of, task.kind.strata(rows.gold))
        self._counts: list[int] = np.bincount(self._codes, minlength=max(1, len(task.classes))).tolist()

    def share(self, scope: Scope, share: float, most: int) -> NDArray[np.bool_]:
        """Mask [rows] of a share of the texts, at most `most`, stratified; of each class one text at least is not drawn."""
        available = [max(0, count - 1) for count in self._counts]
        count = min(round(share * len(self._ids)), most, sum(available))
        chosen = np.zeros(len(self._ids), dtype=np.bool_)
        chosen[of_classes(scoped(self._ids, scope), self._codes, quotas(self._counts, count, available))] = True
        return np.asarray(chosen[self._text_of])

    def fold(self, scope: Scope, folds: int, fold: int) -> NDArray[np.bool_]:
        """Mask [rows] of one of `folds` parts, each with its share of each class to within one text."""
        ranks = np.empty(len(self._ids), dtype=np.int64)
        ranks[np.lexsort((scoped(self._ids, scope), self._codes))] = np.arange(len(self._ids))
        return np.asarray((ranks % folds == fold)[self._text_of])


def rare_classes(task: Task, sets: Mapping[str, Rows]) -> str:
    """Which classes have fewer than `RARE` rows in a set, with their numbers; '' where none has."""
    counts = {role: task.kind.sizes(rows.gold) for role, rows in sets.items() if task.classes}
    rare = [code for code in range(len(task.classes)) if any(count[code] < RARE for count in counts.values())]
    if not rare:
        return ""
    shown = (
        f"{task.classes[code]} ({', '.join(f'{count[code]} {role}' for role, count in counts.items())})"
        for code in rare
    )
    return f"fewer than {RARE} rows of a class in a set, too few to say how it does: {some_of([*shown], SHOWN_CLASSES)}"


def _round_below(most: int) -> int:
    """The largest of 10, 20, 50, 100, ... that is not above `most`; 0 where none is."""
    steps = (step * 10**power for power in range(1, len(str(most))) for step in (1, 2, 5))
    return max((step for step in steps if step <= most), default=0)
