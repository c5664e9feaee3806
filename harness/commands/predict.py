"""Predicts for the rows of a file, of standard input or of a command line with an exported folder, or with a recorded run whose weights are stored."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.answers import SpanReading
from harness.commands.export import SETTINGS
from harness.commands.recorded import recorded
from harness.commands.trained import TrainedModel, trained_model
from harness.encoders import locate
from harness.encoders.families import family_of
from harness.encoders.sources import json_object
from harness.errors import UserError, first_line
from harness.kinds import Kind, Predictions, kind_of
from harness.paths import named_path, replacing
from harness.specs import Data, RowSet, Stage
from harness.tasks.inferred import QUESTIONS
from harness.tasks.reading import ending_of, text_rows

if TYPE_CHECKING:
    from harness.encoders.tokens import Tokeniser
    from harness.encoders.tokens.reading import Reading
    from harness.objectives.base import TrainingObjective

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
STANDARD_INPUT = Path("/dev/stdin")
Row = dict[str, Any]
ROWS = 2048
"""Rows that are read, predicted and written at a time."""


@dataclass(frozen=True)
class Classifier:
    """A trained model with all that a text needs. `kind`: what it predicts; `columns`: of its task, () where unknown."""

    name: str
    objective: TrainingObjective
    tokeniser: Tokeniser
    kind: Kind
    columns: tuple[str, ...]
    reading: Reading
    precision: str
    device: str

    def predictions(self, texts: Sequence[tuple[str, ...]]) -> Predictions:
        """In the order of the rows, with zeros for gold labels, by the evaluation of training: packed batches of similar lengths."""
        import torch

        from harness.training.loop import predict

        given = (self.reading.examples(texts, self.tokeniser), np.zeros(len(texts)))
        return predict(self.objective, given, self.precision, torch.device(self.device))[0]

    def columns_of(self, texts: Sequence[tuple[str, ...]]) -> list[Row]:
        """For each row the predicted class and each class's probability, or the predicted number."""
        columns = self.kind.columns(self.predictions(texts))
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def classifier(name: str, *, store: str | None = None, storage: str | None = None) -> Classifier:
    """By a folder ('harness export'), or by the beginning of a run's key. Raises UserError: a folder
    may be written by anyone, and whatever it leads the libraries to, in loading or with a first text, is one."""
    import torch

    torch.set_float32_matmul_precision("highest")
    path = named_path(name)
    if not path.is_dir() and not re.fullmatch("[0-9a-f]+", name):
        raise UserError(f"{name}: there is no such folder; name one that 'harness export' wrote, or the key of a run.")
    if not path.is_dir():
        run = recorded(store, name)
        if not run.stage.data.kind:
            raise UserError(f"{run.key[:12]} ({run.stage.phase}) predicts nothing; name a run that was fine-tuned.")
        return classifier_of(trained_model(run, None, storage=storage))
    try:
        model = _of_folder(path)
        model.columns_of([("a",) * (len(model.columns) or 1)])
        return model
    except UserError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"{path}: its files make no model ({why}); fetch or export it again.") from None


def _of_folder(folder: Path) -> Classifier:
    import torch

    from harness.encoders.models.pretrained_folder import read_head
    from harness.encoders.models.text_encoder import load_encoder
    from harness.encoders.tokens import Tokeniser
    from harness.encoders.tokens.reading import reading_of
    from harness.methods import objective
    from harness.methods.definition import HEAD
    from harness.objectives import build

    paths = (folder / SETTINGS, folder / "tokenizer_config.json")
    settings, tokenizer = (json_object(path) if path.exists() else {} for path in paths)
    columns = tuple(settings.get("columns", ()))
    stage = Stage.from_json(settings["stage"]) if "stage" in settings else None
    located = locate(f"{folder}/", where="predict")
    encoder, tokeniser = load_encoder(folder, located.encoder.digest, seed=0), Tokeniser(folder)
    if stage and stage.data.prompt and stage.data.kind:
        if stage.data.prompt.demonstrations:
            fix = f"name the run's key {stage.key[:12]}, or train with prompt.demonstrations set to false"
            raise UserError(f"{folder}: predicts beside training examples, which it does not hold; {fix}.")
        reading, kind = reading_of(stage.data), stage.data.kind
        made = build(stage.objective, encoder, tokeniser.vocabulary, kind, 0)
        made.take_training_set(reading.examples([("a",) * (len(columns) or 1)], tokeniser), np.zeros(1, np.int64))
    else:
        head = read_head(folder, encoder)
        if head is None:
            wanted = "classifier with a head like those that are trained here (first token, dense, tanh, linear)"
            raise UserError(f"{folder}: holds no {wanted}; name a folder that 'harness export' wrote of a run.")
        spans = ((stage and stage.data.spans) or SpanReading()) if head.per_token else None
        columns = columns or (QUESTIONS if spans else ())
        kind = kind_of(head.classes, spans=spans)
        made = build(objective("cross_entropy"), encoder, tokeniser.vocabulary, kind, 0)
        made.load_parts({f"{HEAD}/{name}": tensor for name, tensor in head.tensors.items()}, (HEAD,))
        positions = family_of(located.config).positions(located.config)
        length = int(min(tokenizer.get("model_max_length") or positions, positions))
        reading = reading_of(Data(RowSet("texts"), max_length=length, spans=spans))
    device, precision = "cuda" if torch.cuda.is_available() else "cpu", stage.optim.precision if stage else "fp32"
    return Classifier(str(folder), made.to(device), tokeniser, kind, columns, reading, precision, device)


