"""A table under the preset, the filters (rows, sizes, subsets, seeds, columns) and the overrides of a request: one flat, frozen object
that the planner reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pydantic import BaseModel

from harness.encoders.sources import NEW
from harness.errors import UserError, hint, unknown
from harness.methods import METHODS, REFERENCE, known_methods, methods_named
from harness.planning.recipe import (
    EncoderSettings,
    MlmHead,
    Phase,
    PreTrain,
    Value,
    group_of,
    keyed,
    patched,
    read_value,
    replaced,
)
from harness.planning.request import OWN_DATA, Override, Request
from harness.planning.resolved import ByTask, ResolvedRow, ResolvedTable, on_encoder
from harness.planning.table import Column, Preset, Row, Table, drawn
from harness.tasks.protocols import protocol_named
from harness.tasks.task import TASKS, Task
from harness.wording import listed
from harness.yaml_files import MisplacedError


class Patch(NamedTuple):
    """An override: its `values` by their keys in full, and the names of the `rows` that it reaches, None for all."""

    override: Override
    values: dict[str, Any]
    rows: set[str] | None

    def reaches(self, row: Row) -> bool:
        return self.rows is None or row.name in self.rows


MOST_SUBSETS = 1000
"""Subset k is a draw of its own for any k (docs/reliability.md); a larger index is a misspelt seed or size."""


def resolve(table: Table, request: Request, tasks: Mapping[str, Task] = TASKS) -> ResolvedTable:
    """`table` as a request asks for it.

    `tasks`: the known ones by name; those that the table has no column for get one for each evaluation, of their first metric.
    Raises UserError for an unknown name, a number out of range, or a wrong override.
    """
    if request.methods is not None:  # those in files, which were read, by their names
        methods = tuple(known_methods(name, request.methods) for name in request.methods)
        request = replace(request, methods=methods)
    name = request.preset or table.preset_for(request.encoder)
    if name not in table.presets:
        raise unknown("preset", name, table.presets, f"{request.origin('preset')} of table {table.name}")
    preset = table.presets[name]
    named = tuple(dict.fromkeys(request.encoder or (preset.encoder,)))
    short = [each if each.startswith(NEW) else each.rstrip("/").rpartition("/")[2] for each in named]
    encoders = dict(zip(named, short if len({*short}) == len(short) else named, strict=True))
    here, rows = table.under(preset), _rows(table, preset, request)
    chosen_tasks = tuple(dict.fromkeys(here.tasks if request.tasks is None else request.tasks))
    if not chosen_tasks:
        raise UserError(
            f"table {table.name} has no task of its own; name a file of labelled rows, a task's YAML file or a task with "
            f"--tasks."
        )
    columns = _columns(table, name, request, chosen_tasks, tasks)
    overrides = list(request.overrides)
    if request.corpus is not None:
        where = f"{request.origin('corpus')} {request.corpus}"
        overrides.append(Override("pre_train.corpus", request.corpus, where, True))
    parts, pre_trained = sorted({p for row in (*table.rows, *rows) for p in row.parts}), bool(here.pre_train)
    patches = [Patch(each, _read(each, parts, pre_trained), _reached(each, table, rows)) for each in overrides]
    of_all, resolved_rows = _resolved_rows(table, preset, encoders, rows, chosen_tasks, patches)
    values = of_all[""]
    own_data = all(tasks[task].own for task in chosen_tasks)
    given = {(each.override.row, each.override.key): each for each in patches if each.override in request.overrides}
    result = ResolvedTable(
        table=table,
        preset=name,
        encoders=encoders,
        under=of_all,
        data=request.data or (OWN_DATA if own_data else preset.data),
        rows=tuple(resolved_rows),
        tasks=chosen_tasks,
        columns=columns,
        **_design(table, here, request),
        max_length=values["max_length"],
        selection_every=here.selection_every,
        mlm_head=MlmHead(**group_of(values, "mlm_head")),
        pre_train=PreTrain(**group_of(values, "pre_train", PreTrain.model_fields))
        if any(row.pre_train for row in rows)
        else None,
        translator=here.translator if request.translator is None else request.translator,
        protocol=protocol_named(request.protocol or table.protocol),
        unreached=tuple(sentence for each in given.values() for sentence in _unreached(each, resolved_rows)),
    )
    configurations = min(map(len, result.printed_rows.values())) if result.aggregate.select == "none" else 1
    runs = min(len(result.replicates_at(size)) for size in result.sizes) * configurations
    if (result.aggregate.k or 0) > runs:
        raise UserError(
            f"table {table.name}, key aggregate.k: a cell is the {result.aggregate.label}, and the chosen subsets and "
            f"seeds give {runs}; choose more of them."
        )
    return result


# --------------------------------------------------------------------------------------------------------- filters


def _rows(table: Table, preset: Preset, request: Request) -> tuple[Row, ...]:
    """The chosen rows, after `draws` of the points of each grid, the same points in all grids of one kind."""
    rows, grids = table.rows, dict[tuple[str, tuple[str, ...]], list[str]]()
    if preset.draws:
        for row in rows:
            grids.setdefault((row.configuration_of, row.tasks), []).append(row.name)
        kept = {name for (_, on), names in grids.items() for name in drawn(names, preset.draws, " ".join(on))}
        rows = tuple(row for row in rows if row.name in kept or not row.configuration_of)
    chosen = rows
    if request.methods is not None:
        chosen = _pick_rows(rows, request.methods, request.origin("methods"))
    elif preset.methods is not None:
        chosen = tuple(row for name in preset.methods for row in rows if row.title == name)
    further = _pick_rows(rows, REFERENCE, request.origin("reference")) if request.reference else ()
    return (*chosen, *(row for row in further if row not in chosen))


def _resolved_rows(
    table: Table,
    preset: Preset,
    encoders: Mapping[str, str],
    rows: Sequence[Row],
    tasks: Sequence[str],
    patches: Sequence[Patch],
) -> tuple[ByTask, list[ResolvedRow]]:
    """What the table has for all rows, and the rows under each encoder with all that they train with."""
    recipes, here = {task: spec.values for spec in table.task_recipes for task in spec.tasks}, table.under(preset)
    own = {"max_length": here.max_length, **table.recipe.values, **keyed("encoder", table.encoder_settings)}
    own |= keyed("mlm_head", preset.mlm_head or MlmHead()) | keyed("pre_train", here.pre_train)
    last = {row.title: row.tasks for row in table.rows}

    def under(patches: Iterable[Patch]) -> ByTask:
        """The later override of a pair wins."""
        layers = preset.recipe.values, patched({}, *(each.values for each in patches))
        return {task: patched(own, recipes.get(task, {}), *layers) for task in ("", *tasks)}

    def takes(row: Row, task: str) -> bool:
        """On a task that the table lacks all rows are run, those with a grid for each group of tasks at the points of the last one."""
        return task in (row.tasks or (task,)) if task in table.tasks else row.tasks == last.get(row.title, row.tasks)

    of_all, found = under(each for each in patches if each.rows is None), list[ResolvedRow]()
    for (encoder, title), row in itertools.product(encoders.items(), rows):
        mine = [patch for patch in patches if patch.reaches(row)]
        values = of_all if all(patch.rows is None for patch in mine) else under(mine)
        changed = {key: value for key, value in values[""].items() if of_all[""].get(key) != value}
        carried: dict[str, Any] = {"encoder": encoder, "under": values}
        carried["alone"] = {key: value for key, value in changed.items() if key.partition(".")[0] in row.groups}
        carried["tasks"] = tuple(task for task in tasks if takes(row, task))
        for key in ("name", "configuration_of") if len(encoders) > 1 else ():
            carried[key] = getattr(row, key) and on_encoder(getattr(row, key), title)
        found.append(ResolvedRow.of(row, **carried, overrides=tuple(patch.override for patch in mine)))
    return of_all, found


def _design(table: Table, here: Table, request: Request) -> dict[str, tuple[int, ...]]:
    """Sizes, subsets and seeds of a table, of what it is under a preset, and of a request."""
    if wrong := [size for size in request.sizes or () if table.sizes and size not in table.sizes]:
        known = f"table {table.name} has {', '.join(map(str, table.sizes))}, one of yours, or own, takes any"
        raise UserError(f"{request.origin('sizes')}: unknown size '{wrong[0]}': {known} (a space: 'table: own').")
    fixed = protocol_named(request.protocol or table.protocol).num_subsets
    usual = {"sizes": here.sizes or (0,), "subsets": range(fixed or here.subsets), "seeds": here.seeds}
    found = {name: getattr(request, name) for name in usual}
    for name, stop in (("subsets", fixed or MOST_SUBSETS), ("seeds", 2**32)):
        if wrong := [value for value in found[name] or () if value >= stop]:
            raise UserError(f"{request.origin(name)}: {wrong[0]} is out of range; allowed are 0 to {stop - 1}.")
    return {name: tuple(dict.fromkeys(v if found[name] is None else found[name])) for name, v in usual.items()}


def _pick_rows(rows: Sequence[Row], names: Iterable[str], where: str) -> tuple[Row, ...]:
    """Of a table's rows those by row name or method name, in its order; then a row for each method that it lacks."""
    found = {name: rows_named(rows, name) for name in names}
    absent = [name.lower() for name, named in found.items() if not named]
    if wrong := [name for name in absent if any(part not in METHODS for part in name.split("+"))]:
        known = {text.lower() for row in rows for text in (row.name, row.title, row.method) if text}
        raise unknown("method", wrong[0], known | set(METHODS), where)
    titles = {"+".join(method.title for method in methods_named(name, where)): name for name in absent}
    added = [Row(name=title, method=titles[title], incomparable="the paper has no such row") for title in titles]
    chosen = {row.name for named in found.values() for row in named}
    return (*(row for row in rows if row.name in chosen), *added)


