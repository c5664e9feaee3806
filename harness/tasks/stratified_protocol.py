"""Protocols that cut a stratified test set out of the labelled development set, as data: an entry for each of a paper's settings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.tasks.protocol import Choice, EvaluationSets, Protocol, origin_of, own_test_rows, own_tests, shortfalls
from harness.tasks.rows import Rows, Scope, scoped
from harness.tasks.samplers import SAMPLERS, of_classes, quotas, smallest
from harness.tasks.sources import TextSource
from harness.tasks.task import Task


@dataclass(frozen=True)
class StratifiedProtocol(Protocol):
    """Test: `test_share` of each labelled development set, rounded down. Dev: `most_dev` rows of what the test set leaves of the first
    of them, or all of it where it has fewer. In both each class has its share of the development set to within one row, except
    where its rows run out. Dev has no text of a test set. A user's task with a test set of its own keeps it whole.

    Training: subset k of size N is a draw of `sampler` under the scope (task, its version, protocol, its version, N, k).

    `family`: the name and version of the splits, which are the same rows in all protocols of a family. `tasks`: those of the
    paper; `doubts`: why the split of one of them is not the paper's. `decisions`: what the paper leaves open. `full`: the
    training file must be whole for a comparison.
    """

    family: tuple[str, int] = ("", 1)
    tasks: tuple[str, ...] = ()
    sampler: str = "stratified"
    test_share: float = 0.5
    most_dev: int = 500
    doubts: tuple[tuple[str, str], ...] = ()
    decisions: tuple[Choice, ...] = ()
    full: bool = False

    @property
    def open_points(self) -> tuple[Choice, ...]:
        return self.decisions

    def _split(self, task: Task, source: TextSource) -> EvaluationSets:
        splits = own_tests(task, source) if task.own else dict(task.tests)
        pool, rest, tests = source.load(task, task.dev), None, {}
        for evaluation, split in splits.items():
            if task.own and split != task.dev:
                rows = own_test_rows(task, split, source)
            else:
                held_out, rows = self._half(task, split, source.load(task, split))
                rest = pool.take(~held_out) if split == task.dev else rest
            tests[evaluation] = rows.sorted().named(f"{task.name}/{evaluation}")
        rest = pool if rest is None else rest
        seen = np.concatenate([rows.text_ids for rows in tests.values()])
        rest = rest.take(~np.isin(rest.text_ids, seen))
        if not len(rest) or not all(map(len, tests.values())):
            raise UserError(
                f"task {task.name}: split {task.dev} has {len(pool)} row(s), too few for dev and test; give more rows."
            )
        hashes = scoped(rest.ids, self._scope(task, task.dev, "dev"))
        drawn = self._stratified(task, pool, rest, hashes, min(self.most_dev, len(rest)))
        dev = rest.take(drawn).sorted().named(f"{task.name}/dev")
        notes = [dict(self.doubts)[task.name]] if task.name in dict(self.doubts) else []
        notes += shortfalls(task, source, (task.dev, *splits.values(), *((task.train,) if self.full else ())))
        return EvaluationSets(
            dev=dev,
            tests=tests,
            comparable=not notes and task.name in self.tasks,
            note="; ".join(notes),
            origin=origin_of({"dev": dev, **tests}, {"dev": task.dev, **splits}, task, source),
        )

    def _half(self, task: Task, split: str, rows: Rows) -> tuple[NDArray[np.bool_], Rows]:
        """Mask [n] of the test rows of a development set, and these rows."""
        hashes = scoped(rows.ids, self._scope(task, split, "test"))
        held_out = np.zeros(len(rows), dtype=np.bool_)
        held_out[self._stratified(task, rows, rows, hashes, int(len(rows) * self.test_share))] = True
        return held_out, rows.take(held_out)

    @staticmethod
    def _stratified(task: Task, whole: Rows, rows: Rows, hashes: NDArray[np.uint64], count: int) -> NDArray[np.int64]:
        """Indices of `count` of `rows`, each class with its share of the `whole`."""
        if task.regression:
            return smallest(hashes, count)
        counts, available = (np.bincount(each.gold, minlength=len(task.classes)).tolist() for each in (whole, rows))
        return of_classes(hashes, rows.gold, quotas(counts, count, available))

    def _scope(self, task: Task, split: str, role: str) -> Scope:
        return [task.name, task.version, *self.family, split, role]

    def training_set(self, task: Task, source: TextSource, size: int, subset: int) -> Rows:
        """See `Protocol`."""
        fewer = "give smaller --sizes, or 0 for all of them"
        return self._drawn(task, source, size, subset, SAMPLERS[self.sampler], fewer)
