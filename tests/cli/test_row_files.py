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


@pytest.mark.parametrize(
    ("name", "size"), [("a.parquet", 1), ("a.parquet", 2), ("a.csv", 3), ("a.tsv", 3), ("a.jsonl", 2)]
)
def test_rows_come_back(name: str, size: int, tmp_path: Path) -> None:
    path = written(tmp_path / name, size)
    expected = [{column: row.get(column) for column in COLUMNS} for row in ROWS]
    if path.suffix == ".parquet":
        assert pq.read_table(path).to_pylist() == expected
    elif path.suffix == ".jsonl":
        assert [json.loads(line) for line in path.read_text().splitlines()] == ROWS
    else:
        with path.open(newline="") as file:
            found = list(csv.DictReader(file, delimiter="\t" if name == "a.tsv" else ","))
        assert found == [{n: "" if v is None else str(v) for n, v in row.items()} for row in expected]


@pytest.mark.parametrize(("name", "rows"), [("a.csv", ROWS), ("a.parquet", [{"id": 1}, {"id": "x"}])])
def test_other_columns_or_types_in_a_later_part_are_refused(name: str, rows: Any, tmp_path: Path) -> None:
    def write_all() -> None:
        with writer(tmp_path / name) as write:
            for row in rows:
                write([row])

    with pytest.raises(UserError, match=r"write \.jsonl, which keeps them"):
        write_all()
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.jsonl"])
def test_what_fails_on_the_way_leaves_nothing(name: str, tmp_path: Path) -> None:
    def fail() -> None:
        with writer(tmp_path / name) as write:
            write(ROWS)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [*tmp_path.iterdir()] == []
