"""A published file of results, as `report --format csv|json|parquet` writes it: read, and compared with results derived again.

Pure but for reading the file. A figure agrees when it is equal to 12 significant digits, which any sum of a metric keeps on any machine.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from harness.errors import UserError, first_line
from harness.tables.caption import examples
from harness.tables.schema import PLACE, RESULT_DTYPES, Result, records

SUFFIXES = (".csv", ".json", ".parquet")
NEEDED = (*PLACE, "metric", "test", "status", "key")
"""Columns without which a row names no run, or claims nothing of it."""
DIGITS = 1e-12
"""Relative difference above which two figures differ."""

Values = Mapping[str, Any]
"""A row by column; None where a value is missing."""
Place = tuple[Any, ...]
"""(size, row, column, subset, seed, metric)."""


@dataclass(frozen=True)
class Published:
    """A file of results. `rows`: with the columns of the schema that it has; `cells`: those of a JSON file; `unknown`: columns that the schema
    does not have."""

    path: Path
    rows: tuple[Values, ...]
    cells: tuple[Values, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its runs, each once, in their order."""
        return tuple(dict.fromkeys(str(row["key"]) for row in self.rows))


@dataclass(frozen=True)
class Difference:
    """A figure that the file and the records give differently. `row`: counted from 1; `where`: the run and the metric, for people."""

    row: int
    where: str
    column: str
    in_file: Any
    derived: Any

    @property
    def sentence(self) -> str:
        return f"row {self.row} ({self.where}): {self.column} is {_shown(self.in_file)} in the file and {_shown(self.derived)} by the records"


def read_published(path: Path) -> Published:
    """Raises UserError for a file that cannot be read, is empty, or is not of this schema."""
    readers: dict[str, Callable[[bytes], tuple[list[Any], list[Any]]]] = {
        ".csv": _csv,
        ".json": _json,
        ".parquet": _parquet,
    }
    if path.suffix.lower() not in readers:
        raise UserError(
            f"{path}: should be a .csv, .json or .parquet file, as 'harness report --format csv > results.csv' writes it."
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    if not content.strip():
        raise UserError(f"{path}: is empty; write it with 'harness report --format {path.suffix[1:].lower()}'.")
    try:
        rows, cells = readers[path.suffix.lower()](content)
    except (ValueError, KeyError, TypeError, OSError, csv.Error) as error:
        raise _not_ours(path, first_line(error)) from None
    if not rows:
        raise UserError(f"{path}: has no results; the bench that it was printed from had no finished run.")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise _not_ours(path, f"it has no column {', '.join(missing)}")
    known = [name for name in columns if name in RESULT_DTYPES]
    read = tuple({name: _typed(path, k, name, row.get(name)) for name in known} for k, row in enumerate(rows, start=1))
    for k, row in enumerate(read, start=1):
        lacking = next((name for name in NEEDED if name != "test" and row[name] in (None, "")), None)
        if lacking:
            raise _not_ours(path, f"row {k} has no {lacking}")
    return Published(path, read, tuple(cells), tuple(name for name in columns if name not in RESULT_DTYPES))


def _not_ours(path: Path, why: str) -> UserError:
    return UserError(f"{path}: is not a file of results of 'harness report' ({why.rstrip('.')}).")


def _csv(content: bytes) -> tuple[list[Any], list[Any]]:
    found = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True))
    header, *lines = [line for line in found if line]
    for k, line in enumerate(lines, start=1):
        if len(line) != len(header):
            raise ValueError(f"row {k} has {len(line)} values for {len(header)} columns")
    return [dict(zip(header, line, strict=True)) for line in lines], []


def _json(content: bytes) -> tuple[list[Any], list[Any]]:
    body = json.loads(content)
    if not isinstance(body, dict) or not isinstance(body.get("results"), list):
        raise ValueError("it has no list 'results'")
    return [dict(row) for row in body["results"]], [dict(cell) for cell in body.get("cells", [])]


def _parquet(content: bytes) -> tuple[list[Any], list[Any]]:
    import pandas as pd

    return records(pd.read_parquet(io.BytesIO(content))), []


def _typed(path: Path, row: int, name: str, value: Any) -> Any:
    """A value of the file in the type of its column. In a CSV all are texts."""
    kind = RESULT_DTYPES[name]
    if value is None or (kind != "str" and value == "") or (isinstance(value, float) and math.isnan(value)):
        return None
    try:
        if kind == "bool" and isinstance(value, str):
            return {"true": True, "false": False}[value.lower()]
        if kind == "float64":
            return float(value)
        if kind in ("int64", "Int64"):
            return int(value)
    except (KeyError, ValueError, TypeError):
        raise _not_ours(path, f"row {row}: {name} is {value!r}") from None
    return value


# ------------------------------------------------------------------------------------------------------ comparing


def place_of(row: Values) -> Place:
    return tuple(row[name] for name in (*PLACE, "metric"))


def where(row: Values) -> str:
    """A row's run and metric, for people."""
    return f"{row['row']}, {row['column']}, {examples(row['size'])}, subset {row['subset']}, seed {row['seed']}, {row['metric']}"


def compared(number: int, row: Values, derived: Values) -> list[Difference]:
    """The figures of one row of the file that differ from the same row derived from the records."""
    names = [each.name for each in fields(Result) if each.name in row]
    return [
        Difference(number, where(row), name, row[name], derived[name])
        for name in names
        if not same(row[name], derived[name])
        and not (name == "encoder" and Path(row[name] or "").name == Path(derived[name]).name)  # a path, from elsewhere
    ]


def cells_compared(published: Sequence[Values], derived: Sequence[Values]) -> Iterator[str]:
    """In which figures the cells of a JSON file differ from those that are aggregated again, a sentence each."""
    place = ("size", "row", "column")
    ours = {tuple(cell[name] for name in place): cell for cell in derived}
    for cell in published:
        key = tuple(cell.get(name) for name in place)
        words = f"cell {key[1]}, {key[2]}, {key[0]} examples"
        if key not in ours:
            yield f"{words}: the table has no such cell"
            continue
        for name, value in ours[key].items():
            if name in cell and not same(cell[name], value):
                yield f"{words}: {name} is {_shown(cell[name])} in the file and {_shown(value)} by the records"


def same(one: Any, other: Any) -> bool:
    """Equal values; of numbers to 12 significant digits. A missing text is an empty one."""
    if one in (None, "") or other in (None, ""):
        return one in (None, "") and other in (None, "")
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, bool) or isinstance(other, bool) or not all(isinstance(v, (int, float)) for v in (one, other)):
        return bool(one == other)
    return math.isclose(one, other, rel_tol=DIGITS, abs_tol=1e-15)


def _shown(value: Any) -> str:
    return "missing" if value in (None, "") else repr(value) if isinstance(value, (float, str)) else str(value)
