"""What the runs of a table cost, and what each of them is: its key, scores, versions and hardware. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.specs import Record, Run
from harness.views.cells import Grid, own_scores
from harness.views.document import DASH, Folded, Lines, Table
from harness.wording import counted, in_points, letter

VERSIONS = ("harness", "torch", "transformers")
MANY_RUNS, SHORT_KEY = 2000, 12
"""With more runs, a page shows so many characters of each key, and stays below a megabyte."""


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
    return Table("Cost by row, of what is recorded", head, rows, total=True)


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


def runs_folded(grid: Grid, runs: Sequence[Run], records: Mapping[str, Record]) -> list[Folded | Lines]:
    """Every recorded run with its key, folded; what it ran on; the reason in full where one ended badly."""
    own: Any = own_scores(grid.resolved, grid.results)
    machines = machines_of(records[run.stage.key] for run in runs if run.stage.key in records)
    keys = {(run.size, run.row, run.task, run.subset, run.seed): run.stage.key for run in runs}
    reasons: dict[str, str] = {}
    selected = grid.results.dropna(subset=["selected_step"])
    steps = dict(zip(selected["key"], selected["selected_step"], strict=True))
    rows = []
    for each in own.itertuples():
        key = keys.get((each.size, each.configuration, each.task, each.subset, each.seed), "")
        record = records.get(key)
        status = "done" if each.note is None else each.note.kind
        if each.note is not None and each.note.kind != "collapsed":
            status += f" [{reasons.setdefault(' '.join(each.note.reason.split()), letter(len(reasons)))}]"
        rows.append(
            [
                each.configuration,
                grid.title(each.column),
                f"{each.size:,}" if each.size else "full",
                str(each.subset),
                str(each.seed),
                *(in_points(value) if value == value else DASH for value in (each.dev, each.test)),
                f"{steps[key]:,}" if key in steps else DASH,
                status,
                (key[:SHORT_KEY] if len(own) > MANY_RUNS else key) or DASH,
                machines[_machine(record)] if record else DASH,
            ]
        )
    expected = {run.stage.key for run in runs}
    missing = len(expected - records.keys())
    lines = machine_lines(machines)
    if len(own) > MANY_RUNS:
        lines.append(f"Keys are their first {SHORT_KEY} characters, which harness show takes.")
    if missing:
        lines.append(f"{counted(missing, 'run')} of {len(expected):,} not recorded yet.")
    lines += [f"[{mark}]: {reason}." for reason, mark in reasons.items()]
    head = ["Row", "Column", "Size", "Subset", "Seed", "Dev", "Score", "Update", "Status", "Key", "On"]
    left = {0, 1, 8, 9, 10}
    if len(machines) < 2:  # the line above says it
        head, rows, left = head[:-1], [row[:-1] for row in rows], left - {10}
    table = Table("Recorded runs", head, rows, frozenset(left), headed=False)
    return (
        [Lines(lines), Folded(f"Recorded runs: {len(rows):,}", [table])]
        if rows
        else [Lines([*lines, "No run is recorded."])]
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
