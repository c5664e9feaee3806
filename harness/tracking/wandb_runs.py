"""Weights & Biases: a project a table, a group a cell, a run a stage. Offline where there is no key, unless WANDB_MODE says otherwise."""

from __future__ import annotations

import json
import netrc
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness.tracking.projection import DIGEST, KEY, TrackedRun
from harness.tracking.tensorboard_files import slug
from harness.tracking.tracker import Tracker

WRITTEN = "harness.json"
"""A file in the folder of a run that says what was written."""


class WandB(Tracker):
    """The run's id is the stage's key. What was written from this machine stands in W&B's own folder, beside each run; what another
    machine wrote is seen when the run is resumed."""

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
        found = {}
        for path in sorted(self._root.glob(f"*wandb/*run-*/{WRITTEN}")):  # by time
            said = json.loads(path.read_text(encoding="utf-8"))
            if said["project"] == self.experiment:
                found[said[KEY]] = said[DIGEST]
        return found

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
            said = {KEY: run.key, DIGEST: run.digest, "project": self.experiment}
            (folder / WRITTEN).write_text(json.dumps(said), encoding="utf-8")


def _has_key() -> bool:
    """Whether W&B would find a key of its own: WANDB_API_KEY, or what `wandb login` leaves in ~/.netrc."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
