"""Exports a recorded stage: its weights, trained again where they were not kept and held against the record, as a folder of
Hugging Face's with a model card."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.commands.execution import execution_of, storage_of
from harness.commands.model_card import Checked, card
from harness.commands.prepare import Prepared
from harness.commands.recorded import Recorded, task_of
from harness.commands.texts import reader
from harness.commands.train import train
from harness.errors import UserError, first_line
from harness.execution import WorkerSetup
from harness.specs import Data, Predictions
from harness.storage import Storage, weights_of
from harness.tables.work import Item
from harness.tasks import Task

if TYPE_CHECKING:
    from harness.encoders.models.pretrained_folder import Form
    from harness.objectives.base import TrainingObjective
    from harness.tables.lifecycle import Event

View = Callable[[Prepared, str], AbstractContextManager[Callable[["Event"], None]]]
CHECKED_ROWS = 64
"""Rows on which the written folder is held against the model in memory."""
TOLERANCE = 1e-4
"""The greatest difference of logits that rounding explains: plain transformers adds up in another order."""
SETTINGS = "harness.json"
"""What `harness predict` and `--encoder` know of a folder besides what transformers reads."""


@dataclass(frozen=True)
class Exported:
    """A written folder. `form`: what loads it; `sentences`: what was checked and what to know, for people."""

    key: str
    folder: Path
    form: Form
    sentences: tuple[str, ...]


def export(
    found: Recorded,
    out: Path,
    view: View,
    *,
    storage: str | None = None,
    accept_difference: bool = False,
    name: str = "",
) -> Exported:
    """Write a recorded stage to the folder `out`, which must be new or empty. `name`: by which its card loads it (default: the
    folder).

    Weights that are not stored are trained again, shown by `view`. Raises UserError, and writes nothing, where the stage did not
    finish, its data or encoder are not at hand, or its predictions differ from the record (`accept_difference`: all the same).
    """
    if found.record.status != "done":
        raise UserError(
            f"{found.key[:12]} is {found.record.status} ({found.record.reason}); only a finished stage has weights."
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out}: is there already; name a new folder, or delete that one.")
    prepared = found.prepare()
    kept = storage_of(replace(prepared.request, storage=storage), prepared.store)
    remade = not kept.exists(weights_of(found.key))
    if remade:
        prepared = _retrained(found, view, storage)
    try:
        objective, setup, sentences = _checked_against_record(found, prepared, kept, remade, accept_difference)
    except UserError:
        if remade:
            kept.delete(weights_of(found.key))
        raise
    if remade:
        kept.delete(weights_of(found.key))
    with _new_folder(out) as folder:
        form, checked = _write(found, prepared, objective, setup, folder)
        checked = replace(checked, sentences=(*sentences, *checked.sentences))
        (folder / "README.md").write_text(card(found, prepared, form, checked, name or str(out)), encoding="utf-8")
        for path in folder.iterdir():
            path.chmod((folder / "README.md").stat().st_mode)  # safetensors writes files for their owner alone
    return Exported(found.key, out, form, checked.sentences)


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A folder that becomes `out` when it is whole."""
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = out.with_name(f".{out.name}.{uuid.uuid4().hex[:8]}")
    folder.mkdir()
    try:
        yield folder
        if out.exists():
            out.rmdir()
        folder.rename(out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ------------------------------------------------------------------------------------------------------ the weights


def _retrained(found: Recorded, view: View, storage: str | None) -> Prepared:
    """Train the stage once more for its weights; the record stays as it is. Raises UserError where that fails."""
    prepared = found.prepare(train=True)
    prepared.request = replace(prepared.request, storage=storage)
    stage = prepared.plan.stages[found.key]
    task = task_of(stage, prepared.plan)
    metrics = task.metrics if task else ()
    name = f"weights of {found.key[:12]}"
    attempt = prepared.store.statuses([found.key])[found.key][1]
    prepared.items = [Item(stage, name, prepared.plan.stage_flops(stage), metrics, True, True, attempt)]
    reasons: list[str] = []

    @contextmanager
    def watched(prepared: Prepared, dashboard: str) -> Iterator[Callable[[Event], None]]:
        with view(prepared, dashboard) as show:

            def both(event: Event) -> None:
                reasons.extend([event.reason] * bool({event.kind} & {"failed", "diverged"}))
                show(event)

            yield both

    train(prepared, watched, remember=False)
    if not storage_of(prepared.request, prepared.store).exists(weights_of(found.key)):
        why = reasons[0] if reasons else "no worker returned them"
        raise UserError(f"{found.key[:12]}: its weights could not be trained again: {why}.")
    return prepared


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
        objective, digest = restored(stage, tokeniser.vocabulary, setup)
    except (SafetensorError, ValueError, KeyError) as error:
        raise UserError(f"{found.key[:12]}: its stored weights cannot be used ({first_line(error)}).") from None
    if not remade and record.weights_digest == digest:
        return objective, setup, (f"Its weights were kept since it was trained (digest {digest[:10]}).",)
    if not record.predictions:
        same = record.weights_digest == digest
        if not same and not accept_difference:
            raise UserError(_differs(found, "the weights", device_name(setup.device)))
        told = "are those of the record, bit for bit" if same else "DIFFER from those of the record"
        return objective, setup, (f"It was trained again; its weights {told} (digest {digest[:10]}).",)
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


def _differs(found: Recorded, what: str, here: str) -> str:
    """The sentence for a stage that cannot be made again bit for bit."""
    origin = found.record.provenance
    then = f"{origin.get('device', '?')}, torch {origin.get('torch', '?')}"
    return (
        f"{found.key[:12]}: trained again, {what} differ from the record's, which was made on {then} (here: {here}); export it on a "
        "machine of that kind, or take this model with --accept-difference."
    )


def _predictions(objective: TrainingObjective, read: Any, setup: WorkerSetup, stage: Any) -> Predictions:
    import torch

    from harness.training.loop import predict

    return predict(objective, read, stage.optim.precision, torch.device(setup.device))[0]


# ------------------------------------------------------------------------------------------------------- the folder


def _write(
    found: Recorded, prepared: Prepared, objective: TrainingObjective, setup: WorkerSetup, folder: Path
) -> tuple[Form, Checked]:
    """Weights, configuration, tokenizer and our own settings; what plain transformers computes with them is checked."""
    from harness.encoders.models.pretrained_folder import Head, write_model, write_tokenizer

    stage = prepared.plan.stages[found.key]
    task = task_of(stage, prepared.plan)
    head = None
    if objective.supervised:
        classes = task.classes if task else tuple(map(str, range(stage.data.num_labels)))
        tensors = {name.partition("/")[2]: tensor for name, tensor in objective.parts().items()}
        head = Head(tensors, classes if stage.data.num_labels > 1 else ())
    objective.to("cpu")
    form = write_model(objective.encoder, folder, head)
    write_tokenizer(setup.encoder_folder, objective.encoder, folder, stage.data.max_length)
    settings = {
        "key": found.key,
        "form": form,
        "task": task.name if task else "",
        "columns": list(task.columns) if task and head else [],
        "max_length": stage.data.max_length,
        "precision": stage.optim.precision,
        "stage": stage.to_json(),
    }
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return form, _compared(prepared, objective, stage.data, folder, form, task if head else None, found)


def _compared(
    prepared: Prepared,
    objective: TrainingObjective,
    data: Data,
    folder: Path,
    form: Form,
    task: Task | None,
    found: Recorded,
) -> Checked:
    """Load the folder by plain transformers and compare it with the model in memory. Raises UserError where it computes something
    else, which would be an error of this program."""
    import torch

    from harness.encoders.models.pretrained_folder import plain_logits
    from harness.encoders.models.text_encoder import Batch
    from harness.encoders.tokens import Tokeniser

    sets = [rows for rows in (data.dev, data.train) if rows and rows.digest in prepared.plan.library]
    if form == "relative":
        return Checked(("transformers has no class with relative positions: only harness loads this folder.",), ())
    if not sets:
        return Checked(("Its texts are not at hand, so what plain transformers computes was not checked.",), ())
    rows = prepared.plan.library[sets[0].digest]
    width = rows.columns // (data.views if sets[0] is data.train else 1)
    texts = [row[:width] for row in rows.take(range(min(len(rows), CHECKED_ROWS))).texts]
    batch = Batch.of(Tokeniser(folder)(texts, data.max_length), torch.device("cpu"))
    objective.eval()
    with torch.inference_mode():
        if objective.supervised:
            ours = objective.predict(batch)
        else:
            ours = objective.encoder(batch, batch.packing.first)
            ours = objective.encoder.mlm_logits(ours) if form == "masked_lm" else ours
    theirs = plain_logits(folder, form, texts)
    difference = float((ours - theirs).abs().max())
    if not difference <= TOLERANCE * max(1.0, float(ours.abs().max())):
        raise UserError(
            f"{found.key[:12]}: plain transformers computes other logits from the written folder (by up to {difference:.2g}); "
            "nothing was written. Please report it with the encoder's name."
        )
    said = [f"Plain transformers gives the same logits within {difference:.1g} ({len(texts)} texts)."]
    recorded = found.record.predictions.get(sets[0].digest)
    if recorded is not None and sets[0] is data.dev:
        gap = float(np.abs(theirs.numpy() - recorded.logits[: len(texts)]).max())
        reason = (
            ""
            if found.stage.optim.precision == "fp32"
            else f"; it was trained and evaluated in {found.stage.optim.precision}"
        )
        said = [f"Plain transformers gives the recorded logits within {gap:.1g} ({len(texts)} dev rows){reason}."]
    example = texts[0]
    return Checked(tuple(said), example, task)
