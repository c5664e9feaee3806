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
from harness.planning.row import UnderEncoder
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
    starts: Mapping[str, Parent | str] | None = None


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
    data, parts = plan.table_data, []
    tasks = {
        name: replace(each, task=replace(each.task, data="", files=(), unlabelled=""))
        for name, each in data.tasks.items()
    }
    for under in plan.resolved.encoders:
        at = data.located[under.name]
        part = PlanSnapshot(
            encoder=at.encoder,
            config=at.config,
            contaminated=at.contaminated,
            source=plan.source,
            tasks=tasks,
            training=tuple(data.training.items()),
            mlm_head=data.mlm_heads.get(under.name),
            corpora=tuple(data.corpora.items()),
            views=data.views,
            untranslated=without_folders(data.untranslated),
            unaugmented=tuple((augment, without_folders(reason)) for augment, reason in data.unaugmented.items()),
            read_under=_read_under(plan.resolved, under),
            overlaps=plan.overlaps,
            lacks=at.lacks,
            unread=at.unread,
            truncations={name: found for (encoder, name), found in plan.truncations.items() if encoder == under.name},
            starts=data.starts,
        )
        parts.append(part)
    return Snapshot(plan.resolved.sizes, files, tuple(parts))


def _read_under(resolved: ResolvedTable, under: UnderEncoder) -> dict[str, object]:
    settings = data_settings(resolved, under)
    return {name: without_folders(value) if isinstance(value, str) else value for name, value in settings.items()}


def remade(resolved: ResolvedTable, read: Snapshot) -> Plan | None:
    """The plan of a table from what another one read, without texts; None where that one read other data. Raises UserError as `make_plan`
    does for what is wrong in the table."""
    by_encoder, parts = {part.read_under.get("encoder"): part for part in read.parts}, dict[str, PlanSnapshot]()
    for under in resolved.encoders:
        part, asked = by_encoder.get(without_folders(under.name)), _read_under(resolved, under)
        if part is None or any(part.read_under.get(name) != value for name, value in asked.items()):
            return None
        parts[under.name] = part
    first = parts[resolved.encoders[0].name]
    if resolved.starts_from and first.starts is None:
        return None
    table_data = TableData(
        tasks={name: first.tasks[name] for name in resolved.tasks if name in first.tasks},
        training=dict(first.training),
        located={
            name: Located(p.encoder, None, dict(p.config), None, p.contaminated, lacks=p.lacks, unread=p.unread)
            for name, p in parts.items()
        },
        mlm_heads={name: _checked(p.mlm_head) for name, p in parts.items() if p.mlm_head},
        corpora=dict(first.corpora),
        views=first.views,
        untranslated=first.untranslated,
        unaugmented=dict(first.unaugmented),
        starts={
            row: start if isinstance(start, str) else _checked(start) for row, start in (first.starts or {}).items()
        },
    )
    try:
        runs, skipped = runs_of(resolved, table_data)
    except KeyError:  # a task, a size, a subset or a part of a corpus that was not read
        return None
    overlaps = dict.fromkeys(
        each for p in parts.values() for each in p.overlaps if each.evaluation.partition("/")[0] in resolved.tasks
    )
    plan = Plan(resolved, first.source, runs, skipped, table_data, tuple(overlaps))
    plan.truncations = {
        (encoder, name): found
        for encoder, p in parts.items()
        for name, found in (p.truncations or {}).items()
        if name in resolved.tasks
    }
    return plan


def _checked(start: Parent) -> Parent:
    """A snapshot is read by its fields, of which the code of an objective is one that no store gives. Raises ValueError."""
    return replace(start, stage=Stage.from_json(start.stage.to_json()))
