"""Rows of another system: beside the table's own, paired with them, marked; refused where their examples are others."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from cli.command import Said, command
from cli.conftest import Benched
from requested import resolve_table

import harness as python
from harness.errors import UserError
from harness.views.other_system import COLUMNS, Digests, read_other_system

Line = dict[str, Any]
Harness = Callable[..., Said]


@pytest.fixture
def harness(benched: Benched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Harness:
    """The command in the folder of the bench."""
    monkeypatch.chdir(benched.folder)
    return lambda *words: command(capsys, *words)


@pytest.fixture
def lines(harness: Harness) -> list[Line]:
    """A line of SetFit for each run of FT, a hundredth better, with the digests of `harness.plan(...).rows`."""
    results = python.results()
    ft = results[(results["row"] == "FT") & (results["metric"] == "accuracy")]
    plan = python.plan(
        "few_shot", tasks="sst2", data="data", encoder="bert-tiny", methods="ft", sizes=20, subsets=0, seeds=[31, 42]
    )
    digests = plan.rows.groupby(["split", "digest"]).size().index.to_frame(index=False)
    training, test = (digests[digests["split"] == split]["digest"].item() for split in ("train", "test"))
    return [
        {
            "system": "setfit 1.2.0",
            "row": "SetFit",
            **{name: run[name] for name in ("task", "size", "subset", "seed", "evaluation", "metric")},
            "test": run["test"] + 0.01,
            "train_digest": training,
            "test_digest": test,
        }
        for run in ft.to_dict("records")
    ]


def written(folder: Path, lines: list[Line]) -> Path:
    path = folder / "setfit.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(lines)
    return path


def test_its_rows_stand_in_the_table_and_are_marked(harness: Harness, lines: list[Line], tmp_path: Path) -> None:
    file = written(tmp_path, lines)
    plain = pd.read_csv(io.StringIO(harness("report --format csv").out))
    said = harness(f"report --other-system {file}")
    assert said.status == 0, said.err
    assert "SetFit [setfit 1.2.0]" in said.out
    assert "Not trained by harness: SetFit [setfit 1.2.0], from setfit.csv: scores of another system" in said.out
    both = pd.read_csv(io.StringIO(harness(f"report --other-system {file} --format csv").out))
    theirs = both[both["row"] == "SetFit [setfit 1.2.0]"]
    assert theirs["test"].tolist() == pytest.approx([line["test"] for line in lines])
    assert theirs["key"].isna().all()
    assert {*theirs["method"]} == {"setfit 1.2.0"}
    pd.testing.assert_frame_equal(
        both[both["row"] != "SetFit [setfit 1.2.0]"].reset_index(drop=True), plain, check_dtype=False
    )
    assert "SetFit" not in harness("report").out
    assert harness(f"report --other-system {file} --out {tmp_path}/page.html").status == 0
    assert "SetFit" in (tmp_path / "page.html").read_text()


def test_it_is_compared_pair_by_pair(harness: Harness, lines: list[Line], tmp_path: Path) -> None:
    file = written(tmp_path, lines)
    found = json.loads(harness(f"compare --other-system {file} --format json").out)["comparisons"]
    (mine,) = (each for each in found if each["row"] == "SetFit [setfit 1.2.0]")
    assert mine["against"] == "FT"
    assert mine["difference"] == pytest.approx(0.01)
    assert (mine["num_subsets"], mine["num_seeds"], mine["improvement"]) == (1, len(lines), 1.0)
    assert "SetFit" not in harness(f"report --view cost --other-system {file}").out, "its rows have scores alone"
    assert "test items are a factor" in harness(f"compare --items --other-system {file}").out.replace("\n", " ")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"train_digest": "0" * 32},
            r", line 2: was trained on other examples than this table's training set \(digest 0000000000, here",
        ),
        ({"test_digest": ""}, r", line 2: was tested on other examples than this table's test set \(digest missing"),
        ({"test": "61.4"}, r", line 2, column test: '61.4' is wrong: .* \(a score of 1 is 100 %\)"),
        ({"system": " "}, r", line 2, column system: ' ' is wrong"),
    ],
)
def test_a_line_that_does_not_fit_is_refused(
    harness: Harness, lines: list[Line], tmp_path: Path, change: Line, said: str
) -> None:
    file = written(tmp_path, [lines[0] | change, *lines[1:]])
    refused = harness(f"report --other-system {file}")
    assert refused.status == 2
    assert pd.Series([refused.err]).str.contains(f"{file}{said}").item(), refused.err


def test_a_file_that_does_not_fit_is_refused(harness: Harness, lines: list[Line], tmp_path: Path) -> None:
    def said(text: str) -> str:
        (tmp_path / "x.csv").write_text(text)
        refused = harness(f"report --other-system {tmp_path / 'x.csv'}")
        assert refused.status == 2
        return refused.err

    whole = written(tmp_path, lines).read_text()
    assert "has no column test_digest; its first line should be system,row,task" in said(
        whole.replace("test_digest", "digest")
    )
    assert "a second score of SetFit [setfit 1.2.0], sst2" in said(whole + whole.splitlines()[1] + "\n")
    assert "has no score at a task, size, subset and seed of this table" in said(whole.splitlines()[0])
    assert "there is no file" in harness(f"report --other-system {tmp_path / 'nowhere.csv'}").err


def test_a_table_that_judges_by_dev_takes_no_rows_without_dev_scores(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="table unlabelled judges its runs by scores on dev"):
        read_other_system(written(tmp_path, []), resolve_table("unlabelled"), Digests({}, {}))
