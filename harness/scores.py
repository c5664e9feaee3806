"""From records to results: test scores from recorded predictions, after selection, in one tidy schema: a row a replicate, column and metric, the
same in Python, CSV, JSON and Parquet. `docs/results.md` documents it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.methods import definition_of
from harness.methods.reference import Majority
from harness.paths import without_folders
from harness.planning.resolved import Place
from harness.planning.runs import Plan
from harness.specs import Record, Run, Stage, Status
from harness.store import Store
from harness.store.records import predicted_by
from harness.tasks.metrics import score
from harness.wording import counted

if TYPE_CHECKING:
    import pandas as pd

PLACE = ["size", "row", "column", "subset", "seed"]


@dataclass(frozen=True)
class Result:
    """One metric of one run in one column. Scores are on the metric's own scale (1 for 100 %), `dev` at the selected checkpoint;
    `seconds`, `flops`, `workers` and `hardware` are those of the fine-tuning stage. None: missing."""

    row: str
    method: str
    task: str
    column: str
    evaluation: str
    size: int
    subset: int
    seed: int
    metric: str
    dev: float | None = None
    test: float | None = None
    selected_step: int | None = None
    tied: int | None = None
    collapsed: bool = False
    status: Status = "done"
    reason: str | None = None
    key: str = ""
    encoder: str = ""
    seconds: float | None = None
    flops: float | None = None
    workers: int | None = None
    hardware: str | None = None


_DTYPES = {"str": "str", "int": "int64", "int | None": "Int64", "float | None": "float64", "bool": "bool"}
RESULT_DTYPES = {each.name: _DTYPES.get(str(each.type), "str") for each in fields(Result)}
"""The pandas dtype of each column, in the order of the columns."""


def frame_of(results: Iterable[Result]) -> pd.DataFrame:
    """Results as a frame of the schema. A score that is not finite is missing."""
    import pandas as pd

    frame = pd.DataFrame([vars(each) for each in results], columns=list(RESULT_DTYPES)).astype(RESULT_DTYPES)
    frame[["dev", "test"]] = frame[["dev", "test"]].replace([np.inf, -np.inf], np.nan)
    return frame


def with_records(frame: pd.DataFrame) -> pd.DataFrame:
    """The results of runs that a store has records of; another system has none."""
    return frame[frame["key"] != ""]


def placed(frame: pd.DataFrame, places: Sequence[Place]) -> pd.DataFrame:
    """The rows at `places`, in their order; others are left out. Raises ValueError where a place has two rows of one metric."""
    import pandas as pd

    if (twice := frame.duplicated([*PLACE, "metric"])).any():
        raise ValueError(f"two results for {frame.loc[twice, [*PLACE, 'metric']].iloc[0].to_dict()}")
    design = pd.MultiIndex.from_tuples(places, names=PLACE)
    position = pd.Series(design.get_indexer(pd.MultiIndex.from_frame(frame[PLACE])), frame.index)
    kept = position[position >= 0].sort_values(kind="stable").index
    return frame.loc[kept].reset_index(drop=True)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as JSON values, None where one is missing."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def results_of(plan: Plan, store: Store) -> pd.DataFrame:
    """What the store holds of a plan's runs, in the tidy schema and the order of the table: the scores of finished runs, and the
    reason why there is none of a run that ended badly, or whose parent did. Runs that were never tried have no row."""
    found: list[Result] = []
    runs: dict[str, list[Run]] = {}
    for run in plan.runs:
        runs.setdefault(run.stage.key, []).append(run)
    for key, record in store.each(runs, predictions=True):
        found += itertools.chain(*(_of(plan, run, record) for run in runs[key]))
    recorded = {result.key for result in found}
    earlier = store.records({stage.key for run in plan.runs for stage in run.stage.chain[:-1]})
    for run in (run for run in plan.runs if run.stage.key not in recorded):
        blocking = ((each, earlier[each.key]) for each in run.stage.chain[:-1] if each.key in earlier)
        for stage, ended in [each for each in blocking if each[1].status != "done"][:1]:
            reason = f"{stage.phase} {ended.status}: {ended.reason}"
            found += _of(plan, run, Record(run.stage.key, ended.status, reason))
    return placed(frame_of(found), plan.resolved.places)


def _of(plan: Plan, run: Run, record: Record) -> Iterator[Result]:
    """The rows of one run: each column of its task with each metric, the column's own first."""
    (row,), done = (row for row in plan.resolved.rows if row.name == run.row), record.status == "done"
    tasks, origin = plan.tasks[run.task], record.provenance
    same: dict[str, Any] = {name: getattr(run, name) for name in ("row", "task", "size", "subset", "seed")}
    same |= {"method": "+".join(row.parts), "encoder": without_folders(row.encoder)}
    same |= {"status": record.status, "key": record.key}
    same["reason"] = "\n".join(record.reason.splitlines()) or None  # a lone \r ends a row for readers of CSV
    same |= {"workers": origin.get("workers"), "hardware": origin.get("device")}
    # One class only is what the most frequent class is, not how it fails.
    same["collapsed"] = record.collapsed and not isinstance(definition_of(run.stage.objective), Majority)
    names = ("selected_step", "tied", "seconds", "flops")
    same |= {name: getattr(record, name) for name in names} if done else {}
    for name, column in plan.resolved.columns.items():
        if column.task != run.task:
            continue
        predicted = predicted_by(record, tasks.tests[column.evaluation].digest) if done else None
        for metric in dict.fromkeys((column.metric, *(tasks.task.metrics if done else ()))):
            result = Result(column=name, evaluation=column.evaluation, metric=metric, **same)
            if predicted is not None:
                dev, test = dev_score(run.stage, record, metric), score(metric, predicted)
                result = replace(result, dev=dev, test=test)
            yield result


def dev_score(stage: Stage, record: Record, metric: str) -> float | None:
    """A finished stage's score on dev: as recorded, or from its recorded predictions where the metric is newer than the
    record. None where there are no predictions on dev."""
    predicted = record.predictions.get(stage.data.dev.digest) if stage.data.dev else None
    if metric in record.dev_scores or predicted is None:
        return record.dev_scores.get(metric)
    return score(metric, predicted)


def counted_records(store: Store, metrics: Mapping[str, str]) -> dict[str, Record]:
    """The records of these keys without their history, each with its dev score in the metric ('': in none). A stage that selects no checkpoint has
    none."""
    found = {key: replace(record, history=[]) for key, record in store.records(metrics).items()}
    newer = [key for key, each in found.items() if each.dev_scores and metrics[key] not in ("", *each.dev_scores)]
    stages = store.stages(newer)
    for key, record in store.records(newer, predictions=True).items():
        if (value := dev_score(stages[key], record, metrics[key])) is not None:
            found[key].dev_scores[metrics[key]] = value
    return found


def hardware(records: Iterable[Record]) -> tuple[str, ...]:
    """The distinct machines and numbers of workers that trained the recorded stages of a table."""
    kinds = set()
    for origin in (record.provenance for record in records if record.status == "done"):
        threads, workers = origin.get("threads", 1), origin.get("workers", 1)
        several = f", {workers} workers a stage" if workers > 1 else ""
        run = f"{counted(threads, 'thread')} a run, torch {origin.get('torch', '?')}"
        kinds.add(f"{origin.get('device', '?')}{several}, {run}")
    return tuple(sorted(kinds))
