"""A published file of results printed by itself."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd
import pytest
from cli.command import command

PUBLISHED = sorted((Path(__file__).resolve().parents[2] / "results").glob("*/results.csv"))


@pytest.mark.parametrize("file", PUBLISHED, ids=lambda file: file.parent.name)
def test_cells_are_the_means_of_the_files_runs(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.read_csv(file)
    said = command(capsys, f"report --results {file} --format csv")
    assert said.status == 0
    cells = pd.read_csv(io.StringIO(said.out)).set_index(["size", "row", "column", "metric"])
    done = frame[frame["status"] == "done"]
    for place, cell in cells.iterrows():
        runs = done[(done[["size", "row", "column", "metric"]] == list(place)).all(axis=1)]["test"]  # type: ignore[call-overload]
        assert [cell["mean"], cell["runs"]] == pytest.approx([runs.mean(), len(runs)])
    assert len(cells) == len(done.drop_duplicates(["size", "row", "column"]))
    text = command(capsys, f"report --results {file.parent}").out
    assert text == command(capsys, f"report --results {file}").out, "a folder is its file"
    assert "of each class" in text, "what a size counts is not in the file"
    first = cells.iloc[0]
    assert f"{100 * first['mean']:.2f} ± {100 * first['std']:.2f} ({first['runs']:.0f})" in text
    assert len(json.loads(command(capsys, f"report --results {file} --format json").out)["cells"]) == len(cells)


def test_flags_of_a_table_and_other_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.csv"
    file.write_text("row,test\nFT,0.5\n")
    assert (
        "x.csv: is not a file of results of 'harness report' (it has no column size"
        in command(capsys, f"report --results {file}").err
    )
    said = command(capsys, f"report --results {file} --tasks sst2")
    assert said.status == 2
    assert "--results prints a file by itself, which --tasks cannot change" in said.err
