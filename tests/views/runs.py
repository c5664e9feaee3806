"""Made-up results of a table's runs, the grid that they fill, and made-up records in a store."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np

from harness.kinds import Predictions
from harness.planning.resolved import ResolvedTable
from harness.scores import Result, frame_of
from harness.specs import Record, Stage
from harness.store import Owner, Store
from harness.views.cells import Grid, aggregate
from harness.views.table import Caption, results_view

OWNER = Owner.current()


def result(
    r: ResolvedTable, row: str, size: int, column: str, subset: int, seed: int, test: float | None = None, **more: Any
) -> Result:
    """The column's own metric of one run."""
    spec = r.columns[column]
    given = {"metric": spec.metric, "evaluation": spec.evaluation, "test": test, "encoder": r.encoder, **more}
    methods = {each.name: "+".join(each.parts) for each in r.rows}
    return Result(row, methods[row], spec.task, column, size=size, subset=subset, seed=seed, **given)


def results(r: ResolvedTable, seed: int = 0) -> list[Result]:
    """A random test score for each place of the table."""
    draw = random.Random(seed)
    return [
        result(r, row, size, *rest, draw.random(), key=f"{draw.getrandbits(64):x}") for size, row, *rest in r.places
    ]


def rows_of(r: ResolvedTable) -> dict[str, int]:
    return {name: column.test_rows or 1 for name, column in r.columns.items()}


def filled(r: ResolvedTable, runs: Iterable[Result] = (), *reasons: Any, **more: Any) -> Grid:
    """`reasons`, `more`: as of `aggregate`."""
    return aggregate(r, frame_of(runs), *reasons, **more)


def commit(store: Store, stage: Stage, status: Any = "done", reason: str = "", **more: Any) -> Record:
    """A record of a stage, with made-up predictions of dev and each test set where it is done."""
    rng = np.random.default_rng(int(stage.key[:8], 16))
    record = Record(stage.key, status, reason, **more)
    if status == "done" and stage.selection and stage.data.dev:
        for rows, count in zip((stage.data.dev, *stage.data.tests), (59, 61, 67), strict=False):
            logits = rng.normal(size=(count, stage.data.num_labels)).astype(np.float32)
            record.predictions[rows.digest] = Predictions(
                {"logits": logits}, rng.integers(0, stage.data.num_labels, count)
            )
        record.dev_scores = {stage.selection.metric: 0.5}
    assert store.lease(stage.key, OWNER) == "granted"
    assert store.commit(stage, record, OWNER)
    return record


def render(grid: Grid, caption: Caption, format: str) -> str:
    """The table in a format of text."""
    return str(results_view(grid, caption).written(format))
