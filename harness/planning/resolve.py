"""A table under the preset, the filters (rows, sizes, subsets, seeds, columns) and the overrides of a request: one flat, frozen object
that the planner reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from harness.encoders.sources import NEW
from harness.errors import UserError, hint, unknown
from harness.methods import METHODS, REFERENCE, known_methods, methods_named
from harness.planning.recipe import (
    EncoderSettings,
    Length,
    MlmHead,
    Phase,
    PreTrain,
    Value,
    group_of,
    patched,
    read_value,
    replaced,
)
from harness.planning.request import OWN_DATA, YAML, Override, Request, encoder_names, value_of
from harness.planning.resolved import ResolvedTable
from harness.planning.row import ResolvedRow, Row, UnderEncoder, drawn, on_encoder, rows_named
from harness.planning.table import Column, Preset, Table
from harness.tasks.protocols import protocol_named
from harness.tasks.task import TASKS, Task
from harness.wording import listed
from harness.yaml_files import MisplacedError

MOST_SUBSETS = 1000
"""Subset k is a draw of its own for any k (docs/reliability.md); a larger index is a misspelt seed or size."""


def resolve(table: Table, request: Request | None = None, tasks: Mapping[str, Task] | None = None) -> ResolvedTable:
    """`table` as a request (None: the table's own defaults) asks for it.

    `tasks`: the known tasks by name, for those the table has no column for (one column for each evaluation, the task's
    first metric); None means `harness.tasks.task.TASKS`, without a check of the table's own tasks.
    Raises UserError for an unknown name, a number out of range, or a wrong override.
    """
    request = request or Request()
    if request.methods is not None:  # those in files, which were read, by their names
        methods = tuple(known_methods(name, request.methods) for name in request.methods)
        request = replace(request, methods=methods)
    name = request.preset or table.preset_for(request.encoder)
    if name not in table.presets:
        raise unknown("preset", name, table.presets, f"{request.origin('preset')} of table {table.name}")
    preset = table.presets[name]
    encoders = request.encoders or encoder_names(preset.encoder)
    here, rows = table.under(preset), _rows(table, preset, request)
    sizes, subsets, seeds = _design(table, here, request)
    chosen_tasks = tuple(dict.fromkeys(here.tasks if request.tasks is None else request.tasks))
    if not chosen_tasks:
        raise UserError(
            f"table {table.name} has no task of its own; name a file of labelled rows, a task's YAML file or a task with "
            f"--tasks."
        )
    columns = _columns(table, name, request, chosen_tasks, tasks)
    every = list(request.overrides)
    if request.corpus is not None:
        where = f"{request.origin('corpus')} {request.corpus}"
        every.append(Override("pre_train.corpus", request.corpus, where, True))
    reach, parts = _rows_reached(table, rows, every), sorted({p for row in (*table.rows, *rows) for p in row.parts})
    patches = [(each, _read(each, parts, bool(here.pre_train))) for each in every]

    def under(encoder: str, title: str, overrides: Sequence[Override]) -> UnderEncoder:
        """The later override of a pair wins."""
        own = table.values_under(preset, encoder)
        layers = preset.recipe.values, patched({}, *(read for each, read in patches if each in overrides))
        of_tasks = {task: patched(own, spec.values, *layers) for spec in table.task_recipes for task in spec.tasks}
        return UnderEncoder(encoder, title, patched(own, *layers), of_tasks)

    shared = [each for each in every if not each.row]
    short = [name if name.startswith(NEW) else name.rstrip("/").rpartition("/")[2] for name in encoders]
    titles = short if len(set(short)) == len(short) else encoders
    of_encoders = [under(*each, shared) for each in zip(encoders, titles, strict=True)]
    values, resolved_rows = of_encoders[0].values, list[ResolvedRow]()
    last = {row.title: row.tasks for row in table.rows}

    def takes(row: Row, task: str) -> bool:
        """On a task that the table lacks all rows are run, those with a grid for each group of tasks at the points of the last one."""
        return task in (row.tasks or (task,)) if task in table.tasks else row.tasks == last.get(row.title, row.tasks)

    for each, row in itertools.product(of_encoders, rows):
        overrides = [one for one in every if not one.row or row.name in reach[one.row]]
        own = each if overrides == shared else under(each.name, each.title, overrides)
        carried: dict[str, Any] = {"under": own, "shared": each, "overrides": tuple(overrides)}
        carried["tasks"] = tuple(task for task in chosen_tasks if takes(row, task))
        for key in ("name", "configuration_of") if len(encoders) > 1 else ():
            carried[key] = getattr(row, key) and on_encoder(getattr(row, key), each.title)
        resolved_rows.append(ResolvedRow.of(row, **carried))
    own_data = tasks and all(task in tasks and tasks[task].own for task in chosen_tasks)
    pre_trained = any(row.pre_train for row in rows)
    result = ResolvedTable(
        table=table,
        preset=name,
        encoders=tuple(of_encoders),
        data=request.data or (OWN_DATA if own_data else preset.data),
        rows=tuple(resolved_rows),
        tasks=chosen_tasks,
        columns=columns,
        sizes=sizes,
        subsets=subsets,
        seeds=seeds,
        max_length=values["max_length"],
        selection_every=here.selection_every,
        mlm_head=MlmHead(**group_of(values, "mlm_head")),
        pre_train=PreTrain(**group_of(values, "pre_train", PreTrain.model_fields)) if pre_trained else None,
        translator=here.translator if request.translator is None else request.translator,
        file=request.table if request.table.endswith(YAML) else "",
        protocol=request.protocol or table.protocol,
    )
    _check(result, request.overrides)
    return result


# --------------------------------------------------------------------------------------------------------- filters


def _rows(table: Table, preset: Preset, request: Request) -> tuple[Row, ...]:
    """The chosen rows, after `draws` of the points of each grid, the same points in all grids of one kind."""
    rows, grids = table.rows, dict[tuple[str, tuple[str, ...]], list[str]]()
    for row in rows if preset.draws else ():
        grids.setdefault((row.configuration_of, row.tasks), []).append(row.name)
    left = {
        name
        for (grid, tasks), names in grids.items()
        for name in {*names} - {*drawn(names, preset.draws or 0, " ".join(tasks))}
        if grid
    }
    rows = tuple(row for row in rows if row.name not in left)
    chosen = rows
    if request.methods is not None:
        chosen = _pick_rows(rows, request.methods, request.origin("methods"))
    elif preset.methods is not None:
        chosen = tuple(row for name in preset.methods for row in rows if row.title == name)
    further = _pick_rows(rows, REFERENCE, request.origin("reference")) if request.reference else ()
    return (*chosen, *(row for row in further if row not in chosen))


def _design(table: Table, here: Table, request: Request) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Sizes, subsets and seeds of a table, of what it is under a preset, and of a request."""
    sizes = here.sizes
    if request.sizes is not None:
        if wrong := [size for size in request.sizes if table.sizes and size not in table.sizes]:
            known = f"table {table.name} has {', '.join(map(str, table.sizes))}, one of yours, or own, takes any"
            raise UserError(f"{request.origin('sizes')}: unknown size '{wrong[0]}': {known} (a space: 'table: own').")
        sizes = request.sizes
    fixed = protocol_named(request.protocol or table.protocol).num_subsets
    subsets: Sequence[int] = range(fixed or here.subsets)
    if request.subsets is not None:
        subsets = _in_range(request.subsets, fixed or MOST_SUBSETS, request.origin("subsets"))
    seeds = here.seeds
    if request.seeds is not None:
        seeds = _in_range(request.seeds, 2**32, request.origin("seeds"))
    return tuple(dict.fromkeys(sizes)) or (0,), tuple(dict.fromkeys(subsets)), tuple(dict.fromkeys(seeds))


def _in_range(values: Iterable[int], stop: int, where: str) -> tuple[int, ...]:
    for value in values:
        if not 0 <= value < stop:
            raise UserError(f"{where}: {value} is out of range; allowed are 0 to {stop - 1}.")
    return tuple(values)


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


def _columns(
    table: Table, preset: str, request: Request, tasks: tuple[str, ...], known: Mapping[str, Task] | None
) -> dict[str, Column]:
    """The table's columns of the chosen tasks in its order, then automatic ones for each task it lacks."""
    columns = {name: column for name, column in table.columns.items() if column.task in tasks}
    for key, spec in columns.items():
        if known is not None and spec.task not in known:
            wrong = unknown("task", spec.task, known, f"table {table.name}, key columns.{key}.task")
            raise UserError(f"{str(wrong).rstrip('.')}; name the YAML file of a task of your own in --tasks.")
        try:
            spec.check((known or {}).get(spec.task))
        except MisplacedError as error:
            key = ".".join(["columns", key, *map(str, error.loc)])
            raise UserError(f"table {table.name}, key {key}: {str(error).rstrip('.')}.") from None
    extra = [task for task in tasks if task not in table.tasks]
    if extra and known is None:
        known = TASKS
    if wrong_names := [name for name in extra if name not in (known or ())]:
        where = f"preset {preset}" if request.tasks is None else request.origin("tasks")
        raise unknown("task", wrong_names[0], {*table.tasks, *(known or ())}, where)
    for name in extra:
        task = (known or {})[name]
        for evaluation, title in task.columns_of_table.items():
            column = name if len(task.evaluations) == 1 else f"{name}_{evaluation}"
            columns[column] = Column(task=name, metric=task.metrics[0], evaluation=evaluation, title=title)
    return columns


# ------------------------------------------------------------------------------------------------------- overrides

MODELS: dict[str, tuple[type[BaseModel], ...]] = {
    "mlm_head": (MlmHead,),
    "encoder": (EncoderSettings,),
    "optim": (Phase,),
    "fine_tune": (Phase,),
    "post_train": (Phase,),
    "pre_train": (Phase, PreTrain),
}
"""Whose fields the keys of an override name, by the group that they begin with; a method's hyperparameters follow."""


def _read(override: Override, methods: Sequence[str], pre_trained: bool) -> dict[str, Any]:
    """The value of an override by its keys in full. Raises UserError for a key that is not known and for a value that does not fit it."""
    group, field, value = override.group, override.field, override.value
    if table_wide(override.key) and group == "pre_train" and not pre_trained:
        raise UserError(f"{override.place}: this table has no row that is pre-trained.")
    if override.key == "max_length":
        return {"max_length": value_of(Length, value, override.place)}
    if value is None or (group in methods and field and not isinstance(value, Value)):
        raise UserError(f"{override.place}: should be a number, a word, true or false, not {value!r}.")
    if group in methods and field:
        return {override.key: value}
    keys = {name: [f"{name}.{each}" for model in of for each in model.model_fields] for name, of in MODELS.items()}
    if group not in MODELS or not field:
        known = [*itertools.chain(*keys.values()), "max_length"]
        known += [f"{method}.{field or 'HYPERPARAMETER'}" for method in methods]
        groups = ["max_length", *(f"{group}.*" for group in (*MODELS, *methods))]
        raise UserError(
            f"{override.place}: unknown key '{override.key}'.{hint(override.key, known)} Known: {', '.join(groups)}."
        )
    model = next((each for each in MODELS[group] if field in each.model_fields), None)
    if model is None:
        raise unknown("key", override.key, keys[group], override.place)
    try:
        read = read_value(model, field, value)
    except ValueError as error:
        raise UserError(f"{override.place}: {error}.") from None
    return dict.fromkeys(override.keys, read)


def _rows_reached(table: Table, rows: Sequence[Row], overrides: Sequence[Override]) -> dict[str, set[str]]:
    """The names of the chosen `rows` that overrides of some rows alone reach, by the name that these have for them.

    Raises UserError for a name of no row, for a value that holds for the whole table, and for a point of a file whose rows are not chosen.
    """
    known, reached = (*table.rows, *rows), dict[str, set[str]]()
    for override in (each for each in overrides if each.row):
        name = override.row
        if table_wide(override.key):
            raise UserError(f"{override.place}: {override.key} holds for all rows; leave '{name}:' out.")
        if not rows_named(known, name) and not set(name.lower().split("+")) <= METHODS.keys():
            raise unknown("row", name, [row.name for row in known], override.place)
        reached[name] = {row.name for row in rows_named(rows, name)}
        if override.in_file and not reached[name]:
            raise UserError(f"{override.place}: is for {name}, which is none of the chosen rows; choose it too.")
    return reached


def table_wide(key: str) -> bool:
    """Whether an override is of a value that all rows of a table share: the tokens and the text that they are trained on."""
    group, _, field = key.partition(".")
    return group in ("max_length", "mlm_head", "encoder") or (group == "pre_train" and field in PreTrain.model_fields)


def unreached(resolved: ResolvedTable, overrides: Iterable[Override]) -> list[str]:
    """A sentence for each override that no row reads, or that does not reach each row that it concerns."""
    found = []
    for override, own in _effects(resolved, overrides):
        if not own:
            found.append(f"{override.place} has no effect: no chosen row reads it.")
        for key, rows in own.items() if not override.row else ():
            if keeping := [row for row, kept in rows.items() if kept]:
                verb, itself = ("sets", "itself") if len(keeping) == 1 else ("set", "themselves")
                found.append(f"{override.place} has no effect on {listed(keeping)}, which {verb} {key} {itself}.")
    return found


def _effects(
    resolved: ResolvedTable, overrides: Iterable[Override]
) -> Iterator[tuple[Override, dict[str, dict[str, bool]]]]:
    """Each override, of several of one key the last, with the rows that read its value: by its key in full and by name, whether they keep one of
    their own."""
    for override in {(each.row, each.key): each for each in overrides}.values():
        found: dict[str, dict[str, bool]] = {}
        for row in resolved.rows:
            own, read = row.own.own_values, (*row.groups, "max_length", "mlm_head", "encoder")
            for key in override.keys if not override.row or override in row.overrides else ():
                if key.partition(".")[0] in read:
                    found.setdefault(key, {})[row.name] = key in replaced(own) and own.get(key) != override.value
        yield override, found


def _check(resolved: ResolvedTable, overrides: Iterable[Override]) -> None:
    """Raises UserError for an override that every row which it concerns replaces by a value of its own, or a row that it is for alone, and for an
    aggregation of more runs than there are."""
    for override, own in _effects(resolved, overrides):
        if own and (any if override.row else all)(keeps for rows in own.values() for keeps in rows.values()):
            key = next(key for key, rows in own.items() if any(rows.values()))
            raise UserError(
                f"{override.place}: has no effect, each chosen row sets {key} itself; change it in a table of your own."
            )
    configurations = min(map(len, resolved.printed_rows.values())) if resolved.aggregate.select == "none" else 1
    runs = min(len(resolved.replicates_at(size)) for size in resolved.sizes) * configurations
    if (resolved.aggregate.k or 0) > runs:
        raise UserError(
            f"table {resolved.table.name}, key aggregate.k: a cell is the {resolved.aggregate.label}, and the chosen subsets and "
            f"seeds give {runs}; choose more of them."
        )
