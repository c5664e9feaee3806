"""Rows that are written back keep their values, also where they differ in fields and types, in one part or several."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.commands.row_files import writer
from harness.errors import UserError

ROWS: list[dict[str, Any]] = [
    {"id": 1, "late": None, "text": 'a "b", c', "flag": True},
    {"id": 2.5, "late": None, "text": "two\nlines", "more": [1, 2]},
    {"id": 3, "late": "now", "text": "", "flag": False},
]
COLUMNS = ["id", "late", "text", "flag", "more"]


def written(path: Path, size: int) -> Path:
    with writer(path) as write:
        for start in range(0, len(ROWS), size):
            write(ROWS[start : start + size])
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    return path


@pytest.mark.parametrize("size", [1, 2, 3])
def test_parquet(size: int, tmp_path: Path) -> None:
    found = pq.read_table(written(tmp_path / "a.parquet", size)).to_pylist()
    assert set(found[0]) == set(COLUMNS)
    assert [[row[name] for name in COLUMNS] for row in found] == [[row.get(name) for name in COLUMNS] for row in ROWS]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_separated(name: str, tmp_path: Path) -> None:
    with written(tmp_path / name, 3).open(newline="") as file:
        found = list(csv.DictReader(file, delimiter="\t" if name == "a.tsv" else ","))
    assert list(found[0]) == COLUMNS
    empty = dict.fromkeys(COLUMNS, "")
    told = [{name: "" if value is None else str(value) for name, value in row.items()} for row in ROWS]
    assert found == [empty | row for row in told]


@pytest.mark.parametrize(("name", "rows"), [("a.csv", ROWS), ("a.parquet", [{"id": 1}, {"id": "x"}])])
def test_other_columns_or_types_in_a_later_part_are_refused(name: str, rows: Any, tmp_path: Path) -> None:
    def write_all() -> None:
        with writer(tmp_path / name) as write:
            for row in rows:
                write([row])

    with pytest.raises(UserError, match=r"write \.jsonl, which keeps them"):
        write_all()
    assert [*tmp_path.iterdir()] == []


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
