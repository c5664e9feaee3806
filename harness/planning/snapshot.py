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
from harness.planning.resolved import Part, ResolvedTable, UnderEncoder
from harness.planning.runs import Plan
from harness.planning.task_reader import Overlap
from harness.planning.truncation import Truncation
from harness.specs import Encoder, Parent, RowSet, Stage


@dataclass(frozen=True)
class PlanSnapshot:
    """Under one encoder. The mappings of `TableData` whose keys are no text are pairs here. `read_under`: what the table said that this depends
    on, by the name under which a user sets it; of paths the last part alone. `truncations`: None in what an earlier version wrote."""

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
    unread: tuple[str, ...] = ()
    truncations: Mapping[str, Truncation] | None = None


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
    return Snapshot(plan.resolved.sizes, files, tuple(_snapshot(plan, each) for each in plan.resolved.encoders))


def _snapshot(plan: Plan, under: UnderEncoder) -> PlanSnapshot:
    data, located = plan.table_data, plan.table_data.located[under.name]
    return PlanSnapshot(
        encoder=located.encoder,
        config=located.config,
        contaminated=located.contaminated,
        source=plan.source,
        tasks={
            name: replace(each, task=replace(each.task, data="", files=(), unlabelled=""))
            for name, each in data.tasks.items()
        },
        training=tuple(data.training.items()),
        mlm_head=data.mlm_heads.get(under.name),
        corpora=tuple(data.corpora.items()),
        views=data.views,
        untranslated=without_folders(data.untranslated),
        unaugmented=tuple((augment, without_folders(reason)) for augment, reason in data.unaugmented.items()),
        read_under=_shown(data_settings(plan.resolved, under)),
        overlaps=plan.overlaps,
        lacks=located.lacks,
        unread=located.unread,
        truncations={name: found for (encoder, name), found in plan.truncations.items() if encoder == under.name},
    )


def _shown(settings: Mapping[str, object]) -> dict[str, object]:
    return {name: without_folders(value) if isinstance(value, str) else value for name, value in settings.items()}


def remade(resolved: ResolvedTable, read: Snapshot, starts: Mapping[str, Parent | str]) -> Plan | None:
    """The plan of a table from what another one read, without texts; None where that one read other data. `starts`: see `TableData`. Raises UserError as `make_plan` does for what is
    wrong in the table."""
    by_encoder, parts = {part.read_under.get("encoder"): part for part in read.parts}, dict[str, PlanSnapshot]()
    for under in resolved.encoders:
        part, asked = by_encoder.get(without_folders(under.name)), _shown(data_settings(resolved, under))
        if part is None or any(part.read_under.get(name) != value for name, value in asked.items()):
            return None
        parts[under.name] = part
    first = next(iter(parts.values()))
    table_data = TableData(
        tasks={name: first.tasks[name] for name in resolved.tasks if name in first.tasks},
        training=dict(first.training),
        located={
            name: Located(
                part.encoder, None, dict(part.config), None, part.contaminated, lacks=part.lacks, unread=part.unread
            )
            for name, part in parts.items()
        },
        # A snapshot is read by its fields, of which the code of an objective is one that no store gives.
        mlm_heads={
            name: replace(part.mlm_head, stage=Stage.from_json(part.mlm_head.stage.to_json()))
            for name, part in parts.items()
            if part.mlm_head
        },
        corpora=dict(first.corpora),
        views=first.views,
        untranslated=first.untranslated,
        unaugmented=dict(first.unaugmented),
        starts=starts,
    )
    try:
        runs, skipped = runs_of(resolved, table_data)
    except KeyError:  # a task, a size, a subset or a part of a corpus that was not read
        return None
    plan = Plan(
        resolved=resolved,
        source=first.source,
        runs=runs,
        stages={s.key: s for run in runs for s in run.stage.chain},
        skipped=skipped,
        table_data=table_data,
        overlaps=tuple(
            dict.fromkeys(
                overlap
                for part in parts.values()
                for overlap in part.overlaps
                if overlap.evaluation.partition("/")[0] in resolved.tasks
            )
        ),
    )
    plan.truncations = {
        (encoder, name): found
        for encoder, part in parts.items()
        for name, found in (part.truncations or {}).items()
        if name in resolved.tasks
    }
    return plan
