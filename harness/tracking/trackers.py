"""What a tracker is; TensorBoard, MLflow and W&B, by their names. Each imports its package when something is written to it."""

from __future__ import annotations

import json
import logging
import netrc
import os
import re
import shutil
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness.errors import UserError, unknown
from harness.tracking.projection import DIGEST, KEY, TrackedRun

WRITTEN = "harness.json"
"""A file in a run's folder that says what was written, where a tracker has folders."""
MLFLOW_POINTS = 1000
"""Metrics that one request of MLflow's may hold."""
MLFLOW_LONGEST = 6000
"""Characters that a value of a parameter may have in MLflow."""
CELL = "harness.cell"
"""The tag by which MLflow's run of a cell is found."""
_MLFLOW_ENVIRONMENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""A server that is away is found out in seconds: MLflow's own defaults are minutes."""


class Tracker(ABC):
    """Writes runs. Its methods may raise anything: a server that is away, a folder that cannot be written.

    Law: a run is written whole or counts as not written, and one that was written is written again only if its record changed.
    """

    def __init__(self, experiment: str, folder: Path) -> None:
        """`folder`: beside the store, for a tracker that has no place of its own."""
        self.experiment, self.folder = experiment, folder

    @abstractmethod
    def written(self) -> dict[str, str]:
        """The digest of each run that it holds, by key."""

    @abstractmethod
    def write(self, run: TrackedRun) -> None:
        """Write a run; one of the same key is replaced."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the runs are, for people."""


