"""What a plan read of its data and its encoders, without texts and folders: enough to make its runs again where they are not at hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel

from harness.paths import without_folders
from harness.planning.data import READ, WRITTEN, TableData, runs_of
from harness.planning.recipe import EncoderSettings
from harness.planning.resolved import ResolvedTable
from harness.planning.runs import Plan, Truncation
from harness.specs import Stage
from harness.tasks.task import FILES, TASKS, PromptFile


class Snapshot(BaseModel, defer_build=True):
    """Of a whole plan. `files`: the names of the user's own tasks by those of their files; `read_under`: for each encoder what the table said
    that the data depend on, by the name under which a user sets it; of paths the last part alone."""

    sizes: tuple[int, ...]
    files: Mapping[str, str]
    read_under: Mapping[str, Mapping[str, Any]]
    data: TableData
    truncations: Mapping[Annotated[tuple[str, str], READ, WRITTEN], Truncation]

    @classmethod
    def of(cls, body: Any) -> Snapshot | None:
        """None for what another version wrote."""
        try:
            return cls.model_validate(body if "data" in body else _joined(body))
        except (ValueError, LookupError, TypeError, AttributeError):
            return None


def _joined(body: Mapping[str, Any]) -> dict[str, Any]:
    """A snapshot of earlier states, which kept the data once for each encoder."""
    first, parts = body["parts"][0], {part["read_under"]["encoder"]: part for part in body["parts"]}
    of_encoder = ("encoder", "config", "contaminated", "lacks", "unread")
    data = {name: first[name] for name in ("views", "untranslated", "source", "overlaps")} | {
        "tasks": {name: each | {"task": _task_of(each["task"])} for name, each in first["tasks"].items()},
        "training": {json.dumps(key): each for key, each in first["training"]},
        "located": {
            name: {"folder": None, "head_training": None} | {key: part[key] for key in of_encoder if key in part}
            for name, part in parts.items()
        },
        "mlm_heads": {name: part["mlm_head"] for name, part in parts.items() if part["mlm_head"]},
        "corpora": {fraction: rows for (_, fraction), rows in first["corpora"]},
        "unaugmented": {json.dumps(augment): why for augment, why in first["unaugmented"]},
    }
    truncations = {(name, task): each for name in parts for task, each in parts[name].get("truncations", {}).items()}
    read_under = {name: part["read_under"] for name, part in parts.items()}
    return {**body, "read_under": read_under, "data": data, "truncations": truncations}


def _task_of(old: Mapping[str, Any]) -> Any:
    """A task as earlier states wrote what a plan read of it."""
    if "names_test" not in old:
        return old
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


def snapshot(plan: Plan, files: Mapping[str, str]) -> Any:
    """What a plan read, all of which is at hand, as JSON. `files`: see `Snapshot`."""
    data, tasks = plan.table_data, {}
    for name, each in data.tasks.items():
        of_files = {key: without_folders(getattr(each.task, key)) for key in FILES}
        tasks[name] = replace(each, task=each.task.model_copy(update=of_files))
    located = {name: replace(each, folder=None, head_training=None) for name, each in data.located.items()}
    made = Snapshot(
        sizes=plan.resolved.sizes,
        files=files,
        read_under={name: _read_under(plan.resolved, name) for name in plan.resolved.encoders},
        data=replace(data, tasks=tasks, located=located),
        truncations=plan.truncations,
    )
    body = made.model_dump(mode="json")
    own = body["data"].pop("tasks")  # in which a class, a column or a template may look like a path
    kept: Any = json.loads(without_folders(json.dumps(body)))
    kept["data"]["tasks"] = own
    return kept


def _read_under(resolved: ResolvedTable, encoder: str) -> dict[str, object]:
    """Settings that the data depend on besides tasks, sizes and subsets, and the encoder itself. Where none names a translator, any that was
    read will do."""
    head, text, translator = resolved.mlm_head, resolved.pre_train, resolved.translator
    settings: dict[str, object] = {"protocol": resolved.protocol.name, "encoder": encoder, "data": resolved.data}
    settings |= {"mlm_head.steps": head.steps, "mlm_head.frozen": head.frozen}
    settings |= {f"encoder.{name}": resolved.encoder_settings.get(name) for name in EncoderSettings.model_fields}
    settings |= {"translator": translator} if resolved.translations and translator else {}
    settings |= {"pre_train.corpus": text.corpus, "pre_train.fraction": text.fraction} if text else {}
    return {name: without_folders(value) if isinstance(value, str) else value for name, value in settings.items()}


def remade(resolved: ResolvedTable, read: Snapshot) -> Plan | None:
    """The plan of a table from what another one read, without texts; None where that one read other data. Raises UserError as `make_plan`
    does for what is wrong in the table."""
    data, names = read.data, {name: without_folders(name) for name in resolved.encoders}
    if len({*names.values()}) < len(names):  # two folders of one name, of which the last was kept
        return None
    for name, short in names.items():
        under = read.read_under.get(short, {}) if short in data.located else {}
        if not _read_under(resolved, name).items() <= under.items():
            return None
    kept = replace(
        data,
        tasks={name: data.tasks[name] for name in resolved.tasks if name in data.tasks},
        located={name: data.located[short] for name, short in names.items()},
        # They were read by their fields, of which the code of an objective is one that no store gives.
        mlm_heads={
            name: replace(head, stage=Stage.from_json(head.stage.to_json()))
            for name, short in names.items()
            if (head := data.mlm_heads.get(short))
        },
        overlaps=tuple(each for each in data.overlaps if each.evaluation.partition("/")[0] in resolved.tasks),
    )
    try:
        runs, skipped = runs_of(resolved, kept)
    except KeyError:  # a task, a size, a subset or a part of a corpus that was not read
        return None
    plan = Plan(resolved, kept, runs, skipped)
    plan.truncations = {
        (name, task): found
        for name, short in names.items()
        for (encoder, task), found in read.truncations.items()
        if encoder == short and task in resolved.tasks
    }
    return plan
