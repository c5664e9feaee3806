"""The model of a recorded stage: its weights, trained again where they were not kept, held against the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from harness.commands.execution import execution_of, storage_of
from harness.commands.prepare import Prepared
from harness.commands.recorded import Recorded, task_of
from harness.commands.texts import reader
from harness.commands.train import train
from harness.errors import UserError, first_line
from harness.execution import WorkerSetup
from harness.specs import Predictions, Record, Stage
from harness.storage import Storage, weights_of
from harness.tables.work import Item

if TYPE_CHECKING:
    from harness.encoders.models.text_encoder import TextEncoder
    from harness.objectives.base import TrainingObjective
    from harness.tables.lifecycle import Event

View = Callable[[Prepared, str], AbstractContextManager[Callable[["Event"], None]]]
Step = Literal["last"] | int
"""Which of a stage's weights: its final ones, or those after an update."""


@dataclass(frozen=True)
class TrainedModel:
    """A stage with its weights. `prepared`: its cell, planned; `sentences`: what was checked, for people."""

    prepared: Prepared
    objective: TrainingObjective
    setup: WorkerSetup
    sentences: tuple[str, ...]


def check_done(found: Recorded) -> None:
    """Raises UserError for a stage that has no weights because it did not finish."""
    if found.record.status != "done":
        raise UserError(
            f"{found.key[:12]} is {found.record.status} ({found.record.reason}); only a finished stage has weights."
        )


def trained_model(
    found: Recorded, view: View, *, storage: str | None = None, accept_difference: bool = False
) -> TrainedModel:
    """A recorded stage with its weights, those that `found` means. Those that are not stored are trained again, shown by `view`, and
    not kept.

    Raises UserError where the stage did not finish, its data or encoder are not at hand, or its predictions or weights differ from the
    record (`accept_difference`: all the same).
    """
    with trained_models(found, (found.step,), view, storage=storage, accept_difference=accept_difference) as model:
        return model(found.step)


@contextmanager
def trained_models(
    found: Recorded, steps: Sequence[Step], view: View, *, storage: str | None = None, accept_difference: bool = False
) -> Iterator[Callable[[Step], TrainedModel]]:
    """The same of several weights of one stage, loaded one after another: what is not stored is trained again once for all of them,
    and deleted at the end."""
    check_done(found)
    prepared = found.prepare()
    kept = storage_of(replace(prepared.request, storage=storage), prepared.store)
    missing = [step for step in steps if not kept.exists(weights_of(found.key, step))]
    if not accept_difference and not found.record.predictions:
        for step in missing:
            if recorded_digest(found.record, step) is None:
                raise UserError(_unknown_weights(replace(found, step=step)))
    if missing:
        prepared = _retrained(found, missing, view, storage)

    def model(step: Step) -> TrainedModel:
        meant = replace(found, step=step)
        return TrainedModel(
            prepared, *_checked_against_record(meant, prepared, kept, step in missing, accept_difference)
        )

    try:
        yield model
    finally:
        for step in missing:
            kept.delete(weights_of(found.key, step))


def _retrained(found: Recorded, missing: Sequence[Step], view: View, storage: str | None) -> Prepared:
    """Train the stage once more for its weights; the record stays as it is. Raises UserError where that fails."""
    prepared = found.prepare(train=True)
    prepared.request = replace(prepared.request, storage=storage)
    stage = prepared.plan.stages[found.key]
    task = task_of(stage, prepared.plan)
    metrics = task.metrics if task else ()
    name = f"weights of {found.key[:12]}"
    attempt = prepared.store.statuses([found.key])[found.key][1]
    save_at = tuple(sorted(step for step in missing if step != "last"))
    item = Item(stage, name, prepared.plan.stage_flops(stage), metrics, "last" in missing, True, attempt, 0, save_at)
    item.cost *= (item.until or stage.optim.steps) / stage.optim.steps
    prepared.items = [item]
    reasons: list[str] = []

    @contextmanager
    def watched(prepared: Prepared, dashboard: str) -> Iterator[Callable[[Event], None]]:
        with view(prepared, dashboard) as show:

            def both(event: Event) -> None:
                reasons.extend([event.reason] * bool({event.kind} & {"failed", "diverged"}))
                show(event)

            yield both

    train(prepared, watched, remember=False)
    if not all(map(storage_of(prepared.request, prepared.store).exists, item.stored)):
        why = reasons[0] if reasons else "no worker returned them"
        raise UserError(f"{found.key[:12]}: its weights could not be trained again: {why}.")
    return prepared


def start_of(prepared: Prepared, stage: Stage) -> tuple[TextEncoder, str]:
    """The encoder that a stage without a parent starts from, and the device for it. Raises UserError where it is not at hand."""
    import torch

    from harness.encoders.models.text_encoder import load_encoder

    located, root = prepared.plan.located, stage.encoder
    if located.folder is None:
        raise UserError(f"The encoder {located.name} is not at hand; fetch it with 'harness bench', or name a folder.")
    config = located.config if located.new else None
    encoder = load_encoder(located.folder.resolve(), root.digest, seed=stage.seed, config=config)
    if root.relative_buckets:
        encoder.add_relative_positions(root.relative_buckets, root.relative_distance)
    return encoder, "cuda" if torch.cuda.is_available() else "cpu"


