"""Rows of a file of any size, part by part, with all their columns; and the same rows written back with more of them.

CSV (comma, or semicolon as the header says), TSV, JSONL (also .gz) and Parquet. A row keeps its values as they are in the file.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UserError, nearest
from harness.tasks.reading import objects

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
FIELD_CHARACTERS = 1 << 27
"""Of one field of CSV: Python's own limit is 131,072."""


@dataclass(frozen=True)
class Part:
    """Some rows [n] of a file, each by column, and where each is, as errors name it [n]."""

    rows: list[dict[str, Any]]
    places: list[str]

    def texts(self, columns: Sequence[str]) -> list[tuple[str, ...]]:
        """The text columns of each row. Raises UserError where one is missing, no text, or where all are blank."""
        found = []
        for row, place in zip(self.rows, self.places, strict=True):
            for column in columns:
                if column not in row:
                    raise UserError(missing(place, column, row))
                if not isinstance(row[column], str):
                    raise UserError(
                        f"{place}: '{column}' is {row[column]!r:.60}, not text; fill it in or delete the row."
                    )
            texts = tuple(row[column] for column in columns)
            if not any(text and not text.isspace() for text in texts):
                raise UserError(f"{place}: {' and '.join(columns)} blank; fill the text in or delete the row.")
            found.append(texts)
        return found


def missing(place: str, column: str, names: Any) -> str:
    close = nearest(column, list(names))
    hint = f" (did you mean '{close}'?)" if close else ""
    return (
        f"{place}: there is no column '{column}'{hint}; its columns are {', '.join(names)}; name another with --text."
    )


def parts(path: Path, size: int) -> Iterator[Part]:
    """The rows of a file in its order, `size` at a time. Raises UserError for a file that cannot be read or is not whole."""
    kind = kind_of(path, "--input")
    if not path.is_file():
        raise UserError(f"--input {path}: there is no such file.")
    if kind == ".parquet":
        yield from _parquet(path, size)
        return
    rows = _objects(path) if kind == ".jsonl" else _csv(path, kind)
    held = Part([], [])
    for place, row in rows:
        held.rows.append(row)
        held.places.append(place)
        if len(held.rows) == size:
            yield held
            held = Part([], [])
    if held.rows:
        yield held


def kind_of(path: Path, flag: str) -> str:
    """The format by the file's ending. Raises UserError."""
    kind = Path(path.name.removesuffix(".gz")).suffix.lower()
    if kind not in FORMATS or (path.suffix == ".gz" and kind == ".parquet"):
        raise UserError(f"{flag} {path}: write {', '.join(FORMATS)}, the last but one also with .gz.")
    return kind


def _opened(path: Path, mode: str) -> Any:
    """As UTF-8 text."""
    encoding = "utf-8-sig" if mode == "r" else "utf-8"
    if path.suffix == ".gz":
        return gzip.open(path, f"{mode}t", encoding=encoding, newline="")
    return path.open(mode, encoding=encoding, newline="")


def _objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from ((f"{path}, line {line}", row) for line, row in objects(path, (), once=True))


def _csv(path: Path, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    csv.field_size_limit(FIELD_CHARACTERS)
    line = 1
    try:
        with _opened(path, "r") as file:
            first = file.readline()
            separator = "\t" if kind == ".tsv" else ";" if first.count(";") > first.count(",") else ","
            header = [name.strip() for name in next(csv.reader(io.StringIO(first), delimiter=separator), [])]
            if len(set(header)) < len(header) or not header:
                raise UserError(f"{path}: its header line should name each column once.")
            reader = csv.reader(file, delimiter=separator, strict=True)
            line = 2  # of a row's beginning: a quoted text may go over several
            for row in reader:
                if row and len(row) != len(header):
                    raise UserError(
                        f"{path}, line {line}: {len(row)} fields under a header of {len(header)}; put a text with separators or "
                        "line breaks in double quotes."
                    )
                if row:
                    yield f"{path}, line {line}", dict(zip(header, row, strict=True))
                line = reader.line_num + 2
    except csv.Error as error:
        raise UserError(f"{path}, line {line}: is not CSV ({error}); correct its quotes.") from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UserError(f"{path}, after line {line}: byte {byte:#04x} is not UTF-8; save the file as UTF-8.") from None
    except (OSError, EOFError) as error:
        raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}).") from None


def _parquet(path: Path, size: int) -> Iterator[Part]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(size):
                yield Part(batch.to_pylist(), [f"{path}, row {row + index + 1}" for index in range(batch.num_rows)])
                row += batch.num_rows
    except (pa.ArrowException, OSError, ValueError) as error:
        problem = " ".join(str(error).split()).rstrip(".")[:200]
        raise UserError(f"{path}: is not a whole Parquet file ({problem}); fetch or write it again.") from None


# -------------------------------------------------------------------------------------------------------------- writing

Write = Callable[[list[dict[str, Any]]], None]


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


def _text_writer(path: Path, kind: str) -> AbstractContextManager[Write]:
    @contextmanager
    def opened() -> Iterator[Write]:
        with _opened(path, "w") as file:
            made: list[csv.DictWriter[str]] = []

            def write(rows: list[dict[str, Any]]) -> None:
                if kind == ".jsonl":
                    file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
                    return
                if not made:
                    made.append(csv.DictWriter(file, list(rows[0]), delimiter="\t" if kind == ".tsv" else ","))
                    made[0].writeheader()
                made[0].writerows(rows)

            yield write

    return opened()


def _parquet_writer(path: Path) -> AbstractContextManager[Write]:
    @contextmanager
    def opened() -> Iterator[Write]:
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

    return opened()
