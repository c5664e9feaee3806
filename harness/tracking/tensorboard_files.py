"""TensorBoard: a folder of event files for each run, with its parameters for the HPARAMS tab."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from pathlib import Path

from harness.tracking.projection import DIGEST, KEY, TrackedRun
from harness.tracking.tracker import Tracker

WRITTEN = "harness.json"
"""A run's file that says what was written; TensorBoard ignores it."""


class TensorBoard(Tracker):
    """A run is written beside its place and renamed, so that a folder is whole."""

    def __init__(self, experiment: str, folder: Path) -> None:
        super().__init__(experiment, folder)
        self._root = folder / "tensorboard" / slug(experiment)

    @property
    def place(self) -> str:
        return f"tensorboard --logdir {self._root.parent}"

    def written(self) -> dict[str, str]:
        found = {}
        for path in self._root.rglob(WRITTEN):
            if not path.parent.name.startswith("."):
                said = json.loads(path.read_text(encoding="utf-8"))
                found[said[KEY]] = said[DIGEST]
        return found

    def write(self, run: TrackedRun) -> None:
        group = self._root.joinpath(*(slug(part) for part in run.group.split("/")))
        group.mkdir(parents=True, exist_ok=True)
        target = group / f"{slug(run.within)}-{run.key[:8]}"
        folder = group / f".{uuid.uuid4().hex}"
        try:
            self._events(run, folder)
            said = {KEY: run.key, DIGEST: run.digest, "status": run.status, "reason": run.reason}
            (folder / WRITTEN).write_text(json.dumps(said), encoding="utf-8")
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
