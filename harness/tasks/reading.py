"""Files of text into checked columns and rows: what is wrong in one is a sentence with file, row and fix.

Parquet and Arrow by pyarrow, as a stream of batches; CSV (a header line) and JSONL (one object a line) a line at a time,
because the readers of `datasets`, pandas and pyarrow name no line and take `NA` for nothing and `007` for 7 (docs/LOG.md). Rows
are counted from 1; in CSV, TSV and JSONL the number given is that of the line, as an editor shows it.
"""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from harness.errors import UserError, nearest
from harness.tasks.rows import Rows
from harness.tasks.separated import SEPARATED, header_of, not_utf8, separated
from harness.tasks.text_buffer import TextWriter

FORMATS = (".parquet", ".csv", ".jsonl")
"""Endings of a split's file in a folder."""
LABELLED = (*FORMATS, ".tsv")
"""Endings of a file of labelled rows that a user names."""
PART = 1 << 10
"""Rows that are held as Python's own strings at a time."""
RENAME = "rename one"

T = TypeVar("T")


@dataclass(frozen=True)
class FileColumns:
    """Columns of a file, or of a part of it, as lists [n]. `unit` ('row' or 'line') and `places` [n] say where in the file each row is.

    `names`: of a column of codes, the names that the file gives them, as files written by `datasets` do.
    """

    path: Path | str
    columns: dict[str, list[Any]]
    unit: str
    places: Sequence[int]
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def place(self, index: int) -> str:
        return f"{self.path}, {self.unit} {self.places[index]}"


def columns_of(path: Path) -> list[str]:
    """The names of a file's columns in their order; of JSONL those of its first object. Raises UserError."""
    if path.suffix in SEPARATED:
        return header_of(path)
    if _is_jsonl(path):
        return list(next(objects(path, ()), (0, {}))[1])
    with _table(path) as (schema, _):
        return list(schema.names)


def sample_of(path: Path, rows: int) -> dict[str, list[Any]]:
    """The first `rows` rows of each column, whatever they hold. Raises UserError."""
    names = columns_of(path)
    if path.suffix in SEPARATED:
        first = [row for _, row in itertools.islice(separated(path), 1, rows + 1)]
        return {name: [row[index] for row in first] for index, name in enumerate(names)}
    if _is_jsonl(path):
        some = [row for _, row in itertools.islice(objects(path, ()), rows)]
        return {name: [row.get(name) for row in some] for name in names}
    with _table(path) as (_, read):
        batch = next(iter(read(names, rows)), None)
        return {name: batch.column(name).to_pylist() if batch is not None else [] for name in names}


def _is_jsonl(path: Path) -> bool:
    return Path(path.name.removesuffix(".gz")).suffix in (".jsonl", ".json")


def read_columns(path: Path, wanted: Sequence[str]) -> FileColumns:
    """The columns `wanted` of a file, by its ending. Raises UserError; in Parquet they have to hold text."""
    parts = list(parts_of(path, wanted))
    columns = {name: [value for part in parts for value in part.columns[name]] for name in wanted}
    return replace(parts[0], columns=columns, places=[place for part in parts for place in part.places])


def read_texts(path: Path, columns: Sequence[str], name: str) -> Rows:
    """The rows of text columns that are not blank, in the file's order. Raises UserError."""
    writer = TextWriter(len(columns))
    for part in parts_of(path, columns):
        rows = zip(*(column_texts(part, column) for column in columns), strict=True)
        writer.add([text for row in rows if any(text and not text.isspace() for text in row) for text in row])
    return Rows(writer.buffer(), None, name)


def parts_of(path: Path, wanted: Sequence[str], label: str = "") -> Iterator[FileColumns]:
    """The columns `wanted` of a file in parts of at most PART rows; one without rows where the file has none.

    Raises UserError; in Parquet all but `label` have to hold text.
    """
    if path.suffix in SEPARATED:
        return _separated_parts(path, wanted)
    return _object_parts(path, wanted) if _is_jsonl(path) else _table_parts(path, wanted, label)


def read_text(path: Path) -> str:
    """A UTF-8 file as text. Raises UserError with the line where it is not UTF-8."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise not_utf8(path) from None


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, text without spaces around it) of each line of a UTF-8 file, also .gz, that is not blank.

    Holds one line at a time. Raises UserError, with the line where it is not UTF-8.
    """
    line = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for raw in file:
                line += 1
                text = raw.decode("utf-8-sig" if line == 1 else "utf-8").strip()
                if text:
                    yield line, text
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UserError(f"{path}, line {line}: byte {byte:#04x} is not UTF-8; save the file as UTF-8.") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{path}: cannot be read ({reason.rstrip('.')}); fetch or write it again.") from None


