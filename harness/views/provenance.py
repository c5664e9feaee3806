"""What the runs of a table cost, and what they ran on. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.specs import Record, Run
from harness.views.cells import Grid
from harness.views.view import DASH, Table
from harness.wording import counted, letter

VERSIONS = ("harness", "torch", "transformers")
SHORT_KEY = 12
"""So many characters of a key are printed in a table."""


def cost_table(grid: Grid, runs: Sequence[Run], records: Mapping[str, Record]) -> Table:
    """Stages, hours and FLOPs of each row, and of all rows with each stage once. What a record lacks is not in the sums."""
    stages: dict[str, dict[str, bool]] = {}
    for title, configurations in grid.resolved.printed_rows.items():
        names = {row.name for row in configurations}
        mine = [run for run in runs if run.row in names]
        stages[title] = {stage.key: stage is run.stage for run in mine for stage in run.stage.chain}
    users: dict[str, int] = {}
    for keys in stages.values():
        for key in keys:
            users[key] = users.get(key, 0) + 1
    rows = [_cost(title, keys, records, users) for title, keys in stages.items() if keys]
    every = {key: last for keys in stages.values() for key, last in keys.items()}
    rows.append(_cost("All rows, each stage once", every, records, {}))
    head = ["Row", "Stages", "Recorded", "Shared", "Hours before", "Hours of fine-tuning", "Hours", "FLOPs"]
    return Table("Cost by row, of what is recorded", head, rows)


def _cost(title: str, keys: Mapping[str, bool], records: Mapping[str, Record], users: Mapping[str, int]) -> list[str]:
    recorded = {key: records[key] for key in keys if key in records}
    before, after = (
        sum(record.seconds for key, record in recorded.items() if keys[key] is last) / 3600 for last in (False, True)
    )
    flops = sum(record.flops for record in recorded.values())
    shared = f"{sum(users[key] > 1 for key in keys):,}" if users else DASH
    hours = [f"{value:.3f}" for value in (before, after, before + after)]
    return [title, f"{len(keys):,}", f"{len(recorded):,}", shared, *hours, f"{flops:.3g}" if flops else DASH]


COST_LINES = (
    "Shared: stages that serve several rows; each of these rows counts them, and the last line counts every stage once.",
    "Hours before: MLM heads, pre-training and post-training. Hours are those of the stages as they were trained, one after another.",
)


def machines_of(records: Iterable[Record]) -> dict[str, str]:
    """A capital for each kind of machine with its versions, in the order of their names."""
    found = {_machine(record) for record in records}
    return {name: letter(number).upper() for number, name in enumerate(sorted(found))}


def machine_lines(machines: Mapping[str, str]) -> list[str]:
    """What the runs ran on, a sentence each."""
    return [f"{mark}: {text}." if len(machines) > 1 else f"All on {text}." for text, mark in machines.items()]


def _machine(record: Record) -> str:
    origin = record.provenance
    versions = ", ".join(f"{name} {origin[name]}" for name in VERSIONS if origin.get(name))
    threads, workers = origin.get("threads", 1), origin.get("workers", 1)
    kernels = f", {origin['kernels']} kernels" if origin.get("kernels") else ""
    several = f", {workers} workers a stage" if workers > 1 else ""
    return f"{origin.get('device', 'a machine that is not recorded')}{kernels}, {counted(threads, 'thread')} a run{several}; {versions or 'versions not recorded'}"
