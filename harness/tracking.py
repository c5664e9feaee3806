"""Experiment trackers as views of the store: each recorded stage as one run of TensorBoard, MLflow or W&B.

A stage's run is found by its key. A tracker imports its package when something is written to it.
"""

from __future__ import annotations

import logging
import math
import netrc
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from harness.errors import UserError, first_line, unknown
from harness.planning.data import TaskData
from harness.planning.runs import Plan
from harness.specs import Record, Run, Stage, Status, digest_of
from harness.store import Store
from harness.tasks import score

Value = str | float | int | bool

FINAL = "final/"
"""How the names of scores at the selected checkpoint begin."""
KEY, MARK = "harness.key", "harness.mark"
"""The names under which a tracker keeps a stage's key, and what was written (`mark_of`)."""
KEY_CHARACTERS = 12
MLFLOW_POINTS, MLFLOW_LONGEST = 1000, 6000
"""Metrics of one request of MLflow's, and characters of a parameter's value."""
_MLFLOW_ENVIRONMENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""A server that is away is found out in seconds: MLflow's own defaults are minutes."""


# ------------------------------------------------------------------------------------------------ what a tracker shows


@dataclass(frozen=True)
class TrackedRun:
    """A stage as a run of a tracker. `group`: the cell of its run, or 'shared/PHASE'; `history`: (name, update, value), in order of
    updates; `scores`: single numbers, those of the selected checkpoint and of cost; `started`, `ended`: Unix time, None where it is
    not known."""

    key: str
    mark: str
    name: str
    group: str
    phase: str
    status: Status
    reason: str
    parameters: Mapping[str, Value]
    history: tuple[tuple[str, int, float], ...]
    scores: Mapping[str, float]
    tags: Mapping[str, str]
    started: float | None
    ended: float | None


@dataclass(frozen=True)
class Member:
    """A run with what names it in a tracker: the `group` that it belongs to, its `labels`, its task's test sets by evaluation (empty: its
    test scores are not shown) and the metrics that they are scored by."""

    run: Run
    group: str
    labels: Mapping[str, Value]
    tests: Mapping[str, str]
    metrics: tuple[str, ...]


@dataclass(frozen=True)
class Projection:
    """All runs of a table or a study as a tracker shows them. `experiment`: the name under which they stand together."""

    experiment: str
    members: tuple[Member, ...]

    @cached_property
    def stages(self) -> dict[str, Stage]:
        """By key, parents first."""
        return {stage.key: stage for member in self.members for stage in member.run.stage.chain}

    @cached_property
    def by_stage(self) -> dict[str, list[Member]]:
        """The runs that each stage serves."""
        members: dict[str, list[Member]] = {}
        for member in self.members:
            for stage in member.run.stage.chain:
                members.setdefault(stage.key, []).append(member)
        return members


def of_plan(plan: Plan, variant: str) -> Projection:
    """The runs of a table. `variant`: what tells
    its cells from those of the same table under other values."""
    resolved = plan.resolved
    members = []
    encoders = {row.name: row.encoder for row in resolved.rows}
    for run in plan.runs:
        labels = {"table": resolved.table.name, "preset": resolved.preset, "encoder": encoders[run.row]}
        group = f"{run.row}/{run.task}/{size_name(run)} ({variant})"
        members.append(member_of(run, group, labels, plan.tasks[run.task], tests=True))
    return Projection(f"harness-{resolved.table.name}", tuple(members))


def size_name(run: Run) -> str:
    return f"n{run.size}" if run.size else "full"


def member_of(run: Run, group: str, labels: Mapping[str, Value], data: TaskData, *, tests: bool) -> Member:
    own = {name: getattr(run, name) for name in ("row", "method", "task", "size", "subset", "seed")}
    sets = {name: rows.digest for name, rows in data.tests.items()} if tests else {}
    return Member(run, group, {**labels, **own}, sets, data.task.metrics)


def tracked(projection: Projection, key: str, record: Record) -> TrackedRun:
    """A recorded stage as a tracker's run. `record`: with predictions."""
    stage, members = projection.stages[key], projection.by_stage[key]
    groups = [*dict.fromkeys(member.group for member in members)]
    run = members[0].run
    more = f" and {len(members) - 1} more" if len(members) > 1 else ""
    scores = {"cost/seconds": record.seconds, "cost/flops": record.flops}
    if "tokens_per_second" in record.provenance:
        scores["cost/tokens_per_second"] = record.provenance["tokens_per_second"]
    if record.status == "done":
        if record.selected_step is not None:
            scores |= {f"{FINAL}step": record.selected_step, f"{FINAL}collapsed": record.collapsed}
        if ends := [member for member in members if member.run.stage.key == key]:
            scores |= final_scores(ends[0], record)
    started = float(record.provenance.get("started_at", 0.0))
    return TrackedRun(
        key=key,
        mark=mark_of(record),
        name=f"{run.name}{more} ({stage.phase})",
        group=groups[0] if len(groups) == 1 else f"shared/{stage.phase}",
        phase=stage.phase,
        status=record.status,
        reason=record.reason,
        parameters={**_common(members), **recipe(stage)},
        history=tuple(history(record)),
        scores={name: float(value) for name, value in scores.items() if math.isfinite(value)},
        tags={f"provenance.{name}": str(value) for name, value in sorted(record.provenance.items()) if value != ""},
        started=started or None,
        ended=started + record.seconds if started else None,
    )


