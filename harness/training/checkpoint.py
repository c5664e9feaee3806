"""Checkpoints that an interrupted stage resumes from, as safetensors, and the weights that a stage saves on its way for
later stages. The order of the data and all draws follow from the step, so a resumed stage ends with the numbers of an
uninterrupted one."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
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
    def provenance(self) -> dict[str, int | str]:
        """Fields of the record's provenance."""
        found: dict[str, int | str] = {
            "checkpoints": self.count,
            "resumed_at": self.resumed_at,
            "checkpoint_failed": self.failed,
        }
        return {name: value for name, value in found.items() if value}

    @property
    def due(self) -> bool:
        return time.monotonic() - self._at >= self._seconds

    def keep(self, progress: TrainingProgress, updates: Update, losses: Tensor) -> None:
        """Write the progress. `losses` [ranks, updates, terms]: those of `progress.pending` on every rank."""
        result = progress.result
        body: dict[str, Any] = {"step": progress.step, "seconds": self.seconds_before + time.monotonic() - self._began}
        body |= asdict(replace(result, predictions={}))
        body |= {"pending": [(step, list(terms)) for step, terms in progress.pending], "curve": progress.curve}
        body |= {"scaler": scale} if (scale := updates.scaler.state_dict()) else {}  # fp16 alone has one
        tensors = {"progress": torch.tensor(list(json.dumps(body).encode()), dtype=torch.uint8), "losses": losses}
        tensors |= {f"weights/{name}": tensor for name, tensor in updates.trained.items()}
        tensors |= {f"best/{name}": tensor for name, tensor in progress.best.items()}
        for digest, predicted in result.predictions.items():
            tensors |= {f"{name}/{digest}": torch.from_numpy(array) for name, array in predicted.arrays.items()}
        for index, state in updates.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{index}/{name}": tensor for name, tensor in state.items()}
        try:
            self._storage.write(self._name, save({n: t.detach().cpu().contiguous() for n, t in tensors.items()}))
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
        weights, optimizer = updates.trained, updates.optimizer
        try:
            tensors = load(self._storage.read(self._name))
        except (FileNotFoundError, SafetensorError):
            return None
        body, losses = json.loads(bytes(tensors.pop("progress").tolist())), tensors.pop("losses", None)
        parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for name, tensor in tensors.items():
            part, _, rest = name.partition("/")
            parts[part][rest] = tensor
        if losses is None or not usable(body["step"]) or parts["weights"].keys() != weights.keys():
            return None
        with torch.no_grad():
            for name, parameter in weights.items():
                parameter.copy_(parts["weights"][name])
        states: dict[int, dict[str, Tensor]] = defaultdict(dict)
        for name, tensor in parts.pop("optimizer", {}).items():
            index, _, rest = name.partition("/")
            states[int(index)][rest] = tensor
        optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
        updates.scaler.load_state_dict(body.pop("scaler", {}))
        device = updates.placement.device
        best = {name: tensor.to(device) for name, tensor in parts.pop("best", {}).items()}
        arrays: dict[str, dict[str, Any]] = defaultdict(dict)
        for part in parts.keys() - {"weights"}:  # what is left are predictions, by digest of the row set
            for digest, tensor in parts[part].items():
                arrays[digest][part] = tensor.numpy()
        body["predictions"] = {digest: Predictions(named, gold[digest]) for digest, named in arrays.items()}
        own = losses[group.rank :: group.size].sum(dim=0).to(device)
        pending = [
            (step, dict(zip(names, row, strict=True)))
            for (step, names), row in zip(body.pop("pending"), own, strict=True)
        ]
        curve, self.seconds_before = body.pop("curve"), body.pop("seconds")
        self.resumed_at, self.count = body.pop("step"), 1
        return TrainingProgress(TrainingResult(**body), self.resumed_at, best, pending, curve)
