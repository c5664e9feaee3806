"""The model of a recorded stage: its weights, trained again where they were not kept, held against the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from harness.commands.prepare import Prepared, storage_of
from harness.commands.recorded import StageRecord
from harness.commands.train import Show, read_rows, train, unshown
from harness.errors import UserError, first_line
from harness.machine import on_cpu
from harness.methods import definition_of
from harness.planning.work import work
from harness.specs import Parent, Record, RowSet, Stage, Status
from harness.storage import Storage, WorkerSetup, weights_of
from harness.store import Store
from harness.tasks.task import Task
from harness.wording import listed

if TYPE_CHECKING:
    from harness.encoders.tokens import Examples, Tokeniser
    from harness.objectives.base import TrainingObjective


@dataclass(frozen=True)
class TrainedModel:
    """A stage with its weights. `prepared`: its cell, planned; `sentence`: what was checked, for people."""

    prepared: Prepared
    stage: Stage
    objective: TrainingObjective
    tokeniser: Tokeniser
    setup: WorkerSetup
    sentence: str = ""

    @property
    def task(self) -> Task | None:
        """What it is evaluated on; None where that is not known."""
        return self.prepared.plan.task_of.get(self.stage.key)

    def read(self, row_set: RowSet) -> tuple[Examples, Any]:
        """A row set as the stage reads it: examples, and labels or None."""
        plan = self.prepared.plan
        located = plan.encoder_of(self.stage)
        return read_rows(plan, located, self.tokeniser, self.prepared.store, row_set, self.stage.data)


def trained_model(
    recorded: StageRecord, show: Show | None, *, storage: str | None = None, accept_difference: bool = False
) -> TrainedModel:
    """A recorded stage with its weights: the stored ones, where they are those of the record. Otherwise it is trained again in a folder that is
    deleted, shown by `show`; None: it is not.

    Raises UserError where the stage did not finish, its data or encoder are not at hand, or what is trained again differs from the record
    (`accept_difference`: all the same).
    """
    record, key, objective = recorded.record, recorded.key, recorded.stage.objective
    if definition_of(objective).fitted:
        raise UserError(
            f"{key[:12]} ({objective.name}) was fitted by scikit-learn and left no model, its predictions alone ('harness errors "
            f"{key[:12]}'); name a run whose encoder or head was trained."
        )
    if record.status != "done":
        raise UserError(f"{key[:12]} is {record.status} ({record.reason}); only a finished stage has weights.")
    prepared = recorded.prepare()
    kept = storage_of(replace(prepared.request, storage=storage), prepared.store)
    if kept.exists(weights_of(key)):
        model, digest = _loaded(recorded, prepared, kept)
        if digest == record.weights_digest:
            return replace(model, sentence=f"Its weights were kept since it was trained (digest {digest[:10]}).")
    if show is None:
        raise UserError(
            f"{key[:12]}: its weights are not stored in {kept.shown}; 'harness export {key[:12]} --out FOLDER' trains them again, and "
            "'harness predict FOLDER' takes that folder."
        )
    prepared = recorded.prepare(train=True)
    records = prepared.store.records(stage.key for stage in recorded.stage.chain)
    with TemporaryDirectory(prefix="harness-") as folder:
        again, scratch = trained_again(prepared, records, [key], kept, show, folder)
        ended = again.get(key)
        if ended is None or ended.status != "done":
            reason = ended.reason if ended else "no worker returned them"
            raise UserError(f"{key[:12]}: its weights could not be trained again: {reason}.")
        model, _ = _loaded(recorded, prepared, scratch)
    if not (differs := differences(record, ended)):
        rows = sum(len(predicted.gold) for predicted in record.predictions.values())
        what = f"{rows:,} predictions" if rows else "weights" if record.weights_digest else "losses"
        return replace(model, sentence=f"It was trained again; its {what} are those of the record, bit for bit.")
    if not accept_difference:
        made_on, here = (
            ", torch ".join(str(each.provenance.get(n, "?")) for n in ("device", "torch")) for each in (record, ended)
        )
        raise UserError(
            f"{key[:12]}: trained again, it differs from its record in {listed(differs)}; the record was made on {made_on} (here: {here}); run "
            "this on a machine of that kind, or take such a model with 'harness export --accept-difference'."
        )
    return replace(model, sentence=f"It was trained again and DIFFERS from its record in {listed(differs)}.")


def trained_again(
    prepared: Prepared, records: Mapping[str, Record], keys: Sequence[str], kept: Storage, show: Show, folder: str
) -> tuple[dict[str, Record], Storage]:
    """Train recorded stages once more in `folder`, on as many workers and the kind of device that the record of the first one names: their new records,
    and where all weights are. `records`: of the stages of their chains; `kept`: where weights of parents are taken from that are as recorded."""
    origin, store = records[keys[0]].provenance, Store(f"sqlite:///{folder}/harness.db")
    scratch = Storage(f"{folder}/artifacts")
    stages, starts = prepared.plan.stages, dict[str, Any]()
    for key, stage in stages.items():
        if isinstance(stage.init, Parent) and key in records:
            starts[weights_of(stage.init.stage.key, stage.init.step)] = records[key].provenance.get("parent_product")

    def is_there(name: str) -> bool:
        """Whether the weights that a stage starts from are in `scratch` now: those in `kept`, where their digest is the recorded one."""
        from harness.encoders.models.weights import checked  # imports torch

        if not scratch.exists(name) and starts.get(name) and kept.exists(name):
            with suppress(SafetensorError):
                if checked(content := kept.read(name))[1] == starts[name]:
                    scratch.write(name, content)
        return scratch.exists(name)

    others: dict[str, tuple[Status, int]] = {key: ("done", 1) for key in stages if key not in keys}
    items, _ = work(prepared.plan, others, is_there, False, "all")
    workers, micro_batch = int(origin.get("workers", 1)), int(origin.get("micro_batch", 0)) or None
    request = replace(prepared.request, num_workers=workers, micro_batch=micro_batch, checkpoint_minutes=0.0)
    request = replace(request, gpus_per_run=0.0 if on_cpu(origin) else None, address="local")  # where the folder is
    request = replace(request, store=store.url, storage=scratch.uri, keep="all")
    train(replace(prepared, request=request, store=store, items=items, statuses={}), show)
    return store.records(keys, predictions=True), scratch


def differences(record: Record, ended: Record) -> list[str]:
    """What two records of a stage do not hold alike, bit for bit."""
    losses, again = ([(e["step"], e["loss"]) for e in one.history if "loss" in e] for one in (record, ended))
    pairs = [(predicted, ended.predictions[digest]) for digest, predicted in record.predictions.items()]
    greatest = max((then.difference(now) for then, now in pairs), default=0.0)
    same_gold = all(np.array_equal(then.gold, now.gold) for then, now in pairs)
    selected, selected_again = ((one.selected_step, one.dev_scores) for one in (record, ended))
    start = record.provenance.get("parent_product")
    equal = {
        "its losses": losses == again,
        "its selected update or dev scores": selected == selected_again,
        f"its predictions (logits by up to {greatest:.2g})": not greatest and same_gold,
        "its weights": not record.weights_digest or record.weights_digest == ended.weights_digest,
        "the weights that it starts from": not start or start == ended.provenance.get("parent_product"),
    }
    return [what for what, same in equal.items() if not same]


def _loaded(recorded: StageRecord, prepared: Prepared, kept: Storage) -> tuple[TrainedModel, str]:
    """The stage with its stored weights, as it was trained: its threads, and a GPU where it had one and there is one here; and the digest of the
    weights. Raises UserError."""
    import torch

    from harness.encoders.tokens import Tokeniser
    from harness.running import restored

    origin, located = recorded.record.provenance, prepared.plan.encoder_of(recorded.stage)
    if located.folder is None:
        raise UserError(f"The encoder {located.name} is not at hand; fetch it with 'harness bench', or name a folder.")
    device = "cuda" if torch.cuda.is_available() and not on_cpu(origin) else "cpu"
    encoders = {located.encoder.digest: (located.folder.resolve(), located.new_config)}
    setup = WorkerSetup(encoders, kept, device)
    torch.set_num_threads(int(origin.get("threads", 1)))
    torch.set_float32_matmul_precision("highest")
    stage, tokeniser = prepared.plan.stages[recorded.key], Tokeniser(located.folder)
    try:
        objective, digest = restored(stage, tokeniser.vocabulary, setup)
    except (SafetensorError, ValueError, KeyError) as error:
        raise UserError(f"{recorded.key[:12]}: its stored weights cannot be used ({first_line(error)}).") from None
    model = TrainedModel(prepared, stage, objective, tokeniser, setup)
    if stage.data.prompt:
        objective.take_training_set(*model.read(stage.data.train))
    return model, digest


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
    from harness.encoders.tokens import by_length
    from harness.encoders.tokens.reading import Plain
    from harness.training.forward_backward import autocast

    if texts is None and not recorded.stage.data.tests:
        raise UserError(f"{recorded.key[:12]} ({recorded.stage.phase}) has no test set; name texts.")
    model = trained_model(recorded, unshown, storage=storage)
    stage, encoder, device = model.stage, model.objective.encoder, torch.device(model.setup.device)
    if texts is None:
        examples, labels = model.read(stage.data.tests[0])
    else:
        examples, labels = Plain(stage.data.max_length).examples(texts, model.tokeniser), None
    tokens = examples.tokens
    vectors = np.zeros((len(tokens), encoder.hidden_size), dtype=np.float32)
    model.objective.eval()
    with torch.inference_mode(), autocast(device, stage.optim.precision):
        for rows in by_length(tokens.lengths):
            batch = Batch.of(tokens.take(rows), device)
            vectors[rows] = encoder(batch, batch.first).float().cpu().numpy()
    return Embeddings(vectors, labels)
