"""What a tracker shows of recorded stages and of the cells that their runs fill. Pure: no tracker, no disk."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from harness.specs import Predictions, Record, Run, Stage, Status, digest_of
from harness.tables.aggregation import mean, std
from harness.tables.plan import Plan
from harness.tables.table_data import TaskData
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
    """A run with what names it in a tracker: the `group` that it belongs to, further `labels`, its task's test sets by evaluation
    (left out: its test scores are not shown) and the metrics that they are scored by."""

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
        found: dict[str, list[Member]] = {}
        for member in self.members:
            for stage in member.run.stage.chain:
                found.setdefault(stage.key, []).append(member)
        return found

    def cells(self, scores: Mapping[str, Mapping[str, float]]) -> Iterator[TrackedRun]:
        """The cells of which a run is done: mean and standard deviation of each score over their runs. `scores`: `final_scores` of
        the runs that are done, by the key of the last stage."""
        groups: dict[str, list[Member]] = {}
        for member in self.members:
            if member.run.stage.key in scores:
                groups.setdefault(member.group, []).append(member)
        for group, done in groups.items():
            each = [scores[member.run.stage.key] for member in done]
            found: dict[str, float] = {"runs": len(done)}
            for name in each[0]:
                values = [mine[name] for mine in each if name in mine]
                found[f"mean/{name.removeprefix(FINAL)}"] = mean(values)
                if (spread := std(values, self.ddof)) is not None:
                    found[f"sd/{name.removeprefix(FINAL)}"] = spread
            labels = _common(_labels(member) for member in done)
            yield TrackedRun(
                key=group_key(self.experiment, group),
                name=f"{group}: mean and sd",
                group=group,
                group_key=group_key(self.experiment, group),
                within="mean and sd",
                kind="cell",
                digest=digest_of([sorted(member.run.stage.key for member in done), found]),
                parameters={name: value for name, value in labels.items() if name not in ("subset", "seed")},
                scores=found,
            )


def of_plan(plan: Plan, variant: str) -> Projection:
    """The runs of a table and those that they start from; runs whose start is not selected yet are left out. `variant`: what tells
    its cells from those of the same table under other values."""
    resolved = plan.resolved
    members = []
    for wave in plan.waves:
        labels = {"table": wave.resolved.table.name, "preset": wave.resolved.preset, "encoder": wave.resolved.encoder}
        for run in wave.runs:
            if not wave.waits(run):
                group = f"{run.row}/{run.task}/{size_name(run)} ({variant})"
                members.append(member_of(run, group, labels, wave.tasks[run.task], tests=True))
    return Projection(f"harness-{resolved.table.name}", tuple(members), resolved.aggregate.ddof)


def size_name(run: Run) -> str:
    return f"n{run.size}" if run.size else "full"


def group_key(experiment: str, group: str) -> str:
    return digest_of([experiment, group])


def member_of(run: Run, group: str, labels: Mapping[str, Value], data: TaskData, *, tests: bool) -> Member:
    sets = {name: rows.digest for name, rows in data.tests.items()} if tests else {}
    return Member(run, group, labels, sets, data.task.metrics)


def digest(record: Record) -> str:
    """Of the outcome of a stage: another one where it is trained again after a failure."""
    origin = record.provenance.get("started_at", 0.0)
    return digest_of([record.key, record.status, record.reason, record.seconds, origin])


def tracked(experiment: str, stage: Stage, members: Sequence[Member], record: Record) -> TrackedRun:
    """A recorded stage as a tracker's run. `members`: the runs that it serves; `record`: with predictions."""
    groups = [*dict.fromkeys(member.group for member in members)]
    group = groups[0] if len(groups) == 1 else f"shared/{stage.phase}"
    ends = [member for member in members if member.run.stage.key == stage.key]
    run = members[0].run
    more = f" and {len(members) - 1} more" if len(members) > 1 else ""
    place = "" if len(groups) > 1 or len(members) > 1 else f"subset{run.subset} seed{run.seed} "
    tags = {f"provenance.{name}": str(value) for name, value in sorted(record.provenance.items()) if value != ""}
    scores = {"cost/seconds": record.seconds, "cost/flops": record.flops}
    scores |= {f"cost/{name}": record.provenance[name] for name in ("tokens_per_second",) if name in record.provenance}
    if record.status == "done" and record.selected_step is not None:
        scores |= {f"{FINAL}step": record.selected_step, f"{FINAL}collapsed": float(record.collapsed)}
    if ends and record.status == "done":
        scores |= final_scores(ends[0], record)
    return TrackedRun(
        key=stage.key,
        name=f"{run.name}{more} ({stage.phase})",
        group=group,
        group_key=group_key(experiment, group),
        within=f"{place}{stage.phase}",
        kind=stage.phase,
        digest=digest(record),
        status=record.status,
        reason=record.reason,
        parameters={**_common(_labels(member) for member in members), **recipe(stage)},
        history=tuple(history(record)),
        scores={name: float(value) for name, value in scores.items() if math.isfinite(value)},
        tags=tags,
        started_at=float(record.provenance.get("started_at", 0.0)),
        seconds=record.seconds,
    )


def final_scores(member: Member, record: Record) -> dict[str, float]:
    """Dev as recorded at the selected checkpoint, and each test set by the task's metrics."""
    found = {f"{FINAL}dev/{metric}": value for metric, value in record.dev_scores.items()}
    for evaluation, rows in member.tests.items():
        predicted: Predictions | None = record.predictions.get(rows)
        if predicted is not None:
            for metric in member.metrics:
                found[f"{FINAL}{evaluation}/{metric}"] = score(metric, predicted.gold, predicted.logits)
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def _labels(member: Member) -> dict[str, Value]:
    run = member.run
    own: dict[str, Value] = {"row": run.row, "method": run.method, "task": run.task}
    own |= {"size": run.size, "subset": run.subset, "seed": run.seed}
    return {**member.labels, **own}


def _common(labels: Iterable[Mapping[str, Value]]) -> dict[str, Value]:
    """What all runs agree on: a stage that several runs share has no subset of its own, for example."""
    first, *rest = labels
    return {name: value for name, value in first.items() if all(each.get(name) == value for each in rest)}


def recipe(stage: Stage) -> dict[str, Value]:
    """Everything that a stage's key hashes apart from the content of its data, by dotted names."""
    found: dict[str, Value] = {"phase": stage.phase, "stage_seed": stage.seed, "objective": stage.objective.name}
    found |= {f"objective.{name}": value for name, value in stage.objective.params.items()}
    found |= {f"optim.{name}": value for name, value in vars(stage.optim).items() if not name.startswith("_")}
    found |= {"data.train": stage.data.train.name, "data.rows": stage.data.train.rows}
    found |= {"data.max_length": stage.data.max_length, "encoder.digest": stage.encoder.digest}
    if stage.parent:
        found["parent"] = stage.parent.key
    if stage.selection:
        found |= {"selection.metric": stage.selection.metric, "selection.every": stage.selection.every}
    return found


def history(record: Record) -> Iterator[tuple[str, int, float]]:
    """Every recorded number by update: terms of the loss (means since the point before), what tells collapse from learning, dev."""
    points: dict[tuple[str, int], float] = {}
    for entry in record.history:
        step, curve = int(entry["step"]), entry.get("curve", {})
        numbers: dict[str, Any] = {
            f"train/{name}": value
            for name, value in entry.items()
            if isinstance(value, (int, float)) and name != "step"
        }
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
