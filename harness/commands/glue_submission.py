"""Files for GLUE's evaluation server: of each row of a table the predictions of its selected runs for the hidden test sets."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.commands.predict import ROWS, Classifier, classifier_of
from harness.commands.prepare import Prepared
from harness.commands.recorded import recorded
from harness.commands.row_files import parts
from harness.commands.train import View
from harness.commands.trained import trained_model
from harness.errors import UserError
from harness.hub import Repository
from harness.paths import new_folder, replace_file
from harness.planning.starts import best_run
from harness.specs import Run
from harness.tasks import TASKS, Task
from harness.tasks.sources import HUB_DATASET, HUB_FILE, HUB_REVISION, file_of
from harness.wording import counted, listed

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


TestSet = tuple[list[int], list[tuple[str, ...]]]
"""The server's index of each row, and its texts."""


@dataclass(frozen=True)
class Selected:
    """A run of a row that is best on dev among those of its task. `done` of `runs` have finished."""

    run: Run
    dev: float
    done: int
    runs: int


def write_submissions(prepared: Prepared, out: Path, view: View) -> list[str]:
    """Write a set of files for each row as it is printed, to a folder ROW and ROW.zip in the folder `out`; `out` may be
    the .zip itself where there is one row. Sentences about what was written.

    Weights that are not stored are trained again, shown by `view`. Raises UserError, before anything is trained, for a task that is
    no part of GLUE, a cell without a finished run, and test files that are missing or have not the server's number of rows.
    """
    selected = _selected(prepared)
    archive = out.suffix == ".zip"
    if archive and len(selected) > 1:
        raise UserError(
            f"--out {out}: the table has {counted(len(selected), 'row')} ({', '.join(selected)}), and a submission is one; name a "
            f"folder, or one row with --methods."
        )
    if out.exists() and (archive or not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out} exists already; name a new one, or delete that one.")
    places = {row: _name(row) for row in selected}
    if twins := [row for row, place in places.items() if [*places.values()].count(place) > 1]:
        raise UserError(
            f"--out {out}: rows {listed(twins)} would be one folder, {places[twins[0]]}; name one of them with --methods."
        )
    tasks = dict.fromkeys(task for runs in selected.values() for task in runs)
    files = {sheet: path for sheet in SHEETS if sheet.task in tasks and (path := _file(prepared, sheet))}
    tests = {sheet.file: _test_set(path, sheet) for sheet, path in files.items()}
    sentences: list[str] = []
    with TemporaryDirectory() if archive else new_folder(out) as folder:
        for row, runs in selected.items():
            place = Path(folder, places[row])
            place.mkdir()
            sentences += _write(prepared, row, runs, place, tests, view)
            zipped = shutil.make_archive(str(place), "zip", place)  # the files at its root, as the server wants them
            if archive:
                out.parent.mkdir(parents=True, exist_ok=True)
                replace_file(out, Path(zipped).read_bytes())
    constant = [sheet.file for sheet in SHEETS if sheet.file not in tests]
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
            f"--tasks."
        )
    if len(resolved.sizes) > 1:
        raise UserError(
            f"--format {FORMAT}: a submission is of one size, and these are {', '.join(map(str, resolved.sizes))}; name one with "
            f"--sizes."
        )
    records = prepared.store.records([run.stage.key for run in plan.runs])
    titles = resolved.titles
    cells: dict[tuple[str, str], list[Run]] = {}
    for run in plan.runs_with_weights:
        cells.setdefault((titles[run.row], run.task), []).append(run)
    selected: dict[str, dict[str, Selected]] = {}
    for (row, task), runs in cells.items():
        best = best_run(runs, records)
        if best is None or best.stage.selection is None:
            raise UserError(
                f"--format {FORMAT}: no run of {row} on {task} has finished; run 'harness bench' with the same values first, or leave it "
                f"out with --tasks."
            )
        done = sum(run.stage.key in records and records[run.stage.key].status == "done" for run in runs)
        dev = records[best.stage.key].dev_scores[best.stage.selection.metric]
        selected.setdefault(row, {})[task] = Selected(best, dev, done, len(runs))
    if not selected:
        raise UserError(f"--format {FORMAT}: the table has no runs.")
    return selected


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
            f"with --tasks."
        )
    return found


def _test_set(path: Path, sheet: Sheet) -> TestSet:
    """The server's index of each row (column `idx` where there is one, else its place), and its texts. Raises UserError."""
    indices: list[int] = []
    texts: list[tuple[str, ...]] = []
    for part in parts(path, ROWS):
        for place, row in enumerate(part.rows):
            try:
                indices.append(int(row.get("idx", len(indices))))
            except (TypeError, ValueError):
                raise UserError(f"{part.place(place)}: idx is {row['idx']!r}, not a whole number.") from None
        texts += part.texts(TASKS[sheet.task].columns)
    if len(indices) != sheet.rows:
        raise UserError(
            f"{path}: {len(indices):,} rows, and GLUE's test set for {sheet.file} has {sheet.rows:,}; the server refuses another number. "
            "Put the whole file there."
        )
    if sorted(indices) != list(range(sheet.rows)):
        raise UserError(f"{path}: its column idx should number the rows from 0 to {sheet.rows - 1:,}, each once.")
    return indices, texts


# ------------------------------------------------------------------------------------------------------------ writing


def _write(
    prepared: Prepared,
    row: str,
    runs: Mapping[str, Selected],
    place: Path,
    tests: Mapping[str, TestSet],
    view: View,
) -> Iterator[str]:
    """The files of one row."""
    models: dict[str, Classifier] = {}
    for task, best in runs.items():
        stage = recorded(prepared.store.url, best.run.stage.key)
        model = trained_model(stage, view, storage=prepared.request.storage)
        models[task] = classifier_of(model)
        of = f"{best.done} of {best.runs} finished runs" if best.done < best.runs else counted(best.runs, "run")
        yield (
            f"{row}, {task}: run {best.run.stage.key[:12]} (subset {best.run.subset}, seed {best.run.seed}, dev {100 * best.dev:.2f}), the "
            f"best on dev of {of}. {' '.join(model.sentences)}"
        )
    for sheet in SHEETS:
        lines: Iterable[tuple[int, str]] = ((index, sheet.constant) for index in range(sheet.rows))
        if sheet.task in models and sheet.file in tests:
            indices, texts = tests[sheet.file]
            lines = sorted(zip(indices, _predictions(models[sheet.task], TASKS[sheet.task], texts), strict=True))
        text = "".join(f"{index}\t{value}\n" for index, value in lines)
        (place / sheet.file).write_text(f"index\tprediction\n{text}", encoding="utf-8")


def _predictions(model: Classifier, task: Task, texts: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """What the server wants of each row."""
    for start in range(0, len(texts), ROWS):
        decoded = model.predictions(texts[start : start + ROWS]).decoded
        if not task.classes:
            low, high = task.label_range or (0.0, 5.0)
            yield from (f"{min(max(float(value), low), high):.6f}" for value in decoded)
        else:
            yield from (task.classes[code] if task.name in NAMED else str(code) for code in decoded)


def _name(row: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", row).strip("_.") or "row"
