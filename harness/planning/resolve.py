"""A table under the preset, the filters (rows, sizes, subsets, seeds, columns) and the overrides of a request: one flat, frozen object
that the planner reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from harness.errors import UserError, unknown, unknown_names
from harness.methods import METHODS, REFERENCE, known_methods, methods_named
from harness.planning.overrides import applied, check_effect, rows_reached
from harness.planning.recipe import MlmHead, PreTrain, group_of
from harness.planning.request import OWN_DATA, YAML, Override, Request, encoder_names
from harness.planning.resolved import ResolvedTable, encoder_titles
from harness.planning.row import Row, drawn, resolved_row, rows_named
from harness.planning.table import Column, Preset, Table
from harness.tasks.protocols import protocol_named
from harness.tasks.task import TASKS, Task
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
    where = f"{request.origin('corpus')} {request.corpus}"
    corpus = [Override("pre_train.corpus", request.corpus, where, True)] if request.corpus is not None else []
    every = (*request.overrides, *corpus)
    shared = tuple(override for override in every if not override.row)
    under = [applied(table, preset, rows, *each, shared) for each in encoder_titles(encoders).items()]
    values = under[0].values
    text = PreTrain(**group_of(values, "pre_train", PreTrain.model_fields)) if "pre_train.corpus" in values else None
    reach, resolved_rows, named = rows_reached(table, rows, every), [], len(under) > 1
    for each, row in itertools.product(under, rows):
        overrides = tuple(one for one in every if not one.row or row.name in reach[one.row])
        own = each if overrides == shared else applied(table, preset, rows, each.name, each.title, overrides)
        resolved_rows.append(resolved_row(row, own, named, overrides=overrides, shared=each))
    own_data = tasks and all(task in tasks and tasks[task].own for task in chosen_tasks)
    result = ResolvedTable(
        table=table,
        preset=name,
        encoders=tuple(under),
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
        pre_train=text if any(row.pre_train for row in rows) else None,
        translator=here.translator if request.translator is None else request.translator,
        num_workers=request.num_workers or 1,
        file=request.table if request.table.endswith(YAML) else "",
        protocol=request.protocol or table.protocol,
        starts_from=here.starts_from,
    )
    _check_starts(result)
    check_effect(result, request.overrides)
    _check_k(result)
    return result


# --------------------------------------------------------------------------------------------------------- filters


def _rows(table: Table, preset: Preset, request: Request) -> tuple[Row, ...]:
    rows = _drawn(table.rows, preset.draws) if preset.draws else table.rows
    chosen = rows
    if request.methods is not None:
        chosen = _pick_rows(rows, request.methods, request.origin("methods"))
    elif preset.methods is not None:
        chosen = tuple(row for name in preset.methods for row in rows if row.title == name)
    further = _pick_rows(rows, REFERENCE, request.origin("reference")) if request.reference else ()
    return (*chosen, *(row for row in further if row not in chosen))


def _drawn(rows: Sequence[Row], draws: int) -> tuple[Row, ...]:
    """`draws` of the points of each grid, the same points in all grids of one kind."""
    grids: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for row in rows:
        if row.configuration_of:
            grids.setdefault((row.configuration_of, row.tasks), []).append(row.name)
    kept = {name for (_, tasks), names in grids.items() for name in drawn(names, draws, " ".join(tasks))}
    return tuple(row for row in rows if not row.configuration_of or row.name in kept)


def _design(table: Table, here: Table, request: Request) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Sizes, subsets and seeds of a table, of what it is under a preset, and of a request."""
    sizes = here.sizes
    if request.sizes is not None:
        for size in request.sizes if table.sizes else ():
            if size not in table.sizes:
                known = f"table {table.name} has {', '.join(map(str, table.sizes))}, one of yours, or own, takes any"
                raise UserError(f"{request.origin('sizes')}: unknown size '{size}': {known} (a space: 'table: own').")
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
    chosen: set[str] = set()
    added: dict[str, Row] = {}
    by_name = {name: rows_named(rows, name) for name in names}
    absent = [name.lower() for name, found in by_name.items() if not found]
    if wrong := [name for name in absent if any(part not in METHODS for part in name.split("+"))]:
        known = {text.lower() for row in rows for text in (row.name, row.title, row.method) if text}
        raise unknown_names("methods", wrong, known | set(METHODS), where)
    for name, found in by_name.items():
        if not found:
            title = "+".join(method.title for method in methods_named(name.lower(), where))
            added[title] = Row(name=title, method=name.lower(), incomparable="the paper has no such row")
        chosen |= {row.name for row in found}
    return (*(row for row in rows if row.name in chosen), *added.values())


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
        raise unknown_names("tasks", wrong_names, {*table.tasks, *(known or ())}, where)
    for name in extra:
        task = (known or {})[name]
        for evaluation, title in task.columns_of_table.items():
            column = name if len(task.evaluations) == 1 else f"{name}_{evaluation}"
            columns[column] = Column(task=name, metric=task.metrics[0], evaluation=evaluation, title=title)
    return columns


# ------------------------------------------------------------------------------------------------- what it starts from


def _check_starts(resolved: ResolvedTable) -> None:
    for row in resolved.continued:
        if row.pre_train or any(not METHODS[part].labelled for part in row.parts if part in METHODS):
            raise UserError(
                f"table {resolved.table.name}, key starts_from: row {row.name} trains on unlabelled texts; rows of a table that starts from "
                "selected runs are fine-tuned only."
            )


def _check_k(resolved: ResolvedTable) -> None:
    configurations = min(map(len, resolved.printed_rows.values())) if resolved.aggregate.select == "none" else 1
    runs = min(len(resolved.replicates_at(size)) for size in resolved.sizes) * configurations
    if (resolved.aggregate.k or 0) > runs:
        raise UserError(
            f"table {resolved.table.name}, key aggregate.k: a cell is the {resolved.aggregate.label}, and the chosen subsets and "
            f"seeds give {runs}; choose more of them."
        )
