"""MLflow: an experiment a table, a parent run a cell, a run a stage. `MLFLOW_TRACKING_URI` names the server or database."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.tracking.projection import DIGEST, KEY, TrackedRun
from harness.tracking.tracker import Tracker

CHUNK = 1000
"""Metrics that one request of MLflow's may hold."""
LONGEST = 6000
"""Characters that a value of a parameter may have."""
CELL = "harness.cell"
"""The tag by which the run of a cell is found."""
_ENVIRONMENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""A server that is away is found out in seconds: MLflow's own defaults are minutes."""


class MLflow(Tracker):
    """A stage's run is found by its key, which is a tag: MLflow chooses ids itself. One that a killed command left is not finished,
    and is deleted and written again."""

    def __init__(self, experiment: str, folder: Path) -> None:
        super().__init__(os.environ.get("MLFLOW_EXPERIMENT_NAME") or experiment, folder)
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        for logger in ("mlflow.store.db.utils", "alembic"):
            logging.getLogger(logger).setLevel(logging.WARNING)
        self._client = MlflowClient()
        self._id = ""
        self._cells: dict[str, str] = {}

    @property
    def place(self) -> str:
        return f"{self._client.tracking_uri}, experiment {self.experiment}"

    @property
    def _experiment_id(self) -> str:
        if not self._id:
            found = self._client.get_experiment_by_name(self.experiment)
            self._id = found.experiment_id if found else self._client.create_experiment(self.experiment)
        return self._id

    def _runs(self, condition: str = "") -> Iterator[Any]:
        token = None
        while True:
            page = self._client.search_runs([self._experiment_id], filter_string=condition, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def written(self) -> dict[str, str]:
        return {
            run.data.tags[KEY]: run.data.tags[DIGEST]
            for run in self._runs()
            if DIGEST in run.data.tags and run.info.status != "RUNNING"
        }

    def write(self, run: TrackedRun) -> None:
        cell = self._cell(run)
        if run.kind == "cell":
            self._write_cell(cell, run)
            return
        for old in list(self._runs(f"tags.`{KEY}` = '{run.key}'")):
            self._client.delete_run(old.info.run_id)
        started = int(1000 * run.started_at) if run.started_at else None
        ended = int(1000 * (run.started_at + run.seconds)) if run.started_at else None
        tags = {KEY: run.key, DIGEST: run.digest, "mlflow.parentRunId": cell, "group": run.group, **run.tags}
        if run.reason:
            tags["reason"] = f"{run.status}: {run.reason}"
        made = self._create(run.name, tags, started)
        last = run.history[-1][1] if run.history else 0
        points = [*run.history, *((name, last, value) for name, value in run.scores.items())]
        self._log(made, run, points, ended)
        self._client.set_terminated(made, "FINISHED" if run.status == "done" else "FAILED", end_time=ended)

    def _write_cell(self, made: str, run: TrackedRun) -> None:
        """The mean of a cell, at the number of its runs that are done. A number that stands there already is not written again."""
        done = int(run.scores["runs"])
        points = [(name, done, value) for name, value in run.scores.items()]
        known = {(each.key, each.step, each.value) for name in run.scores for each in self._history(made, name)}
        self._log(made, run, [point for point in points if (point[0], point[1], point[2]) not in known], None)
        for name, value in ((KEY, run.key), (DIGEST, run.digest)):
            self._client.set_tag(made, name, value)
        self._client.set_terminated(made, "FINISHED")

    def _history(self, made: str, name: str) -> list[Any]:
        return list(self._client.get_metric_history(made, name))

    def _cell(self, run: TrackedRun) -> str:
        """The run of a cell, which is the parent of its runs."""
        if run.group_key not in self._cells:
            found = list(self._runs(f"tags.`{CELL}` = '{run.group_key}'"))
            self._cells[run.group_key] = (
                found[0].info.run_id if found else self._create(run.group, {CELL: run.group_key}, None)
            )
        return self._cells[run.group_key]

    def _create(self, name: str, tags: dict[str, str], started: int | None) -> str:
        made = self._client.create_run(self._experiment_id, start_time=started, tags=tags, run_name=name)
        return str(made.info.run_id)

    def _log(self, made: str, run: TrackedRun, points: list[tuple[str, int, float]], ended: int | None) -> None:
        from mlflow.entities import Metric, Param

        at = ended or int(1000 * time.time())
        params = [Param(name, str(value)[:LONGEST]) for name, value in run.parameters.items()]
        self._client.log_batch(made, params=params)
        metrics = [Metric(name, value, at, step) for name, step, value in points]
        for start in range(0, len(metrics), CHUNK):
            self._client.log_batch(made, metrics=metrics[start : start + CHUNK])