class TensorBoard(Tracker):
    """A folder of event files for each run, with its parameters for the HPARAMS tab. A run is written beside its place and renamed, so that a
    folder is whole."""

    def __init__(self, experiment: str, folder: Path) -> None:
        super().__init__(experiment, folder)
        self._root = folder / "tensorboard" / slug(experiment)

    @property
    def place(self) -> str:
        return f"tensorboard --logdir {self._root.parent}"

    def written(self) -> dict[str, str]:
        marks = [_marked(path) for path in self._root.rglob(WRITTEN) if not path.parent.name.startswith(".")]
        return {mark[KEY]: mark[DIGEST] for mark in marks}

    def write(self, run: TrackedRun) -> None:
        group = self._root.joinpath(*(slug(part) for part in run.group.split("/")))
        group.mkdir(parents=True, exist_ok=True)
        target = group / f"{slug(run.within)}-{run.key[:8]}"
        folder = group / f".{uuid.uuid4().hex}"
        try:
            self._events(run, folder)
            _mark(folder, run, status=run.status, reason=run.reason)
            if target.exists():
                shutil.rmtree(target)
            folder.rename(target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _events(self, run: TrackedRun, folder: Path) -> None:
        from tensorboardX import SummaryWriter
        from tensorboardX.summary import hparams

        ended = run.started_at + run.seconds if run.started_at else None
        with SummaryWriter(str(folder)) as writer:
            for summary in hparams(dict(run.parameters), dict(run.scores)):
                writer.file_writer.add_summary(summary)
            for name, step, value in run.history:
                writer.add_scalar(name, value, step, walltime=ended)
            last = run.history[-1][1] if run.history else 0
            for name, value in run.scores.items():
                writer.add_scalar(name, value, last, walltime=ended)
            for name, text in run.tags.items():
                writer.add_text(name, text, walltime=ended)


def slug(text: str) -> str:
    """A name as a file's name."""
    return re.sub(r"[^\w.+=-]+", "_", text).strip("_.") or "_"


def _mark(folder: Path, run: TrackedRun, **more: str) -> None:
    (folder / WRITTEN).write_text(json.dumps({KEY: run.key, DIGEST: run.digest, **more}), encoding="utf-8")


def _marked(path: Path) -> dict[str, str]:
    mark: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return mark


class MLflow(Tracker):
    """An experiment a table, a parent run a cell, a run a stage. `MLFLOW_TRACKING_URI` names the server or database.

    A stage's run is found by its key, which is a tag: MLflow chooses ids itself. One that a killed command left is not finished,
    and is deleted and written again.
    """

    def __init__(self, experiment: str, folder: Path) -> None:
        super().__init__(os.environ.get("MLFLOW_EXPERIMENT_NAME") or experiment, folder)
        for name, value in _MLFLOW_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        for logger in ("mlflow.store.db.utils", "alembic"):
            logging.getLogger(logger).setLevel(logging.WARNING)
        self._client = MlflowClient()
        known = self._client.get_experiment_by_name(self.experiment)
        self._experiment_id = known.experiment_id if known else self._client.create_experiment(self.experiment)
        self._cells: dict[str, str] = {}

    @property
    def place(self) -> str:
        return f"{self._client.tracking_uri}, experiment {self.experiment}"

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
        run_id = self._create(run.name, tags, started)
        last = run.history[-1][1] if run.history else 0
        points = [*run.history, *((name, last, value) for name, value in run.scores.items())]
        self._log(run_id, run, points, ended)
        self._client.set_terminated(run_id, "FINISHED" if run.status == "done" else "FAILED", end_time=ended)

    def _write_cell(self, run_id: str, run: TrackedRun) -> None:
        """The mean of a cell, at the number of its runs that are done. A number that stands there already is not written again."""
        done = int(run.scores["runs"])
        points = [(name, done, value) for name, value in run.scores.items()]
        known = {
            (metric.key, metric.step, metric.value)
            for name in run.scores
            for metric in self._client.get_metric_history(run_id, name)
        }
        self._log(run_id, run, [point for point in points if point not in known], None)
        for name, value in ((KEY, run.key), (DIGEST, run.digest)):
            self._client.set_tag(run_id, name, value)
        self._client.set_terminated(run_id, "FINISHED")

    def _cell(self, run: TrackedRun) -> str:
        """The run of a cell, which is the parent of its runs."""
        if run.group_key not in self._cells:
            runs = list(self._runs(f"tags.`{CELL}` = '{run.group_key}'"))
            self._cells[run.group_key] = (
                runs[0].info.run_id if runs else self._create(run.group, {CELL: run.group_key}, None)
            )
        return self._cells[run.group_key]

    def _create(self, name: str, tags: dict[str, str], started: int | None) -> str:
        made = self._client.create_run(self._experiment_id, start_time=started, tags=tags, run_name=name)
        return str(made.info.run_id)

    def _log(self, run_id: str, run: TrackedRun, points: list[tuple[str, int, float]], ended: int | None) -> None:
        from mlflow.entities import Metric, Param

        at = ended or int(1000 * time.time())
        params = [Param(name, str(value)[:MLFLOW_LONGEST]) for name, value in run.parameters.items()]
        self._client.log_batch(run_id, params=params)
        metrics = [Metric(name, value, at, step) for name, step, value in points]
        for start in range(0, len(metrics), MLFLOW_POINTS):
            self._client.log_batch(run_id, metrics=metrics[start : start + MLFLOW_POINTS])


class WandB(Tracker):
    """A project a table, a group a cell, a run a stage. Offline where there is no key, unless WANDB_MODE says otherwise.

    The run's id is the stage's key. What was written from this machine stands in W&B's own folder, beside each run; what another
    machine wrote is seen when the run is resumed.
    """

    def __init__(self, experiment: str, folder: Path) -> None:
        super().__init__(os.environ.get("WANDB_PROJECT") or slug(experiment)[:128], folder)
        self._offline = not os.environ.get("WANDB_MODE") and not _has_key()
        self._root = Path(os.environ.get("WANDB_DIR") or ".").absolute()

    @property
    def place(self) -> str:
        mode = os.environ.get("WANDB_MODE") or ("offline" if self._offline else "online")
        how = "; wandb sync --sync-all uploads them" if mode == "offline" else ""
        return f"{self._root / 'wandb'}, project {self.experiment}, {mode}{how}"

    def written(self) -> dict[str, str]:
        marks = map(_marked, sorted(self._root.glob(f"*wandb/*run-*/{WRITTEN}")))  # by time
        return {mark[KEY]: mark[DIGEST] for mark in marks if mark["project"] == self.experiment}

    def write(self, run: TrackedRun) -> None:
        import wandb

        settings = wandb.Settings(
            **({"mode": "offline"} if self._offline else {}),
            console="off",
            silent=True,
            disable_git=True,
            save_code=False,
            x_disable_stats=True,
            x_disable_meta=True,
            init_timeout=30,
        )
        made: Any = wandb.init(
            project=self.experiment,
            id=run.key,
            name=run.name,
            group=run.group,
            job_type=run.kind,
            config={**run.parameters, "provenance": dict(run.tags)},
            tags=[run.status],
            notes=run.reason or None,
            resume="allow",
            reinit="create_new",
            dir=str(self._root),
            settings=settings,
        )
        if made.summary.get(DIGEST) != run.digest:
            steps: dict[int, dict[str, float]] = {}
            for name, step, value in run.history:
                steps.setdefault(step, {})[name] = value
            for step, values in steps.items():
                made.log(values, step=step)
            made.summary.update({**run.scores, "status": run.status, DIGEST: run.digest})
        folder = Path(made.dir).parent
        made.finish(exit_code=0 if run.status == "done" else 1)
        if folder.is_dir():  # there is none where W&B is disabled
            _mark(folder, run, project=self.experiment)


def _has_key() -> bool:
    """Whether W&B would find a key of its own: WANDB_API_KEY, or what `wandb login` leaves in ~/.netrc."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


MakeTracker = Callable[[str, Path], Tracker]
TRACKERS: Mapping[str, tuple[str, MakeTracker]] = {
    "tensorboard": ("tensorboardX", TensorBoard),
    "mlflow": ("mlflow", MLflow),
    "wandb": ("wandb", WandB),
}
"""The package that each one needs, and its class."""


def trackers_named(names: Sequence[str], where: str) -> dict[str, MakeTracker]:
    """What makes each tracker. Raises UserError for an unknown name and a package that is not installed."""
    makers: dict[str, MakeTracker] = {}
    for name in dict.fromkeys(names):
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS, where)
        package, kind = TRACKERS[name]
        spec = find_spec(package)
        if spec is None or spec.origin is None:  # a folder 'wandb' or 'mlflow' of runs is no package
            raise UserError(
                f"{where} {name}: the package {package} is not installed; run pip install 'glue-harness[{name}]'."
            )
        makers[name] = kind
    return makers
