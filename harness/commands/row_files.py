"""Rows of a file of any size, part by part, with all their columns; and the same rows written back with more of them.

CSV, TSV, JSONL (also .gz) and Parquet, read as labelled files are. A row keeps its values as they are in the file.
"""

from __future__ import annotations

import csv
import itertools
import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from harness.errors import UserError
from harness.paths import replacing
from harness.tasks.reading import FileColumns, ending_of, objects, opened, require, texts_of, unit_of, whole_rows

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
        values = {column: [row[column] for row in self.rows] for column in columns}
        return texts_of(FileColumns(self.path, values, self.unit, self.numbers), columns)[0]


def parts(path: Path, size: int) -> Iterator[Part]:
    """The rows of a file, or of JSON lines on standard input, in their order, `size` at a time. Raises UserError for a file that cannot be
    read or is not whole."""
    if path == STANDARD_INPUT:
        unit, rows = "line", objects(path, (), once=True)
    else:
        kind_of(path, "--input")
        if not path.is_file():
            raise UserError(f"--input {path}: there is no such file.")
        unit, rows = unit_of(path), whole_rows(path)
    while some := list(itertools.islice(rows, size)):
        yield Part(path, [row for _, row in some], unit, [number for number, _ in some])


def kind_of(path: Path, flag: str) -> str:
    """The format by the file's ending. Raises UserError."""
    kind = ending_of(path).lower()
    if kind not in FORMATS or (path.suffix == ".gz" and kind == ".parquet"):
        raise UserError(f"{flag} {path}: write {', '.join(FORMATS)}; all but .parquet also with .gz.")
    return kind


# -------------------------------------------------------------------------------------------------------------- writing


def check_new(path: Path) -> None:
    """Raises UserError for an --output of another format, and for one that is there, unless it is a device or pipe."""
    kind_of(path, "--output")
    if path.is_file() or path.is_dir():
        raise UserError(f"--output {path} exists already; name a new file, or delete that one.")


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
    """Writes rows to a new file, by its ending, as `replacing` does. Rows may have different fields, and a field values of several types: in
    columns a missing field is empty, and values that have no type in common are text, as in JSON."""
    kind = kind_of(path, "--output")
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        if kind == ".jsonl":
            with opened(part, "w") as file:
                yield lambda rows: file.writelines(map(_json_line, rows))
        else:
            with TemporaryFile(dir=part.parent) as spool:  # the columns are those of all rows, and known after the last
                yield lambda rows: pickle.dump(rows, spool)
                (_write_parquet if kind == ".parquet" else _write_separated)(spool, part, kind)


def _spooled(spool: IO[bytes]) -> Iterator[list[dict[str, Any]]]:
    spool.seek(0)
    with suppress(EOFError):
        while True:
            yield pickle.load(spool)


def _names(spool: IO[bytes]) -> list[str]:
    return list(dict.fromkeys(name for rows in _spooled(spool) for row in rows for name in row))


def _write_separated(spool: IO[bytes], path: Path, kind: str) -> None:
    with opened(path, "w") as file:
        lines = csv.DictWriter(file, _names(spool), delimiter="\t" if kind == ".tsv" else ",")
        lines.writeheader()
        for rows in _spooled(spool):
            lines.writerows(rows)


def _write_parquet(spool: IO[bytes], path: Path, kind: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types: dict[str, Any] = dict.fromkeys(_names(spool), pa.null())

    def column(rows: list[dict[str, Any]], name: str, type: Any = None) -> Any:
        values = [row.get(name) for row in rows]
        if type == pa.string():
            values = [v if v is None or isinstance(v, str) else json.dumps(v, default=str) for v in values]
        return pa.array(values, type)

    for rows in _spooled(spool):
        for name in types:
            try:
                schemas = [pa.schema([(name, type)]) for type in (types[name], column(rows, name).type)]
                types[name] = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
            except pa.ArrowException:
                types[name] = pa.string()
    for rows in _spooled(spool):  # whole numbers that no float holds are known only beside floats of a later part
        for name in types:
            try:
                column(rows, name, types[name])
            except pa.ArrowException:
                types[name] = pa.string()
    with pq.ParquetWriter(path, pa.schema([*types.items()])) as file:
        for rows in _spooled(spool):
            file.write_table(pa.table({name: column(rows, name, type) for name, type in types.items()}))
