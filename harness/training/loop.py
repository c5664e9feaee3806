"""One loop for every stage: batches in a keyed order, AdamW, linear schedule, clipping, evaluation on dev, best state.

Randomness comes from streams keyed (seed, purpose, step): two stages with equal seed see the same batches and, where
they draw the same thing, the same draws, whatever runs beside them and in whichever order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.encoders.flops import forward_flops
from harness.encoders.models.compact_embedding import compact
from harness.encoders.models.text_encoder import Batch
from harness.encoders.tokens import Tokens
from harness.objectives.base import Draw, Measures, TrainingObjective, at_least_single
from harness.objectives.probes import PROBED
from harness.specs import Optim, Predictions, Selection
from harness.streams import stream
from harness.tasks.metrics import score
from harness.training.checkpoint import Checkpoints
from harness.training.forward_backward import ForwardBackward, autocast
from harness.training.process_group import SINGLE_PROCESS, ProcessGroup
from harness.training.result import TrainingProgress, TrainingResult

EVALUATION_TOKENS = 2048
"""Of a batch in evaluation, what fills its sequences up to the longest included."""
LOG_EVERY = 100
MEASURE_EVERY = 10
"""Steps between two looks at what is logged beside the loss; every look would cost a few per cent."""

Report = Callable[[dict[str, Any]], None]


class DivergedError(Exception):
    """The loss is not finite: a result, not a failure of the machine."""


@dataclass(frozen=True)
class Inputs:
    """What a stage reads, tokenised: training sequences with labels [n] (None when unlabelled), and by digest of the
    row set the evaluation sequences with their gold labels. With `views` of each text, `train` holds the n sequences of
    view 0, then those of view 1, and so on."""

    train: Tokens
    labels: NDArray[Any] | None = None
    evaluations: dict[str, tuple[Tokens, NDArray[Any]]] = field(default_factory=dict)
    views: int = 1


def train(
    objective: TrainingObjective,
    inputs: Inputs,
    optim: Optim,
    seed: int,
    *,
    selection: Selection | None = None,
    dev: str | None = None,
    metrics: tuple[str, ...] = (),
    device: torch.device | None = None,
    report: Report = lambda _: None,
    log_every: int = 0,
    process_group: ProcessGroup = SINGLE_PROCESS,
    micro_batch: int = 0,
    checkpoints: Checkpoints | None = None,
) -> TrainingResult:
    """Train `objective` in place and return what was found; the weights are left in the selected state.

    With `selection`, dev (a digest in `inputs.evaluations`) is scored every `selection.every` updates and at the end,
    the first best state is kept in memory, and only then is everything else in `inputs.evaluations` predicted; without, what
    was seen is reported every `log_every` updates (0: LOG_EVERY). A worker group trains it together, each rank calling this with
    the same arguments (`checkpoints` beside), and all find the same. At most `micro_batch` sequences of a batch go through
    the encoder at once (0: a worker's whole share). With `checkpoints` it goes on from the last one.
    Raises DivergedError when a loss is not finite.
    """
    device = device or torch.device("cpu")
    objective.to(device)
    objective.set_dropout(optim.dropout)
    # Rows that no training sequence holds have no gradient; decay would still move them, so then the table stays whole.
    restore = None
    if objective.supervised and optim.weight_decay == 0 and objective.encoder.kind != "mpnet":
        restore = compact(objective.encoder.base, torch.from_numpy(inputs.train.ids.astype(np.int64)).to(device))
    trained = trainable(objective)
    optimizer = torch.optim.AdamW(
        decay_groups(trained, optim.weight_decay),
        lr=optim.lr,
        betas=(optim.beta1, optim.beta2),
        eps=optim.eps,
        fused=True,
    )
    parameters = list(trained.values())
    every = selection.every if selection else log_every or LOG_EVERY
    progress = TrainingProgress(TrainingResult(selected_step=optim.steps))
    if checkpoints:
        gold = {digest: labels for digest, (_, labels) in inputs.evaluations.items()}
        progress = checkpoints.found(trained, optimizer, gold) or progress
    if len(set(steps := process_group.all_gather_object(progress.step))) > 1:
        raise RuntimeError(f"the workers read checkpoints of different steps: {steps}")
    outcome = progress.outcome
    pending: list[tuple[int, dict[str, Tensor]]] = []
    measured: list[Measures] = []
    size = len(inputs.train) // inputs.views
    order = batch_order(size, optim.batch_size, seed, skip=progress.step)
    batches = ForwardBackward(objective, process_group, micro_batch, optim.precision, device, seed)
    objective.train()
    for step in range(progress.step + 1, optim.steps + 1):
        rows = next(order)

        def draw(purpose: str, *more: int, _step: int = step) -> np.random.Generator:
            return stream(seed, purpose, _step, *more)

        taken = inputs.train.take(np.concatenate([rows + view * size for view in range(inputs.views)]))
        views = objective.prepare(taken, None if inputs.labels is None else inputs.labels[rows], draw)
        found = batches.run(views, len(rows), step, None if (step - 1) % MEASURE_EVERY else measured)
        if optim.clip > 0:
            torch.nn.utils.clip_grad_norm_(parameters, optim.clip, foreach=True)
        for group in optimizer.param_groups:
            group["lr"] = optim.lr * schedule(optim, step - 1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        outcome.flops += views.flops
        pending.append((step, found))
        if step % every and step != optim.steps:
            continue
        entry: dict[str, Any] = {"step": step, **mean_terms(pending, process_group)}
        seen = mean_measures(measured, process_group) | probed(objective, taken, draw, optim.precision, device)
        entry |= {"measures": seen} if seen else {}
        pending, measured = [], []
        if selection and dev:
            predicted, flops = predict(objective, inputs.evaluations[dev], optim.precision, device, process_group)
            outcome.flops += flops
            if not np.isfinite(predicted.logits).all():
                raise DivergedError(f"the dev predictions are not finite at step {step}")
            entry["dev"] = {name: score(name, predicted.gold, predicted.logits) for name in metrics}
            chosen = entry["dev"][selection.metric]
            outcome.tied = outcome.tied + 1 if chosen == progress.best_score else outcome.tied
            if chosen > progress.best_score:
                progress.best_score, outcome.tied = chosen, 1
                outcome.selected_step, outcome.dev_scores = step, entry["dev"]
                outcome.predictions[dev] = predicted
                progress.best = {name: parameter.detach().clone() for name, parameter in trained.items()}
            objective.train()
        outcome.history.append(entry)
        progress.step = step
        report(entry)
        if checkpoints and process_group.rank == 0 and step != optim.steps:
            checkpoints.keep(progress, trained, optimizer)
    if not selection and not all(bool(torch.isfinite(parameter).all()) for parameter in parameters):
        raise DivergedError(f"the weights are not finite after step {optim.steps}")
    if selection:
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(progress.best[name])
        for digest, evaluation in inputs.evaluations.items():
            if digest != dev:
                outcome.predictions[digest], flops = predict(
                    objective, evaluation, optim.precision, device, process_group
                )
                outcome.flops += flops
    if restore:
        restore()
    return outcome


def trainable(objective: TrainingObjective) -> dict[str, torch.nn.Parameter]:
    """Parameters by name: the encoder's, the objective's own, and the encoder's MLM head only where it is used."""
    head = () if objective.uses_mlm_head else objective.encoder.head_prefixes
    return {
        name: parameter
        for name, parameter in objective.named_parameters()
        if parameter.requires_grad and not name.startswith(tuple(f"encoder.model.{prefix}" for prefix in head))
    }


def decay_groups(parameters: dict[str, torch.nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Biases and norms are not decayed, as in Hugging Face's run_glue; one group where nothing is."""
    if not weight_decay:
        return [{"params": list(parameters.values()), "weight_decay": 0.0}]
    free = [p for n, p in parameters.items() if p.dim() < 2]
    decayed = [p for n, p in parameters.items() if p.dim() >= 2]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": free, "weight_decay": 0.0}]


def schedule(optim: Optim, step: int) -> float:
    """Factor on the learning rate at 0-based `step`: linear rise over the warm-up, then linear fall to 0, or constant."""
    warmup = math.ceil(optim.warmup * optim.steps)
    if step < warmup:
        return (step + 1) / warmup
    if optim.schedule == "constant":
        return 1.0
    return (optim.steps - step) / max(1, optim.steps - warmup)


def batch_order(size: int, batch_size: int, seed: int, skip: int = 0) -> Any:
    """Endless batches of row indices: epoch e is a permutation from the stream (seed, 'order', e); a last small batch
    is kept. The first `skip` batches are left out."""
    epoch, skip = divmod(skip, -(-size // batch_size))
    while True:
        permutation = stream(seed, "order", epoch).permutation(size)
        for start in range(skip * batch_size, size, batch_size):
            yield permutation[start : start + batch_size]
        epoch, skip = epoch + 1, 0


def mean_terms(
    pending: list[tuple[int, dict[str, Tensor]]], process_group: ProcessGroup = SINGLE_PROCESS
) -> dict[str, float]:
    """Mean of each term since the last evaluation, of which each worker has a summand; raises DivergedError at the first
    step whose loss is not finite."""
    names = list(pending[0][1])
    summands = torch.stack([torch.stack([at_least_single(terms[n]) for n in names]) for _, terms in pending])
    values = process_group.all_reduce(summands).cpu().numpy()
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        name = names[int(np.flatnonzero(~np.isfinite(values[bad[0]]))[-1])]
        raise DivergedError(f"the loss is not finite at step {pending[int(bad[0])][0]} (term {name})")
    return {n: float(v) for n, v in zip(names, values.mean(axis=0), strict=True)}


def mean_measures(measured: list[Measures], process_group: ProcessGroup = SINGLE_PROCESS) -> dict[str, float]:
    """Mean of each measure over the steps (their parts, the workers) where it was defined; one that never was is left
    out."""
    names = dict.fromkeys(name for step in measured for name in step)
    values = [torch.stack([step[n].float() for step in measured if n in step]).nanmean() for n in names]
    own = dict(zip(names, torch.stack(values).cpu().tolist(), strict=True)) if values else {}
    everyones = process_group.all_gather_object({name: value for name, value in own.items() if math.isfinite(value)})
    means = {name: [each[name] for each in everyones if name in each] for each in everyones for name in each}
    return {name: sum(found) / len(found) for name, found in means.items()}


def probed(
    objective: TrainingObjective, tokens: Tokens, draw: Draw, precision: str, device: torch.device
) -> dict[str, float]:
    """The objective's probe on a batch's first sequences, without dropout and with streams of its own. Every rank of a
    worker group finds the same."""
    if objective.supervised:
        return {}
    objective.eval()
    with torch.no_grad(), autocast(device, precision):
        some = tokens.take(np.arange(min(len(tokens), PROBED)))
        found = objective.probe(some, lambda purpose, *more: draw(f"probe_{purpose}", *more), device)
    objective.train()
    return {name: value for name, each in found.items() if math.isfinite(value := float(each))}


def by_length(lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Batches of rows, shortest first, of at most EVALUATION_TOKENS each or one row."""
    order = np.argsort(lengths, kind="stable")
    widths, start = lengths[order], 0
    while start < len(order):
        filled = widths[start : start + EVALUATION_TOKENS]
        filled = filled * np.arange(1, len(filled) + 1)
        stop = start + max(1, int(np.searchsorted(filled, EVALUATION_TOKENS, side="right")))
        yield order[start:stop]
        start = stop


def predict(
    objective: TrainingObjective,
    evaluation: tuple[Tokens, NDArray[Any]],
    precision: str,
    device: torch.device,
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> tuple[Predictions, float]:
    """Logits of every sequence in their own order, computed sorted by length in packed batches, which the ranks of a
    worker group share; and the FLOPs spent."""
    tokens, gold = evaluation
    objective.eval()
    logits = np.zeros((len(tokens), objective.num_labels), dtype=np.float32)
    with torch.inference_mode(), autocast(device, precision):
        for rows in list(by_length(tokens.lengths))[process_group.rank :: process_group.size]:
            logits[rows] = objective.predict(Batch.of(tokens.take(rows), device)).float().cpu().numpy()
    if process_group.size > 1:  # each row is one worker's, and zero with the others; NCCL sums on the device alone
        logits = process_group.all_reduce(torch.from_numpy(logits).to(device)).cpu().numpy()
    lengths = tokens.lengths.astype(np.float64)
    flops = forward_flops(objective.encoder.shape, float(lengths.sum()), float((lengths**2).sum()))
    return Predictions(logits, gold), flops
