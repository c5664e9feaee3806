"""A protocol without a dev set of its own: the labelled development set selects, and is what is reported."""

from __future__ import annotations

from dataclasses import dataclass

from harness.tasks.protocol import Choice, EvaluationSets, Protocol, origin_of, own_tests, shortfalls
from harness.tasks.rows import Rows
from harness.tasks.samplers import draw
from harness.tasks.sources import TextSource
from harness.tasks.task import Task


@dataclass(frozen=True)
class DevProtocol(Protocol):
    """Dev and test are both the whole labelled development set, as pre-training papers report GLUE: where a checkpoint is
    selected by it, its score is too high by that selection. MNLI is scored on its matched and mismatched sets, and selected on the
    matched one. A user's task with a test set of its own is scored there.

    Comparable: the eight tasks of GLUE, from sources with as many rows as the published files. Subset k of size N: N rows drawn as
    under `CmlmProtocol`.
    """

    TASKS = ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte")
    CHOICES = (
        Choice("the development set is what is scored, and what checkpoints are selected by where any are"),
        Choice("MNLI-MM scored at the checkpoint that serves matched dev", ("mnli",)),
    )

    @property
    def scores_dev(self) -> bool:
        return True

    @property
    def open_points(self) -> tuple[Choice, ...]:
        return self.CHOICES

    def _split(self, task: Task, source: TextSource) -> EvaluationSets:
        splits = (
            own_tests(task, source)
            if task.own
            else {name: task.dev if name == "test" else split for name, split in task.tests}
        )
        dev = source.load(task, task.dev).sorted().named(f"{task.name}/dev")
        tests = {name: source.load(task, split).sorted().named(f"{task.name}/{name}") for name, split in splits.items()}
        notes = shortfalls(task, source, (task.train, task.dev, *splits.values()))
        return EvaluationSets(
            dev=dev,
            tests=tests,
            comparable=not notes and task.name in self.TASKS,
            note="; ".join(notes),
            origin=origin_of({"dev": dev, **tests}, {"dev": task.dev, **splits}, task, source),
        )

    def training_set(self, task: Task, source: TextSource, size: int, subset: int) -> Rows:
        """See `Protocol`."""
        return self._drawn(task, source, size, subset, draw, "give smaller --sizes, or 0 for all of them")
