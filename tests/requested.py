"""Tables resolved for a test, in the words of a command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from harness.planning.request import Request, parse_override
from harness.planning.resolve import resolve
from harness.planning.resolved import ResolvedTable
from harness.planning.table import Table, load_table
from harness.tasks import Task


def request(preset: str | None = None, *, set: Iterable[str] = (), **fields: Any) -> Request:
    """`set`: KEY=VALUE texts; errors name the flags."""
    overrides = tuple(parse_override(text, "--set") for text in set)
    return Request(preset=preset, overrides=overrides, **fields)


def resolve_table(
    table: Table | str, preset: str | None = None, known: Mapping[str, Task] | None = None, **fields: Any
) -> ResolvedTable:
    """A table by name or loaded; `known`: the tasks by name; `fields`: as of `request`."""
    found = load_table(table) if isinstance(table, str) else table
    return resolve(found, request(preset, **fields), known)
