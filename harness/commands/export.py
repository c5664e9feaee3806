"""Exports a recorded stage: its weights, trained again where they were not kept and held against the record, as a folder of
Hugging Face's with a model card."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harness.commands.model_card import Checked, card
from harness.commands.prepare import Prepared
from harness.commands.recorded import Recorded, task_of
from harness.commands.trained import View, check_done, trained_model
from harness.errors import UserError
from harness.execution import WorkerSetup
from harness.specs import Data, RowSet
from harness.tasks import Task

if TYPE_CHECKING:
    from harness.encoders.models.pretrained_folder import Form
    from harness.objectives.base import TrainingObjective

CHECKED_ROWS = 64
"""Rows on which the written folder is held against the model in memory."""
TOLERANCE = 1e-4
"""The greatest difference of logits that rounding explains: plain transformers adds up in another order."""
UNTRAINED_HEAD = "No stage trained its MLM head, and the encoder came without one."
RELATIVE_ALONE = (
    "transformers has no class with relative positions and refuses this folder; harness --encoder FOLDER starts from the same weights, "
    "bit for bit (checked)."
)
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
    license: str = "",
) -> Exported:
    """Write a recorded stage to the folder `out`, which must be new or empty. `name`: by which its card loads it (default: the
    folder); `license`: what the card states, as the hub calls it (default: that those of encoder and data hold).

    Weights that are not stored are trained again, shown by `view`. Raises UserError, and writes nothing, where the stage did not
    finish, its data or encoder are not at hand, or its predictions differ from the record (`accept_difference`: all the same).
    """
    check_done(found)
    if license and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", license):
        raise UserError(
            f"--license {license}: should be the hub's identifier of a licence, as apache-2.0, mit or cc-by-4.0."
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out}: is there already; name a new folder, or delete that one.")
    model = trained_model(found, view, storage=storage, accept_difference=accept_difference)
    prepared = model.prepared
    with new_folder(out) as folder:
        form, checked = _write(found, prepared, model.objective, model.setup, folder)
        checked = replace(checked, sentences=(*model.sentences, *checked.sentences))
        text = card(found, prepared, form, checked, name or str(out), license)
        (folder / "README.md").write_text(text, encoding="utf-8")
        for path in folder.iterdir():
            path.chmod((folder / "README.md").stat().st_mode)  # safetensors writes files for their owner alone
    return Exported(found.key, out, form, checked.sentences)


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
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
        **({} if found.step == "last" else {"update": found.step}),
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
    """Load the folder by plain transformers and compare it with the model in memory; a folder that only harness loads, by harness.
    Raises UserError where it computes something else, which would be an error of this program."""
    import torch

    from harness.encoders.models.pretrained_folder import plain_logits
    from harness.encoders.models.text_encoder import Batch, load_encoder
    from harness.encoders.tokens import Tokeniser

    said = [] if objective.supervised or not objective.encoder.fresh_head else [UNTRAINED_HEAD]
    if form == "relative":
        wrote, read = objective.encoder.parts(), load_encoder(folder, "", seed=0).parts()
        if wrote.keys() != read.keys() or any(not torch.equal(wrote[name], read[name]) for name in wrote):
            raise UserError(
                f"{found.key[:12]}: the written folder has other weights; nothing was written. Please report it."
            )
        return Checked((RELATIVE_ALONE, *said), (), task)
    texts, whose = _checked_texts(prepared, data)
    if not texts:
        return Checked((*said, "Its texts are not at hand, so what plain transformers computes was not checked."), ())
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
    what = "states" if form == "encoder" and not objective.supervised else "logits"
    said.append(f"Plain transformers gives the same {what} within {difference:.1g} ({len(texts)} texts).")
    recorded = found.record.predictions.get(whose.digest) if whose else None
    if recorded is not None and whose is data.dev:
        gap = float(np.abs(theirs.numpy() - recorded.logits[: len(texts)]).max())
        reason = (
            ""
            if found.stage.optim.precision == "fp32"
            else f"; it was trained and evaluated in {found.stage.optim.precision}"
        )
        said = [f"Plain transformers gives the recorded logits within {gap:.1g} ({len(texts)} dev rows){reason}."]
    example = texts[0]
    return Checked(tuple(said), example, task)


def _checked_texts(prepared: Prepared, data: Data) -> tuple[list[tuple[str, ...]], RowSet | None]:
    """Some rows of dev, or of the training set without further views, and which set they are of; of a corpus its first texts."""
    for rows in (data.dev, data.train):
        if rows and rows.digest in prepared.plan.library:
            found = prepared.plan.library[rows.digest]
            width = found.columns // (data.views if rows is data.train else 1)
            return [row[:width] for row in found.take(range(min(len(found), CHECKED_ROWS))).texts], rows
    corpus = next((each for each in prepared.plan.corpora if each.digest == data.train.digest), None)
    return [(text,) for text in islice(corpus.texts() if corpus else (), CHECKED_ROWS)], None
