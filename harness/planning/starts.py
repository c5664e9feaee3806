"""Which run of another table the runs of a row start from: of those that were trained, the best by dev."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from harness.objectives.definitions import HEAD
from harness.specs import Parent, Record, Run

SELECTED = "the run selected on dev of "
"""How the name of a start begins that is not known yet."""


def best_run(runs: Sequence[Run], records: Mapping[str, Record]) -> Run | None:
    """Of the runs that were trained the one with the best dev score by its selection; of equal ones the first in the plan, whichever
    ended first. `records`: how each ended, by the key of its last stage; None where none of them was trained."""
    best, highest = None, -math.inf
    for run in runs:
        record, selection = records.get(run.stage.key), run.stage.selection
        if record is not None and record.status == "done" and selection is not None:
            dev = record.dev_scores[selection.metric]
            if best is None or dev > highest:
                best, highest = run, dev
    return best


def start_at(run: Run, head: bool) -> Parent:
    """The weights of a run at its selected checkpoint, with its classification `head` or without."""
    return Parent(run.stage, "selected", ("encoder", HEAD) if head else ("encoder",))


def selected(runs: Sequence[Run], records: Mapping[str, Record], head: bool) -> Parent | str | None:
    """The start as `best_run` selects it, or why there is none; None while a record is missing."""
    if any(run.stage.key not in records for run in runs):
        return None
    best = best_run(runs, records)
    if best is not None:
        return start_at(best, head)
    ends = [f"{run.name} {records[run.stage.key].status}: {records[run.stage.key].reason}" for run in runs]
    return f"none of the {len(runs)} runs that it could start from was trained ({ends[0]})"