def rows_named(rows: Iterable[Row], name: str) -> list[Row]:
    """Those of the rows that a name means: the row of that name, else all rows of the method of that name."""
    rows, lower = list(rows), name.lower()
    found = [row for row in rows if name in (row.name, row.title)]
    found = found or [row for row in rows if row.method and row.method.lower() == lower]
    return found or [row for row in rows if lower in (row.name.lower(), row.title.lower())]


def _columns(
    table: Table, preset: str, request: Request, tasks: tuple[str, ...], known: Mapping[str, Task]
) -> dict[str, Column]:
    """The table's columns of the chosen tasks in its order, then automatic ones for each task it lacks."""
    columns = {name: column for name, column in table.columns.items() if column.task in tasks}
    for key, spec in columns.items():
        if spec.task not in known:
            wrong = unknown("task", spec.task, known, f"table {table.name}, key columns.{key}.task")
            raise UserError(f"{str(wrong).rstrip('.')}; name the YAML file of a task of your own in --tasks.")
        try:
            spec.check(known[spec.task])
        except MisplacedError as error:
            key = ".".join(["columns", key, *map(str, error.loc)])
            raise UserError(f"table {table.name}, key {key}: {str(error).rstrip('.')}.") from None
    for name in tasks:
        if name not in (*table.tasks, *known):
            where = f"preset {preset}" if request.tasks is None else request.origin("tasks")
            raise unknown("task", name, {*table.tasks, *known}, where)
        task = known[name]
        for evaluation, title in task.columns_of_table.items() if name not in table.tasks else ():
            column = name if len(task.tests) == 1 else f"{name}_{evaluation}"
            columns[column] = Column(task=name, metric=task.metrics[0], evaluation=evaluation, title=title)
    return columns


