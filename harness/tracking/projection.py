"""What a tracker shows of recorded stages and of the cells that their runs fill. Pure: no tracker, no disk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from harness.planning.aggregation import mean, std
from harness.planning.data import TaskData
from harness.planning.runs import Plan
from harness.specs import Record, Run, Stage, Status, digest_of
from harness.tasks import score

Value = str | float | int | bool

DIGEST = "harness.digest"
"""The name under which a tracker keeps the digest of what was written."""
KEY = "harness.key"
"""The name under which a tracker keeps a stage's key."""
FINAL = "final/"
"""How the names of scores at the selected checkpoint begin."""


@dataclass(frozen=True)
class TrackedRun:
    """A stage, or the summary of a cell, as one run of a tracker.

    `key`: of the stage, and the tracker's id; `group`: the cell, or what the stage is shared as, and `group_key` its identity;
    `within`: its name in the group. `history`: (name, update, value), in
    order of updates. `scores`: single numbers, those of the selected checkpoint and of cost. `started_at`: Unix time, 0 where it is not
    known. `digest`: of the record; a tracker that holds it has nothing to write.
    """

    key: str
    name: str
    group: str
    group_key: str
    within: str
    kind: str
    digest: str
    status: Status = "done"
    reason: str = ""
    parameters: Mapping[str, Value] = field(default_factory=dict)
    history: tuple[tuple[str, int, float], ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    started_at: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Member:
    """A run with what names it in a tracker: the `group` that it belongs to, its `labels`, its task's test sets by evaluation (empty: its
    test scores are not shown) and the metrics that they are scored by."""

    run: Run
    group: str
    labels: Mapping[str, Value]
    tests: Mapping[str, str]
    metrics: tuple[str, ...]


@dataclass(frozen=True)
class Projection:
    """All runs of a table or a study as a tracker shows them. `experiment`: the name under which they stand together; `ddof`: of the
    standard deviations of its cells."""

    experiment: str
    members: tuple[Member, ...]
    ddof: int = 1

    @cached_property
    def stages(self) -> dict[str, Stage]:
        """By key, parents first."""
        return {stage.key: stage for member in self.members for stage in member.run.stage.chain}

    @cached_property
    def by_stage(self) -> dict[str, list[Member]]:
        """The runs that each stage serves."""
        members: dict[str, list[Member]] = {}
        for member in self.members:
            for stage in member.run.stage.chain:
                members.setdefault(stage.key, []).append(member)
        return members

    def key_of(self, group: str) -> str:
        return digest_of([self.experiment, group])

    def cells(self, scores: Mapping[str, Mapping[str, float]]) -> Iterator[TrackedRun]:
        """The cells of which a run is done: mean and standard deviation of each score over their runs. `scores`: `final_scores` of
        the runs that are done, by the key of the last stage."""
        groups: dict[str, list[Member]] = {}
        for member in self.members:
            if member.run.stage.key in scores:
                groups.setdefault(member.group, []).append(member)
        for group, done in groups.items():
            of_runs = [scores[member.run.stage.key] for member in done]
            summary: dict[str, float] = {"runs": len(done)}
            for name in of_runs[0]:
                values = [run_scores[name] for run_scores in of_runs if name in run_scores]
                summary[f"mean/{name.removeprefix(FINAL)}"] = mean(values)
                if (spread := std(values, self.ddof)) is not None:
                    summary[f"sd/{name.removeprefix(FINAL)}"] = spread
            yield TrackedRun(
                key=self.key_of(group),
                name=f"{group}: mean and sd",
                group=group,
                group_key=self.key_of(group),
                within="mean and sd",
                kind="cell",
                digest=digest_of([sorted(member.run.stage.key for member in done), summary]),
                parameters={name: value for name, value in _common(done).items() if name not in ("subset", "seed")},
                scores=summary,
            )


def of_plan(plan: Plan, variant: str) -> Projection:
    """The runs of a table and those that they start from; runs whose start is not selected yet are left out. `variant`: what tells
    its cells from those of the same table under other values."""
    resolved = plan.resolved
    members = []
    for wave in plan.waves:
        for run in wave.runs:
            encoder = wave.part_of(run.stage).resolved.encoder
            labels = {"table": wave.resolved.table.name, "preset": wave.resolved.preset, "encoder": encoder}
            if not wave.waits(run):
                group = f"{run.row}/{run.task}/{size_name(run)} ({variant})"
                members.append(member_of(run, group, labels, wave.tasks[run.task], tests=True))
    return Projection(f"harness-{resolved.table.name}", tuple(members), resolved.aggregate.ddof)


def size_name(run: Run) -> str:
    return f"n{run.size}" if run.size else "full"


def member_of(run: Run, group: str, labels: Mapping[str, Value], data: TaskData, *, tests: bool) -> Member:
    own = {name: getattr(run, name) for name in ("row", "method", "task", "size", "subset", "seed")}
    sets = {name: rows.digest for name, rows in data.tests.items()} if tests else {}
    return Member(run, group, {**labels, **own}, sets, data.task.metrics)


def digest(record: Record) -> str:
    """Of the outcome of a stage: another one where it is trained again after a failure."""
    origin = record.provenance.get("started_at", 0.0)
    return digest_of([record.key, record.status, record.reason, record.seconds, origin])


def tracked(projection: Projection, key: str, record: Record) -> TrackedRun:
    """A recorded stage as a tracker's run. `record`: with predictions."""
    stage, members = projection.stages[key], projection.by_stage[key]
    groups = [*dict.fromkeys(member.group for member in members)]
    group = groups[0] if len(groups) == 1 else f"shared/{stage.phase}"
    run = members[0].run
    more = f" and {len(members) - 1} more" if len(members) > 1 else ""
    scores = {"cost/seconds": record.seconds, "cost/flops": record.flops}
    if "tokens_per_second" in record.provenance:
        scores["cost/tokens_per_second"] = record.provenance["tokens_per_second"]
    if record.status == "done":
        if record.selected_step is not None:
            scores |= {f"{FINAL}step": record.selected_step, f"{FINAL}collapsed": record.collapsed}
        if ends := [member for member in members if member.run.stage.key == key]:
            scores |= final_scores(ends[0], record)
    return TrackedRun(
        key=key,
        name=f"{run.name}{more} ({stage.phase})",
        group=group,
        group_key=projection.key_of(group),
        within=stage.phase if more else f"subset{run.subset} seed{run.seed} {stage.phase}",
        kind=stage.phase,
        digest=digest(record),
        status=record.status,
        reason=record.reason,
        parameters={**_common(members), **recipe(stage)},
        history=tuple(history(record)),
        scores=_finite(scores),
        tags={f"provenance.{name}": str(value) for name, value in sorted(record.provenance.items()) if value != ""},
        started_at=float(record.provenance.get("started_at", 0.0)),
        seconds=record.seconds,
    )


def final_scores(member: Member, record: Record) -> dict[str, float]:
    """Dev as recorded at the selected checkpoint, and each test set by the task's metrics."""
    scores = {f"{FINAL}dev/{metric}": value for metric, value in record.dev_scores.items()}
    for evaluation, rows in member.tests.items():
        if (predicted := record.predictions.get(rows)) is not None:
            for metric in member.metrics:
                scores[f"{FINAL}{evaluation}/{metric}"] = score(metric, predicted)
    return _finite(scores)


def _finite(scores: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in scores.items() if math.isfinite(value)}


def _common(members: Sequence[Member]) -> dict[str, Value]:
    """The labels that all runs agree on: a stage that several runs share has no subset of its own, for example."""
    first, *rest = (member.labels for member in members)
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in rest)}