def classifier_of(model: TrainedModel) -> Classifier:
    """A trained stage that predicts labels."""
    from harness.encoders.tokens.reading import reading_of

    stage, columns = model.stage, model.task.columns if model.task else ()
    kind, how = stage.data.kind, (reading_of(stage.data), stage.optim.precision, model.setup.device)
    assert kind is not None
    return Classifier(stage.key[:12], model.objective, model.tokeniser, kind, columns, *how)


def predict_file(
    model: Classifier,
    source: Path,
    target: Path | None,
    columns: tuple[str, ...] | None,
    progress: Callable[[int], None],
    size: int = ROWS,
) -> int:
    """Write the rows of `source` (`STANDARD_INPUT`: JSON lines) with what `model` predicts to `target`, which must be new, or print them as
    JSON lines (None); returns how many there were.

    `columns`: the text columns (None: those of the model's task). `progress`: called with the number of rows so far. `size`: rows that are
    read, predicted and written at a time. Raises UserError for a row without its texts, and writes no file then.
    """
    wanted, count, done = columns or model.columns, len(model.columns), 0
    if not wanted or len(wanted) != (count or len(wanted)):
        takes = f"takes {count} texts a row ({', '.join(model.columns)})" if count else "does not say what it takes"
        raise UserError(f"predict: {model.name} {takes}; name their columns with --text.")
    if target:
        check_new(target)
    rows = placed_rows(source, wanted)
    with writer(target) as write:
        while part := list(islice(rows, size)):
            write(_scored(model, part))
            done += len(part)
            progress(done)
        if not done:
            raise UserError(f"--input {source}: there are no rows in it.")
    return done


def predict_row(model: Classifier, texts: Sequence[str]) -> None:
    """Print one row of texts with what `model` predicts as a JSON line. Raises UserError for another number of texts than the model takes."""
    columns = model.columns or ("first", "second")[: len(texts)]
    if len(texts) != len(columns) or not all(text.strip() for text in texts):
        takes = f"{len(columns)} text(s) ({', '.join(columns)}), none blank"
        raise UserError(f"--row: the model takes {takes}; give each as one word in quotes.")
    with writer(None) as write:
        write(_scored(model, [("--row", dict(zip(columns, texts, strict=True)), tuple(texts))]))


def _scored(model: Classifier, part: Sequence[Placed]) -> list[Row]:
    found = list[Row]()
    for (place, row, _), more in zip(part, model.columns_of([texts for *_, texts in part]), strict=True):
        if double := next((name for name in more if name in row), None):
            raise UserError(f"{place}: has a column '{double}' already, which predict adds; rename it.")
        found.append({**row, **more})
    return found


# ------------------------------------------------------------------------------------------------------- rows of a file


Placed = tuple[str, Row, tuple[str, ...]]
"""Where a row is, the row by column, and its texts."""


def placed_rows(path: Path, columns: Sequence[str]) -> Iterator[Placed]:
    """The rows of a file, or of JSON lines on standard input, in their order, with the texts of `columns`. Raises UserError for a file that
    cannot be read or is not whole, and for a row whose texts are missing, no text, or all blank."""
    if path != STANDARD_INPUT:
        format_of(path, "--input")
        if not path.is_file():
            raise UserError(f"--input {path}: there is no such file.")
    return text_rows(path, columns, "name another with --text", whole=True)


def format_of(path: Path, flag: str) -> str:
    """The format by the file's ending. Raises UserError."""
    kind = ending_of(path).lower()
    if kind not in FORMATS or (path.suffix == ".gz" and kind == ".parquet"):
        raise UserError(f"{flag} {path}: write {', '.join(FORMATS)}; all but .parquet also with .gz.")
    return kind


def check_new(path: Path) -> None:
    """Raises UserError for an --output of another format, and for one that is there, unless it is a device or pipe."""
    format_of(path, "--output")
    if path.is_file() or path.is_dir():
        raise UserError(f"--output {path} exists already; name a new file, or delete that one.")


@contextmanager
def writer(path: Path | None) -> Iterator[Callable[[list[Row]], None]]:
    """Writes rows to a new file, by its ending, as `replacing` does; None: prints them as JSON lines. In JSON lines rows may have different fields; the columns
    of a CSV or TSV are those of the first part of them, and a column of Parquet has one type."""

    def lines(rows: Sequence[Row]) -> str:
        return "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)

    if path is None:
        yield lambda rows: print(lines(rows), end="", flush=True)
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    kind, made = format_of(path, "--output"), list[Any]()
    path.parent.mkdir(parents=True, exist_ok=True)
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with (
        replacing(path) as part,
        opener(os.devnull if kind == ".parquet" else part, "wt", encoding="utf-8", newline="") as file,
    ):

        def write(rows: list[Row]) -> None:
            names = list(dict.fromkeys(name for row in rows for name in row))
            try:
                if kind == ".jsonl":
                    file.write(lines(rows))
                elif kind == ".parquet":
                    table = pa.table({name: [row.get(name) for row in rows] for name in names})
                    made[:] = [pa.concat_tables([*made, table], promote_options="permissive")]
                else:
                    if not made:
                        made.append(csv.DictWriter(file, names, delimiter="\t" if kind == ".tsv" else ","))
                        made[0].writeheader()
                    made[0].writerows(rows)
            except (ValueError, TypeError) as error:  # of csv, and those of pyarrow
                other = f"rows have other columns or types than those before ({first_line(error)})"
                raise UserError(f"--output {path}: {other}; write .jsonl, which keeps them.") from None

        yield write
        if kind == ".parquet":
            pq.write_table(made[0], part)
