"""Tables resolved for a test, in the words of a command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from harness.encoders import Located
from harness.planning.request import Request, parse_override
from harness.planning.resolve import earlier_request, resolve
from harness.planning.resolved import ResolvedTable
from harness.planning.runs import make_plan
from harness.planning.starts import start_at
from harness.planning.table import Table, load_table
from harness.specs import Parent
from harness.tasks import Task, TextSource


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


def first_starts(
    resolved: ResolvedTable, request: Request, source: TextSource | None, located: Located
) -> dict[str, Parent | str]:
    """What runs start from where they start from runs of another table: the first run of each row there."""
    starts: dict[str, Parent | str] = {}
    if before := earlier_request(resolved, request):
        for run in make_plan(resolve(load_table(before.table), before), source, located).runs:
            starts.setdefault(run.row, start_at(run, head=True))
    return starts


def by_letter(resolved: ResolvedTable) -> dict[str, dict[str, Any]]:
    """The values in use under the first encoder, by the letter of their origin and by path."""
    found: dict[str, dict[str, Any]] = {}
    for use in resolved.encoders[0].uses:
        found.setdefault(use.letter, {})[use.path] = use.value
    return found