# ------------------------------------------------------------------------------------------------------- overrides

GROUPS: dict[str, tuple[type[BaseModel], ...]] = {
    "mlm_head": (MlmHead,),
    "encoder": (EncoderSettings,),
    "optim": (Phase,),
    "fine_tune": (Phase,),
    "post_train": (Phase,),
    "pre_train": (Phase, PreTrain),
}
KEYS = {f"{group}.{name}": model for group, models in GROUPS.items() for model in models for name in model.model_fields}
KEYS["max_length"] = Table
"""Whose field the key of an override names; a method's hyperparameters follow."""


def _read(override: Override, methods: Sequence[str], pre_trained: bool) -> dict[str, Any]:
    """The value of an override by its keys in full. Raises UserError for a key that is not known and for a value that does not fit it."""
    group, field, value = override.group, override.field, override.value
    if table_wide(override.key) and group == "pre_train" and not pre_trained:
        raise UserError(f"{override.place}: this table has no row that is pre-trained.")
    of_method = METHODS.get(group) if group in methods and field else None
    if value is None or (of_method and not isinstance(value, Value)):
        raise UserError(f"{override.place}: should be a number, a word, true or false, not {value!r}.")
    if model := of_method or KEYS.get(override.key):
        try:
            read = read_value(model, field or group, value)
            return dict.fromkeys(override.keys, value if of_method else read)
        except ValueError as error:
            raise UserError(f"{override.place}: {error}.") from None
    if group in GROUPS and field:
        raise unknown("key", override.key, [key for key in KEYS if key.startswith(f"{group}.")], override.place)
    names = [f"{name}.{each}" for name in methods for each in getattr(METHODS.get(name), "model_fields", ())]
    groups = ", ".join(["max_length", *(f"{group}.*" for group in (*GROUPS, *methods))])
    raise UserError(
        f"{override.place}: unknown key '{override.key}'.{hint(override.key, [*KEYS, *names])} Known: {groups}."
    )


