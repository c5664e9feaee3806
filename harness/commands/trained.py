"""The model of a recorded stage: its weights, trained again where they were not kept, held against the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.commands.execution import execution_of, storage_of
from harness.commands.prepare import Prepared
from harness.commands.recorded import StageRecord
from harness.commands.texts import reader
from harness.commands.train import Show, also, train, unshown
from harness.devices import on_cpu
from harness.errors import UserError, first_line
from harness.execution import WorkerSetup
from harness.kinds import Kind
from harness.planning.work import Event, Item
from harness.specs import Record, Stage
from harness.storage import Storage, weights_of
from harness.tasks.task import Task

if TYPE_CHECKING:
    from harness.encoders.tokens import Tokeniser
    from harness.objectives.base import TrainingObjective


@dataclass(frozen=True)
class TrainedModel:
    """A stage with its weights. `prepared`: its cell, planned; `task`: what it is evaluated on, None where that is not known;
    `sentences`: what was checked, for people."""

    prepared: Prepared
    stage: Stage
    objective: TrainingObjective
    tokeniser: Tokeniser
    setup: WorkerSetup
    sentences: tuple[str, ...]

    @property
    def task(self) -> Task | None:
        return self.prepared.plan.task_of(self.stage)

    @property
    def kind(self) -> Kind:
        """What it predicts: as its task names the classes, else as its data do. Of a stage that predicts."""
        kind = self.task.kind if self.task else self.stage.data.kind
        assert kind is not None
        return kind


def trained_model(
    recorded: StageRecord, show: Show, *, storage: str | None = None, accept_difference: bool = False
) -> TrainedModel:
    """A recorded stage with its weights, those that `recorded` means. Those that are not stored are trained again, shown by `show`, and
    not kept.

    Raises UserError where the stage did not finish, its data or encoder are not at hand, or its predictions or weights differ from the
    record (`accept_difference`: all the same).
    """
    recorded.check_done()
    prepared, record, step = recorded.prepare(), recorded.record, recorded.step
    kept = storage_of(replace(prepared.request, storage=storage), prepared.store)
    missing = not kept.exists(weights_of(recorded.key, step))
    if missing and not (record.predictions or record.digest_after(step) or accept_difference):
        saved = [*map(int, record.provenance.get("saved_digests", {})), recorded.stage.optim.steps]
        raise UserError(
            f"{recorded.key[:12]}: its weights{recorded.after} are not stored, and the record has no digest to "
            f"compare them with once they are trained again; name update {' or '.join(f'{step:,}' for step in saved)}, or take them with "
            "'harness export --accept-difference'."
        )
    if missing:
        prepared = _retrained(recorded, show, storage)
    try:
        setup = worker_setup(recorded, prepared, kept)
        return _checked_against_record(recorded, prepared, setup, missing, accept_difference)
    finally:
        if missing:
            kept.delete(weights_of(recorded.key, step))


def _retrained(recorded: StageRecord, show: Show, storage: str | None) -> Prepared:
    """Train the stage once more for the weights that are meant; the record stays as it is. Raises UserError where that fails."""
    prepared = recorded.prepare(train=True)
    prepared.request = replace(prepared.request, storage=storage)
    stage, task = prepared.plan.stages[recorded.key], prepared.plan.task_of(recorded.stage)
    attempt = prepared.store.statuses([recorded.key])[recorded.key][1]
    last, save_at = recorded.step == "last", () if recorded.step == "last" else (recorded.step,)
    flops, metrics = prepared.plan.stage_flops(stage), task.metrics if task else ()
    item = Item(stage, f"weights of {recorded.key[:12]}", flops, metrics, last, True, attempt, 0, save_at)
    item.cost *= item.until / stage.optim.steps if item.until else 1
    prepared.items = [item]
    reasons: list[str] = []

    def watch(event: Event) -> None:
        reasons.extend([event.reason] * bool({event.kind} & {"failed", "diverged"}))

    train(prepared, also(show, watch), remember=False)
    if not all(map(storage_of(prepared.request, prepared.store).exists, item.stored)):
        why = reasons[0] if reasons else "no worker returned them"
        raise UserError(f"{recorded.key[:12]}: its weights could not be trained again: {why}.")
    return prepared


def worker_setup(recorded: StageRecord, prepared: Prepared, storage: Storage) -> WorkerSetup:
    """As the stage was trained: its threads, and a GPU where it had one and there is one here. Raises UserError where its encoder is not at hand."""
    import torch

    located, origin = prepared.plan.encoder_of(recorded.stage), recorded.record.provenance
    if located.folder is None:
        raise UserError(f"The encoder {located.name} is not at hand; fetch it with 'harness bench', or name a folder.")
    threads = int(origin.get("threads", execution_of(prepared.request, prepared.resolved).threads))
    device = "cuda" if torch.cuda.is_available() and not on_cpu(origin) else "cpu"
    encoders = {located.encoder.digest: (located.folder.resolve(), located.new_config)}
    return WorkerSetup(encoders, storage, threads, device)


def _checked_against_record(
    recorded: StageRecord, prepared: Prepared, setup: WorkerSetup, remade: bool, accept_difference: bool
) -> TrainedModel:
    """The stage with its weights, whose predictions are held against the record's. Raises UserError where they differ."""
    import torch
    from safetensors import SafetensorError

    from harness.encoders.tokens import Tokeniser
    from harness.running import device_name, restored

    stage, record, key = prepared.plan.stages[recorded.key], recorded.record, recorded.key[:12]
    tokeniser = Tokeniser(setup.encoders[stage.encoder.digest][0])
    torch.set_num_threads(setup.threads)
    torch.set_float32_matmul_precision("highest")
    try:
        objective, digest = restored(stage, tokeniser.vocabulary, setup, recorded.step)
    except (SafetensorError, ValueError, KeyError) as error:
        raise UserError(f"{key}: its stored weights cannot be used ({first_line(error)}).") from None
    read = reader(prepared.plan, prepared.plan.encoder_of(stage), tokeniser, prepared.store)
    if stage.data.prompt:
        objective.take_training_set(*read(stage.data.train, stage.data))
    known, weights, differs = record.digest_after(recorded.step), f"weights{recorded.after}", ""
    if not remade and known == digest:
        sentence = f"Its {weights} were kept since it was trained (digest {digest[:10]})."
    elif not record.predictions:
        outcome = "are those of the record, bit for bit"
        if known is None:
            outcome = "could not be compared: the record has no digest of them"
        elif known != digest:
            outcome, differs = "DIFFER from those of the record", f"the {weights}"
        how = "It was trained again; its" if remade else "Its stored"
        sentence = f"{how} {weights} {outcome} (digest {digest[:10]})."
    else:
        rows, greatest = _difference(stage, record, objective, read, torch.device(setup.device))
        sentence = "It was trained again" if remade else "Its weights were stored by another command"
        if greatest:
            sentence += f"; its predictions DIFFER from the record's by up to {greatest:.2g}."
            differs = f"its predictions (by up to {greatest:.2g})"
        else:
            sentence += f"; its {rows:,} predictions are those of the record, bit for bit."
    if differs and not accept_difference:
        made_on = ", torch ".join(str(record.provenance.get(name, "?")) for name in ("device", "torch"))
        raise UserError(
            f"{key}: trained again, {differs} differ from the record's, which was made on {made_on} (here: {device_name(setup.device)}); run "
            "this on a machine of that kind, or take such a model with 'harness export --accept-difference'."
        )
    return TrainedModel(prepared, stage, objective, tokeniser, setup, (sentence,))