def objects(
    path: Path, wanted: Sequence[str], fix: str = RENAME, *, once: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, object) of a JSONL file; `once` refuses a key that stands twice, of which Python would keep the last.

    Raises UserError with the line of what is no object, or lacks one of `wanted`; `fix` says what to do then.
    """
    hook, example = _once if once else None, next(iter(wanted), "text")
    for line, text in lines(path):
        try:
            row = json.loads(text, object_pairs_hook=hook)
        except (ValueError, RecursionError) as error:
            problem = getattr(error, "msg", str(error))
            raise UserError(f"{path}, line {line}: is not JSON ({problem}); write one object a line.") from None
        if not isinstance(row, dict):
            raise UserError(f'{path}, line {line}: is not an object like {{"{example}": ...}}; write one a line.')
        if not all(name in row for name in wanted):
            _require(f"{path}, line {line}", list(row), wanted, fix)
        yield line, row


def batches(
    path: Path, wanted: Sequence[str], fix: str = RENAME, *, rows: int = 1 << 16, label: str = ""
) -> Iterator[Any]:
    """Record batches of at most `rows` rows with the columns `wanted` of a Parquet file, or of an Arrow stream in a file.

    Raises UserError for a file that cannot be read or is not whole, and for columns that are missing (`fix` says what to do)
    or do not hold text; the column `label` may hold numbers.
    """
    with _table(path) as (schema, read):
        _check_columns(path, schema, wanted, fix, label)
        yield from read(list(wanted), rows)


@contextmanager
def _table(path: Path) -> Iterator[tuple[Any, Callable[[list[str], int], Iterator[Any]]]]:
    """The schema of a Parquet or Arrow file, and what reads batches of some columns. Raises UserError for what fails inside."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb"):  # for the system's own error, if there is one: Arrow's are longer
            if path.suffix == ".arrow":
                stream = pa.ipc.open_stream(pa.memory_map(str(path)))
                yield stream.schema, lambda names, rows: (batch.select(names) for batch in stream)
                return
            with pq.ParquetFile(path, buffer_size=1 << 20) as file:
                yield file.schema_arrow, lambda names, rows: file.iter_batches(rows, columns=names)
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        problem = " ".join(str(error).split()).rstrip(".")
        kind = "Arrow" if path.suffix == ".arrow" else "Parquet"
        raise UserError(f"{path}: is not a whole {kind} file ({problem[:200]}); fetch or write it again.") from None


def as_list(path: Path, name: str, column: Any, before: int) -> list[Any]:
    """A column of a batch as Python values; `before` rows of the file stand before it. Raises UserError with the row."""
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:  # Arrow does not check that its strings are UTF-8
        for index in range(len(column)):
            try:
                column[index].as_py()
            except UnicodeDecodeError:
                row = before + index + 1
                raise UserError(f"{path}, row {row}: '{name}' is not UTF-8; save the file as UTF-8.") from None
        raise
    return values


def halved(text: str) -> bool:
    """Whether `text` holds half a character, a lone surrogate, which is in no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _check_columns(path: Path, schema: Any, wanted: Sequence[str], fix: str, label: str) -> None:
    import pyarrow as pa

    _require(str(path), schema.names, wanted, fix)
    for name in wanted:
        kind = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        if not (text or pa.types.is_null(kind) or (name == label and number)):
            expected = "text or numbers" if name == label else "text"
            raise UserError(f"{path}: column '{name}' holds {kind}, not {expected}; write it as {expected}.")


def _names(schema: Any) -> dict[str, list[str]]:
    """Names of coded labels (ClassLabel) by column, as `datasets` writes them into its files; empty without."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        return {name: each["names"] for name, each in features.items() if each.get("_type") == "ClassLabel"}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def _require(place: str, names: Sequence[str], wanted: Sequence[str], fix: str = RENAME) -> None:
    """Raises UserError unless all wanted columns are among `names`, once."""
    for column in wanted:
        if column not in names:
            close = nearest(column, names)
            hint = f" (did you mean '{close}'?)" if close else ""
            there = ", ".join(names) or "none"
            raise UserError(f"{place}: there is no column '{column}'{hint}; its columns are {there}; {fix}.")
        if list(names).count(column) > 1:
            raise UserError(f"{place}: column '{column}' appears twice; rename or drop one.")


def _separated_parts(path: Path, wanted: Sequence[str]) -> Iterator[FileColumns]:
    rows = separated(path)
    _, header = next(rows, (0, None))
    if header is None:
        raise UserError(f"{path}: is empty; write a header line with {', '.join(wanted)} and a line for each row.")
    _require(str(path), header, wanted)
    picked = {name: header.index(name) for name in wanted}
    for part in _in_parts(rows):
        columns = {name: [row[index] for _, row in part] for name, index in picked.items()}
        yield FileColumns(path, columns, "line", [line for line, _ in part])


def _object_parts(path: Path, wanted: Sequence[str]) -> Iterator[FileColumns]:
    for part in _in_parts(objects(path, wanted, once=True)):
        columns = {name: [row[name] for _, row in part] for name in wanted}
        yield FileColumns(path, columns, "line", [line for line, _ in part])


def _table_parts(path: Path, wanted: Sequence[str], label: str) -> Iterator[FileColumns]:
    rows = 0
    for batch in batches(path, wanted, rows=PART, label=label):
        columns = {name: as_list(path, name, batch.column(name), rows) for name in wanted}
        yield FileColumns(path, columns, "row", range(rows + 1, rows + batch.num_rows + 1), _names(batch.schema))
        rows += batch.num_rows
    if not rows:
        yield FileColumns(path, {name: [] for name in wanted}, "row", ())


def _in_parts(rows: Iterator[T]) -> Iterator[list[T]]:
    """At most PART at a time; an empty part where there are none."""
    part = list(itertools.islice(rows, PART))
    yield part
    while part := list(itertools.islice(rows, PART)):
        yield part


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys all differ; Python's own would keep the last of equal ones in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {shown_value(double)} appears twice")
    return found


def column_texts(table: FileColumns, column: str) -> list[str]:
    """The texts of a column. Raises UserError for what is no text."""
    values = table.columns[column]
    if set(map(type, values)) <= {str} and not halved("".join(values)):
        return values
    for index, value in enumerate(values):
        if value is None:
            raise UserError(f"{table.place(index)}: '{column}' is null; fill the text in or delete the row.")
        if not isinstance(value, str):
            raise UserError(f"{table.place(index)}: '{column}' is {shown_value(value)}, not text; write it in quotes.")
        if halved(value):
            raise UserError(
                f"{table.place(index)}: '{column}' holds half a character (a lone surrogate); correct the text."
            )
    return values


def shown_value(value: Any) -> str:
    """A value as errors show it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
