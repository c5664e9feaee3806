"""What the filters of a request select of a table: rows, sizes, subsets, seeds and columns."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from harness.errors import UserError, unknown
from harness.methods import METHODS, methods_named
from harness.tables.request import Request
from harness.tables.row import Row
from harness.tables.table import Column, Table
from harness.tasks.protocols import protocol_named
from harness.tasks.task import TASKS, Task
from harness.yaml_files import MisplacedError

T = TypeVar("T")


def chosen_rows(table: Table, preset: str, request: Request) -> tuple[Row, ...]:
    if request.methods is not None:
        return _pick_rows(table, request.methods, request.origin("methods"))
    base = table.presets[preset]
    rows = _drawn(table.rows, base.draws) if base.draws else table.rows
    return rows if base.methods is None else tuple(row for name in base.methods for row in rows if row.title == name)


def _drawn(rows: Sequence[Row], draws: int) -> tuple[Row, ...]:
    """`draws` of the points of each grid, the same points in all grids of one kind."""
    grids: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for index, row in enumerate(rows):
        if row.configuration_of:
            grids.setdefault((row.configuration_of, row.tasks), []).append(index)
    left_out: set[int] = set()
    for (_, tasks), places in grids.items():
        kept = random.Random(" ".join(tasks)).sample(range(len(places)), min(draws, len(places)))
        left_out |= {place for number, place in enumerate(places) if number not in kept}
    return tuple(row for index, row in enumerate(rows) if index not in left_out)


MOST_SUBSETS = 1000
"""Subset k is a draw of its own for any k (docs/identity.md); a larger index is a misspelt seed or size."""


def chosen_design(
    table: Table, preset: str, request: Request
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Sizes, subsets and seeds. Raises UserError for one that the table does not have."""
    base = table.presets[preset]
    sizes = base.sizes if base.sizes is not None else table.sizes
    if request.sizes is not None:
        for size in request.sizes if table.sizes else ():
            if size not in table.sizes:
                raise unknown("size", str(size), map(str, table.sizes), request.origin("sizes"))
        sizes = distinct(request.sizes)
    fixed = protocol_named(request.protocol or table.protocol).num_subsets
    subsets: Sequence[int] = range(fixed or base.subsets or table.subsets)
    if request.subsets is not None:
        subsets = _in_range(request.subsets, fixed or MOST_SUBSETS, request.origin("subsets"))
    seeds = base.seeds or table.seeds
    if request.seeds is not None:
        seeds = _in_range(request.seeds, 2**32, request.origin("seeds"))
    return tuple(sizes) or (0,), tuple(subsets), tuple(seeds)


def distinct(values: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))


def _in_range(values: Iterable[int], stop: int, where: str) -> tuple[int, ...]:
    for value in values:
        if not 0 <= value < stop:
            raise UserError(f"{where}: {value} is out of range; allowed are 0 to {stop - 1}.")
    return distinct(values)


def _pick_rows(table: Table, names: Iterable[str], where: str) -> tuple[Row, ...]:
    """Rows by row name or method name, in the table's order; then a row for each method that the table lacks."""
    chosen: set[str] = set()
    added: dict[str, Row] = {}
    for name in names:
        found = [row for row in table.rows if name in (row.name, row.title)]
        found = found or [row for row in table.rows if row.method and row.method.lower() == name.lower()]
        found = found or [row for row in table.rows if name.lower() in (row.name.lower(), row.title.lower())]
        if not found:
            known = {text.lower() for row in table.rows for text in (row.name, row.title, row.method) if text}
            known |= set(METHODS)
            if any(part not in METHODS for part in name.lower().split("+")):
                raise unknown("method", name.lower(), known, where)
            title = "+".join(method.title for method in methods_named(name.lower(), where))
            added[title] = Row(name=title, method=name.lower(), incomparable="the paper has no such row")
        chosen |= {row.name for row in found}
    return (*(row for row in table.rows if row.name in chosen), *added.values())


def chosen_columns(
    table: Table, preset: str, request: Request, tasks: tuple[str, ...], known: Mapping[str, Task] | None
) -> dict[str, Column]:
    """The table's columns of the chosen tasks in its order, then automatic ones for each task it lacks."""
    columns = {name: column for name, column in table.columns.items() if column.task in tasks}
    for key, spec in columns.items():
        if known is not None and spec.task not in known:
            wrong = unknown("task", spec.task, known, f"table {table.name}, key columns.{key}.task")
            raise UserError(
                f"{str(wrong).rstrip('.')}; name the YAML file of a task of your own in {request.option('tasks')}."
            )
        try:
            spec.check((known or {}).get(spec.task))
        except MisplacedError as error:
            key = ".".join(["columns", key, *map(str, error.loc)])
            raise UserError(f"table {table.name}, key {key}: {str(error).rstrip('.')}.") from None
    extra = [task for task in tasks if task not in table.tasks]
    if extra and known is None:
        known = TASKS
    for name in extra:
        if known is None or name not in known:
            where = f"preset {preset}" if request.tasks is None else request.origin("tasks")
            raise unknown("task", name, {*table.tasks, *(known or ())}, where)
        task = known[name]
        for evaluation, title in task.columns_of_table.items():
            column = name if len(task.evaluations) == 1 else f"{name}_{evaluation}"
            columns[column] = Column(task=name, metric=task.metrics[0], evaluation=evaluation, title=title)
    return columns
