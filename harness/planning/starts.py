"""Which run of another table the runs of a row start from: of those that were trained, the best by dev."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.methods.definition import HEAD
from harness.planning.request import encoder_names
from harness.planning.resolved import ResolvedTable
from harness.specs import Parent, Record, Run
from harness.store import Store

SELECTED = "the run selected on dev of "
"""How the name of a start begins that is not known yet."""


def best_run(runs: Sequence[Run], records: Mapping[str, Record]) -> Run | None:
    """Of the runs that were trained the one with the best dev score by its selection; of equal ones the first in the plan, whichever
    ended first. `records`: how each ended, by the key of its last stage; None where none of them was trained."""
    scored = []
    for run in runs:
        record, selection = records.get(run.stage.key), run.stage.selection
        if record and record.status == "done" and selection:
            scored.append((record.dev_scores[selection.metric], run))
    return max(scored, key=lambda each: each[0])[1] if scored else None


def starts_of(resolved: ResolvedTable, store: Store, digests: Mapping[str, str]) -> dict[str, Parent | str]:
    """What the runs of a table that starts from another one's start from, or why there is nothing, by row; none of a row whose runs there have not all
    ended. They are those of the store's benches of that table under the preset of the same name. `digests`: of the encoders, by name."""
    start, found = resolved.starts_from, dict[str, Parent | str]()
    if start is None:
        return found
    asked = [each for each in store.requests() if not each.study and each.values.get("preset") == resolved.preset]
    benches = [
        (encoder_names(str(each.values.get("encoder") or "")), store.stages_of(each))
        for each in asked
        if each.table == start.table
    ]
    for row in resolved.continued:
        keys = {key for encoders, stages in benches if row.encoder in (encoders or (row.encoder,)) for key in stages}
        place = start.table, row.own.name, start.task, start.size
        labels = {
            label["key"]: label
            for label in sorted(store.labels(keys), key=lambda each: (each["subset"], each["seed"]))
            if (label["table"], label["row"], label["task"], label["size"]) == place
        }
        records, stages = store.records(labels), store.stages(labels)
        runs = [
            Run(stage, label["row"], row.method, start.task, start.size, label["subset"], label["seed"])
            for key, label in labels.items()
            if (stage := stages.get(key)) and stage.encoder.digest == digests[row.encoder]
        ]
        if not runs or len(stages) < len(labels):
            continue
        if best := best_run(runs, records):
            found[row.name] = Parent(best.stage, "selected", ("encoder", HEAD) if start.head else ("encoder",))
        else:
            record = records[runs[0].stage.key]
            why = f"{runs[0].name} {record.status}: {record.reason}"
            found[row.name] = f"none of the {len(runs)} runs that it could start from was trained ({why})"
    return found
