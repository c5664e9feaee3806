"""Files of text into checked columns and rows: what is wrong in one is a sentence with file, row and fix.

Parquet and Arrow by pyarrow, as a stream of batches; CSV (a header line) and JSONL (one object a line) a line at a time,
because the readers of `datasets`, pandas and pyarrow name no line and take `NA` for nothing and `007` for 7 (docs/LOG.md). Rows
are counted from 1; in CSV, TSV and JSONL the number given is that of the line, as an editor shows it.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError, nearest
from harness.tasks.rows import Rows
from harness.tasks.separated import SEPARATED, header_of, not_utf8, separated
from harness.tasks.task import Task

FORMATS = (".parquet", ".csv", ".jsonl")
"""Endings of a split's file in a folder."""
LABELLED = (*FORMATS, ".tsv")
"""Endings of a file of labelled rows that a user names."""
RENAME = "rename one"


@dataclass(frozen=True)
class FileColumns:
    """Columns of a file as lists [n]. `unit` ('row' or 'line') and `places` [n] say where in the file each row is.

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


def read_rows(path: Path, task: Task, name: str) -> Rows:
    """The rows of a file for `task`, in the file's order. `name` labels them.

    Raises UserError: file missing or broken, column missing, no rows, a text that is null, not text or blank, a label that
    is unknown, out of range or hidden.
    """
    return rows_of(read_columns(path, (*task.columns, task.label), task.label), task, name)


def read_columns(path: Path, wanted: Sequence[str], label: str = "") -> FileColumns:
    """The columns `wanted` of a file, by its ending. Raises UserError; in Parquet all but `label` have to hold text."""
    if path.suffix in SEPARATED:
        return _separated_columns(path, wanted)
    columns: dict[str, list[Any]] = {name: [] for name in wanted}
    if _is_jsonl(path):
        places = []
        for line, row in objects(path, wanted, once=True):
            places.append(line)
            for name in wanted:
                columns[name].append(row[name])
        return FileColumns(path, columns, "line", places)
    rows, names = 0, {}
    for batch in batches(path, wanted, label=label):
        names = _names(batch.schema)
        for name, values in columns.items():
            values += as_list(path, name, batch.column(name), rows)
        rows += batch.num_rows
    return FileColumns(path, columns, "row", range(1, rows + 1), names)


def rows_of(table: FileColumns, task: Task, name: str) -> Rows:
    """Columns as the rows of a task, checked. Raises UserError as `read_rows` does."""
    if not len(table.places):
        raise UserError(f"{table.path}: there are no rows in it; give a file with labelled rows.")
    columns = [column_texts(table, column) for column in task.columns]
    texts = tuple(zip(*columns, strict=True))
    for index, row in enumerate(texts):
        if not row[0].strip() and not any(text.strip() for text in row):
            raise UserError(
                f"{table.place(index)}: {' and '.join(task.columns)} blank; fill the text in or delete the row."
            )
    return Rows(texts, _scores(table, task) if task.regression else _codes(table, task), name)


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


def _separated_columns(path: Path, wanted: Sequence[str]) -> FileColumns:
    columns: dict[str, list[Any]] = {name: [] for name in wanted}
    places: list[int] = []
    found: list[tuple[list[Any], int]] = []
    for line, row in separated(path):
        if not found:
            _require(str(path), row, wanted)
            found = [(columns[name], row.index(name)) for name in wanted]
            continue
        for values, index in found:
            values.append(row[index])
        places.append(line)
    if not found:
        raise UserError(f"{path}: is empty; write a header line with {', '.join(wanted)} and a line for each row.")
    return FileColumns(path, columns, "line", places)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys all differ; Python's own would keep the last of equal ones in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {_show(double)} appears twice")
    return found


def column_texts(table: FileColumns, column: str) -> list[str]:
    values = table.columns[column]
    for index, value in enumerate(values):
        if value is None:
            raise UserError(f"{table.place(index)}: '{column}' is null; fill the text in or delete the row.")
        if not isinstance(value, str):
            raise UserError(f"{table.place(index)}: '{column}' is {_show(value)}, not text; write it in quotes.")
        if not value.isascii() and halved(value):
            raise UserError(
                f"{table.place(index)}: '{column}' holds half a character (a lone surrogate); correct the text."
            )
    return values


def _codes(table: FileColumns, task: Task) -> NDArray[np.int64]:
    """Label codes int64 [n]: a class name, or its number from 0 (unless class names are numbers themselves)."""
    known: dict[tuple[type, Any], int] = {}
    codes = np.empty(len(table.places), dtype=np.int64)
    for index, value in enumerate(table.columns[task.label]):
        if isinstance(value, (list, dict)):
            raise _bad_label(table, task, index)
        kind = (type(value), value)
        if kind not in known:
            code = _code(value, task)
            if code is None:
                raise _bad_label(table, task, index)
            known[kind] = code
        codes[index] = known[kind]
    return codes


def _code(value: Any, task: Task) -> int | None:
    """The code of a label: by the task's own mapping, by the name of its class, or, without a mapping, by its number."""
    number = number_of(value)
    whole = number is not None and number.is_integer()
    for text in (str(value).strip(), str(int(number)) if number is not None and whole else ""):
        name = dict(task.labels).get(text, text)
        if name in task.classes:
            return task.classes.index(name)
    if number is None or not whole or task.labels or any(number_of(name) is not None for name in task.classes):
        return None
    return int(number) if 0 <= number < len(task.classes) else None


def _scores(table: FileColumns, task: Task) -> NDArray[np.float32]:
    """Regression labels float32 [n]."""
    low, high = task.label_range or (-math.inf, math.inf)
    scores = np.empty(len(table.places), dtype=np.float32)
    for index, value in enumerate(table.columns[task.label]):
        number = number_of(value)
        if number is None or not low <= number <= high or abs(number) > np.finfo(np.float32).max:
            raise _bad_label(table, task, index)
        scores[index] = number
    return scores


def number_of(value: Any) -> float | None:
    """A finite number, given as such or as text; None for anything else."""
    if not isinstance(value, (bool, int, float, str)):
        return None
    if isinstance(value, str) and "_" in value:  # Python would read 1_0 as 10
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _bad_label(table: FileColumns, task: Task, index: int) -> UserError:
    value, place = table.columns[task.label][index], table.place(index)
    if task.regression:
        allowed = (
            f"a number from {task.label_range[0]:g} to {task.label_range[1]:g}" if task.label_range else "a number"
        )
    elif task.labels:
        allowed = "one of " + ", ".join(dict.fromkeys([*dict(task.labels), *task.classes]))
    else:
        allowed = "one of " + ", ".join(f"{code} ({name})" for code, name in enumerate(task.classes))
    if value is None or value == "":
        return UserError(f"{place}: the label is missing; it should be {allowed}.")
    if number_of(value) == -1:
        return UserError(
            f"{place}: label -1 means that the label is hidden, as in GLUE's test files; give a split with labels "
            f"({allowed})."
        )
    fix = ", or stand under labels in the task's YAML" if task.own and not task.regression else ""
    return UserError(f"{place}: label {_show(value)} is unknown to task {task.name}; it should be {allowed}{fix}.")


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
