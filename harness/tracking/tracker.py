"""What a tracker is, and one of each kind by its name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from harness.errors import UserError, unknown
from harness.tracking.projection import TrackedRun

TRACKERS: Mapping[str, tuple[str, str]] = {
    "tensorboard": ("tensorboardX", "harness.tracking.tensorboard_files:TensorBoard"),
    "mlflow": ("mlflow", "harness.tracking.mlflow_runs:MLflow"),
    "wandb": ("wandb", "harness.tracking.wandb_runs:WandB"),
}
"""The package that each one needs, and its class."""


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

    def close(self) -> None:  # noqa: B027 - most trackers hold nothing open
        """Nothing more is written."""


MakeTracker = Callable[[str, Path], Tracker]


def trackers_named(names: Sequence[str], where: str) -> dict[str, MakeTracker]:
    """What makes each tracker. Raises UserError for an unknown name and a package that is not installed."""
    found: dict[str, MakeTracker] = {}
    for name in dict.fromkeys(names):
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS, where)
        package, made_by = TRACKERS[name]
        spec = find_spec(package)
        if spec is None or spec.origin is None:  # a folder 'wandb' or 'mlflow' of runs is no package
            raise UserError(
                f"{where} {name}: the package {package} is not installed; run pip install 'glue-harness[{name}]'."
            )
        found[name] = _maker(made_by)
    return found


def _maker(made_by: str) -> MakeTracker:
    module, name = made_by.split(":")

    def make(experiment: str, folder: Path) -> Tracker:
        tracker: Tracker = getattr(import_module(module), name)(experiment, folder)
        return tracker

    return make
