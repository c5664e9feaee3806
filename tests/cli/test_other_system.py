"""Rows of another system: beside the table's own, paired with them, marked; refused where their examples are others."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from cli.conftest import Harness
from requested import resolve_table

import harness as python
from harness.errors import UserError
from harness.views.other_system import COLUMNS, read_other_system

Line = dict[str, Any]


@pytest.fixture
def lines(at_bench: Harness) -> list[Line]:
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


def test_its_rows_stand_in_the_table_and_are_marked(at_bench: Harness, lines: list[Line], tmp_path: Path) -> None:
    file = written(tmp_path, lines)
    plain = pd.read_csv(io.StringIO(at_bench("report --format csv").out))
    said = at_bench(f"report --other-system {file}")
    assert said.status == 0, said.err
    assert "SetFit [setfit 1.2.0]" in said.out
    assert "Not trained by harness: SetFit [setfit 1.2.0], from setfit.csv: scores of another system" in said.out
    both = pd.read_csv(io.StringIO(at_bench(f"report --other-system {file} --format csv").out))
    theirs = both[both["row"] == "SetFit [setfit 1.2.0]"]
    assert theirs["test"].tolist() == pytest.approx([line["test"] for line in lines])
    assert theirs["key"].isna().all()
    assert {*theirs["method"]} == {"setfit 1.2.0"}
    pd.testing.assert_frame_equal(
        both[both["row"] != "SetFit [setfit 1.2.0]"].reset_index(drop=True), plain, check_dtype=False
    )
    assert "SetFit" not in at_bench("report").out
    assert at_bench(f"report --other-system {file} --out {tmp_path}/page.html").status == 0
    assert "SetFit" in (tmp_path / "page.html").read_text()


def test_it_is_compared_pair_by_pair(at_bench: Harness, lines: list[Line], tmp_path: Path) -> None:
    file = written(tmp_path, lines)
    found = json.loads(at_bench(f"compare --other-system {file} --format json").out)["comparisons"]
    (mine,) = (each for each in found if each["row"] == "SetFit [setfit 1.2.0]")
    assert mine["against"] == "FT"
    assert mine["difference"] == pytest.approx(0.01)
    assert (mine["num_subsets"], mine["num_seeds"], mine["improvement"]) == (1, len(lines), 1.0)
    assert "SetFit" not in at_bench(f"report --view cost --other-system {file}").out, "its rows have scores alone"


def test_what_does_not_fit_is_refused(at_bench: Harness, lines: list[Line], tmp_path: Path) -> None:
    """A line whose examples or score are others, and a file that is another one."""
    whole = written(tmp_path, lines).read_text()
    other, first, (head, line, *_) = tmp_path / "x.csv", lines[0], whole.splitlines()
    training = "was trained on other examples (digest 0000000000, here"
    for text, said in {
        whole.replace(first["train_digest"], "0" * 32): f"{other}, line 2: {training}",
        whole.replace(first["test_digest"], ""): "line 2: was tested on other examples (digest missing",
        whole.replace(f",{first['test']},", ",61.4,"): "line 2, column test: '61.4' is wrong: ",
        whole.replace("setfit 1.2.0", " "): "line 2, column system: ' ' is wrong",
        whole.replace("test_digest", "digest"): "has no column test_digest; its first line should be system,row,task",
        f"{whole}{line}\n": "there is a score of SetFit [setfit 1.2.0], sst2",
        head: "has no score at a task, size, subset and seed of this table",
    }.items():
        other.write_text(text)
        refused = at_bench(f"report --other-system {other}")
        assert (refused.status, said in refused.err) == (2, True), refused.err
    assert "there is no file" in at_bench(f"report --other-system {tmp_path / 'nowhere.csv'}").err


def test_a_table_that_judges_by_dev_takes_no_rows_without_dev_scores(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unlabelled has cells by scores on dev"):
        read_other_system(written(tmp_path, []), resolve_table("unlabelled"), {})
