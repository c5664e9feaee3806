"""The command in this process, and small folders of data for it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from views.runs import commit

from harness.cli import main
from harness.commands.prepare import Prepared
from harness.commands.train import Show
from harness.planning.work import Event
from harness.store import Store

MOVIES = "--table few_shot --tasks movies --sizes 20 --subsets 0 --methods ft"
SST2 = "--table few_shot --tasks sst2 --sizes 20 --subsets 0 --methods ft"


class TrainingStartedError(Exception):
    """A test's stand-in for a Ray session."""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@dataclass(frozen=True)
class Said:
    status: int
    out: str
    err: str


def command(capsys: pytest.CaptureFixture[str], *words: str) -> Said:
    """One string is split at spaces."""
    capsys.readouterr()
    try:
        status = main(words[0].split() if len(words) == 1 else words)
    except SystemExit as error:  # --help and --version
        status = int(error.code or 0)
    out, err = capsys.readouterr()
    return Said(status, out, err)


def record_all(prepared: Prepared, show: Show, **_: Any) -> Prepared:
    """Records with made-up predictions instead of training, in a store as a bench leaves it."""
    prepared.store = Store(prepared.store.url)
    prepared.remember()
    with show(prepared, "") as shown:
        for item in prepared.items:
            shown(Event("started", item))
            if not item.remake:
                commit(prepared.store, item.stage, selected_step=1, tied=1)
            shown(Event("done", item))
    return prepared


def sst2(count: int, start: int = 0) -> list[tuple[str, str]]:
    """Rows of (sentence, label)."""
    return [(f"Sentence number {i}, told plainly.", str(i % 2)) for i in range(start, start + count)]


def write_csv(path: Path, rows: Sequence[Sequence[str]], header: Sequence[str] = ("sentence", "label")) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def data_folder(root: Path) -> Path:
    """A folder with a small, good sst2."""
    write_csv(root / "sst2" / "train.csv", sst2(40))
    write_csv(root / "sst2" / "validation.csv", sst2(30, 1000))
    return root
