"""Experiment trackers: each recorded stage as one run of TensorBoard, MLflow or W&B, found by its key. Written again it stays the same.

A tracker imports its package when something is written to it.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.errors import UserError, first_line, unknown
from harness.planning.data import TaskData
from harness.planning.runs import Plan
from harness.specs import Record, Run, Stage, Status
from harness.store import Store
from harness.tasks.metrics import score
from harness.wording import counted

Value = str | float | int | bool
KEY = "harness.key"
"""The tag under which MLflow keeps a stage's key."""


@dataclass(frozen=True)
class Tracked:
    """A stage as a run of a tracker. `group`: the cell of its run, or 'shared/PHASE'; `history`: (name, update, value), in order of
    updates; `scores`: those of the selected checkpoint and of cost; `started`, `ended`: Unix time, None where it is not known."""

    key: str
    name: str
    group: str
    status: Status
    reason: str
    settings: Mapping[str, Value]
    history: tuple[tuple[str, int, float], ...]
    scores: Mapping[str, float]
    started: float | None
    ended: float | None

    @property
    def points(self) -> list[tuple[str, int, float]]:
        """The history, and the scores at its last update."""
        last = self.history[-1][1] if self.history else 0
        return [*self.history, *((name, last, value) for name, value in self.scores.items())]


def history(record: Record) -> Iterator[tuple[str, int, float]]:
    """Every recorded number by update: terms of the loss (means since the point before), what tells collapse from learning, dev."""
    points: dict[tuple[int, str], float] = {}
    for entry in record.history:
        step, curve = int(entry["step"]), entry.get("curve", {})
        own = {name: value for name, value in entry.items() if name != "step" and isinstance(value, (int, float))}
        points |= {(step, f"train/{name}"): value for name, value in own.items()}
        for kind in ("measures", "dev"):
            points |= {(step, f"{kind}/{name}"): value for name, value in entry.get(kind, {}).items()}
        if "loss" in curve:
            points.pop((step, "train/loss"), None)  # the mean of the points that the curve has
        points |= {(int(at), "train/loss"): value for at, value in curve.get("loss", [])}
        points |= {(int(at), "dev/curve"): value for at, value in curve.get("dev", [])}
    return ((name, step, float(value)) for (step, name), value in sorted(points.items()) if math.isfinite(value))


# ------------------------------------------------------------------------------------------------------- the trackers


def tensorboard(run: Tracked, experiment: str, folder: Path) -> str:
    """A folder of event files, with its settings for the HPARAMS tab."""
    from tensorboardX import SummaryWriter
    from tensorboardX.summary import hparams

    root = folder / "tensorboard"
    replicate = [f"{name}{run.settings[name]}" for name in ("subset", "seed") if name in run.settings]
    for old in (root / _slug(experiment)).glob(f"*-{run.key[:12]}"):
        shutil.rmtree(old)
    own = f"{_slug('_'.join([run.group, *replicate]))}-{run.key[:12]}"
    with SummaryWriter(str(root / _slug(experiment) / own)) as writer:
        for summary in hparams(dict(run.settings), dict(run.scores)):
            writer.file_writer.add_summary(summary)
        for name, step, value in run.points:
            writer.add_scalar(name, value, step, walltime=run.ended)
    return f"tensorboard --logdir {root}"


def _slug(text: str) -> str:
    """A name as a file's name."""
    return re.sub(r"[^\w.+=-]+", "_", text).strip("_.") or "_"


