"""Files for GLUE's evaluation server: of each row of a table the predictions of its selected runs for the hidden test sets."""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.commands.export import new_folder
from harness.commands.predict import ROWS, Classifier, classifier_of
from harness.commands.prepare import Prepared
from harness.commands.recorded import recorded, task_of
from harness.commands.row_files import parts
from harness.commands.trained import View, trained_model
from harness.errors import UserError
from harness.hub import Repository
from harness.specs import Run
from harness.tables.caption import counted
from harness.tables.waves import best_run
from harness.tasks import TASKS, Task
from harness.tasks.sources import HUB_DATASET, HUB_FILE, HUB_REVISION, file_of

FORMAT = "glue-submission"


@dataclass(frozen=True)
class Sheet:
    """One file of a submission. `task`: whose model predicts it ('': the bench has no such task); `folder`, `split`: where its rows
    are; `rows`: how many the server expects; `constant`: what stands in every row where there is no model."""

    file: str
    task: str
    folder: str
    split: str
    rows: int
    constant: str


# Source of names, header and labels: gluebenchmark.com/faq, as nyu-mll's own writer follows it (nyu-mll/jiant,
# scripts/benchmarks: "CoLA.tsv" ... "AX.tsv", header "index\tprediction", names of classes for MNLI, QNLI, RTE and AX, codes for the
# others); of the numbers of rows: the card of nyu-mll/glue on the hub.
SHEETS = (
    Sheet("CoLA.tsv", "cola", "cola", "test", 1063, "0"),
    Sheet("SST-2.tsv", "sst2", "sst2", "test", 1821, "0"),
    Sheet("MRPC.tsv", "mrpc", "mrpc", "test", 1725, "0"),
    Sheet("STS-B.tsv", "stsb", "stsb", "test", 1379, "0.000000"),
    Sheet("QQP.tsv", "qqp", "qqp", "test", 390965, "0"),
    Sheet("MNLI-m.tsv", "mnli", "mnli", "test_matched", 9796, "entailment"),
    Sheet("MNLI-mm.tsv", "mnli", "mnli", "test_mismatched", 9847, "entailment"),
    Sheet("QNLI.tsv", "qnli", "qnli", "test", 5463, "entailment"),
    Sheet("RTE.tsv", "rte", "rte", "test", 3000, "entailment"),
    Sheet("WNLI.tsv", "", "wnli", "test", 146, "0"),
    Sheet("AX.tsv", "mnli", "ax", "test", 1104, "entailment"),
)
NAMED = ("mnli", "qnli", "rte")
"""Tasks whose classes the server wants by name."""
OPTIONAL = "AX.tsv"
"""The diagnostic set: it counts for no score, so that a folder without it will do."""


@dataclass(frozen=True)
class Selected:
    """A run of a row that is best on dev among those of its task. `done` of `runs` have finished."""

    run: Run
    dev: float
    done: int
    runs: int


def write_submissions(prepared: Prepared, out: Path, view: View) -> list[str]:
    """Write a set of files for each row as it is printed, to a folder ROW and ROW.zip in the folder `out`, or where there is one row,
    to `out` itself, which may be a .zip. Sentences about what was written.

    Weights that are not stored are trained again, shown by `view`. Raises UserError, before anything is trained, for a task that is
    no part of GLUE, a cell without a finished run, and test files that are missing or have not the server's number of rows.
    """
    selected = _selected(prepared)
    archive = out.suffix == ".zip"
    if archive and len(selected) > 1:
        raise UserError(
            f"--out {out}: the table has {counted(len(selected), 'row')} ({', '.join(selected)}), and a submission is one; name a "
            f"folder, or one row with {prepared.request.option('methods')}."
        )
    if out.exists() and (archive or not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out}: is there already; name a new one, or delete that one.")
    tasks = dict.fromkeys(task for runs in selected.values() for task in runs)
    files = {sheet.file: found for sheet in SHEETS if sheet.task in tasks and (found := _file(prepared, sheet))}
    indices = {sheet.file: _indices(files[sheet.file], sheet) for sheet in SHEETS if sheet.file in files}
    sentences: list[str] = []
    with new_folder(out.with_suffix("") if archive else out) as folder:
        for row, runs in selected.items():
            place = folder / _name(row)
            place.mkdir()
            sentences += _write(prepared, row, runs, place, files, indices, view)
            _zip(place, folder / f"{_name(row)}.zip")
        if archive:
            shutil.move(next(folder.glob("*.zip")), out)
            for path in folder.iterdir():
                shutil.rmtree(path)
    if archive:
        out.with_suffix("").rmdir()
    constant = [sheet.file for sheet in SHEETS if sheet.file not in files]
    sentences.append(
        f"Constant, because the server takes whole sets only: {', '.join(constant)}. Their scores, and the overall score, say nothing of "
        "these models."
    )
    return sentences


