"""A table published: its results and its printed form, and the records behind them in a folder that commands read as a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.commands.prepare import Prepared
from harness.commands.report import grid_of
from harness.commands.stored import command
from harness.errors import UserError
from harness.paths import replace_file, without_folders
from harness.report.document import markdown_lines
from harness.report.provenance import COST_LINES, VERSIONS, cost_table
from harness.report.table import render
from harness.store import Store
from harness.store.exchange import publish_records
from harness.store.published import RECORDS_FILE, is_published
from harness.wording import counted, listed

RESULTS_FILE, TABLE_FILE = "results.csv", "README.md"
FILES = (RESULTS_FILE, TABLE_FILE, RECORDS_FILE)


@dataclass(frozen=True)
class Published:
    """What was written. `complete`: no run of the table is missing."""

    folder: Path
    records: int
    rows: int
    complete: bool


def publish(prepared: Prepared, folder: Path) -> Published:
    """Write a folder of a table, or write it again with what the store has gained. No texts, no weights, and of paths the last part alone.

    Raises UserError where nothing is recorded, where the folder holds anything else, and where it holds records that the store lacks.
    """
    plan, store, table = prepared.plan, prepared.store, prepared.resolved.table.name
    recorded = store.records(plan.stages)
    if not recorded:
        raise UserError(
            f"publish: none of the {counted(len(plan.stages), 'stage')} of this table is recorded in {store.shown}."
        )
    _check_folder(folder, store)
    grid, caption = grid_of(prepared)
    request = replace(prepared.request, preset=prepared.resolved.preset, store=None)
    made = [
        f"Made by `{without_folders(command(request))}`.",
        f"Versions: {'; '.join(_versions({**record.provenance}) for record in _distinct(recorded))}.",
        "",
        *markdown_lines(cost_table(grid, plan.runs, recorded)),
        "",
        *(f"- {line}" for line in COST_LINES),
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        values = _without_folders(prepared.named.kept.values)
        count = publish_records(store, table, plan.stages, values, folder, prepared.snapshot)
        replace_file(folder / RESULTS_FILE, render(grid, caption, "csv").encode())
        replace_file(folder / TABLE_FILE, (render(grid, caption, "md") + "\n" + "\n".join(made) + "\n").encode())
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}).") from None
    return Published(folder, count, len(grid.results), grid.complete)


def _check_folder(folder: Path, store: Store) -> None:
    try:
        others = sorted(path.name for path in folder.iterdir() if path.name not in FILES) if folder.exists() else []
    except OSError as error:
        raise UserError(f"{folder}: is no folder that can be read ({error.strerror}).") from None
    if others:
        raise UserError(
            f"{folder}: holds {listed(others[:3])}, which belongs to no published table; name a folder of its own."
        )
    if is_published(str(folder)):
        published = Store(str(folder), create=False)
        keys = published.keys()
        lacking = keys - store.statuses(keys).keys()
        if lacking:
            raise UserError(
                f"{folder}: holds {counted(len(lacking), 'record')} that {store.shown} lacks and that would be lost; take them over first with "
                f"'harness merge {folder}'."
            )


def _versions(provenance: Mapping[str, Any]) -> str:
    commit = f", commit {provenance['commit']}" if provenance.get("commit") else ""
    return ", ".join(f"{name} {provenance.get(name, '?')}" for name in VERSIONS) + commit


def _distinct(recorded: Mapping[str, Any]) -> list[Any]:
    return [*{_versions(record.provenance): record for record in recorded.values()}.values()]


def _without_folders(values: Mapping[str, Any]) -> dict[str, Any]:
    """The request of a bench with the last part of each path, which start from the current folder of whoever reads it."""

    def short(value: Any) -> Any:
        if isinstance(value, list):
            return [short(entry) for entry in value]
        return without_folders(value) if isinstance(value, str) else value

    return {name: short(value) for name, value in values.items()} | {"folder": "."}
