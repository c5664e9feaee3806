"""Checkpoints that an interrupted stage resumes from, and the weights that a stage saves on its way for
later stages. The order of the data and all draws follow from the step, so a resumed stage ends with the numbers of an
uninterrupted one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import torch
from torch import Tensor

from harness.encoders.models.weights import checked_weights, save_weights
from harness.kinds import Predictions
from harness.storage import Storage, checkpoint_of, weights_of
from harness.training.process_group import ProcessGroup
from harness.training.result import TrainingProgress, TrainingResult
from harness.training.update import Update


@dataclass(frozen=True)
class SavedWeights:
    """The weights of a stage after the updates `steps`, each a file that later stages start from. `tensors` gives those of now."""

    storage: Storage
    key: str
    steps: tuple[int, ...]
    tensors: Callable[[], dict[str, Tensor]]
    _digests: dict[int, str] = field(default_factory=dict, init=False)

    def save(self, step: int) -> None:
        self._digests[step] = save_weights(self.tensors(), self.storage, self.key, step)

    @property
    def digests(self) -> dict[str, str]:
        """Of all that is saved by now, by the update as text; read where a process saved it that was interrupted later."""
        for step in self.steps:
            if step not in self._digests:
                self._digests[step] = checked_weights(self.storage, self.key, step)[1]
        return {str(step): self._digests[step] for step in self.steps}

    def complete(self, step: int) -> bool:
        """Whether all that is due up to `step` is stored."""
        return all(self.storage.exists(weights_of(self.key, each)) for each in self.steps if each <= step)


class Checkpoints:
    """One stage's checkpoint, to be written when `seconds` have passed since the last one, and when training stops on request.

    `resumed_at`: the step of the checkpoint that training resumed from (0: none); `seconds_before`: what the stage took until then, in
    the processes that wrote it; `count`: checkpoints read and written; `failed`: why one could not be written, which does not end the stage.
    """

    def __init__(self, storage: Storage, key: str, seconds: float) -> None:
        self._storage, self._name, self._seconds = storage, checkpoint_of(key), seconds
        self._began = self._at = time.monotonic()
        self.resumed_at = self.count = 0
        self.seconds_before = 0.0
        self.failed = ""

    @property
    def provenance(self) -> dict[str, Any]:
        """Fields of the record's provenance."""
        found = {"checkpoints": self.count, "resumed_at": self.resumed_at, "checkpoint_failed": self.failed}
        return {name: value for name, value in found.items() if value}

    @property
    def due(self) -> bool:
        return time.monotonic() - self._at >= self._seconds

    def keep(self, progress: TrainingProgress, updates: Update, losses: Tensor) -> None:
        """Write the progress. `losses` [ranks, updates, terms]: those of `progress.pending` on every rank."""
        predictions = {
            digest: {name: torch.from_numpy(array) for name, array in predicted.arrays.items()}
            for digest, predicted in progress.result.predictions.items()
        }
        kept = {
            **vars(progress),
            "result": {**vars(progress.result), "predictions": predictions},
            "pending": [(step, list(terms)) for step, terms in progress.pending],
            "losses": losses,
            "seconds": self.seconds_before + time.monotonic() - self._began,
            "weights": {name: parameter.detach() for name, parameter in updates.trained.items()},
            "optimizer": updates.optimizer.state_dict()["state"],
            "scaler": updates.scaler.state_dict(),
        }
        try:
            torch.save(kept, content := BytesIO())
            self._storage.write(self._name, content.getvalue())
            self.count += 1
        except Exception as error:  # whatever the storage says: the stage itself is well
            self.failed = f"at step {progress.step}: {error}"
        self._at = time.monotonic()

    def found(
        self,
        updates: Update,
        gold: Mapping[str, Any],
        group: ProcessGroup,
        usable: Callable[[int], bool] = lambda step: True,
    ) -> TrainingProgress | None:
        """Put weights, optimizer and scaler in the state that was kept; None where there is none, none that can be read, one of
        an older harness, which named something otherwise, or one of a step that is not `usable`.

        `gold`: labels of the evaluation sets by digest. The losses of the ranks are shared by as many as there are in `group`.
        """
        try:
            content = self._storage.read(self._name)
        except FileNotFoundError:
            return None
        try:
            kept = torch.load(BytesIO(content), map_location="cpu", weights_only=True)
            weights, losses = kept.pop("weights"), kept.pop("losses")
        except Exception:  # torch has no type for what is no file of its own
            return None
        if not usable(kept["step"]) or weights.keys() != updates.trained.keys():
            return None
        with torch.no_grad():
            for name, parameter in updates.trained.items():
                parameter.copy_(weights[name])
        groups = updates.optimizer.state_dict()["param_groups"]
        updates.optimizer.load_state_dict({"state": kept.pop("optimizer"), "param_groups": groups})
        updates.scaler.load_state_dict(kept.pop("scaler"))
        result, self.seconds_before = kept["result"], kept.pop("seconds")
        for part, name in ((kept, "curve"), (result, "speed")):  # of an older harness
            part.pop(name, None)
        result["predictions"] = {
            digest: Predictions({name: tensor.numpy() for name, tensor in arrays.items()}, gold[digest])
            for digest, arrays in result["predictions"].items()
        }
        device = updates.placement.device
        kept["best"] = {name: tensor.to(device) for name, tensor in kept["best"].items()}
        own = losses[group.rank :: group.size].sum(dim=0).to(device)
        pending = [
            (step, dict(zip(names, row, strict=True)))
            for (step, names), row in zip(kept.pop("pending"), own, strict=True)
        ]
        self.resumed_at, self.count = kept["step"], 1
        return TrainingProgress(TrainingResult(**kept.pop("result")), pending=pending, **kept)
