"""A point to its runs: the very runs that a bench with the same values would give, replicate by replicate, and what they score on dev. No optuna, no ray."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, get_args

from harness.errors import UserError
from harness.planning.aggregation import mean
from harness.planning.data import TableData, runs_of
from harness.planning.request import Request
from harness.planning.resolve import resolve
from harness.planning.resolved import ResolvedTable
from harness.search.request import Point
from harness.search.space import ResolvedSpace
from harness.specs import SHARED_PHASES, Record, Run, Status
from harness.tasks.metrics import METRICS
from harness.tasks.task import Task

State = Literal["complete", "dropped", "failed", "running"]
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class ReplicateOutcome:
    """One replicate of a trial. `value`: always finite: a failed or diverged replicate has the metric's worst value. `flops`, `seconds`: recorded
    cost of its `stages`, without those that many replicates share (an MLM head, pre-training)."""

    value: float
    status: Status = "done"
    reason: str = ""
    flops: float = 0.0
    seconds: float = 0.0
    stages: int = 0
    keys: str = ""
    """Of its runs, with commas."""


@dataclass(frozen=True)
class Trial:
    """One point with its replicates so far, in the order that is the same for all trials. 'complete': all replicates ended; 'dropped': the racing
    rule stopped it; 'failed': the point cannot be run."""

    number: int
    point: Point
    outcomes: tuple[ReplicateOutcome, ...] = ()
    state: State = "running"
    reason: str = ""

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(outcome.value for outcome in self.outcomes)

    def mean(self) -> float:
        """The mean of the replicates so far, of which there is one at least."""
        return mean(self.values)

    @property
    def eligible(self) -> bool:
        """Every replicate is done. Only such a trial can be the best."""
        ended = self.state == "complete" and bool(self.outcomes)
        return ended and all(outcome.status == "done" for outcome in self.outcomes)


Watch = Callable[[str, Trial], None]
"""Told 'started', 'replicate' and 'ended' with the trial as it is then."""


def best_trial(trials: Iterable[Trial]) -> Trial | None:
    """The eligible trial with the best mean; of equals the first one."""
    eligible = (trial for trial in trials if trial.eligible)
    return min(eligible, key=lambda trial: (-trial.mean(), trial.number), default=None)


@dataclass(frozen=True)
class Points:
    """Everything that makes runs of a point. Small and without texts, so that it travels to every trial.

    `base`: the table as `request` asks for it, with the row, tasks, sizes, subsets and seeds of the search.
    """

    space: ResolvedSpace
    base: ResolvedTable
    request: Request
    tasks: Mapping[str, Task]
    table_data: TableData

    @property
    def replicates(self) -> tuple[tuple[int, int], ...]:
        """(subset, seed) in the order of all trials: across subsets first, since one subset says least about another. The subsets are those of
        the size that has most: a full training set may be a single one."""
        subsets = max(map(self.base.subsets_at, self.base.sizes), key=len)
        return tuple((subset, seed) for seed in self.base.seeds for subset in subsets)

    @property
    def metric(self) -> str:
        """The name for readers: that of the search, or what the tasks are selected by."""
        return self.space.metric or " and ".join(dict.fromkeys(map(self.base.selection_metric, self.base.tasks)))

    def metric_of(self, task: str) -> str:
        """What a run of a task counts with."""
        return self.space.metric or self.base.selection_metric(task)

    def runs(self, point: Point) -> tuple[tuple[Run, ...], ...]:
        """The runs of each replicate: one a task and size. The only subset of a full training set is part of every replicate of its seed. Raises
        UserError for a point that cannot be run."""
        request = replace(self.request, overrides=(*self.request.overrides, *self.space.overrides(point)))
        runs, skipped = runs_of(resolve(self.base.table, request, self.tasks), self.table_data)
        if skipped:
            name, task, reason = skipped[0]
            raise UserError(f"{name}{' on ' + task if task else ''} cannot be run: {reason}.")
        single = {size for size in self.base.sizes if len(self.base.subsets_at(size)) == 1}
        return tuple(
            tuple(run for run in runs if run.seed == seed and (run.subset == subset or run.size in single))
            for subset, seed in self.replicates
        )

    def runs_of(self, points: Iterable[Point]) -> list[Run]:
        """Those of several points; a point that cannot be run has none."""
        runs: list[Run] = []
        for point in points:
            with suppress(UserError):
                runs += chain.from_iterable(self.runs(point))
        return runs

    def counted(self, runs: Iterable[Run]) -> dict[str, str]:
        """The stages of runs by key, each with the metric that its dev score counts with: '' before the last one."""
        keys = {stage.key: "" for run in runs for stage in run.stage.chain}
        return keys | {run.stage.key: self.metric_of(run.task) for run in runs}

    def outcome(self, runs: Sequence[Run], records: Mapping[str, Record]) -> ReplicateOutcome | None:
        """One replicate: means over its runs; None while one of them has not ended.

        A run that failed or diverged, or whose score is not finite, counts with its metric's worst value.
        """
        values, broken, own = [], list[tuple[Status, str]](), list[Record]()
        for run in runs:
            known = [(stage, records[stage.key]) for stage in run.stage.chain if stage.key in records]
            leaf = records.get(run.stage.key) or next((each for _, each in known if each.status != "done"), None)
            if leaf is None:
                return None
            name, status, reason = self.metric_of(run.task), leaf.status, leaf.reason
            score = leaf.dev_scores.get(name, math.nan)
            if status == "done" and not math.isfinite(score):
                status, reason = "diverged", f"its {name} on dev is not a finite number"
            broken += [(status, f"{run.name} {status}: {reason}")] * (status != "done")
            values.append(score if status == "done" else METRICS[name].worst)
            own += [record for stage, record in known if stage.phase not in SHARED_PHASES]
        return ReplicateOutcome(
            mean(values),
            max((status for status, _ in broken), default="done"),  # 'failed' before 'diverged'
            next((reason for _, reason in broken), ""),
            math.fsum(record.flops for record in own),
            math.fsum(record.seconds for record in own),
            len(own),
            ",".join(run.stage.key for run in runs),
        )