def worker_setup(found: Recorded, prepared: Prepared, storage: Storage) -> WorkerSetup:
    """As the stage was trained: its threads, and a GPU where it had one and there is one here."""
    import torch

    from harness.running import cpu_name

    located = prepared.plan.located
    if located.folder is None:
        raise UserError(f"The encoder {located.name} is not at hand; fetch it with 'harness bench', or name a folder.")
    threads = int(found.record.provenance.get("threads", execution_of(prepared.request, prepared.resolved).threads))
    on_cpu = found.record.provenance.get("device", cpu_name()) == cpu_name()
    device = "cuda" if torch.cuda.is_available() and not on_cpu else "cpu"
    config = located.config if located.new else None
    return WorkerSetup(located.folder.resolve(), storage, threads, device, encoder_config=config)


def _checked_against_record(
    found: Recorded, prepared: Prepared, storage: Storage, remade: bool, accept_difference: bool
) -> tuple[TrainingObjective, WorkerSetup, tuple[str, ...]]:
    """The stage with its weights, whose predictions are held against the record's. Raises UserError where they differ."""
    import torch
    from safetensors import SafetensorError

    from harness.encoders.tokens import Tokeniser
    from harness.running import device_name, restored

    setup = worker_setup(found, prepared, storage)
    tokeniser = Tokeniser(setup.encoder_folder)
    stage, record = prepared.plan.stages[found.key], found.record
    torch.set_num_threads(setup.threads)
    torch.set_float32_matmul_precision("highest")
    try:
        objective, digest = restored(stage, tokeniser.vocabulary, setup, found.step)
    except (SafetensorError, ValueError, KeyError) as error:
        raise UserError(f"{found.key[:12]}: its stored weights cannot be used ({first_line(error)}).") from None
    known, which = recorded_digest(record, found.step), found.after
    if not remade and known == digest:
        return objective, setup, (f"Its weights{which} were kept since it was trained (digest {digest[:10]}).",)
    if not record.predictions:
        if known not in (None, digest) and not accept_difference:
            raise UserError(_differs(found, f"the weights{which}", device_name(setup.device)))
        told = "are those of the record, bit for bit" if known == digest else "DIFFER from those of the record"
        told = "could not be compared: the record has no digest of them" if known is None else told
        how = "It was trained again; its" if remade else "Its stored"
        return objective, setup, (f"{how} weights{which} {told} (digest {digest[:10]}).",)
    read = reader(prepared.plan, tokeniser, prepared.store)
    rows, greatest, equal = 0, 0.0, True
    for row_set in stage.row_sets:
        if row_set.digest not in record.predictions:
            continue
        then, now = record.predictions[row_set.digest], _predictions(objective, read(row_set, stage.data), setup, stage)
        equal &= np.array_equal(then.logits, now.logits)
        greatest = max(greatest, float(np.abs(then.logits - now.logits).max()))
        rows += len(then.logits)
    what = "It was trained again" if remade else "Its weights were stored by another command"
    if equal:
        return objective, setup, (f"{what}; its {rows:,} predictions are those of the record, bit for bit.",)
    if not accept_difference:
        raise UserError(_differs(found, f"its predictions (by up to {greatest:.2g})", device_name(setup.device)))
    return objective, setup, (f"{what}; its predictions DIFFER from the record's by up to {greatest:.2g}.",)


def recorded_digest(record: Record, step: Step) -> str | None:
    """The digest that a record has of these weights; None where it has none."""
    if step == "last":
        return record.weights_digest
    known: str | None = record.provenance.get("saved_digests", {}).get(str(step))
    return known


def _unknown_weights(found: Recorded) -> str:
    """The sentence for weights that would have to be trained again and of which the record holds no digest."""
    saved = [*map(int, found.record.provenance.get("saved_digests", {})), found.stage.optim.steps]
    return (
        f"{found.key[:12]}: its weights{found.after} are not stored, and the record has no digest to compare them with "
        f"once they are trained again; name update {' or '.join(f'{each:,}' for each in saved)}, or take them with 'harness export --accept-difference'."
    )


def _differs(found: Recorded, what: str, here: str) -> str:
    """The sentence for a stage that cannot be made again bit for bit."""
    origin = found.record.provenance
    then = f"{origin.get('device', '?')}, torch {origin.get('torch', '?')}"
    return (
        f"{found.key[:12]}: trained again, {what} differ from the record's, which was made on {then} (here: {here}); run this on a "
        "machine of that kind, or take such a model with 'harness export --accept-difference'."
    )


def _predictions(objective: TrainingObjective, read: Any, setup: WorkerSetup, stage: Any) -> Predictions:
    import torch

    from harness.training.loop import predict

    return predict(objective, read, stage.optim.precision, torch.device(setup.device))[0]