def mark_of(record: Record) -> str:
    """What a tracker keeps of what was written: the key, and a digest of the outcome, which is another one where a failed stage is trained
    again."""
    outcome = [record.status, record.reason, record.seconds, record.provenance.get("started_at", 0.0)]
    return f"{record.key[:KEY_CHARACTERS]}-{digest_of(outcome)[:8]}"


def final_scores(member: Member, record: Record) -> dict[str, float]:
    """Dev as recorded at the selected checkpoint, and each test set by the task's metrics."""
    scores = {f"{FINAL}dev/{metric}": value for metric, value in record.dev_scores.items()}
    for evaluation, rows in member.tests.items():
        if (predicted := record.predictions.get(rows)) is not None:
            for metric in member.metrics:
                scores[f"{FINAL}{evaluation}/{metric}"] = score(metric, predicted)
    return scores


def _common(members: Sequence[Member]) -> dict[str, Value]:
    """The labels that all runs agree on: a stage that several runs share has no subset of its own, for example."""
    first, *rest = (member.labels for member in members)
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in rest)}


def recipe(stage: Stage) -> dict[str, Value]:
    """Everything that a stage's key hashes apart from the content of its data, by dotted names."""
    settings: dict[str, Value] = {"phase": stage.phase, "stage_seed": stage.seed, "objective": stage.objective.name}
    settings |= {f"objective.{name}": value for name, value in stage.objective.params.items()}
    settings |= {f"optim.{name}": value for name, value in vars(stage.optim).items() if not name.startswith("_")}
    settings |= {"data.train": stage.data.train.name, "data.rows": stage.data.train.rows}
    settings |= {"data.max_length": stage.data.max_length, "encoder.digest": stage.encoder.digest}
    if stage.parent:
        settings["parent"] = stage.parent.key
    if stage.selection:
        settings |= {"selection.metric": stage.selection.metric, "selection.every": stage.selection.every}
    return settings


def history(record: Record) -> Iterator[tuple[str, int, float]]:
    """Every recorded number by update: terms of the loss (means since the point before), what tells collapse from learning, dev."""
    points: dict[tuple[str, int], float] = {}
    for entry in record.history:
        step, curve = int(entry["step"]), entry.get("curve", {})
        terms = {name: value for name, value in entry.items() if isinstance(value, (int, float)) and name != "step"}
        numbers: dict[str, Any] = {f"train/{name}": value for name, value in terms.items()}
        if "loss" in curve:
            numbers.pop("train/loss", None)  # the mean of the points that the curve has
        numbers |= {f"measures/{name}": value for name, value in entry.get("measures", {}).items()}
        numbers |= {f"dev/{name}": value for name, value in entry.get("dev", {}).items()}
        points |= {(name, step): float(value) for name, value in numbers.items()}
        points |= {("train/loss", int(at)): float(value) for at, value in curve.get("loss", [])}
        points |= {("dev/curve", int(at)): float(value) for at, value in curve.get("dev", [])}
    for (name, step), value in sorted(points.items(), key=lambda point: (point[0][1], point[0][0])):
        if math.isfinite(value):
            yield name, step, value


# ------------------------------------------------------------------------------------------------------- the trackers


class Tracker(Protocol):
    """Writes runs. Its methods may raise anything: a server that is away, a folder that cannot be written. A run is written whole, or counts
    as not written; one of the same key is replaced. `place`: where the runs are, for people."""

    place: str

    def __init__(self, experiment: str, folder: Path) -> None:
        """`folder`: beside the store, for a tracker that has no place of its own."""

    def known(self) -> set[str]:
        """The marks of the runs that it holds."""

    def write(self, run: TrackedRun) -> None: ...


