"""Rows of a file of any size, part by part, with all their columns; and the same rows written back with more of them.

CSV, TSV, JSONL (also .gz) and Parquet, read as labelled files are. A row keeps its values as they are in the file.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.tasks.reading import FileColumns, ending_of, filled_texts, objects, opened, require, unit_of, whole_rows

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
STANDARD_INPUT = Path("/dev/stdin")
LONGEST = 1 << 27
"""Characters of a field of CSV: all columns are read, and one may hold a page."""


@dataclass(frozen=True)
class Part:
    """Some rows [n] of a file, each by column. `unit` ('row' or 'line') and `numbers` [n] say where in the file each is."""

    path: Path
    rows: list[dict[str, Any]]
    unit: str
    numbers: list[int]

    def place(self, index: int) -> str:
        return f"{self.path}, {self.unit} {self.numbers[index]}"

    def texts(self, columns: Sequence[str]) -> list[tuple[str, ...]]:
        """The text columns of each row. Raises UserError where one is missing, no text, or where all are blank."""
        for index, row in enumerate(self.rows):
            require(self.place(index), list(row), columns, "name another with --text")
        values = {column: [row[column] for row in self.rows] for column in columns}
        texts = filled_texts(FileColumns(self.path, values, self.unit, self.numbers), columns)
        return list(zip(*[iter(texts)] * len(columns), strict=True))


def parts(path: Path, size: int) -> Iterator[Part]:
    """The rows of a file, or of JSON lines on standard input, in their order, `size` at a time. Raises UserError for a file that cannot be
    read or is not whole."""
    if path == STANDARD_INPUT:
        unit, rows = "line", objects(path, (), once=True)
    else:
        kind_of(path, "--input")
        if not path.is_file():
            raise UserError(f"--input {path}: there is no such file.")
        unit, rows = unit_of(path), whole_rows(path, LONGEST)
    while some := list(itertools.islice(rows, size)):
        yield Part(path, [row for _, row in some], unit, [number for number, _ in some])


def kind_of(path: Path, flag: str) -> str:
    """The format by the file's ending. Raises UserError."""
    kind = ending_of(path).lower()
    if kind not in FORMATS or (path.suffix == ".gz" and kind == ".parquet"):
        raise UserError(f"{flag} {path}: write {', '.join(FORMATS)}; all but .parquet also with .gz.")
    return kind


# -------------------------------------------------------------------------------------------------------------- writing

Write = Callable[[list[dict[str, Any]]], None]


def _json_line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, default=str) + "\n"


@contextmanager
def printer() -> Iterator[Write]:
    """Prints rows as JSON lines, each part of them at once."""

    def write(rows: list[dict[str, Any]]) -> None:
        print("".join(map(_json_line, rows)), end="", flush=True)

    yield write


@contextmanager
def writer(path: Path) -> Iterator[Write]:
    """Writes rows to a new file, by its ending; it is there once it is whole."""
    kind = kind_of(path, "--output")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part{'.gz' if path.suffix == '.gz' else ''}")
    try:
        with _parquet_writer(part) if kind == ".parquet" else _text_writer(part, kind) as write:
            yield write
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _text_writer(path: Path, kind: str) -> Iterator[Write]:
    with opened(path, "w") as file:
        made: list[csv.DictWriter[str]] = []

        def write(rows: list[dict[str, Any]]) -> None:
            if kind == ".jsonl":
                file.writelines(map(_json_line, rows))
                return
            if not made:
                made.append(csv.DictWriter(file, list(rows[0]), delimiter="\t" if kind == ".tsv" else ","))
                made[0].writeheader()
            made[0].writerows(rows)

        yield write


@contextmanager
def _parquet_writer(path: Path) -> Iterator[Write]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    made: list[Any] = []

    def write(rows: list[dict[str, Any]]) -> None:
        table = pa.Table.from_pylist(rows, schema=made[0].schema if made else None)
        if not made:
            made.append(pq.ParquetWriter(path, table.schema))
        made[0].write_table(table)

    try:
        yield write
    finally:
        for each in made:
            each.close()