def _reached(override: Override, table: Table, rows: Sequence[Row]) -> set[str] | None:
    """The names of the chosen `rows` that an override of some rows alone reaches; None of one of all.

    Raises UserError for a name of no row, for a value that holds for the whole table, and for a point of a file whose rows are not chosen.
    """
    known, name = (*table.rows, *rows), override.row
    if not name:
        return None
    if table_wide(override.key):
        raise UserError(f"{override.place}: {override.key} holds for all rows; leave '{name}:' out.")
    if not rows_named(known, name) and not set(name.lower().split("+")) <= METHODS.keys():
        raise unknown("row", name, [row.name for row in known], override.place)
    reached = {row.name for row in rows_named(rows, name)}
    if override.in_file and not reached:
        raise UserError(f"{override.place}: is for {name}, which is none of the chosen rows; choose it too.")
    return reached


def table_wide(key: str) -> bool:
    """Whether an override is of a value that all rows of a table share: the tokens and the text that they are trained on."""
    group, _, field = key.partition(".")
    return group in ("max_length", "mlm_head", "encoder") or (group == "pre_train" and field in PreTrain.model_fields)


def _unreached(patch: Patch, rows: Iterable[ResolvedRow]) -> Iterator[str]:
    """A sentence for an override that no row reads, and for one of all rows that some replace by a value of their own. Raises UserError for one that
    all of them replace, or that a row replaces which it is for alone."""
    keeping: dict[str, dict[str, bool]] = {}
    for row in (row for row in rows if patch.reaches(row.own)):
        own, read = row.own_values, (*row.groups, "max_length", "mlm_head", "encoder")
        for key, value in patch.values.items():
            if key.partition(".")[0] in read:
                keeping.setdefault(key, {})[row.name] = key in replaced(own) and own.get(key) != value
    place, enough = patch.override.place, all if patch.rows is None else any
    if not keeping:
        yield f"{place} has no effect: no chosen row reads it."
    elif enough(keeps for of_rows in keeping.values() for keeps in of_rows.values()):
        key = next(key for key, of_rows in keeping.items() if any(of_rows.values()))
        raise UserError(f"{place}: has no effect, each chosen row sets {key} itself; change it in a table of your own.")
    for key, of_rows in keeping.items():
        if names := [name for name, keeps in of_rows.items() if keeps]:
            verb, itself = ("sets", "itself") if len(names) == 1 else ("set", "themselves")
            yield f"{place} has no effect on {listed(names)}, which {verb} {key} {itself}."