def _selected(prepared: Prepared) -> dict[str, dict[str, Selected]]:
    """Of each printed row and task the run that is best on dev, among all its configurations. Raises UserError."""
    plan, resolved = prepared.plan, prepared.resolved
    known = {sheet.task for sheet in SHEETS} - {""}
    if others := [task for task in resolved.tasks if task not in known]:
        raise UserError(
            f"--format {FORMAT}: {', '.join(others)} is no task of GLUE's server; name some of {', '.join(sorted(known))} with "
            f"{prepared.request.option('tasks')}."
        )
    if len(resolved.sizes) > 1:
        raise UserError(
            f"--format {FORMAT}: a submission is of one size, and these are {', '.join(map(str, resolved.sizes))}; name one with "
            f"{prepared.request.option('sizes')}."
        )
    records = prepared.store.records([run.stage.key for run in plan.runs])
    titles = resolved.titles
    found: dict[str, dict[str, Selected]] = {}
    cells: dict[tuple[str, str], list[Run]] = {}
    for run in plan.runs:
        cells.setdefault((titles[run.row], run.task), []).append(run)
    for (row, task), runs in cells.items():
        best = best_run(runs, records)
        if best is None or best.stage.selection is None:
            raise UserError(
                f"--format {FORMAT}: no run of {row} on {task} has finished; run 'harness bench' with the same values first, or leave it "
                f"out with {prepared.request.option('tasks')}."
            )
        done = sum(run.stage.key in records and records[run.stage.key].status == "done" for run in runs)
        dev = records[best.stage.key].dev_scores[best.stage.selection.metric]
        found.setdefault(row, {})[task] = Selected(best, dev, done, len(runs))
    if not found:
        raise UserError(f"--format {FORMAT}: the table has no runs.")
    return found


# --------------------------------------------------------------------------------------------------------- test files


def _file(prepared: Prepared, sheet: Sheet) -> Path | None:
    """The file of a hidden test set; None for the diagnostic one where it is not at hand. Raises UserError."""
    data = prepared.named.request.data
    if data is None or data == "hub":
        otherwise = f"name a folder that has {sheet.folder}/{sheet.split}.parquet by --data DIR"
        glue = Repository("dataset", HUB_DATASET, f"--format {FORMAT}", otherwise, HUB_REVISION)
        return glue.fetch(HUB_FILE.format(task=sheet.folder, split=sheet.split))
    place = Path(data).expanduser() / sheet.folder
    found = file_of(place, sheet.split)
    if found is None and sheet.file != OPTIONAL:
        raise UserError(
            f"{place}: there is no {sheet.split}.parquet, .csv or .jsonl, GLUE's test set for {sheet.file}; add it, or leave the task out "
            f"with {prepared.request.option('tasks')}."
        )
    return found


def _indices(path: Path, sheet: Sheet) -> list[int]:
    """The server's index of each row: column `idx` where there is one, else its place. Raises UserError."""
    found: list[int] = []
    for part in parts(path, ROWS):
        for row, place in zip(part.rows, part.places, strict=True):
            try:
                found.append(int(row.get("idx", len(found))))
            except (TypeError, ValueError):
                raise UserError(f"{place}: idx is {row['idx']!r}, not a whole number.") from None
    if len(found) != sheet.rows:
        raise UserError(
            f"{path}: {len(found):,} rows, and GLUE's test set for {sheet.file} has {sheet.rows:,}; the server refuses another number. "
            "Put the whole file there."
        )
    if sorted(found) != list(range(sheet.rows)):
        raise UserError(f"{path}: its column idx should number the rows from 0 to {sheet.rows - 1:,}, each once.")
    return found


# ------------------------------------------------------------------------------------------------------------ writing


def _write(
    prepared: Prepared,
    row: str,
    runs: Mapping[str, Selected],
    place: Path,
    files: Mapping[str, Path],
    indices: Mapping[str, Sequence[int]],
    view: View,
) -> Iterator[str]:
    """The files of one row."""
    models: dict[str, Classifier] = {}
    for task, best in runs.items():
        models[task], checked = _model(prepared, best.run, view)
        of = f"{best.done} of {best.runs} finished runs" if best.done < best.runs else counted(best.runs, "run")
        yield (
            f"{row}, {task}: run {best.run.stage.key[:12]} (subset {best.run.subset}, seed {best.run.seed}, dev {100 * best.dev:.2f}), the "
            f"best on dev of {of}. {' '.join(checked)}"
        )
    for sheet in SHEETS:
        if sheet.task in models and sheet.file in files:
            predicted = _predictions(models[sheet.task], TASKS[sheet.task], files[sheet.file])
            lines = sorted(zip(indices[sheet.file], predicted, strict=True))
        else:
            lines = [(index, sheet.constant) for index in range(sheet.rows)]
        text = "".join(f"{index}\t{value}\n" for index, value in lines)
        (place / sheet.file).write_text(f"index\tprediction\n{text}", encoding="utf-8")


def _model(prepared: Prepared, run: Run, view: View) -> tuple[Classifier, tuple[str, ...]]:
    from harness.encoders.tokens import Tokeniser

    model = trained_model(recorded(prepared.store.url, run.stage.key), view, storage=prepared.request.storage)
    stage = model.prepared.plan.stages[run.stage.key]
    tokeniser = Tokeniser(model.setup.encoder_folder)
    task = task_of(stage, model.prepared.plan)
    return classifier_of(stage, task, model.objective, tokeniser, model.setup.device), model.sentences


def _predictions(model: Classifier, task: Task, path: Path) -> Iterator[str]:
    """What the server wants of each row, in the file's order."""
    for part in parts(path, ROWS):
        logits = model.logits(part.texts(task.columns))
        if task.regression:
            low, high = task.label_range or (0.0, 5.0)
            yield from (f"{min(max(float(value), low), high):.6f}" for value in logits[:, 0])
        else:
            yield from (task.classes[code] if task.name in NAMED else str(code) for code in logits.argmax(axis=1))


def _zip(folder: Path, target: Path) -> None:
    """The files at the root of the archive, as the server wants them."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for sheet in SHEETS:
            archive.write(folder / sheet.file, sheet.file)


def _name(row: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", row).strip("_.") or "row"
