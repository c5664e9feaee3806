"""`report --view figure`, and the runs that tables share in a plan: nothing is trained."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from harness.cli import main


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--table", "few_shot", "--view", "figure", "--format", "csv"], "table few_shot has no figure"),
        (["--table", "views", "--format", "svg"], "results: there is nothing to draw; take another format than svg"),
        (["--view", "figur"], "--view: invalid choice: 'figur'"),
    ],
)
def test_wrong_words_say_what_to_do(
    words: list[str], says: str, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *words]) == 2
    assert says in capsys.readouterr().err


def test_an_empty_figure_says_what_is_missing(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--table", "views", "--view", "figure", "--format", "csv"]) == 1
    out, _ = capsys.readouterr()
    assert [row["x"] for row in csv.DictReader(io.StringIO(out))] == ["1.0", "2.0", "3.0", "4.0", "5.0"]
