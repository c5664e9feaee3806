"""The model of a recorded stage: its weights, trained again where they were not kept, held against the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.commands.execution import storage_of
from harness.commands.prepare import Prepared
from harness.commands.recorded import StageRecord
from harness.commands.texts import reader
from harness.commands.train import Show, also, train, unshown
from harness.devices import on_cpu
from harness.errors import UserError, first_line
from harness.execution import WorkerSetup
from harness.kinds import Kind
from harness.planning.work import Event, Item
from harness.specs import Stage
from harness.storage import Storage, weights_of
from harness.tasks.task import Task

if TYPE_CHECKING:
    from harness.encoders.tokens import Tokeniser
    from harness.objectives.base import TrainingObjective


@dataclass(frozen=True)
class TrainedModel:
    """A stage with its weights. `prepared`: its cell, planned; `sentence`: what was checked, for people."""

    prepared: Prepared
    stage: Stage
    objective: TrainingObjective
    tokeniser: Tokeniser
    setup: WorkerSetup
    sentence: str

    @property
    def task(self) -> Task | None:
        """What it is evaluated on; None where that is not known."""
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
    prepared, record, step, key = recorded.prepare(), recorded.record, recorded.step, recorded.key[:12]
    kept = storage_of(replace(prepared.request, storage=storage), prepared.store)
    missing = not kept.exists(weights_of(recorded.key, step))
    if missing and not (record.predictions or record.digest_after(step) or accept_difference):
        saved = [*map(int, record.provenance.get("saved_digests", {})), recorded.stage.optim.steps]
        raise UserError(
            f"{key}: its weights{recorded.after} are not stored, and the record has no digest to compare them with once they are trained "
            f"again; name update {' or '.join(f'{step:,}' for step in saved)}, or take them with 'harness export --accept-difference'."
        )
    if missing:
        prepared = _retrained(recorded, show, storage)
    try:
        model, digest = _loaded(recorded, prepared, kept)
    finally:
        if missing:
            kept.delete(weights_of(recorded.key, step))
    sentence, differs = _compared(recorded, model, digest, missing)
    if differs and not accept_difference:
        from harness.running import device_name

        made_on = ", torch ".join(str(record.provenance.get(name, "?")) for name in ("device", "torch"))
        raise UserError(
            f"{key}: trained again, {differs} differ from the record's, which was made on {made_on} (here: {device_name(model.setup.device)}); run "
            "this on a machine of that kind, or take such a model with 'harness export --accept-difference'."
        )
    return replace(model, sentence=sentence)


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
    reasons = ["no worker returned them"]

    def watch(event: Event) -> None:
        if {event.kind} & {"failed", "diverged"}:
            reasons.insert(0, event.reason)

    train(prepared, also(show, watch), remember=False)
    if not all(map(storage_of(prepared.request, prepared.store).exists, item.stored)):
        raise UserError(f"{recorded.key[:12]}: its weights could not be trained again: {reasons[0]}.")
    return prepared


def _loaded(recorded: StageRecord, prepared: Prepared, kept: Storage) -> tuple[TrainedModel, str]:
    """The stage with its stored weights, as it was trained: its threads, and a GPU where it had one and there is one here; and the digest of the
    weights. Raises UserError."""
    import torch
    from safetensors import SafetensorError

    from harness.encoders.tokens import Tokeniser
    from harness.running import restored

    origin, located = recorded.record.provenance, prepared.plan.encoder_of(recorded.stage)
    if located.folder is None:
        raise UserError(f"The encoder {located.name} is not at hand; fetch it with 'harness bench', or name a folder.")
    device = "cuda" if torch.cuda.is_available() and not on_cpu(origin) else "cpu"
    encoders = {located.encoder.digest: (located.folder.resolve(), located.new_config)}
    setup = WorkerSetup(encoders, kept, int(origin.get("threads", 1)), device)
    torch.set_num_threads(setup.threads)
    torch.set_float32_matmul_precision("highest")
    stage, tokeniser = prepared.plan.stages[recorded.key], Tokeniser(located.folder)
    try:
        objective, digest = restored(stage, tokeniser.vocabulary, setup, recorded.step)
    except (SafetensorError, ValueError, KeyError) as error:
        raise UserError(f"{recorded.key[:12]}: its stored weights cannot be used ({first_line(error)}).") from None
    model = TrainedModel(prepared, stage, objective, tokeniser, setup, "")
    if stage.data.prompt:
        objective.take_training_set(*_reader(model)(stage.data.train, stage.data))
    return model, digest


def _reader(model: TrainedModel) -> Any:
    plan = model.prepared.plan
    return reader(plan, plan.encoder_of(model.stage), model.tokeniser, model.prepared.store)


def _compared(recorded: StageRecord, model: TrainedModel, digest: str, remade: bool) -> tuple[str, str]:
    """How the weights compare with the record, in a sentence, and what differs: their predictions where some are recorded, else their digest."""
    from harness.training.loop import predict

    record, known, weights = recorded.record, recorded.record.digest_after(recorded.step), f"weights{recorded.after}"
    if not remade and known == digest:
        return f"Its {weights} were kept since it was trained (digest {digest[:10]}).", ""
    if not record.predictions:
        outcome, differs = "are those of the record, bit for bit", ""
        if known is None:
            outcome = "could not be compared: the record has no digest of them"
        elif known != digest:
            outcome, differs = "DIFFER from those of the record", f"the {weights}"
        how = "It was trained again; its" if remade else "Its stored"
        return f"{how} {weights} {outcome} (digest {digest[:10]}).", differs
    import torch

    greatest, count, read = 0.0, 0, _reader(model)
    for rows in (rows for rows in model.stage.row_sets if rows.digest in record.predictions):
        given = model.objective, read(rows, model.stage.data), model.stage.optim.precision
        now, _ = predict(*given, torch.device(model.setup.device))
        greatest, count = max(greatest, record.predictions[rows.digest].difference(now)), count + len(now.gold)
    how = "It was trained again" if remade else "Its weights were stored by another command"
    if greatest:
        differs = f"its predictions (by up to {greatest:.2g})"
        return f"{how}; its predictions DIFFER from the record's by up to {greatest:.2g}.", differs
    return f"{how}; its {count:,} predictions are those of the record, bit for bit.", ""


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
        examples, labels = _reader(model)(stage.data.tests[0], stage.data)
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
