"""A point to its runs: the very runs that a bench with the same values would give, replicate by replicate, and what they score on dev."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain

from harness.errors import UserError
from harness.planning.aggregation import mean
from harness.planning.data import TableData, runs_of
from harness.planning.request import Request
from harness.planning.resolve import resolve
from harness.planning.resolved import ResolvedTable
from harness.planning.runs import stage_flops
from harness.search.space import ResolvedSpace
from harness.search.space_file import FLOPS
from harness.search.trials import Point, ReplicateOutcome
from harness.specs import SHARED_PHASES, Run, Stage, Status
from harness.tasks import METRICS, Task


@dataclass(frozen=True)
class StageResult:
    """How one stage ended: what a score needs of its record. `trained`: by this command."""

    status: Status
    reason: str = ""
    dev_scores: Mapping[str, float] = field(default_factory=dict)
    flops: float = 0.0
    seconds: float = 0.0
    trained: bool = False


@dataclass(frozen=True)
class Points:
    """Everything that makes runs of a point. Small and without texts, so that it travels to every trial.

    `base`: the table as `request` asks for it, with the row, tasks, sizes, subsets and seeds of the search. `most_flops`: that a point may
    cost, see `flops`.
    """

    space: ResolvedSpace
    base: ResolvedTable
    request: Request
    tasks: Mapping[str, Task]
    table_data: TableData
    most_flops: float = math.inf

    @property
    def replicates(self) -> tuple[tuple[int, int], ...]:
        """(subset, seed) in the order of all trials: across subsets first, since one subset says least about another. The subsets are those of
        the size that has most: a full training set may be a single one."""
        subsets = max(map(self.base.subsets_at, self.base.sizes), key=len)
        return tuple((subset, seed) for seed in self.base.seeds for subset in subsets)

    def subset_of(self, size: int, subset: int) -> int:
        """The subset of a size in the replicates of `subset`: the only one of a full training set is part of every replicate of its seed."""
        own = self.base.subsets_at(size)
        return subset if len(own) > 1 else own[0]

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names for readers: those of the search, or what the tasks are selected by."""
        return self.space.metrics or (" and ".join(dict.fromkeys(map(self.base.selection_metric, self.base.tasks))),)

    def resolved(self, point: Point) -> ResolvedTable:
        overrides = (*self.request.overrides, *self.space.overrides(point))
        return resolve(self.base.table, replace(self.request, overrides=overrides), self.tasks)

    def runs(self, point: Point) -> tuple[tuple[Run, ...], ...]:
        """The runs of each replicate: one a task and size. Raises UserError for a point that cannot be run."""
        runs, skipped = runs_of(self.resolved(point), self.table_data)
        if skipped:
            name, task, reason = skipped[0]
            raise UserError(f"{name}{' on ' + task if task else ''} cannot be run: {reason}.")
        return tuple(
            tuple(run for run in runs if (run.subset, run.seed) == (self.subset_of(run.size, subset), seed))
            for subset, seed in self.replicates
        )

    def runs_of_grid(self) -> list[Run]:
        """Those of all points that can be run; none of a search, whose points are not known before."""
        runs: list[Run] = []
        for point in self.space.grid_points() if self.space.sampler == "grid" else ():
            with suppress(UserError):
                runs += chain.from_iterable(self.runs(point))
        return runs

    def flops(self, point: Point) -> float:
        """FLOPs of a replicate of a point as planned: of all its runs, a mean over the replicates, as the metric 'flops' counts them once they ran."""
        return mean([math.fsum(self.planned(run.stage) for run in runs) for runs in self.runs(point)])

    def excess(self, point: Point) -> float:
        """By what share a point costs more than it may; 0 or less where it may be run."""
        return self.flops(point) / self.most_flops - 1

    def identity(self, point: Point) -> tuple[str, ...]:
        """Keys of all runs: equal for two points that are one computation."""
        return tuple(run.stage.key for runs in self.runs(point) for run in runs)

    def scored(self, run: Run) -> tuple[str, ...]:
        """What a run's stages are scored by on dev, the selection's metric first."""
        return tuple(
            dict.fromkeys((self.base.selection_metric(run.task), *self.table_data.tasks[run.task].task.metrics))
        )

    def outcome(self, runs: Sequence[Run], chains: Sequence[Sequence[StageResult]]) -> ReplicateOutcome:
        """One replicate: means over its runs. `chains`: how the stages of each run ended, up to the last one that did.

        A run that failed or diverged, or whose score is not finite, counts with its metric's worst value, and with the
        FLOPs that were planned: never less than what it would have cost, so that failing never pays.
        """
        ended_runs = [
            (run, [*chain[:-1], self._scorable(run, chain[-1])]) for run, chain in zip(runs, chains, strict=True)
        ]
        values = []
        for metric in self.space.metrics or ("",):
            of_runs = [self._value(run, chain, metric) for run, chain in ended_runs]
            values.append(math.fsum(of_runs) if metric == FLOPS else mean(of_runs))
        broken = [(run, chain[-1]) for run, chain in ended_runs if chain[-1].status != "done"]
        statuses = {leaf.status for _, leaf in broken}
        own = [
            ended
            for run, chain in ended_runs
            for stage, ended in zip(run.stage.chain, chain, strict=False)
            if stage.phase not in SHARED_PHASES
        ]
        return ReplicateOutcome(
            tuple(values),
            next((status for status in ("failed", "diverged") if status in statuses), "done"),
            next((f"{run.name} {leaf.status}: {leaf.reason}" for run, leaf in broken), ""),
            math.fsum(ended.flops for ended in own),
            math.fsum(ended.seconds for ended in own),
            sum(ended.trained for ended in own),
            len(own),
        )

    def _value(self, run: Run, chain: Sequence[StageResult], metric: str) -> float:
        """What a run counts with for a metric; '': the one that its task is selected by."""
        leaf, name = chain[-1], metric or self.base.selection_metric(run.task)
        if metric == FLOPS:
            return math.fsum(ended.flops for ended in chain) if leaf.status == "done" else self.planned(run.stage)
        return leaf.dev_scores[name] if leaf.status == "done" else METRICS[name].worst

    def _scorable(self, run: Run, leaf: StageResult) -> StageResult:
        """A run whose scores are not finite has diverged, whatever its record says."""
        own = self.base.selection_metric(run.task)
        names = [metric or own for metric in self.space.metrics or ("",) if metric != FLOPS]
        wrong = [name for name in names if not math.isfinite(leaf.dev_scores.get(name, math.nan))]
        if leaf.status != "done" or not wrong:
            return leaf
        return replace(leaf, status="diverged", reason=f"its {wrong[0]} on dev is not a finite number")

    def planned(self, leaf: Stage) -> float:
        """Estimated FLOPs of a run's stages."""
        return math.fsum(stage_flops(stage, self.table_data.config) for stage in leaf.chain)
