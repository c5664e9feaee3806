"""`harness report --format glue-submission`: the files that GLUE's server takes, of the run of each row that is best on dev."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from cli.command import write_csv

from harness.cli import main
from harness.commands import glue_submission
from harness.commands.glue_submission import SHEETS
from harness.store import Store
from harness.tasks.task import TASKS

ROWS = 21
LINE = "--table few_shot --methods ft --sizes 20 --subsets 0 --seeds 31,42 --data data --set max_length=32 --set fine_tune.steps=4 --set fine_tune.batch_size=8"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def report(workdir: Path, bert: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Tiny test sets in place of the official ones, trained in this process."""
    from cluster import in_process

    in_process.patch(monkeypatch)
    monkeypatch.setattr(glue_submission, "SHEETS", tuple(sheet._replace(rows=ROWS) for sheet in SHEETS))

    def run(*words: str) -> tuple[int, str, str]:
        status = main([words[0], *LINE.split(), "--encoder", str(bert), *words[1:]])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def labelled(root: Path, name: str, count: int, label: Callable[[int, int], str]) -> None:
    """A task's labelled files; `label`: of a row's number and the class that its words tell."""
    task = TASKS[name]
    rows, labels = tiny.texts(count, 1, pairs=len(task.columns) == 2)
    lines = [(*row, label(number, int(code))) for number, (row, code) in enumerate(zip(rows, labels, strict=True))]
    for split in ("train", task.splits.validation, *task.tests.values()):
        write_csv(
            root / name / f"{split}.csv", lines[:-50] if split == "train" else lines[-50:], (*task.columns, "label")
        )


def hidden(root: Path, folder: str, split: str, columns: tuple[str, ...], order: Any) -> None:
    """A test set without labels, in a given order of its indices."""
    rows, _ = tiny.texts(ROWS, 9, pairs=len(columns) == 2)
    write_csv(root / folder / f"{split}.csv", [(*rows[i], "-1", str(i)) for i in order], (*columns, "label", "idx"))


def sheet_of(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        header, *rows = csv.reader(file, delimiter="\t")
    assert header == ["index", "prediction"]
    return rows


def test_predictions_of_the_best_run_by_index(report: Run, workdir: Path) -> None:
    """SST-2 codes, MNLI names for both test sets and the diagnostic one, STS-B numbers from 0 to 5; the rest constant."""
    root = workdir / "data"
    labelled(root, "sst2", 150, lambda n, code: str(code))
    labelled(root, "mnli", 120, lambda n, code: str((n + code) % 3))
    labelled(root, "stsb", 120, lambda n, code: str(9.9 * code / 2))
    order = np.random.default_rng(3).permutation(ROWS)
    hidden(root, "sst2", "test", ("sentence",), order)
    hidden(root, "mnli", "test_matched", TASKS["mnli"].columns, order)
    hidden(root, "mnli", "test_mismatched", TASKS["mnli"].columns, range(ROWS))
    hidden(root, "ax", "test", TASKS["mnli"].columns, order)
    hidden(root, "stsb", "test", TASKS["stsb"].columns, order)
    assert report("bench", "--tasks", "sst2,mnli,stsb")[0] == 0
    status, out, err = report("report", "--tasks", "sst2,mnli,stsb", "--format", "glue-submission", "--out", "sent")
    assert status == 0, err
    assert sorted(path.name for path in (workdir / "sent").iterdir()) == ["FT", "FT.zip"]
    with zipfile.ZipFile("sent/FT.zip") as archive:
        assert sorted(archive.namelist()) == sorted(sheet.file for sheet in SHEETS)
        assert archive.read("SST-2.tsv") == Path("sent/FT/SST-2.tsv").read_bytes()
    sheets = {sheet.file: sheet_of(workdir / "sent" / "FT" / sheet.file) for sheet in SHEETS}
    for rows in sheets.values():
        assert [int(index) for index, _ in rows] == list(range(ROWS))
    assert {value for _, value in sheets["SST-2.tsv"]} <= {"0", "1"}
    assert {value for name in ("MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv") for _, value in sheets[name]} <= set(
        TASKS["mnli"].classes
    )
    assert all(0 <= float(value) <= 5 for _, value in sheets["STS-B.tsv"])
    # The same rows in two orders have the same predictions at the same indices.
    assert sheets["MNLI-m.tsv"] == sheets["MNLI-mm.tsv"] == sheets["AX.tsv"]
    constants = {"QQP.tsv": "0", "WNLI.tsv": "0", "RTE.tsv": "entailment", "QNLI.tsv": "entailment"}
    assert {name: {value for _, value in sheets[name]} for name in constants} == {n: {v} for n, v in constants.items()}
    assert (
        "Constant, because the server takes whole sets only, and no result: CoLA.tsv, MRPC.tsv, QQP.tsv, QNLI.tsv, RTE.tsv, WNLI.tsv."
        in out
    )
    assert out.count("best on dev of 2 runs") == 3
    assert out.count("predictions are those of the record, bit for bit") == 3
    # As `export --best` and `predict` have it.
    best = next(line for line in out.splitlines() if line.startswith("FT, sst2: run ")).split()[3]
    stored = {run["key"][:12]: run for run in Store("sqlite:///.harness/harness.db").recorded_runs()}
    assert best in stored
    assert sorted(path.name for path in workdir.iterdir()) == [".harness", "data", "sent"]
    for words, said in {
        "--tasks sst2 --format glue-submission --out sent": "--out sent exists already",
        "--tasks sst2 --format glue-submission": "--format glue-submission: name a new folder with --out",
        "--tasks sst2 --seeds 7 --format glue-submission --out x": "no run of FT on sst2 has finished",
        "--tasks sst2 --sizes 20,100 --format glue-submission --out x": "a submission is of one size",
        "--tasks sst2,movies --format glue-submission --out x": "movies is no task of GLUE's server",
    }.items():
        status, _, err = report("report", *words.split())
        assert (status, said in err) == (2, True), err
    check_files(report, workdir)


def check_files(report: Run, workdir: Path) -> None:
    """Test files that the server would refuse are refused before anything is written."""
    test = workdir / "data" / "sst2" / "test.csv"
    whole = test.read_text()
    words = ("report", "--tasks", "sst2", "--format", "glue-submission", "--out", "x")
    for content, said in (
        ("\n".join(whole.splitlines()[:-1]) + "\n", f"{ROWS - 1} rows, and GLUE's test set for SST-2.tsv has {ROWS}"),
        (whole.replace(",-1,0\n", ",-1,1\n"), f"has {ROWS}, which a column idx may number from 0; put the whole file"),
        ("", "there is no test.parquet, .csv or .jsonl, GLUE's test set for SST-2.tsv"),
    ):
        test.write_text(content) if content else test.unlink()
        status, _, err = report(*words)
        assert (status, said in err) == (2, True), err
        assert not (workdir / "x").exists()