class TensorBoard:
    """A folder of event files for each run, with its parameters for the HPARAMS tab, written beside its place and renamed."""

    def __init__(self, experiment: str, folder: Path) -> None:
        self._root = folder / "tensorboard" / slug(experiment)
        self.place = f"tensorboard --logdir {self._root.parent}"

    def known(self) -> set[str]:
        folders = {path.parent.name for path in self._root.rglob("events.*")}
        return {"-".join(name.rsplit("-", 2)[-2:]) for name in folders if not name.startswith(".")}

    def write(self, run: TrackedRun) -> None:
        group = self._root.joinpath(*map(slug, run.group.split("/")))
        folder = group / f".{uuid.uuid4().hex}"
        try:
            self._events(run, folder)
            for old in group.glob(f"*-{run.key[:KEY_CHARACTERS]}-*"):
                shutil.rmtree(old)
            own = slug(run.name.rpartition("/subset")[2])
            folder.rename(group / f"subset{own}-{run.mark}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _events(self, run: TrackedRun, folder: Path) -> None:
        from tensorboardX import SummaryWriter
        from tensorboardX.summary import hparams

        with SummaryWriter(str(folder)) as writer:
            for summary in hparams(dict(run.parameters), dict(run.scores)):
                writer.file_writer.add_summary(summary)
            for name, step, value in points(run):
                writer.add_scalar(name, value, step, walltime=run.ended)
            for name, text in run.tags.items():
                writer.add_text(name, text, walltime=run.ended)


def points(run: TrackedRun) -> list[tuple[str, int, float]]:
    """The history, and the scores at its last update."""
    last = run.history[-1][1] if run.history else 0
    return [*run.history, *((name, last, value) for name, value in run.scores.items())]


def slug(text: str) -> str:
    """A name as a file's name."""
    return re.sub(r"[^\w.+=-]+", "_", text).strip("_.") or "_"


class MLflow:
    """An experiment a table, a run a stage. `MLFLOW_TRACKING_URI` names the server or database. MLflow chooses ids itself, so the key is a
    tag. A run that a killed command left is not finished, and is written again."""

    def __init__(self, experiment: str, folder: Path) -> None:
        for name, value in _MLFLOW_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        for logger in ("mlflow.store.db.utils", "alembic"):
            logging.getLogger(logger).setLevel(logging.WARNING)
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or experiment
        self._client = MlflowClient()
        known = self._client.get_experiment_by_name(experiment)
        self._experiment = known.experiment_id if known else self._client.create_experiment(experiment)
        self.place = f"{self._client.tracking_uri}, experiment {experiment}"

    def _runs(self, condition: str = "") -> Iterator[Any]:
        token = None
        while True:
            page = self._client.search_runs([self._experiment], filter_string=condition, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def known(self) -> set[str]:
        return {run.data.tags.get(MARK, "") for run in self._runs() if run.info.status != "RUNNING"}

    def write(self, run: TrackedRun) -> None:
        from mlflow.entities import Metric, Param

        for old in list(self._runs(f"tags.`{KEY}` = '{run.key}'")):
            self._client.delete_run(old.info.run_id)
        started, ended = (None if at is None else int(1000 * at) for at in (run.started, run.ended))
        tags = {KEY: run.key, MARK: run.mark, "group": run.group, **run.tags}
        tags |= {"reason": f"{run.status}: {run.reason}"} if run.reason else {}
        made = self._client.create_run(self._experiment, start_time=started, tags=tags, run_name=run.name).info.run_id
        params = [Param(name, str(value)[:MLFLOW_LONGEST]) for name, value in run.parameters.items()]
        self._client.log_batch(made, params=params)
        metrics = [Metric(name, value, ended or 0, step) for name, step, value in points(run)]
        for start in range(0, len(metrics), MLFLOW_POINTS):
            self._client.log_batch(made, metrics=metrics[start : start + MLFLOW_POINTS])
        self._client.set_terminated(made, "FINISHED" if run.status == "done" else "FAILED", end_time=ended)


class WandB:
    """A project a table, a run a stage, whose id is the key. Offline where there is no key, unless WANDB_MODE says otherwise. What was written
    from this machine stands in W&B's own folder, beside each run; what another machine wrote is seen when the run is resumed."""

    def __init__(self, experiment: str, folder: Path) -> None:
        self._project = os.environ.get("WANDB_PROJECT") or slug(experiment)[:128]
        self._offline = not os.environ.get("WANDB_MODE") and not _has_key()
        self._root = Path(os.environ.get("WANDB_DIR") or ".").absolute()
        mode = os.environ.get("WANDB_MODE") or ("offline" if self._offline else "online")
        how = "; wandb sync --sync-all uploads them" if mode == "offline" else ""
        self.place = f"{self._root / 'wandb'}, project {self._project}, {mode}{how}"

    def known(self) -> set[str]:
        said = (path.read_text(encoding="utf-8").split() for path in self._root.glob(f"*wandb/*run-*/{MARK}"))
        return {mark for project, mark in said if project == self._project}

    def write(self, run: TrackedRun) -> None:
        import wandb

        settings = wandb.Settings(
            **({"mode": "offline"} if self._offline else {}),
            **{"console": "off", "silent": True, "disable_git": True, "save_code": False},
            **{"x_disable_stats": True, "x_disable_meta": True, "init_timeout": 30},
        )
        made: Any = wandb.init(
            **{"project": self._project, "id": run.key, "name": run.name, "group": run.group, "job_type": run.phase},
            **{"resume": "allow", "reinit": "create_new", "dir": str(self._root), "settings": settings},
            config={**run.parameters, "provenance": dict(run.tags)},
            tags=[run.status],
            notes=run.reason or None,
        )
        if made.summary.get(MARK) != run.mark:
            steps: dict[int, dict[str, float]] = {}
            for name, step, value in run.history:
                steps.setdefault(step, {})[name] = value
            for step, values in steps.items():
                made.log(values, step=step)
            made.summary.update({**run.scores, "status": run.status, MARK: run.mark})
        folder = Path(made.dir).parent
        made.finish(exit_code=0 if run.status == "done" else 1)
        if folder.is_dir():  # there is none where W&B is disabled
            (folder / MARK).write_text(f"{self._project} {run.mark}", encoding="utf-8")


def _has_key() -> bool:
    """Whether W&B would find a key of its own: WANDB_API_KEY, or what `wandb login` leaves in ~/.netrc."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


TRACKERS: Mapping[str, tuple[str, Callable[[str, Path], Tracker]]] = {
    "tensorboard": ("tensorboardX", TensorBoard),
    "mlflow": ("mlflow", MLflow),
    "wandb": ("wandb", WandB),
}
"""The package that each one needs, and its class."""


# --------------------------------------------------------------------------------------------------------- the writer


@dataclass
class Outcome:
    """What one tracker holds: `total` stages of the projection, `new` of them written by this command. `place`: where, for people;
    `error`: why it was left alone, '' where all was written."""

    place: str = ""
    total: int = 0
    new: int = 0
    error: str = ""
    tracker: Tracker | None = None
    known: set[str] = field(default_factory=set)


class Writer:
    """Writes the recorded stages of a projection. A tracker that raises is left alone until everything is written the next time; the others
    go on.

    `url`: of the store; `where`: names the trackers' argument in errors; `warn`: called once for each tracker that cannot be written, with
    its name and why. `put` is for a command that trains: a thread writes. Raises UserError for an unknown name, and for a package that is
    not installed.
    """

    def __init__(
        self,
        url: str,
        names: Sequence[str],
        where: str = "track",
        warn: Callable[[str, str], None] = lambda name, why: None,
    ) -> None:
        self._url, self._warn, self._warned = url, warn, set[str]()
        self.outcomes = {name: Outcome() for name in names}
        self._thread = ThreadPoolExecutor(1, "trackers")
        for name in self.outcomes:
            if name not in TRACKERS:
                raise unknown("tracker", name, TRACKERS, where)
            package, _ = TRACKERS[name]
            if (spec := find_spec(package)) is None or spec.origin is None:  # a folder 'wandb' of runs is no package
                raise UserError(
                    f"{where} {name}: the package {package} is not installed; run pip install 'glue-harness[{name}]'."
                )

    def put(self, projection: Projection, key: str = "") -> None:
        """A stage has ended; without a key, everything that is recorded is to be written."""
        self._thread.submit(self.write, projection, key)

    def finish(self, projection: Projection) -> dict[str, Outcome]:
        """Wait for what was put, then write what is missing; also to a tracker that was away."""
        if self.outcomes:
            self._thread.submit(self.write, projection).result()
        return self.outcomes

    def write(self, projection: Projection, key: str = "") -> None:
        """Write what is recorded of a stage to the trackers that can be written; without a key what is recorded of all, to all."""
        for name, outcome in self.outcomes.items():
            if key and outcome.error:
                continue
            try:
                self._write(name, outcome, projection, key)
                outcome.error = ""
            except Exception as error:  # a server, a disk, a package of others: nothing of a tracker may end a bench
                outcome.tracker = None
                outcome.error = f"{type(error).__name__}: {first_line(error)}"
                if name not in self._warned:
                    self._warned.add(name)
                    self._warn(name, outcome.error)

    def _write(self, name: str, outcome: Outcome, projection: Projection, key: str) -> None:
        store = Store(self._url, create=False)
        if outcome.tracker is None:
            outcome.tracker = TRACKERS[name][1](projection.experiment, store.artifacts.parent)
            outcome.place, outcome.known = outcome.tracker.place, outcome.tracker.known()
        records = store.records([key] if key else projection.stages)
        outcome.total = len(records)
        new = [stage_key for stage_key, record in records.items() if mark_of(record) not in outcome.known]
        for stage_key, record in store.each(new, predictions=True):
            run = tracked(projection, stage_key, record)
            outcome.tracker.write(run)
            outcome.known.add(run.mark)
            outcome.new += 1
