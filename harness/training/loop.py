"""One loop for every stage: batches in a keyed order, AdamW, linear schedule, clipping, evaluation on dev, best state.
Randomness comes from streams keyed (seed, purpose, step): equal seeds see the same batches and draws, in any order and
whatever else runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.encoders.models.batch import Batch
from harness.encoders.models.compact_embedding import compact
from harness.encoders.models.text_encoder import set_dropout
from harness.encoders.tokens import CUDA_EVALUATION_TOKENS, EVALUATION_TOKENS, Examples, by_length
from harness.errors import DivergedError, StoppedError
from harness.kinds import Predictions
from harness.objectives.base import TrainingObjective, at_least_single
from harness.specs import Optim
from harness.streams import stream
from harness.training.checkpoint import Checkpoints, SavedWeights
from harness.training.forward_backward import ON_CPU, Placement, autocast, loss_scale, use_repeatable_kernels
from harness.training.process_group import SINGLE_PROCESS, ProcessGroup
from harness.training.result import Scoring, Speed, Stopwatch, TrainingProgress, TrainingResult, finite
from harness.training.update import CapturedUpdate, Update, capturable

LOG_EVERY = 100
CURVE_POINTS = 50
"""Points of a stage's loss curve."""
MEASURED = 64
"""Sequences of a batch that measures beside the loss are taken of: a large batch takes memory."""
ASK_EVERY = 8
"""Updates between two questions of the ranks to each other whether they are to stop: a reduction of one number."""


@dataclass(frozen=True)
class Inputs:
    """A stage's tokenised data: training examples with labels [n] (None without labels), and evaluation examples with their gold labels by
    digest of the row set."""

    train: Examples
    labels: NDArray[Any] | None = None
    evaluations: dict[str, tuple[Examples, NDArray[Any]]] = field(default_factory=dict)


def train(
    objective: TrainingObjective,
    inputs: Inputs,
    optim: Optim,
    seed: int,
    *,
    scoring: Scoring | None = None,
    placement: Placement = ON_CPU,
    log_every: int = 0,
    checkpoints: Checkpoints | None = None,
    saved: SavedWeights | None = None,
    until: int = 0,
    report_speed: Callable[[Speed], None] = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
) -> TrainingResult:
    """Train `objective` in place and return its result; the weights are left in the selected state.

    With `scoring`, dev is scored every `selection.every` updates and at the end, the first best state is kept in memory, and
    only then is everything else in `inputs.evaluations` predicted. Without it, the history grows every `log_every` updates (0:
    LOG_EVERY). In a process group every rank calls this with the same arguments, except `checkpoints`, and all return the
    same result. With `checkpoints`, training goes on from the last one, unless weights that are to be `saved` before it are missing.
    `until`: the update after which it ends, where only weights saved so far are wanted (0: the last). `report_speed` is called every
    few seconds. `stopping`: asked after updates whether training is to stop; one rank that says so stops all.
    Raises DivergedError when a loss, a prediction or a final weight is not finite, and where fp16 can train no more;
    StoppedError, with a checkpoint written, where it is to stop.
    """
    use_repeatable_kernels(placement.device)
    run = _TrainingRun(objective, inputs, optim, seed, scoring, placement)
    with run.updates.active():
        run.resume(checkpoints, saved)
        every = scoring.selection.every if scoring else log_every or LOG_EVERY
        if scoring and not optim.steps:
            run.result.history.append({"step": 0, "dev": run.score(0, scoring)})
        last = until or optim.steps
        for step in range(run.progress.step + 1, last + 1):
            run.update(step)
            if run.stopwatch.due() and (speed := run.stopwatch.speed(step)):
                report_speed(speed)
            if saved and step in saved.steps:
                run.check_weights(step)
                if placement.process_group.rank == 0:
                    saved.save(step)
            if not step % every or step == optim.steps:
                run.evaluate(step)
            if step < last:
                run.keep(step, checkpoints, stopping)
        return run.finish()


