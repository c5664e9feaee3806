"""A table in waves: runs that start from one of several earlier runs, which is selected by dev when all of these have ended.

Pure: which runs there are is the plan's, which of them are recorded is the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.objectives.definitions import HEAD
from harness.specs import UNRESOLVED, Encoder, Parent, Record, Run

SELECTED = "the run selected on dev of "
"""How the name of a start begins that is not known yet."""


@dataclass(frozen=True)
class Start:
    """What the runs of a row start from: the run `selected` of the earlier wave. None while that wave has not ended, and where none
    of its runs was trained, for the `reason` given."""

    selected: Run | None = None
    dev: float | None = None
    reason: str = ""

    def weights(self, row: str, head: bool) -> Encoder | Parent:
        """The weights of the selected run at its selected checkpoint, with its classification `head` or without; an unresolved
        encoder where there is none."""
        if self.selected is None:
            return Encoder(f"{UNRESOLVED}start of {row}", f"{SELECTED}{row}")
        return Parent(self.selected.stage, "selected", ("encoder", HEAD) if head else ("encoder",))


Select = Callable[[Sequence[Run]], Start]
"""How the start is selected from the earlier runs of a row."""


def not_ended(runs: Sequence[Run]) -> Start:
    """The start while nothing is known of the runs."""
    return Start()


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


def selected(runs: Sequence[Run], records: Mapping[str, Record]) -> Start:
    """The start as `best_run` selects it; not selected while a record is missing."""
    if any(run.stage.key not in records for run in runs):
        return Start()
    best = best_run(runs, records)
    if best is None:
        ends = [f"{run.name} {records[run.stage.key].status}: {records[run.stage.key].reason}" for run in runs]
        return Start(reason=f"none of the {len(runs)} runs that it could start from was trained ({ends[0]})")
    assert best.stage.selection is not None
    return Start(best, records[best.stage.key].dev_scores[best.stage.selection.metric])
