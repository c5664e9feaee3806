"""Files for GLUE's evaluation server: of each row of a table the predictions of its selected runs for the hidden test sets."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from harness.commands.predict import classifier_of, placed_rows
from harness.commands.prepare import Prepared
from harness.commands.recorded import StageRecord
from harness.commands.train import Show
from harness.commands.trained import trained_model
from harness.errors import UserError
from harness.hub import Repository
from harness.paths import check_new_folder, new_folder
from harness.planning.runs import best_run
from harness.specs import Run
from harness.tasks.sources import HUB_FILE, HUB_REVISION, file_of
from harness.tasks.task import GLUE, TASKS, Task
from harness.wording import counted, in_points, listed

FORMAT = "--format glue-submission"


class Sheet(NamedTuple):
    """One file of a submission. `task`: whose model predicts it ('': the bench has no such task); `folder`, `split`: where its rows are;
    `rows`: how many the server expects."""

    file: str
    task: str
    folder: str
    split: str
    rows: int


# Source of names, header and labels: gluebenchmark.com/faq, as nyu-mll's own writer follows it (nyu-mll/jiant,
# scripts/benchmarks: "CoLA.tsv" ... "AX.tsv", header "index\tprediction", names of classes for MNLI, QNLI, RTE and AX, codes for the
# others); of the numbers of rows: the card of nyu-mll/glue on the hub.
SHEETS = (
    Sheet("CoLA.tsv", "cola", "cola", "test", 1063),
    Sheet("SST-2.tsv", "sst2", "sst2", "test", 1821),
    Sheet("MRPC.tsv", "mrpc", "mrpc", "test", 1725),
    Sheet("STS-B.tsv", "stsb", "stsb", "test", 1379),
    Sheet("QQP.tsv", "qqp", "qqp", "test", 390965),
    Sheet("MNLI-m.tsv", "mnli", "mnli", "test_matched", 9796),
    Sheet("MNLI-mm.tsv", "mnli", "mnli", "test_mismatched", 9847),
    Sheet("QNLI.tsv", "qnli", "qnli", "test", 5463),
    Sheet("RTE.tsv", "rte", "rte", "test", 3000),
    Sheet("WNLI.tsv", "", "wnli", "test", 146),
    Sheet("AX.tsv", "mnli", "ax", "test", 1104),
)


def write_submissions(prepared: Prepared, out: Path, show: Show) -> list[str]:
    """Write a set of files for each row as it is printed, to a folder ROW and ROW.zip in the new folder `out`. Sentences about what was written.

    Weights that are not stored are trained again, shown by `show`. Raises UserError, before anything is trained, for a task that is
    no part of GLUE, a cell without a finished run, and test files that are missing or have not the server's number of rows.
    """
    best = _best_runs(prepared)
    check_new_folder(out)
    places = {row: re.sub(r"[^\w.+-]+", "_", row).strip("_.") or "row" for row, _ in best}
    if twins := [row for row, place in places.items() if [*places.values()].count(place) > 1]:
        raise UserError(f"--out {out}: rows {listed(twins)} would be one folder; name one of them with --methods.")
    tasks, sentences = {task for _, task in best}, list[str]()
    found = {sheet: _file(prepared, sheet) for sheet in SHEETS if sheet.task in tasks}
    tests = {sheet: _test_set(path, sheet) for sheet, path in found.items() if path}
    with new_folder(out) as folder:
        for row, place in places.items():
            (folder / place).mkdir()
            for sheet in (sheet for sheet in SHEETS if sheet not in tests or (row, sheet.task) not in best):
                _write(folder / place / sheet.file, [_answer(TASKS.get(sheet.task), 0)] * sheet.rows)
            for task, (run, of) in ((task, each) for (mine, task), each in best.items() if mine == row):
                record = prepared.store.records([run.stage.key], predictions=True)[run.stage.key]
                stage = StageRecord(prepared.store, run.stage, record, planned=prepared)
                model = trained_model(stage, show, storage=prepared.request.storage)
                sentences.append(f"{row}, {task}: run {run.stage.key[:12]} {of}. {model.sentence}")
                for sheet, texts in ((sheet, texts) for sheet, texts in tests.items() if sheet.task == task):
                    decoded = classifier_of(model).predictions(texts).decoded
                    _write(folder / place / sheet.file, [_answer(TASKS[task], each) for each in decoded])
            shutil.make_archive(str(folder / place), "zip", folder / place)  # the files at its root
    constant = ", ".join(sheet.file for sheet in SHEETS if sheet not in tests)
    return [*sentences, f"Constant, because the server takes whole sets only, and no result: {constant}."]


def _best_runs(prepared: Prepared) -> dict[tuple[str, str], tuple[Run, str]]:
    """The run of each printed row and task that is best on dev, among all configurations of the row, and which it is, in words. Raises UserError where the
    server takes no such table, or no run of a cell has finished."""
    plan, resolved = prepared.plan, prepared.resolved
    known = {sheet.task for sheet in SHEETS} - {""}
    if others := [task for task in resolved.tasks if task not in known]:
        some = ", ".join(sorted(known))
        raise UserError(f"{FORMAT}: {', '.join(others)} is no task of GLUE's server; name some of {some} with --tasks.")
    if len(resolved.sizes) > 1:
        sizes = listed(map(str, resolved.sizes))
        raise UserError(f"{FORMAT}: a submission is of one size, not of {sizes}; name one with --sizes.")
    cells = defaultdict[tuple[str, str], list[Run]](list)
    for run in plan.runs_with_weights:
        cells[resolved.titles[run.row], run.task].append(run)
    records, found = prepared.store.records([run.stage.key for run in plan.runs]), {}
    for cell, runs in (cells or {("the table", ""): []}).items():
        best = best_run(runs, records)
        if best is None or best.stage.selection is None:
            place = " on ".join(filter(None, cell))
            raise UserError(f"{FORMAT}: no run of {place} has finished; run it first, or leave it out with --tasks.")
        done = sum(run.stage.key in records and records[run.stage.key].status == "done" for run in runs)
        of = f"{done} of {len(runs)} finished runs" if done < len(runs) else counted(len(runs), "run")
        dev = in_points(records[best.stage.key].dev_scores[best.stage.selection.metric])
        found[cell] = best, f"(subset {best.subset}, seed {best.seed}, dev {dev}), the best on dev of {of}"
    return found


def _file(prepared: Prepared, sheet: Sheet) -> Path | None:
    """The file of a hidden test set; None for the diagnostic one where it is not at hand. Raises UserError."""
    data = prepared.request.data
    if data is None or data == "hub":
        otherwise = f"name a folder that has {sheet.folder}/{sheet.split}.parquet by --data DIR"
        glue = Repository("dataset", GLUE, FORMAT, otherwise, HUB_REVISION)
        return glue.fetch(HUB_FILE.format(task=sheet.folder, split=sheet.split))
    place = Path(data).expanduser() / sheet.folder
    found = file_of(place, sheet.split)
    if found is None and sheet.folder != "ax":  # which counts for no score
        missing = f"there is no {sheet.split}.parquet, .csv or .jsonl, GLUE's test set for {sheet.file}"
        raise UserError(f"{place}: {missing}; add it, or leave the task out with --tasks.")
    return found


def _test_set(path: Path, sheet: Sheet) -> list[tuple[str, ...]]:
    """The texts in the server's order, which column `idx` numbers where there is one. Raises UserError."""
    rows = [*placed_rows(path, TASKS[sheet.task].columns)]
    texts = {str(row.get("idx", number)): texts for number, (_, row, texts) in enumerate(rows)}
    order = [*map(str, range(sheet.rows))]
    if len(rows) != sheet.rows or {*order} != texts.keys():
        whole = f"GLUE's test set for {sheet.file} has {sheet.rows:,}, which a column idx may number from 0"
        raise UserError(f"{path}: {len(rows):,} rows, and {whole}; put the whole file there.")
    return [texts[index] for index in order]


def _answer(task: Task | None, predicted: float) -> str:
    """What the server wants of a predicted code or score: of three tasks the class by name."""
    if task is None or task.classes:
        return task.classes[int(predicted)] if task and task.name in ("mnli", "qnli", "rte") else str(int(predicted))
    low, high = task.kind.scale or (0.0, 5.0)
    return f"{min(max(float(predicted), low), high):.6f}"


def _write(path: Path, values: Iterable[str]) -> None:
    lines = "".join(f"{index}\t{value}\n" for index, value in enumerate(values))
    path.write_text(f"index\tprediction\n{lines}", encoding="utf-8")