def recipe(stage: Stage) -> dict[str, Value]:
    """Everything that a stage's key hashes apart from the content of its data, by dotted names."""
    settings: dict[str, Value] = {"phase": stage.phase, "stage_seed": stage.seed, "objective": stage.objective.name}
    settings |= {f"objective.{name}": value for name, value in stage.objective.params.items()}
    settings |= {f"optim.{name}": value for name, value in vars(stage.optim).items() if not name.startswith("_")}
    settings |= {"data.train": stage.data.train.name, "data.rows": stage.data.train.rows}
    settings |= {"data.max_length": stage.data.max_length, "encoder.digest": stage.encoder.digest}
    if stage.parent:
        settings["parent"] = stage.parent.key
    if stage.selection:
        settings |= {"selection.metric": stage.selection.metric, "selection.every": stage.selection.every}
    return settings


def history(record: Record) -> Iterator[tuple[str, int, float]]:
    """Every recorded number by update: terms of the loss (means since the point before), what tells collapse from learning, dev."""
    points: dict[tuple[str, int], float] = {}
    for entry in record.history:
        step, curve = int(entry["step"]), entry.get("curve", {})
        terms = {name: value for name, value in entry.items() if isinstance(value, (int, float)) and name != "step"}
        numbers: dict[str, Any] = {f"train/{name}": value for name, value in terms.items()}
        if "loss" in curve:
            numbers.pop("train/loss", None)  # the mean of the points that the curve has
        numbers |= {f"measures/{name}": value for name, value in entry.get("measures", {}).items()}
        numbers |= {f"dev/{name}": value for name, value in entry.get("dev", {}).items()}
        points |= {(name, step): float(value) for name, value in numbers.items()}
        points |= {("train/loss", int(at)): float(value) for at, value in curve.get("loss", [])}
        points |= {("dev/curve", int(at)): float(value) for at, value in curve.get("dev", [])}
    for (name, step), value in sorted(points.items(), key=lambda point: (point[0][1], point[0][0])):
        if math.isfinite(value):
            yield name, step, value
