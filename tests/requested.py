"""Tables resolved for a test, in the words of a command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from harness.cli.request import FLAGS
from harness.tables.request import Request, parse_override
from harness.tables.resolve import ResolvedTable, resolve
from harness.tables.table import Table, load_table
from harness.tasks import Task


def request(preset: str | None = None, *, set: Iterable[str] = (), **fields: Any) -> Request:
    """`set`: KEY=VALUE texts; errors name the flags."""
    return Request(preset=preset, overrides=tuple(map(parse_override, set)), origins=FLAGS, **fields)


def resolve_table(
    table: Table | str, preset: str | None = None, known: Mapping[str, Task] | None = None, **fields: Any
) -> ResolvedTable:
    """A table by name or loaded; `known`: the tasks by name; `fields`: as of `request`."""
    found = load_table(table) if isinstance(table, str) else table
    return resolve(found, request(preset, **fields), known)
