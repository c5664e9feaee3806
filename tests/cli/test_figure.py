"""`report --figure`, and the runs that tables share in a plan: nothing is trained."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from harness.cli import main


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--figure", "view", "--format", "csv"], "unknown figure 'view'. Did you mean 'views'?"),
        (["--figure", "views"], "a figure is png, svg, pdf or csv; add --format png"),
        (["--figure", "views", "--table", "few_shot", "--format", "csv"], "leave --table few_shot out"),
        (["--table", "views", "--format", "svg"], "name a figure with --figure NAME"),
    ],
)
def test_wrong_words_say_what_to_do(
    words: list[str], says: str, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *words]) == 2
    assert says in capsys.readouterr().err


def test_an_empty_figure_says_what_is_missing(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--figure", "views", "--format", "csv"]) == 1
    out, err = capsys.readouterr()
    assert "0 of 5 points are drawn" in err
    assert [row["x"] for row in csv.DictReader(io.StringIO(out))] == ["1.0", "2.0", "3.0", "4.0", "5.0"]
