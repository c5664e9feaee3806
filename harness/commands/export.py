"""Exports a recorded stage: its weights, trained again where they were not kept and held against the record, as a folder of
Hugging Face's with a model card."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.commands.model_card import card
from harness.commands.recorded import StageRecord
from harness.commands.train import Show
from harness.commands.trained import TrainedModel, trained_model
from harness.errors import UserError
from harness.paths import check_new_folder, new_folder

if TYPE_CHECKING:
    from harness.encoders.models.pretrained_folder import Form

CHECKED_ROWS = 64
"""Rows on which the written folder is held against the model in memory."""
TOLERANCE = 1e-4
"""The greatest difference of logits that rounding explains: plain transformers adds up in another order."""
SETTINGS = "harness.json"
"""What `harness predict` and `--encoder` know of a folder besides what transformers reads."""


class Exported(NamedTuple):
    """A written folder. `form`: what loads it; `sentences`: what was checked and what to know, for people."""

    key: str
    folder: Path
    form: Form
    sentences: tuple[str, ...]


def export(
    recorded: StageRecord,
    out: Path,
    show: Show,
    *,
    storage: str | None = None,
    accept_difference: bool = False,
    license: str = "",
    onnx: bool = False,
) -> Exported:
    """Write a recorded stage to the folder `out`, which must be new or empty. `license`: what the card states, as the hub calls it (default: that those of
    encoder and data hold); `onnx`: also as a file of ONNX, of a classifier.

    Weights that are not stored are trained again, shown by `show`. Raises UserError, and writes nothing, where the stage did not
    finish, its data or encoder are not at hand, or what is trained again differs from the record (`accept_difference`: all the same).
    """
    data = recorded.stage.data
    if data.kind and data.kind.target_scale and data.kind.output_type == "float64":
        mean, spread = data.kind.target_scale
        raise UserError(
            f"{recorded.key[:12]}: its scores ({mean:.15g} ± {spread:g}) cannot be told apart in float32, which a model's "
            "folder holds; train on the scores less their mean, or predict with the run's key."
        )
    if onnx:
        if data.kind is None or data.spans or data.prompt or recorded.stage.encoder.relative_buckets:
            raise UserError(
                f"--onnx: {recorded.key[:12]} is no classifier that transformers computes (one of classes or numbers, without prompt or "
                "T5's relative positions); leave --onnx out."
            )
        from harness.encoders.models.onnx_file import BATCHES, ONNX_FILE, check_onnx, write_onnx

        check_onnx()
    check_new_folder(out)
    model = trained_model(recorded, show, storage=storage, accept_difference=accept_difference)
    with new_folder(out) as folder:
        form = _write(recorded, model, folder)
        checks = [model.sentence, *_compared(recorded, model, folder, form)]
        if onnx:
            texts = _checked_texts(model)
            difference, greatest = write_onnx(folder, form, texts)
            _check_equal(recorded, difference, greatest, f"--onnx: ONNX Runtime computes other logits from {ONNX_FILE}")
            sizes = ", ".join(map(str, BATCHES))
            checks.append(
                f"ONNX Runtime gives the logits of plain transformers from {ONNX_FILE} within {difference:.1g} ({len(texts)} texts, in "
                f"batches of {sizes})."
            )
        text = card(recorded, model, form, checks, str(out), license, onnx)
        (folder / "README.md").write_text(text, encoding="utf-8")
        for path in folder.iterdir():
            path.chmod((folder / "README.md").stat().st_mode)  # safetensors writes files for their owner alone
    return Exported(recorded.key, out, form, tuple(checks))


def _write(recorded: StageRecord, model: TrainedModel, folder: Path) -> Form:
    """Weights, configuration, tokenizer and our own settings."""
    from harness.encoders.models.pretrained_folder import Head, write_model, write_tokenizer

    stage, objective, task = model.stage, model.objective, model.task
    head = None
    if objective.has_classifier:
        tensors = {name.partition("/")[2]: tensor for name, tensor in objective.parts().items()}
        if stage.data.standardised:
            mean, spread = stage.data.standardised
            tensors["out.weight"] = spread * tensors["out.weight"]
            tensors["out.bias"] = mean + spread * tensors["out.bias"]
        head = Head(tensors, model.kind.names, model.kind.per_token)
    objective.to("cpu")
    form = write_model(objective.encoder, folder, head)
    write_tokenizer(model.setup.encoders[stage.encoder.digest][0], objective.encoder, folder, stage.data.max_length)
    settings = {
        "key": recorded.key,
        "columns": task.columns if task and objective.params.labelled else (),
        "stage": stage.to_json(),
    }
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return form


def _check_equal(recorded: StageRecord, difference: float, greatest: float, what: str) -> None:
    """Raises UserError where logits differ by more than rounding explains, which would be an error of this program."""
    if not difference <= TOLERANCE * max(1.0, greatest):
        raise UserError(
            f"{recorded.key[:12]}: {what} (by up to {difference:.2g}); nothing was written. Please report it with the encoder's name."
        )


def _compared(recorded: StageRecord, model: TrainedModel, folder: Path, form: Form) -> Iterator[str]:
    """What plain transformers computes with the folder, beside the model in memory, in sentences. Raises UserError where it is something else."""
    import torch

    from harness.encoders.models.batch import Batch
    from harness.encoders.models.pretrained_folder import plain_logits
    from harness.encoders.models.text_encoder import load_encoder
    from harness.encoders.tokens import Tokeniser, reading_of

    objective, data = model.objective, model.stage.data
    if objective.encoder.fresh_head and not objective.has_classifier:
        yield "No stage trained its MLM head, and the encoder came without one."
    if data.prompt:
        words = zip(data.prompt.words, model.kind.word_names, strict=True)
        answers = ", ".join(f"{word} ({name})" for word, name in words)
        beside = " beside training examples, which are not in this folder," if data.prompt.demonstrations else ""
        yield f"It was trained{beside} to answer {answers} at the mask of '{data.prompt.template}'."
    if form == "relative":
        wrote, read = objective.encoder.parts(), load_encoder(folder, "", seed=0).parts()
        same = wrote.keys() == read.keys() and all(torch.equal(wrote[name], read[name]) for name in wrote)
        _check_equal(recorded, 0.0 if same else math.inf, 0.0, "the written folder has other weights")
        yield (
            "transformers has no class with relative positions and refuses this folder; harness --encoder FOLDER starts from the same "
            "weights, bit for bit (checked)."
        )
        return
    texts = _checked_texts(model)
    if not texts:
        yield "Its texts are not at hand, so what plain transformers computes was not checked."
        return
    if data.spans:  # plain transformers reads whole questions
        asked = Tokeniser(folder).placed([question for question, _ in texts])
        texts = [row for row, (ids, _) in zip(texts, asked, strict=True) if len(ids) <= data.spans.question]
    examples = reading_of(replace(data, views=1, blocks="text", prompt=None)).examples(texts, Tokeniser(folder))
    firsts = examples.tokens if examples.starts is None else examples.tokens.take(examples.starts[:-1])
    batch = Batch.of(firsts, torch.device("cpu"))
    objective.eval()
    with torch.inference_mode():
        if objective.has_classifier:
            ours = objective.predict(batch)
        else:
            ours = objective.encoder(batch, batch.first)
            ours = objective.encoder.mlm_logits(ours) if form == "masked_lm" else ours
    theirs = plain_logits(folder, form, texts)
    allowed = ~torch.isneginf(ours)  # of question answering the tokens that may be an answer
    difference, greatest = float((ours - theirs)[allowed].abs().max()), float(ours[allowed].abs().max())
    _check_equal(recorded, difference, greatest, "plain transformers computes other logits from the written folder")
    what = "states" if form == "encoder" and not objective.has_classifier else "logits"
    yield f"Plain transformers gives the same {what} within {difference:.1g} ({len(texts)} texts)."


def _checked_texts(model: TrainedModel) -> list[tuple[str, ...]]:
    """Some rows of dev, or of the training set without further views; of a corpus its first texts."""
    data, plan = model.stage.data, model.prepared.plan
    for row_set in (data.dev, data.train):
        if row_set and row_set.digest in plan.library:
            rows = plan.library[row_set.digest]
            width = rows.columns // (data.views if row_set is data.train else 1)
            return [row[:width] for row in rows.take(range(min(len(rows), CHECKED_ROWS))).texts]
    corpus = next((corpus for corpus in plan.corpora if corpus.digest == data.train.digest), None)
    return [(text,) for text in islice(corpus.texts() if corpus else (), CHECKED_ROWS)]