def _difference(stage: Stage, record: Record, objective: Any, read: Any, device: Any) -> tuple[int, float]:
    """How many predictions are recorded, and the greatest difference from those that a model gives now."""
    from harness.training.loop import predict

    greatest, count = 0.0, 0
    for rows in (rows for rows in stage.row_sets if rows.digest in record.predictions):
        now, _ = predict(objective, read(rows, stage.data), stage.optim.precision, device)
        greatest = max(greatest, record.predictions[rows.digest].difference(now))
        count += len(now.gold)
    return count, greatest


# ---------------------------------------------------------------------------------------------------------- embeddings


class Embeddings(NamedTuple):
    """`vectors`: float32 [n, d]; `labels`: the gold labels [n] of a test set (class codes, or numbers), None for other texts."""

    vectors: NDArray[np.float32]
    labels: NDArray[Any] | None


def embeddings_of(recorded: StageRecord, texts: Sequence[tuple[str, ...]] | None, storage: str | None) -> Embeddings:
    """States of first tokens after the last layer, without dropout: of the stage's first test set, or of `texts`, one row each.

    Weights that are not stored are trained again and compared with the record. Raises UserError as `trained_model` does, and without
    `texts` for a stage that has no test set.
    """
    import torch

    from harness.encoders.models.batch import Batch
    from harness.encoders.tokens import Plain, by_length
    from harness.training.forward_backward import autocast

    if texts is None and not recorded.stage.data.tests:
        raise UserError(f"{recorded.key[:12]} ({recorded.stage.phase}) has no test set; name texts.")
    model = trained_model(recorded, unshown, storage=storage)
    stage, encoder, device = model.stage, model.objective.encoder, torch.device(model.setup.device)
    if texts is None:
        read = reader(model.prepared.plan, model.prepared.plan.encoder_of(stage), model.tokeniser, model.prepared.store)
        examples, labels = read(stage.data.tests[0], stage.data)
    else:
        examples, labels = Plain(stage.data.max_length).examples(texts, model.tokeniser), None
    tokens = examples.tokens
    vectors = np.zeros((len(tokens), encoder.hidden_size), dtype=np.float32)
    model.objective.eval()
    with torch.inference_mode(), autocast(device, stage.optim.precision):
        for rows in by_length(tokens.lengths):
            batch = Batch.of(tokens.take(rows), device)
            vectors[rows] = encoder(batch, batch.packing.first).float().cpu().numpy()
    return Embeddings(vectors, labels)
