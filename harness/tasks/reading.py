"""One file of labelled text into rows, checked: what is wrong in it is one sentence with file, row and fix.

Parquet, CSV (a header line; comma) and JSONL (one object a line). Rows are counted from 1; in CSV and JSONL the number given
is that of the line, as an editor shows it. No blank row, unknown label or hidden label (-1) gets past here.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError, nearest
from harness.tasks.rows import Rows
from harness.tasks.task import Task

FORMATS = (".parquet", ".csv", ".jsonl")
LABEL = "label"


@dataclass(frozen=True)
class FileColumns:
    """Columns of a file as lists [n]. `unit` ('row' or 'line') and `places` [n] say where in the file each row is."""

    path: Path
    columns: dict[str, list[Any]]
    unit: str
    places: Sequence[int]

    def place(self, index: int) -> str:
        return f"{self.path}, {self.unit} {self.places[index]}"


def read_rows(path: Path, task: Task, name: str) -> Rows:
    """The rows of a file for `task`, in the file's order. `name` labels them.

    Raises UserError: file missing or broken, column missing, no rows, a text that is null, not text or blank, a label that
    is unknown, out of range or hidden.
    """
    reader = {".parquet": parquet_table, ".csv": csv_table, ".jsonl": jsonl_table}[path.suffix]
    table = reader(path, (*task.columns, LABEL))
    if not len(table.places):
        raise UserError(f"{path}: there are no rows in it; give a file with labelled rows.")
    columns = [column_texts(table, column) for column in task.columns]
    texts = tuple(zip(*columns, strict=True))
    for index, row in enumerate(texts):
        if not any(text and not text.isspace() for text in row):
            raise UserError(
                f"{table.place(index)}: {' and '.join(task.columns)} blank; fill the text in or delete the row."
            )
    return Rows(texts, _scores(table, task) if task.regression else _codes(table, task), name)


def read_text(path: Path) -> str:
    """A UTF-8 file as text. Raises UserError with the line where it is not UTF-8."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}, line {line}: byte {raw[error.start]:#04x} is not UTF-8; save the file as UTF-8."
        ) from None


def _require(path: Path, names: Sequence[str], wanted: Sequence[str], place: str = "") -> None:
    """Raises UserError unless all wanted columns are among `names`."""
    for column in wanted:
        if column not in names:
            close = nearest(column, names)
            hint = f" (did you mean '{close}'?)" if close else ""
            there = ", ".join(names) or "none"
            raise UserError(f"{path}{place}: there is no column '{column}'{hint}; its columns are {there}; rename one.")
        if list(names).count(column) > 1:
            raise UserError(f"{path}{place}: column '{column}' appears twice; rename or drop one.")


def parquet_table(path: Path, wanted: Sequence[str]) -> FileColumns:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb"), pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            _require(path, schema.names, wanted)
            table = file.read(columns=list(wanted))
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        problem = " ".join(str(error).split()).rstrip(".")
        raise UserError(f"{path}: is not a whole Parquet file ({problem[:200]}); fetch or write it again.") from None
    columns = {}
    for name in wanted:
        kind = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        if not (text or pa.types.is_null(kind) or (name == LABEL and number)):
            expected = "text or numbers" if name == LABEL else "text"
            raise UserError(f"{path}: column '{name}' holds {kind}, not {expected}; write it as {expected}.")
        columns[name] = _pylist(path, name, table.column(name))
    return FileColumns(path, columns, "row", range(1, table.num_rows + 1))


def _pylist(path: Path, name: str, column: Any) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:  # Arrow does not check that its strings are UTF-8
        for index in range(len(column)):
            try:
                column[index].as_py()
            except UnicodeDecodeError:
                raise UserError(f"{path}, row {index + 1}: '{name}' is not UTF-8; save the file as UTF-8.") from None
        raise
    return values


def csv_table(path: Path, wanted: Sequence[str]) -> FileColumns:
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    rows: list[list[str]] = []
    places: list[int] = []
    header: list[str] | None = None
    line = 1  # of a row's beginning: a quoted text may go over several
    try:
        for row in reader:
            if header is None and row:
                header = [name.strip() for name in row]
                _require_commas(path, header)
                _require(path, header, wanted)
            elif header is not None and len(row) == len(header):
                rows.append(row)
                places.append(line)
            elif row:
                raise UserError(
                    f"{path}, line {line}: {len(row)} fields under a header of {len(header or ())}; "
                    "put a text with commas or line breaks in double quotes."
                )
            line = reader.line_num + 1
    except csv.Error as error:
        if "field limit" in str(error):
            raise UserError(
                f"{path}, line {line}: a field has more than {csv.field_size_limit():,} characters; close its quotes, or cut "
                "the text."
            ) from None
        raise UserError(f"{path}, line {line}: is not CSV ({error}); correct its quotes.") from None
    if header is None:
        raise UserError(f"{path}: is empty; write a header line with {', '.join(wanted)} and a line for each row.")
    columns = {name: [row[header.index(name)] for row in rows] for name in wanted}
    return FileColumns(path, columns, "line", places)


