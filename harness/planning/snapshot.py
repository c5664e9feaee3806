"""What a plan read of its data and its encoders, without texts and folders: enough to make its runs again where they are not at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from harness.encoders import Located
from harness.paths import without_folders
from harness.planning.data import TableData, TaskData, TrainingSet, data_settings, runs_of
from harness.planning.recipe import Augment
from harness.planning.resolved import Part, ResolvedTable
from harness.planning.runs import Plan, joined
from harness.planning.task_reader import Overlap
from harness.specs import Encoder, Parent, RowSet, Stage


@dataclass(frozen=True)
class PlanSnapshot:
    """Of the plan under one encoder. The mappings of `TableData` whose keys are no text are pairs here. `read_under`: see there; of paths the
    last part alone."""

    encoder: Encoder
    config: Mapping[str, Any]
    contaminated: tuple[str, ...]
    source: str
    tasks: Mapping[str, TaskData]
    training: tuple[tuple[tuple[str, int, int, int, Augment | None], TrainingSet], ...]
    mlm_head: Parent | None
    corpora: tuple[tuple[Part, RowSet], ...]
    views: int
    untranslated: str
    unaugmented: tuple[tuple[Augment | None, str], ...]
    read_under: Mapping[str, Any]
    overlaps: tuple[Overlap, ...]
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """Of a whole plan, by encoder. `files`: the names of the user's own tasks by those of their files."""

    sizes: tuple[int, ...]
    files: Mapping[str, str]
    parts: tuple[PlanSnapshot, ...]

    def to_json(self) -> Any:
        return _adapter().dump_python(self, mode="json")

    @classmethod
    def from_json(cls, body: Any) -> Snapshot | None:
        """None for what another version wrote."""
        try:
            return _adapter().validate_python(body)
        except ValidationError:
            return None


@cache
def _adapter() -> TypeAdapter[Snapshot]:
    return TypeAdapter(Snapshot)


def snapshot(plan: Plan, files: Mapping[str, str]) -> Snapshot:
    """What a plan read, all of which is at hand. `files`: see `Snapshot`."""
    return Snapshot(plan.resolved.sizes, files, tuple(map(_snapshot, plan.parts)))


def _snapshot(plan: Plan) -> PlanSnapshot:
    data = plan.table_data
    return PlanSnapshot(
        encoder=data.base,
        config=data.config,
        contaminated=plan.located.contaminated,
        source=plan.source,
        tasks={
            name: replace(each, task=replace(each.task, data="", files=(), unlabelled=""))
            for name, each in data.tasks.items()
        },
        training=tuple(data.training.items()),
        mlm_head=data.mlm_head,
        corpora=tuple(data.corpora.items()),
        views=data.views,
        untranslated=without_folders(data.untranslated),
        unaugmented=tuple((augment, without_folders(reason)) for augment, reason in data.unaugmented.items()),
        read_under=_shown(data.read_under),
        overlaps=plan.overlaps,
        lacks=plan.located.lacks,
    )


def _shown(settings: Mapping[str, object]) -> dict[str, object]:
    return {name: without_folders(value) if isinstance(value, str) else value for name, value in settings.items()}


def remade(resolved: ResolvedTable, read: Snapshot, starts: Mapping[str, Parent | str]) -> Plan | None:
    """The plan of a table from what another one read, without texts; None where that one read other data. `starts`: see `TableData`. Raises UserError as `make_plan` does for what is
    wrong in the table."""
    parts = {part.read_under.get("encoder"): part for part in read.parts}
    plans = []
    for each in resolved.parts:
        part = parts.get(without_folders(each.encoder))
        plan = _remade(each, part, starts) if part else None
        if plan is None:
            return None
        plans.append(plan)
    return joined(resolved, plans)


def _remade(resolved: ResolvedTable, read: PlanSnapshot, starts: Mapping[str, Parent | str]) -> Plan | None:
    if any(read.read_under.get(name) != value for name, value in _shown(data_settings(resolved)).items()):
        return None
    table_data = TableData(
        tasks={name: read.tasks[name] for name in resolved.tasks if name in read.tasks},
        training=dict(read.training),
        base=read.encoder,
        # A snapshot is read by its fields, of which the code of an objective is one that no store gives.
        mlm_head=read.mlm_head and replace(read.mlm_head, stage=Stage.from_json(read.mlm_head.stage.to_json())),
        corpora=dict(read.corpora),
        config=read.config,
        encoder=read.encoder.name,
        views=read.views,
        untranslated=read.untranslated,
        unaugmented=dict(read.unaugmented),
        starts=starts,
    )
    try:
        runs, skipped = runs_of(resolved, table_data)
    except KeyError:  # a task, a size, a subset or a part of a corpus that was not read
        return None
    return Plan(
        resolved=resolved,
        located=Located(read.encoder, None, dict(read.config), None, read.contaminated, lacks=read.lacks),
        source=read.source,
        runs=runs,
        stages={s.key: s for run in runs for s in run.stage.chain},
        skipped=skipped,
        table_data=table_data,
        overlaps=read.overlaps,
    )
