"""Classifies the rows of a file with an exported folder, or with a recorded run whose weights are stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.commands.execution import storage_of
from harness.commands.export import SETTINGS
from harness.commands.recorded import recorded, task_of
from harness.commands.row_files import Part, kind_of, parts, writer
from harness.commands.trained import worker_setup
from harness.encoders import locate
from harness.encoders.families import family_of
from harness.errors import UserError, first_line
from harness.storage import weights_of
from harness.tables.request import Request

if TYPE_CHECKING:
    from harness.encoders.tokens import Tokeniser
    from harness.objectives.base import TrainingObjective
    from harness.specs import Stage
    from harness.tasks import Task

ROWS = 2048
"""Rows that are read, classified and written at a time."""
PREDICTED, PROBABILITY = "predicted", "probability"


@dataclass(frozen=True)
class Classifier:
    """A trained model with all that a text needs. `classes`: empty for a regression; `columns`: of its task, '' where unknown."""

    name: str
    objective: TrainingObjective
    tokeniser: Tokeniser
    classes: tuple[str, ...]
    columns: tuple[str, ...]
    max_length: int
    precision: str
    device: str

    def logits(self, texts: Sequence[tuple[str, ...]]) -> NDArray[np.float32]:
        """[n, C] in the order of the rows, by the evaluation of training: packed batches of similar lengths."""
        import torch

        from harness.training.loop import predict

        tokens = self.tokeniser(texts, self.max_length)
        given = (tokens, np.zeros(len(texts)))
        return predict(self.objective, given, self.precision, torch.device(self.device))[0].logits

    def columns_of(self, texts: Sequence[tuple[str, ...]]) -> list[dict[str, Any]]:
        """For each row the predicted class and each class's probability, or the predicted number."""
        logits = self.logits(texts).astype(np.float64)
        if not self.classes:
            return [{PREDICTED: float(value)} for value in logits[:, 0]]
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        return [
            {PREDICTED: self.classes[int(np.argmax(row))]}
            | {f"{PROBABILITY}.{name}": float(share) for name, share in zip(self.classes, row, strict=True)}
            for row in shares
        ]


def classifier(name: str, *, store: str | None = None, storage: str | None = None) -> Classifier:
    """By a folder ('harness export'), or by the beginning of a run's key. Raises UserError."""
    import torch

    torch.set_float32_matmul_precision("highest")
    path = Path(name).expanduser()
    if path.is_dir():
        return _of_folder(path)
    if "/" in name or name.startswith("."):
        raise UserError(f"{name}: there is no such folder; name one that 'harness export' wrote, or the key of a run.")
    return _of_run(name, store, storage)


def _of_folder(folder: Path) -> Classifier:
    import torch

    from harness.encoders.models.pretrained_folder import read_head
    from harness.encoders.models.text_encoder import load_encoder
    from harness.encoders.tokens import Tokeniser
    from harness.objectives import build, objective
    from harness.objectives.definitions import HEAD

    located = locate(f"{folder}/", where="predict")
    encoder = load_encoder(folder, located.encoder.digest, seed=0)
    head = read_head(folder, encoder)
    if head is None:
        raise UserError(
            f"{folder}: holds no classifier with a head like those that are trained here (first token, dense, tanh, linear); name a "
            "folder that 'harness export' wrote of a run."
        )
    tokeniser = Tokeniser(folder)
    settings, tokenizer = _json(folder / SETTINGS), _json(folder / "tokenizer_config.json")
    made = build(objective("cross_entropy"), encoder, tokeniser.vocabulary, len(head.classes) or 1, 0.0, 0)
    made.load_parts({f"{HEAD}/{name}": tensor for name, tensor in head.tensors.items()}, (HEAD,))
    positions = family_of(located.config).positions(located.config)
    length = min(settings.get("max_length", int(tokenizer.get("model_max_length", positions))), positions)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    columns, precision = tuple(settings.get("columns", ())), settings.get("precision", "fp32")
    return Classifier(
        str(folder), made.to(torch.device(device)), tokeniser, head.classes, columns, length, precision, device
    )


