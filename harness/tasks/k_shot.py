"""The K-shot protocol of LM-BFF: K training and K dev examples of each class, drawn anew for each subset from the training rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.tasks.overlap import same_ids
from harness.tasks.own_protocol import OwnProtocol, rare_classes
from harness.tasks.protocol import EvaluationSets, of_classes, without_classes
from harness.tasks.rows import Rows, scoped
from harness.tasks.sources import TextSource
from harness.tasks.task import Task


@dataclass(frozen=True)
class KShotProtocol(OwnProtocol):
    """A size is K, the number of training examples of each class; a regression has two classes here, scores below the middle of its
    scale (of the training scores, where it has no bounds) and from it on (Gao et al. 2021, princeton-nlp/LM-BFF).

    * Test: the published development sets, all of them; of a user's own data as `OwnProtocol` says.
    * Training and dev of subset k: the labelled rows of each class in the order of their hash under the k-th of `split_seeds`: the
      first K train, the next K are dev. So a larger K holds the training rows of a smaller one.
    * The k-th split's seed is also that of its runs, so that subsets differ in everything random.

    Labelled rows with a text of a test set are left out, and of rows with one text (`same_ids`) one stays.
    """

    dev: Literal["redrawn"] = "redrawn"
    split_seeds: tuple[int, ...] = (13, 21, 42, 87, 100)
    decisions: tuple[str, ...] = ("P7",)

    size_unit = "training examples per class"
    PAPER_SIZE: ClassVar[int] = 16

    def num_rows(self, task: Task, size: int) -> int:
        return size * max(2, len(task.classes))

    def split_seed(self, subset: int) -> int:
        """The seed of a split; beyond those that are named, the numbers after the last of them."""
        beyond = subset - len(self.split_seeds)
        return self.split_seeds[subset] if beyond < 0 else self.split_seeds[-1] + 1 + beyond

    def training_seed(self, subset: int, seed: int) -> int:
        return self.split_seed(subset) + seed

    def sizes(self, task: Task, source: TextSource) -> tuple[int, ...]:
        """The paper's K, or the largest that the rarest class gives for training and dev."""
        _, _, counts = self._groups(task, self._pool(task, source))
        return (max(1, min(self.PAPER_SIZE, min(counts) // 2)),)

    def training_set(self, task: Task, source: TextSource, size: int, subset: int) -> Rows:
        pool, training, _ = self._drawn(task, source, size, subset)
        return pool.take(training).sorted().named(f"{task.name}/k{size}/subset{subset}")

    def dev_set(self, task: Task, source: TextSource, size: int, subset: int) -> Rows:
        pool, _, dev = self._drawn(task, source, size, subset)
        return pool.take(dev).sorted().named(f"{task.name}/dev")

    def text_pool(self, task: Task, source: TextSource, size: int, subset: int) -> Rows:
        pool, _, dev = self._drawn(task, source, size, subset)
        return pool.take(np.delete(np.arange(len(pool)), dev))

    def _split(self, task: Task, source: TextSource) -> EvaluationSets:
        """See `Protocol`. Dev is that of subset 0 at the default size."""
        parts = self._parts(task, source)
        dev = self.dev_set(task, source, self.sizes(task, source)[0], 0)
        drawn = (
            f"training and dev examples drawn anew for each subset from {len(self._pool(task, source)):,} texts of them"
        )
        rare = rare_classes(task, parts.tests) if task.own else ""
        return EvaluationSets(dev, parts.tests, "; ".join([*parts.cut, drawn, *parts.repeated]), rare=rare)

    def _pool(self, task: Task, source: TextSource) -> Rows:
        """The labelled rows beside test, of rows with one text that with the lowest id."""

        def make() -> Rows:
            rows = self._parts(task, source).pool
            order = np.argsort(rows.ids)
            return rows.take(np.sort(order[np.unique(same_ids(rows)[order, 0], return_index=True)[1]]))

        return source.once(("K-shot pool", self, task), make)

    @staticmethod
    def _groups(task: Task, rows: Rows) -> tuple[NDArray[np.int64], tuple[str, ...], list[int]]:
        """The group of each row, the names of the groups, and their rows. Raises UserError where the task has no groups."""
        codes, names = task.kind.sampled_groups(rows.gold)
        if not names:
            raise without_classes(task)
        counts: list[int] = np.bincount(codes, minlength=len(names)).tolist()
        return codes, names, counts

    def _drawn(
        self, task: Task, source: TextSource, size: int, subset: int
    ) -> tuple[Rows, NDArray[np.int64], NDArray[np.int64]]:
        """The pool, and in it the training rows and the dev rows of a subset. Raises UserError where a class has too few."""
        rows = self._pool(task, source)
        if size < 1:
            raise UserError(
                f"task {task.name}: protocol {self.name} takes as many examples of each class for training as for dev, and no full "
                f"training set; give --sizes from 1 on, such as {self.PAPER_SIZE}."
            )
        codes, names, counts = self._groups(task, rows)
        rarest = int(np.argmin(counts))
        if counts[rarest] < 2 * size:
            fix = f"give sizes up to {counts[rarest] // 2}" if counts[rarest] > 1 else "add examples of it"
            raise UserError(
                f"task {task.name}: {names[rarest]} has {counts[rarest]:,} labelled texts beside test, and {size:,} training and as many "
                f"dev examples of each class are requested; {fix}."
            )
        hashes = scoped(rows.ids, self._scope("k_shot", self.split_seed(subset)))
        both = of_classes(hashes, codes, [2 * size] * len(names))
        first = of_classes(hashes[both], codes[both], [size] * len(names))
        return rows, both[first], np.delete(both, first)
