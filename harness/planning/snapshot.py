"""What a plan read of its data and its encoders, without texts and folders: enough to make its runs again where they are not at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ValidationError

from harness.encoders import Located
from harness.paths import without_folders
from harness.planning.data import TableData, TaskData, TrainingSet, runs_of
from harness.planning.recipe import Augment, EncoderSettings
from harness.planning.resolved import ResolvedTable
from harness.planning.runs import Plan, Truncation
from harness.planning.task_reader import Overlap
from harness.specs import Encoder, Parent, RowSet, Stage
from harness.tasks.task import FILES, TASKS, PromptFile

OF_ENCODER = ("encoder", "config", "contaminated", "lacks", "unread")
"""What of a `Located` is kept."""


def _task_of(old: Mapping[str, Any]) -> Any:
    """A task as earlier states wrote what a plan read of it."""
    if not old["own"]:
        return TASKS[old["name"]]
    kept = ("name", "title", "columns", "label", "classes", "labels", "metrics", "version", "skip_bad_rows")
    kind = {
        "labels": dict(old["labels"]),
        "spans": bool(old["spans"]),
        "regression": not (old["classes"] or old["spans"]),
    }
    test = dict(old["tests"])["test"] if old["names_test"] else None
    splits = {"train": old["train"], "validation": old["dev"], "test": test}
    prompt = {name: each for name, each in (old["prompt"] or {}).items() if name in PromptFile.model_fields}
    if prompt:
        prompt["words"] = dict(zip(old["classes"] or old["label_range"], prompt["words"], strict=True))
    return {name: old[name] for name in kept} | kind | {"splits": splits, "prompt": prompt or None}


def _of_earlier_states(tasks: Any) -> Any:
    try:
        return {
            name: each | {"task": _task_of(each["task"])} if "names_test" in each["task"] else each
            for name, each in tasks.items()
        }
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"no tasks of an earlier state: {error}") from None


@dataclass(frozen=True)
class PlanSnapshot:
    """Under one encoder. The mappings of `TableData` whose keys are no text are pairs here. `read_under`: what the table said that this depends
    on, by the name under which a user sets it; of paths the last part alone. What stands last has a default: earlier states kept less."""

    encoder: Encoder
    config: Mapping[str, Any]
    contaminated: tuple[str, ...]
    source: str
    tasks: Annotated[Mapping[str, TaskData], BeforeValidator(_of_earlier_states)]
    training: tuple[tuple[tuple[str, int, int, int, Augment | None], TrainingSet], ...]
    mlm_head: Parent | None
    corpora: tuple[tuple[tuple[float, float], RowSet], ...]
    views: int
    untranslated: str
    unaugmented: tuple[tuple[Augment | None, str], ...]
    read_under: Mapping[str, Any]
    overlaps: tuple[Overlap, ...]
    lacks: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    truncations: Mapping[str, Truncation] = field(default_factory=dict)


class Snapshot(BaseModel, defer_build=True):
    """Of a whole plan, by encoder. `files`: the names of the user's own tasks by those of their files."""

    sizes: tuple[int, ...]
    files: Mapping[str, str]
    parts: tuple[PlanSnapshot, ...]

    @classmethod
    def of(cls, body: Any) -> Snapshot | None:
        """None for what another version wrote."""
        try:
            return cls.model_validate(body)
        except ValidationError:
            return None


def snapshot(plan: Plan, files: Mapping[str, str]) -> Snapshot:
    """What a plan read, all of which is at hand. `files`: see `Snapshot`."""
    data, resolved = plan.table_data, plan.resolved
    own = {name: each.task for name, each in data.tasks.items()}
    for name, task in own.items():
        own[name] = task.model_copy(update={key: without_folders(getattr(task, key)) for key in FILES})
    shared: dict[str, Any] = {
        "source": plan.source,
        "overlaps": plan.overlaps,
        "tasks": {name: replace(each, task=own[name]) for name, each in data.tasks.items()},
        "training": tuple(data.training.items()),
        "corpora": tuple(((0.0, fraction), rows) for fraction, rows in data.corpora.items()),
        "views": data.views,
        "untranslated": without_folders(data.untranslated),
        "unaugmented": tuple((augment, without_folders(why)) for augment, why in data.unaugmented.items()),
    }
    parts = [
        PlanSnapshot(
            **{each: getattr(data.located[name], each) for each in OF_ENCODER},
            mlm_head=data.mlm_heads.get(name),
            read_under=_read_under(resolved, name),
            truncations={task: found for (encoder, task), found in plan.truncations.items() if encoder == name},
            **shared,
        )
        for name in resolved.encoders
    ]
    return Snapshot(sizes=resolved.sizes, files=files, parts=tuple(parts))


def _read_under(resolved: ResolvedTable, encoder: str) -> dict[str, object]:
    """Settings that the data depend on besides tasks, sizes and subsets, and the encoder itself. Where none names a translator, any that was
    read will do."""
    head, text, translator = resolved.mlm_head, resolved.pre_train, resolved.translator
    settings: dict[str, object] = {"protocol": resolved.protocol, "encoder": encoder, "data": resolved.data}
    settings |= {"mlm_head.steps": head.steps, "mlm_head.frozen": head.frozen}
    settings |= {f"encoder.{name}": resolved.encoder_settings.get(name) for name in EncoderSettings.model_fields}
    settings |= {"translator": translator} if resolved.translations and translator else {}
    settings |= {"pre_train.corpus": text.corpus, "pre_train.fraction": text.fraction} if text else {}
    return {name: without_folders(value) if isinstance(value, str) else value for name, value in settings.items()}


def remade(resolved: ResolvedTable, read: Snapshot) -> Plan | None:
    """The plan of a table from what another one read, without texts; None where that one read other data. Raises UserError as `make_plan`
    does for what is wrong in the table."""
    parts = {
        name: part
        for name in resolved.encoders
        for part in read.parts
        if _read_under(resolved, name).items() <= part.read_under.items()
    }
    first = next(iter(parts.values()), None)
    if first is None or len(parts) < len(resolved.encoders):
        return None
    table_data = TableData(
        tasks={name: first.tasks[name] for name in resolved.tasks if name in first.tasks},
        training=dict(first.training),
        located={
            name: Located(folder=None, head_training=None, **{each: getattr(part, each) for each in OF_ENCODER})
            for name, part in parts.items()
        },
        # It was read by its fields, of which the code of an objective is one that no store gives.
        mlm_heads={
            name: replace(head, stage=Stage.from_json(head.stage.to_json()))
            for name, part in parts.items()
            if (head := part.mlm_head)
        },
        corpora={fraction: rows for (_, fraction), rows in first.corpora},
        views=first.views,
        untranslated=first.untranslated,
        unaugmented=dict(first.unaugmented),
    )
    try:
        runs, skipped = runs_of(resolved, table_data)
    except KeyError:  # a task, a size, a subset or a part of a corpus that was not read
        return None
    overlaps = dict.fromkeys(each for part in parts.values() for each in part.overlaps)
    of_tasks = tuple(each for each in overlaps if each.evaluation.partition("/")[0] in resolved.tasks)
    plan = Plan(resolved, first.source, runs, skipped, table_data, of_tasks)
    plan.truncations = {
        (encoder, name): found
        for encoder, part in parts.items()
        for name, found in part.truncations.items()
        if name in resolved.tasks
    }
    return plan