def _json(path: Path) -> dict[str, Any]:
    """An object in a file of the folder; empty where there is no such file: folders from elsewhere have none of ours."""
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}; export the run again.") from None
    return found if isinstance(found, dict) else {}


def _of_run(key: str, store: str | None, storage: str | None) -> Classifier:
    from safetensors import SafetensorError

    from harness.encoders.tokens import Tokeniser
    from harness.running import restored

    found = recorded(store, key)
    if not found.stage.data.num_labels:
        raise UserError(
            f"{found.key[:12]} ({found.stage.phase}) predicts no labels; name a run that ends with fine-tuning."
        )
    kept = storage_of(Request(storage=storage), found.store)
    if not kept.exists(weights_of(found.key)):
        raise UserError(
            f"{found.key[:12]}: its weights are not stored in {kept.shown}; 'harness export {found.key[:12]} --out FOLDER' trains them "
            "again, and 'harness predict FOLDER' takes that folder."
        )
    prepared = found.prepare()
    setup = worker_setup(found, prepared, kept)
    tokeniser = Tokeniser(setup.encoder_folder)
    stage = prepared.plan.stages[found.key]
    try:
        objective, _ = restored(stage, tokeniser.vocabulary, setup)
    except (SafetensorError, ValueError, KeyError) as error:
        raise UserError(f"{found.key[:12]}: its stored weights cannot be used ({first_line(error)}).") from None
    return classifier_of(stage, task_of(stage, prepared.plan), objective, tokeniser, setup.device)


def classifier_of(
    stage: Stage, task: Task | None, objective: TrainingObjective, tokeniser: Tokeniser, device: str
) -> Classifier:
    """A trained stage that predicts labels. `task`: what it was trained on, None where that is not known."""
    classes = task.classes if task else tuple(map(str, range(stage.data.num_labels)))
    return Classifier(
        stage.key[:12],
        objective,
        tokeniser,
        classes if stage.data.num_labels > 1 else (),
        task.columns if task else (),
        stage.data.max_length,
        stage.optim.precision,
        device,
    )


# ------------------------------------------------------------------------------------------------------------- a file


def predict_file(
    model: Classifier,
    source: Path,
    target: Path,
    columns: tuple[str, ...] | None,
    progress: Callable[[int], None],
) -> int:
    """Write the rows of `source` with what `model` predicts to `target`, which must be new; returns how many there were.

    `columns`: the text columns (None: those of the model's task). `progress`: called with the number of rows so far. Raises
    UserError, and writes nothing, for a row without its texts.
    """
    kind_of(source, "--input")
    kind_of(target, "--output")
    if target.exists():
        raise UserError(f"--output {target}: is there already; name a new file, or delete that one.")
    wanted = columns or model.columns
    if not wanted:
        raise UserError(
            f"predict: name the text column with --text; {model.name} does not say which it was trained on."
        )
    if model.columns and len(wanted) != len(model.columns):
        raise UserError(
            f"--text {','.join(wanted)}: the model takes {len(model.columns)} texts a row ({', '.join(model.columns)}); name "
            f"{len(model.columns)} columns."
        )
    done = 0
    with writer(target) as write:
        for part in parts(source, ROWS):
            write(_scored(model, part, wanted))
            done += len(part.rows)
            progress(done)
        if not done:
            raise UserError(f"--input {source}: there are no rows in it.")
    return done


def _scored(model: Classifier, part: Part, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    found = model.columns_of(part.texts(columns))
    double = next((name for name in found[0] if name in part.rows[0]), None)
    if double:
        raise UserError(f"{part.places[0]}: has a column '{double}' already, which predict adds; rename it.")
    return [{**row, **more} for row, more in zip(part.rows, found, strict=True)]
