"""Test scores from recorded predictions, after selection: the replicates that a table is aggregated from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from harness.specs import Record, Run, Stage
from harness.store import Store
from harness.tables.aggregate import Replicate, Score
from harness.tables.caption import Examples
from harness.tables.plan import Plan
from harness.tasks import Rows, Task, score

CHUNK = 100
"""Runs whose predictions are held in memory at a time."""


def replicates(plan: Plan, store: Store) -> list[Replicate]:
    """One replicate a run and column, with the test score of a finished run or the reason why there is none.

    Runs that were never tried are left out: their cells say how many are missing.
    """
    found: list[Replicate] = []
    ancestors = {s.key: s for run in plan.runs for s in run.stage.chain[:-1]}
    earlier = store.records(ancestors)
    for start in range(0, len(plan.runs), CHUNK):
        runs = plan.runs[start : start + CHUNK]
        records = store.records([run.stage.key for run in runs], predictions=True)
        for run in runs:
            found += _of(plan, run, records.get(run.stage.key), earlier)
    return found


def _of(plan: Plan, run: Run, record: Record | None, earlier: Mapping[str, Record]) -> Iterator[Replicate]:
    if record is None:
        record = next(_blocking(run.stage, earlier), None)
        if record is None:
            return
    for name, column in plan.resolved.columns.items():
        if column.task != run.task:
            continue
        scores: list[Score] = []
        if record.status == "done":
            row_set = plan.tasks[run.task].tests[column.evaluation]
            predicted = record.predictions[row_set.digest]
            for metric in dict.fromkeys((column.metric, *plan.tasks[run.task].task.metrics)):
                test = score(metric, predicted.gold, predicted.logits)
                scores.append(Score(metric, dev_score(run.stage, record, metric), test))
        yield Replicate(
            run.row,
            run.size,
            name,
            run.subset,
            run.seed,
            scores[0].test if scores else None,
            record.status,
            record.reason,
            record.collapsed,
            record.key,
            tuple(scores),
            record.selected_step,
            record.tied if scores else None,
            record.seconds if scores else None,
        )


def dev_score(stage: Stage, record: Record, metric: str) -> float | None:
    """A finished stage's score on dev: as recorded, or from its recorded predictions where the metric is newer than the
    record. None where there are no predictions on dev."""
    predicted = record.predictions.get(stage.data.dev.digest) if stage.data.dev else None
    if metric in record.dev_scores or predicted is None:
        return record.dev_scores.get(metric)
    return score(metric, predicted.gold, predicted.logits)


def dev_scores(store: Store, record: Record, metrics: Iterable[str]) -> dict[str, float]:
    """A record's dev scores, and those of `metrics` that are newer than the record. A stage that selects no checkpoint has
    none."""
    missing = [metric for metric in metrics if metric not in record.dev_scores] if record.dev_scores else []
    if not missing:
        return record.dev_scores
    stage, full = store.stage(record.key), store.records([record.key], predictions=True)[record.key]
    assert stage is not None
    found = {metric: dev_score(stage, full, metric) for metric in missing}
    return record.dev_scores | {metric: value for metric, value in found.items() if value is not None}


def _blocking(stage: Stage, earlier: Mapping[str, Record]) -> Iterator[Record]:
    """The record of a run that an earlier, failed stage of its chain blocks."""
    for ancestor in stage.chain[:-1]:
        record = earlier.get(ancestor.key)
        if record and record.status != "done":
            reason = f"{ancestor.phase} {record.status}: {record.reason}"
            yield Record(stage.key, record.status, reason)


def examples(plan: Plan) -> dict[str, Examples]:
    """Numbers of examples by column, for data that are at hand; with class counts for the user's own tasks."""
    found = {}
    for name, column in plan.resolved.columns.items():
        data = plan.tasks[column.task]
        test = data.tests[column.evaluation]
        if data.dev.resolved and test.resolved:
            full = [
                plan.table_data.training[key].labelled.rows
                for key in plan.table_data.training
                if key[:2] == (column.task, 0)
            ]
            classes = [_classes(data.task, plan.library[rows.digest]) for rows in (data.dev, test)]
            found[name] = Examples(data.dev.rows, test.rows, max(full, default=0), classes[0], classes[1])
    return found


def _classes(task: Task, rows: Rows) -> dict[str, int]:
    """How many rows each class has, for a user's own task; empty for others and for a regression."""
    if not task.own or task.regression:
        return {}
    counts = [int((rows.gold == code).sum()) for code in range(len(task.classes))]
    return dict(zip(task.classes, counts, strict=True))


def hardware(plan: Plan, store: Store) -> tuple[str, ...]:
    """The distinct machines and numbers of workers that trained the table's recorded stages."""
    kinds = set()
    for record in store.records(plan.stages).values():
        origin = record.provenance
        if record.status == "done":
            threads, workers = origin.get("threads", 1), origin.get("workers", 1)
            several = f", {workers} workers a stage" if workers > 1 else ""
            kinds.add(
                f"{origin.get('device', '?')}{several}, {threads} thread{'s' if threads != 1 else ''} a run, torch "
                f"{origin.get('torch', '?')}"
            )
    return tuple(sorted(kinds))
