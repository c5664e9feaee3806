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

from harness.errors import UserError, first_line
from harness.paths import replacing
from harness.tasks.reading import ending_of, objects, opened, problem_of, require, rows_of, unit_of

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
STANDARD_INPUT = Path("/dev/stdin")


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
            if problem := problem_of(columns, row):
                raise UserError(f"{self.place(index)}: {problem}")
        return [tuple(row[column] for column in columns) for row in self.rows]


def parts(path: Path, size: int) -> Iterator[Part]:
    """The rows of a file, or of JSON lines on standard input, in their order, `size` at a time. Raises UserError for a file that cannot be
    read or is not whole."""
    if path == STANDARD_INPUT:
        unit, rows = "line", objects(path, (), once=True)
    else:
        kind_of(path, "--input")
        if not path.is_file():
            raise UserError(f"--input {path}: there is no such file.")
        unit, rows = unit_of(path), rows_of(path)
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


def check_new(path: Path) -> None:
    """Raises UserError for an --output of another format, and for one that is there, unless it is a device or pipe."""
    kind_of(path, "--output")
    if path.is_file() or path.is_dir():
        raise UserError(f"--output {path} exists already; name a new file, or delete that one.")


def print_rows(rows: list[dict[str, Any]]) -> None:
    """As JSON lines."""
    print("".join(map(_json_line, rows)), end="", flush=True)


def _json_line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, default=str) + "\n"


@contextmanager
def writer(path: Path) -> Iterator[Write]:
    """Writes rows to a new file, by its ending, as `replacing` does. In JSON lines rows may have different fields; the columns of a CSV or TSV are those of the
    first part of them, and a column of Parquet has one type."""
    kind, tables = kind_of(path, "--output"), list[Any]()
    path.parent.mkdir(parents=True, exist_ok=True)

    def checked(write: Callable[..., Any], *given: Any) -> None:
        try:
            write(*given)
        except (ValueError, TypeError) as error:  # of csv, and those of pyarrow
            raise UserError(
                f"--output {path}: rows have other columns or types than those before ({first_line(error)}); write .jsonl, which keeps them."
            ) from None

    with replacing(path) as part:
        if kind == ".parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            yield lambda rows: checked(lambda: tables.append(pa.table(_columns(rows))))
            checked(lambda: pq.write_table(pa.concat_tables(tables, promote_options="permissive"), part))
        else:
            with opened(part, "w") as file:

                def write(rows: list[dict[str, Any]]) -> None:
                    if not tables:
                        tables.append(csv.DictWriter(file, _columns(rows), delimiter="\t" if kind == ".tsv" else ","))
                        tables[0].writeheader()
                    checked(tables[0].writerows, rows)

                yield (lambda rows: file.writelines(map(_json_line, rows))) if kind == ".jsonl" else write


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}