def _require_commas(path: Path, header: Sequence[str]) -> None:
    """Raises UserError for a header whose fields other characters than commas separate."""
    for name, separator in (("semicolons", ";"), ("tabs", "\t")):
        if len(header) == 1 and separator in header[0]:
            raise UserError(f"{path}: {name} separate its fields; write it with commas.")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys all differ; Python's own would keep the last of equal ones in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {_show(double)} appears twice")
    return found


def jsonl_table(path: Path, wanted: Sequence[str]) -> FileColumns:
    columns: dict[str, list[Any]] = {name: [] for name in wanted}
    places = []
    for line, text in enumerate(read_text(path).split("\n"), start=1):
        if not text.strip():
            continue
        try:
            row = json.loads(text, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            problem = getattr(error, "msg", str(error))
            raise UserError(f"{path}, line {line}: is not JSON ({problem}); write one object a line.") from None
        if not isinstance(row, dict):
            raise UserError(f'{path}, line {line}: is not an object like {{"{wanted[0]}": ...}}; write one a line.')
        _require(path, list(row), wanted, f", line {line}")
        for name in wanted:
            columns[name].append(row[name])
        places.append(line)
    return FileColumns(path, columns, "line", places)


def column_texts(table: FileColumns, column: str) -> list[str]:
    values = table.columns[column]
    for index, value in enumerate(values):
        if value is None:
            raise UserError(f"{table.place(index)}: '{column}' is null; fill the text in or delete the row.")
        if not isinstance(value, str):
            raise UserError(f"{table.place(index)}: '{column}' is {_show(value)}, not text; write it in quotes.")
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            raise UserError(
                f"{table.place(index)}: '{column}' holds half a character (a lone surrogate); correct the text."
            )
    return values


def _codes(table: FileColumns, task: Task) -> NDArray[np.int64]:
    """Label codes int64 [n]: a class name, or its number from 0 (unless class names are numbers themselves)."""
    known: dict[tuple[type, Any], int] = {}
    codes = np.empty(len(table.places), dtype=np.int64)
    for index, value in enumerate(table.columns[LABEL]):
        if isinstance(value, (list, dict)):
            raise _bad_label(table, task, index)
        kind = (type(value), value)
        if kind not in known:
            code = _code(value, task.classes)
            if code is None:
                raise _bad_label(table, task, index)
            known[kind] = code
        codes[index] = known[kind]
    return codes


def _code(value: Any, classes: tuple[str, ...]) -> int | None:
    number = _number(value)
    whole = number is not None and number.is_integer()
    for text in (str(value).strip(), str(int(number)) if number is not None and whole else ""):
        if text in classes:
            return classes.index(text)
    if number is None or not whole or any(_number(name) is not None for name in classes):
        return None
    return int(number) if 0 <= number < len(classes) else None


def _scores(table: FileColumns, task: Task) -> NDArray[np.float32]:
    """Regression labels float32 [n]."""
    low, high = task.label_range or (-math.inf, math.inf)
    scores = np.empty(len(table.places), dtype=np.float32)
    for index, value in enumerate(table.columns[LABEL]):
        number = _number(value)
        if number is None or not low <= number <= high or abs(number) > np.finfo(np.float32).max:
            raise _bad_label(table, task, index)
        scores[index] = number
    return scores


def _number(value: Any) -> float | None:
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
    value, place = table.columns[LABEL][index], table.place(index)
    if task.regression:
        allowed = (
            f"a number from {task.label_range[0]:g} to {task.label_range[1]:g}" if task.label_range else "a number"
        )
    else:
        allowed = "one of " + ", ".join(f"{code} ({name})" for code, name in enumerate(task.classes))
    if value is None or value == "":
        return UserError(f"{place}: the label is missing; it should be {allowed}.")
    if _number(value) == -1:
        return UserError(
            f"{place}: label -1 means that the label is hidden, as in GLUE's test files; give a split with labels "
            f"({allowed})."
        )
    return UserError(f"{place}: label {_show(value)} is unknown to task {task.name}; it should be {allowed}.")


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
