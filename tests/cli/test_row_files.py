"""Rows that are written back keep their values, also where they differ in fields and types, in one part or several."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.commands.row_files import writer

ROWS: list[dict[str, Any]] = [
    {"id": 1, "late": None, "mixed": 1, "large": 2**60 + 1, "text": 'a "b", c', "flag": True},
    {"id": 2.5, "late": None, "mixed": "x", "large": 0.5, "text": "two\nlines", "more": [1, 2]},
    {"id": 3, "late": "now", "mixed": None, "large": None, "text": "", "flag": False},
]
COLUMNS = ["id", "late", "mixed", "large", "text", "flag", "more"]


def written(path: Path, size: int) -> Path:
    with writer(path) as write:
        for start in range(0, len(ROWS), size):
            write(ROWS[start : start + size])
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    return path


@pytest.mark.parametrize("size", [1, 2, 3])
def test_parquet(size: int, tmp_path: Path) -> None:
    found = pq.read_table(written(tmp_path / "a.parquet", size)).to_pylist()
    assert list(found[0]) == COLUMNS
    plain = [name for name in COLUMNS if name not in ("mixed", "large")]
    assert [[row[name] for name in plain] for row in found] == [[row.get(name) for name in plain] for row in ROWS]
    assert [row["mixed"] for row in found] == ["1", "x", None]
    assert [row["large"] and json.loads(row["large"]) for row in found] == [2**60 + 1, 0.5, None], "no float holds both"


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_separated(name: str, size: int, tmp_path: Path) -> None:
    with written(tmp_path / name, size).open(newline="") as file:
        found = list(csv.DictReader(file, delimiter="\t" if name == "a.tsv" else ","))
    assert list(found[0]) == COLUMNS
    empty = dict.fromkeys(COLUMNS, "")
    told = [{name: "" if value is None else str(value) for name, value in row.items()} for row in ROWS]
    assert found == [empty | row for row in told]


@pytest.mark.parametrize("size", [1, 3])
def test_json_lines(size: int, tmp_path: Path) -> None:
    lines = written(tmp_path / "a.jsonl", size).read_text().splitlines()
    assert [json.loads(line) for line in lines] == ROWS


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.jsonl"])
def test_what_fails_on_the_way_leaves_nothing(name: str, tmp_path: Path) -> None:
    def fail() -> None:
        with writer(tmp_path / name) as write:
            write(ROWS)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [*tmp_path.iterdir()] == []