class _TrainingRun:
    """The state of one call of `train`: parameters, optimizer, progress, and what was measured since the last evaluation."""

    def __init__(
        self,
        objective: TrainingObjective,
        inputs: Inputs,
        optim: Optim,
        seed: int,
        scoring: Scoring | None,
        placement: Placement,
    ) -> None:
        self.objective, self.inputs, self.optim, self.seed = objective, inputs, optim, seed
        self.scoring, self.device, self.process_group = scoring, placement.device, placement.process_group
        objective.take_training_set(inputs.train, inputs.labels)
        objective.to(self.device)
        set_dropout(objective, optim.dropout)
        # Rows that no training sequence holds have no gradient; decay would still move them, and so would predicted words, whose
        # logits are products with them. Then the table stays whole, and where it is not trained at all.
        self._restore: Callable[[], None] = lambda: None
        base, packed = objective.encoder.base, objective.encoder.family.packed
        trained = base.get_input_embeddings().weight.requires_grad
        reads_words_only = objective.has_classifier and not objective.uses_mlm_head
        if reads_words_only and trained and packed and optim.weight_decay == 0:
            ids = torch.from_numpy(inputs.train.tokens.ids.astype(np.int64)).to(self.device)
            self._restore = compact(base, ids)
        kind = CapturedUpdate if capturable(objective, optim, placement) else Update
        self.updates = kind(objective, optim, seed, placement)
        self.progress = TrainingProgress(TrainingResult(selected_step=optim.steps))
        self._order = batch_order(len(inputs.train), optim.batch_size, seed)
        self.stopwatch = Stopwatch(optim.steps)
        objective.train()

    @property
    def result(self) -> TrainingResult:
        return self.progress.result

    def resume(self, checkpoints: Checkpoints | None, saved: SavedWeights | None) -> None:
        """Go on from the last checkpoint, where there is one. Raises RuntimeError when the ranks read different ones."""
        if checkpoints:
            gold = {digest: labels for digest, (_, labels) in self.inputs.evaluations.items()}
            usable = saved.complete if saved else lambda step: True
            self.progress = checkpoints.found(self.updates, gold, self.process_group, usable) or self.progress
        if len(set(steps := self.process_group.all_gather_object(self.progress.step))) > 1:
            raise RuntimeError(f"the workers read checkpoints of different steps: {steps}")
        self._order = batch_order(len(self.inputs.train), self.optim.batch_size, self.seed, skip=self.progress.step)

    def keep(self, step: int, checkpoints: Checkpoints | None, stopping: Callable[[], bool]) -> None:
        """Write a checkpoint after this update, also between two evaluations, where one is due or training is to stop: on all ranks, or on
        none. Raises StoppedError then."""
        asked = [stopping(), checkpoints is not None and checkpoints.due]
        if self.process_group.size > 1:
            if step % ASK_EVERY:
                return
            flags = torch.tensor(asked, dtype=torch.float32, device=self.device)
            asked = [flag > 0 for flag in self.process_group.all_reduce(flags).tolist()]
        if any(asked):
            losses = self.process_group.all_gather_object(stacked(self.progress.pending).cpu())
            if checkpoints and self.process_group.rank == 0:
                checkpoints.keep(replace(self.progress, step=step), self.updates, torch.stack(losses))
        if asked[0]:
            if checkpoints and checkpoints.failed:
                follows = f"its checkpoint could not be written ({checkpoints.failed})"
            else:
                follows = "it goes on from there" if checkpoints else "it begins again: it keeps no checkpoints"
            raise StoppedError(f"stopped after update {step} of {self.optim.steps}; {follows}")

    def _prepared(self, rows: NDArray[np.int64], step: int) -> tuple[Examples, Batch]:
        examples, every = self.inputs.train.take(rows), self.inputs.labels
        labels = None if every is None else every[rows]
        return examples, self.objective.prepare(
            examples, labels, lambda *name: stream(self.seed, name[0], step, *name[1:])
        )

    def update(self, step: int) -> None:
        """One optimizer step on the next batch."""
        self.stopwatch.start()
        self._rows = next(self._order)
        examples, batch = self._prepared(self._rows, step)
        terms = self.updates(batch, step, self.optim.lr * schedule(self.optim, step - 1))
        flops = self.objective.step_flops(batch)
        self.result.flops += flops
        self.stopwatch.count(len(examples.tokens.ids), flops)
        self.progress.pending.append((step, terms))

    def evaluate(self, step: int) -> None:
        """An entry of the history: means since the last one, and the scores on dev."""
        progress = self.progress
        means, losses = mean_terms(progress.pending, self.process_group, -(-self.optim.steps // CURVE_POINTS))
        self.stopwatch.stop()  # the device has computed the losses
        entry: dict[str, Any] = {"step": step, **means}
        measures = self._measures(step)
        measures |= loss_scale(self.updates.scaler, self.updates.optimizer, step, self.optim.steps)
        entry |= {"measures": measures} if measures else {}
        entry |= {"curve": {"loss": losses}} if losses else {}
        progress.step, progress.pending = step, []
        if self.scoring:
            entry["dev"] = self.score(step, self.scoring)
        self.result.history.append(entry)

    def _measures(self, step: int) -> dict[str, float]:
        """What is logged beside the loss, of the first examples of this update's batch, without dropout. Not finite ones are left out."""
        if not self.objective.measured:
            return {}
        _, batch = self._prepared(self._rows[:MEASURED], step)
        found = self.objective.measures = {}
        self.objective.eval()
        with torch.no_grad(), autocast(self.device, self.optim.precision):
            self.objective(batch.on(self.device, block=self.updates.block))
        self.objective.train().measures = None
        values = torch.stack([value.float() for value in found.values()]).tolist() if found else []
        return {name: value for name, value in zip(found, values, strict=True) if math.isfinite(value)}

    def score(self, step: int, scoring: Scoring) -> dict[str, float]:
        """Scores on dev; a state that beats the best one so far is kept."""
        scores, selected = self.result.select(step, scoring, self._predict(scoring.dev, "dev", step))
        if selected:
            self.progress.best = {name: parameter.detach().clone() for name, parameter in self.updates.trained.items()}
        self.objective.train()
        return scores

    def _predict(self, digest: str, name: str, step: int) -> Predictions:
        evaluation, precision, group = self.inputs.evaluations[digest], self.optim.precision, self.process_group
        predictions, flops = predict(
            self.objective, evaluation, precision, self.device, group, block=self.updates.block
        )
        self.result.flops += flops
        return finite(predictions, name, f"step {step}")

    def finish(self) -> TrainingResult:
        """The result, with predictions of the test sets by the best state."""
        if self.scoring:
            with torch.no_grad():
                for name, parameter in self.updates.trained.items():
                    parameter.copy_(self.progress.best[name])
            for digest in self.inputs.evaluations:
                if digest != self.scoring.dev:
                    self.result.predictions[digest] = self._predict(digest, "test", self.result.selected_step)
        else:
            self.check_weights(self.optim.steps)
        if self.objective.params.encodes_once:
            self.result.flops = encoded_once(self.objective, self.inputs)
        self._restore()
        if speed := self.stopwatch.speed(self.progress.step):
            self.result.provenance |= speed.provenance
        if self.updates.has_compiled:
            self.result.provenance["kernels"] = "compiled"
        return self.result

    def check_weights(self, step: int) -> None:
        """Raises DivergedError for weights that are not finite."""
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self.updates.trained.values()):
            raise DivergedError(f"the weights are not finite after step {step}")


def encoded_once(objective: TrainingObjective, inputs: Inputs) -> float:
    """FLOPs of a stage that encodes each of its rows once."""
    read = (inputs.train, *(examples for examples, _ in inputs.evaluations.values()))
    return sum(objective.encoding_flops(examples.tokens) for examples in read)


def schedule(optim: Optim, step: int) -> float:
    """Factor on the learning rate at 0-based `step`: linear warm-up, then linear decay to 0 or a constant rate."""
    warmup = math.ceil(optim.warmup * optim.steps)
    if step < warmup:
        return (step + 1) / warmup
    if optim.schedule == "constant":
        return 1.0
    return (optim.steps - step) / max(1, optim.steps - warmup)


def batch_order(size: int, batch_size: int, seed: int, skip: int = 0) -> Iterator[NDArray[np.int64]]:
    """Endless batches of row indices: epoch e is a permutation from the stream (seed, 'order', e). A last small batch is
    kept. The first `skip` batches are left out."""
    epoch, skip = divmod(skip, -(-size // batch_size))
    while True:
        permutation = stream(seed, "order", epoch).permutation(size)
        for start in range(skip * batch_size, size, batch_size):
            yield permutation[start : start + batch_size]
        epoch, skip = epoch + 1, 0


def stacked(pending: list[tuple[int, dict[str, Tensor]]]) -> Tensor:
    """[updates, terms], on the device."""
    rows = [torch.stack([at_least_single(term) for term in terms.values()]) for _, terms in pending]
    return torch.stack(rows) if rows else torch.zeros(0, 0)


def mean_terms(
    pending: list[tuple[int, dict[str, Tensor]]], process_group: ProcessGroup = SINGLE_PROCESS, width: int = 0
) -> tuple[dict[str, float], list[list[float]]]:
    """Mean of each term since the last evaluation, and of the loss in every `width` steps as (last step, mean), where these are
    more than one. Each rank has a summand of every step. Raises DivergedError at the first step whose loss is not finite."""
    names = list(pending[0][1])
    values = process_group.all_reduce(stacked(pending)).cpu().numpy()
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        name = names[int(np.flatnonzero(~np.isfinite(values[bad[0]]))[-1])]
        raise DivergedError(f"the loss is not finite at step {pending[int(bad[0])][0]} (term {name})")
    means = {n: float(v) for n, v in zip(names, values.mean(axis=0), strict=True)}
    if not width or len(pending) <= width:
        return means, []
    losses, starts = values[:, names.index("loss")], range(0, len(pending), width)
    return means, [[pending[min(i + width, len(pending)) - 1][0], float(losses[i : i + width].mean())] for i in starts]


def predict(
    objective: TrainingObjective,
    evaluation: tuple[Examples, NDArray[Any]],
    precision: str,
    device: torch.device,
    process_group: ProcessGroup = SINGLE_PROCESS,
    *,
    block: bool = False,
) -> tuple[Predictions, float]:
    """What is predicted of each example, in the given order, and the FLOPs spent. Batches sorted by length are shared out over
    the ranks; they are as large as the device needs to be busy."""
    gold = evaluation[1]
    examples = objective.evaluated(evaluation[0])
    tokens = examples.tokens
    objective.eval()
    assert objective.kind is not None
    count = len(objective.kind.positions(tokens.offsets, np.arange(len(tokens))))
    outputs = np.zeros((count, objective.kind.outputs), dtype=objective.kind.output_type)
    with torch.inference_mode(), autocast(device, precision):
        at_once = EVALUATION_TOKENS if device.type == "cpu" else CUDA_EVALUATION_TOKENS
        batches = list(by_length(tokens.lengths, at_once))[process_group.rank :: process_group.size]
        found = [
            at_least_single(objective.predict(Batch.of(tokens.take(rows), device, block=block))) for rows in batches
        ]
        if batches:  # one copy, so that the device is waited for once
            places = np.concatenate([objective.kind.positions(tokens.offsets, rows) for rows in batches])
            outputs[places] = torch.cat(found).cpu().numpy()
    if process_group.size > 1:
        # Each row is one rank's, and zero on the others. NCCL reduces tensors on the device only.
        outputs = process_group.all_reduce(torch.from_numpy(outputs).to(device)).cpu().numpy()
    return Predictions(objective.kind.assemble(outputs, examples), gold), objective.encoding_flops(tokens)