def mlflow(run: Tracked, experiment: str, folder: Path) -> str:
    """`MLFLOW_TRACKING_URI` names the server or database. MLflow chooses ids itself, so the key is a tag. A run that a killed command left
    is not finished, and is written again."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # minutes by default, until a server is away
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    client, experiment = MlflowClient(), os.environ.get("MLFLOW_EXPERIMENT_NAME") or experiment
    known = client.get_experiment_by_name(experiment)
    within = known.experiment_id if known else client.create_experiment(experiment)
    place = f"{client.tracking_uri}, experiment {experiment}"
    before = client.search_runs([within], filter_string=f"tags.`{KEY}` = '{run.key}'")
    if any(old.info.status == "FINISHED" for old in before):
        return place
    for old in before:
        client.delete_run(old.info.run_id)
    started, ended = (None if at is None else int(1000 * at) for at in (run.started, run.ended))
    tags = {KEY: run.key, "group": run.group, "reason": run.reason}
    made = client.create_run(within, start_time=started, tags=tags, run_name=run.name).info.run_id
    client.log_batch(made, params=[Param(name, str(value)[:6000]) for name, value in run.settings.items()])
    metrics = [Metric(name, value, ended or 0, step) for name, step, value in run.points]
    for start in range(0, len(metrics), 1000):  # as many as a request takes
        client.log_batch(made, metrics=metrics[start : start + 1000])
    client.set_terminated(made, "FINISHED" if run.status == "done" else "FAILED", end_time=ended)
    return place


def wandb(run: Tracked, experiment: str, folder: Path) -> str:
    """The run's id is the key. Offline where there is no key of W&B's, unless WANDB_MODE says otherwise; offline a file in W&B's folder says
    which runs are written."""
    import wandb as package

    project, root = os.environ.get("WANDB_PROJECT") or _slug(experiment)[:128], Path(os.environ.get("WANDB_DIR") or ".")
    mode: Any = os.environ.get("WANDB_MODE")
    mode = mode or ("online" if package.login(prompt=False, verify=False) else "offline")
    how = "; wandb sync --sync-all uploads them" if mode == "offline" else ""
    place = f"{root.absolute() / 'wandb'}, project {project}, {mode}{how}"
    if any(root.glob(f"*wandb/*run-*-{run.key}/{project}.done")):
        return place
    quiet = {"console": "off", "silent": True, "disable_git": True, "save_code": False}
    settings = package.Settings(mode=mode, init_timeout=30, x_disable_stats=True, x_disable_meta=True, **quiet)
    made = package.init(
        **{"project": project, "id": run.key, "name": run.name, "group": run.group, "notes": run.reason or None},
        **{"resume": "allow", "reinit": "create_new", "dir": str(root.absolute()), "settings": settings},
        **{"tags": [run.status], "config": dict(run.settings)},
    )
    if made.summary.get("status") != "done":
        for name, step, value in run.history:
            made.log({name: value}, step=step)
        made.summary.update({**run.scores, "status": run.status})
    written = Path(made.dir).parent
    made.finish(exit_code=0 if run.status == "done" else 1)
    if run.status == "done" and written.is_dir():  # there is none where W&B is disabled
        (written / f"{project}.done").touch()
    return place


Write = Callable[[Tracked, str, Path], str]
TRACKERS: Mapping[str, tuple[str, Write]] = {
    "tensorboard": ("tensorboardX", tensorboard),
    "mlflow": ("mlflow", mlflow),
    "wandb": ("wandb", wandb),
}
"""The package that each one needs, and what writes a run to an experiment of it, which may raise anything; with a folder beside the store, for
a tracker that has no place of its own. It says where the runs are, for people."""


def check_trackers(names: Sequence[str], where: str) -> None:
    """Raises UserError for an unknown tracker, and for one whose package is not installed. `where`: names the argument."""
    for name in names:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS, where)
        package, _ = TRACKERS[name]
        if (spec := find_spec(package)) is None or spec.origin is None:  # a folder 'wandb' of runs is no package
            raise UserError(
                f"{where} {name}: the package {package} is not installed; run pip install 'glue-harness[{name}]'."
            )


# --------------------------------------------------------------------------------------------------------- the stages


class Trackers:
    """Writes the recorded stages of the runs that were added. A tracker that raises is left alone until the end: nothing of a tracker may
    end a bench. `url`: of the store; `errors`: by tracker, why its last stage was not written."""

    def __init__(self, names: Sequence[str], experiment: str, url: str) -> None:
        self.errors, self._places = dict[str, str](), dict[str, str]()
        self._experiment, self._url = experiment, url
        self._written = {name: set[str]() for name in names}
        self._runs: dict[str, dict[tuple[str, str], Mapping[str, Value]]] = {}
        """By the key of a stage the settings of the runs that it serves, by their group and name."""
        self._tests, self._stages = dict[str, TaskData](), dict[str, Stage]()

    def __bool__(self) -> bool:
        return bool(self._written)

    def add(self, run: Run, group: str, labels: Mapping[str, Value], tests: TaskData | None = None) -> None:
        """`group`: of the runs that stand together; `tests`: of its task, where its test scores are shown."""
        own = {name: getattr(run, name) for name in ("row", "method", "task", "size", "subset", "seed")}
        cell = f"{group}/{run.task}/{f'n{run.size}' if run.size else 'full'}"
        for stage in run.stage.chain:
            self._stages[stage.key] = stage
            self._runs.setdefault(stage.key, {})[cell, run.name] = {**labels, **own}
        if tests:
            self._tests[run.stage.key] = tests

    def add_plan(self, plan: Plan) -> Trackers:
        """The runs of a table."""
        encoders = {row.name: row.encoder for row in plan.resolved.rows}
        labels = {"table": plan.resolved.table.name, "preset": plan.resolved.preset}
        for run in plan.runs:
            self.add(run, run.row, {**labels, "encoder": encoders[run.row]}, plan.tasks[run.task])
        return self

    def write(self, keys: Iterable[str], warn: Callable[[str], None] = lambda sentence: None) -> None:
        """Write what is recorded of stages and is not written yet. `warn`: one sentence for a tracker that cannot be written."""
        for name, written in self._written.items():
            if name in self.errors:
                continue
            try:
                store = Store(self._url, create=False)
                for key, record in store.each([key for key in keys if key not in written], predictions=True):
                    run, folder = self.tracked(key, record), store.artifacts.parent
                    self._places[name] = TRACKERS[name][1](run, self._experiment, folder)
                    written.add(key)
            except Exception as error:  # a server, a disk, a package of others
                self.errors[name] = f"{type(error).__name__}: {first_line(error)}"
                warn(
                    f"Tracker {name} cannot be written ({self.errors[name]}); training goes on. The same command with --track {name} "
                    "writes what is missing later."
                )

    def finish(self) -> list[str]:
        """Write what is missing, also to a tracker that was away. What each one holds, for people."""
        self.errors.clear()
        self.write([*self._stages])
        held = {name: counted(len(written), "stage") for name, written in self._written.items()}
        return [f"Tracker {name}: {held[name]}; {at}." for name, at in self._places.items() if name not in self.errors]

    def tracked(self, key: str, record: Record) -> Tracked:
        """A recorded stage as a tracker's run: with the settings that all its runs agree on, and, by dotted names, with everything that its key hashes
        apart from the content of its data. `record`: with predictions."""
        stage, served, data = self._stages[key], self._runs[key], self._tests.get(key)
        ((group, name), first), *others = served.items()
        settings = {n: value for n, value in first.items() if all(other.get(n) == value for _, other in others)}
        settings |= {"phase": stage.phase, "stage_seed": stage.seed, "objective": stage.objective.name}
        train = {"train": stage.data.train.name, "rows": stage.data.train.rows, "max_length": stage.data.max_length}
        parts: dict[str, Mapping[str, Any]] = {"objective": stage.objective.params, "optim": asdict(stage.optim)}
        parts |= {"selection": asdict(stage.selection) if stage.selection else {}, "data": train}
        parts |= {"encoder": {"digest": stage.encoder.digest}}
        parts |= {"provenance": {name: str(value) for name, value in sorted(record.provenance.items()) if value != ""}}
        settings |= {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
        settings |= {"parent": stage.parent.key} if stage.parent else {}
        scores: dict[str, float] = {"cost/seconds": record.seconds, "cost/flops": record.flops}
        if record.selected_step is not None:
            scores |= {"final/step": record.selected_step, "final/collapsed": record.collapsed}
        scores |= {f"final/dev/{metric}": value for metric, value in record.dev_scores.items()}
        for evaluation, rows in data.tests.items() if data else ():
            if data and (predicted := record.predictions.get(rows.digest)) is not None:
                scores |= {f"final/{evaluation}/{metric}": score(metric, predicted) for metric in data.task.metrics}
        started = float(record.provenance.get("started_at", 0.0))
        return Tracked(
            key=key,
            name=f"{name}{f' and {len(others)} more' if others else ''} ({stage.phase})",
            group=group if len({group for group, _ in served}) == 1 else f"shared/{stage.phase}",
            status=record.status,
            reason=record.reason,
            settings=settings,
            history=tuple(history(record)),
            scores={name: float(value) for name, value in scores.items() if math.isfinite(value)},
            started=started or None,
            ended=started + record.seconds if started else None,
        )
