"""A published file of results, as `report --format csv|json|parquet` writes it: read, and compared with results derived again.

Pure but for reading the file. A figure agrees when it is equal to 12 significant digits, which any sum of a metric keeps on any machine.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.analysis.schema import PLACE, RESULT_DTYPES, records
from harness.errors import UserError, first_line
from harness.wording import examples

NEEDED = (*PLACE, "task", "metric", "test", "status", "key")
"""Columns without which a row names no run, or claims nothing of it."""
RESULTS_FILE = "results.csv"
"""That of a published folder."""
DIGITS = 1e-12
"""Relative difference above which two figures differ."""

Values = Mapping[str, Any]
"""A row by column; None where a value is missing."""


@dataclass(frozen=True)
class Published:
    """A file of results. `rows`: with the columns of the schema that it has; `body`: the other fields of a JSON file; `unknown` and
    `absent`: columns that the schema, or the file, does not have."""

    path: Path
    rows: tuple[Values, ...]
    body: Values = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its runs, each once, in their order."""
        return tuple(dict.fromkeys(row["key"] for row in self.rows))


def read_published(path: Path) -> Published:
    """The file at `path`, or that of the folder. Raises UserError for one that cannot be read, is empty, or is not of this schema."""
    from pyarrow import ArrowException

    path = path / RESULTS_FILE if (path / RESULTS_FILE).is_file() else path
    readers = {".csv": _csv, ".json": _json, ".parquet": _parquet}
    kind = path.suffix.lower()
    if kind not in readers:
        raise UserError(
            f"{path}: should be a .csv, .json or .parquet file, as 'harness report --format csv > results.csv' writes it."
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    if not content.strip():
        raise UserError(f"{path}: is empty; write it with 'harness report --format {kind[1:]}'.")
    try:
        rows, body = readers[kind](content)
        columns = list(dict.fromkeys(name for row in rows for name in row))
        if rows and (missing := [name for name in NEEDED if name not in columns]):
            raise ValueError(f"it has no column {', '.join(missing)}")
        known = [name for name in columns if name in RESULT_DTYPES]
        read = tuple({name: _typed(k, name, row.get(name)) for name in known} for k, row in enumerate(rows, start=1))
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError, ArrowException) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else first_line(error).rstrip(".")
        raise UserError(f"{path}: is not a file of results of 'harness report' ({why}).") from None
    if not rows:
        raise UserError(f"{path}: has no results; the bench that it was printed from had no finished run.")
    absent = tuple(name for name in RESULT_DTYPES if name not in columns)
    return Published(path, read, body, tuple(name for name in columns if name not in RESULT_DTYPES), absent)


def _csv(content: bytes) -> tuple[list[Any], Values]:
    import pandas as pd

    frame = pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False, encoding="utf-8-sig")
    if not isinstance(frame.index, pd.RangeIndex):
        raise ValueError("it has rows with more values than columns")
    return frame.to_dict("records"), {}


def _json(content: bytes) -> tuple[list[Any], Values]:
    body = json.loads(content)
    if not isinstance(body, dict) or not isinstance(body.get("results"), list):
        raise ValueError("it has no list 'results'")
    return [dict(row) for row in body.pop("results")], body


def _parquet(content: bytes) -> tuple[list[Any], Values]:
    import pandas as pd

    return records(pd.read_parquet(io.BytesIO(content))), {}


def _whole(value: Any) -> int:
    number = int(value)
    if number != float(value) or abs(number) >= 2**63:
        raise ValueError
    return number


_READ: Mapping[str, Callable[[Any], Any]] = {
    "bool": lambda value: {"true": True, "false": False}[str(value).lower()],
    "float64": float,
    "int64": _whole,
    "Int64": _whole,
    "str": str,
}


def _typed(row: int, name: str, value: Any) -> Any:
    """A value of the file in the type of its column; None where it is missing. In a CSV all are texts."""
    scalar = value is None or isinstance(value, (str, bool, int, float))
    if value is None or (scalar and (value == "" or value != value)):
        if name in NEEDED and name != "test":
            raise ValueError(f"row {row} has no {name}")
        return None
    try:
        if not scalar:
            raise TypeError
        return _READ[RESULT_DTYPES[name]](value)
    except (KeyError, ValueError, TypeError, OverflowError):
        raise ValueError(f"row {row}: {name} is {_shown(value)}") from None


# ------------------------------------------------------------------------------------------------------ comparing


def where(row: Values) -> str:
    """A row's run and metric, for people."""
    metric = f", {row['metric']}" if "metric" in row else ""
    return f"{row['row']}, {row.get('column', row['task'])}, {examples(row['size'])}, subset {row['subset']}, seed {row['seed']}{metric}"


def differences(published: Any, derived: Any, path: str = "") -> Iterator[str]:
    """In which fields a value of the file differs from the one that is derived again, a sentence each with the path of the field. Both are
    JSON: objects are compared by name, lists by position."""
    if isinstance(published, dict) and isinstance(derived, dict):
        for name in (*derived, *(name for name in published if name not in derived)):
            below = f"{path}.{name}" if path else name
            if name not in published or name not in derived:
                there, here = ("not ", "") if name in derived else ("", "not ")
                yield f"{below} is {there}in the file and {here}derived from the records"
            else:
                yield from differences(published[name], derived[name], below)
    elif isinstance(published, list) and isinstance(derived, list):
        if len(published) != len(derived):
            yield f"{path} has {len(published):,} entries in the file and {len(derived):,} by the records"
        for k, (one, other) in enumerate(zip(published, derived, strict=False)):
            place = (
                ", ".join(str(other[name]) for name in ("row", "column", "size") if name in other)
                if isinstance(other, dict)
                else ""
            )
            yield from differences(one, other, f"{path}[{k}{': ' if place else ''}{place}]")
    elif not same(published, derived):
        yield f"{path} is {_shown(published)} in the file and {_shown(derived)} by the records"


def same(one: Any, other: Any) -> bool:
    """Equal values; of numbers to 12 significant digits. A missing text is an empty one."""
    if one in (None, "") or other in (None, ""):
        return one in (None, "") and other in (None, "")
    if isinstance(one, bool) or isinstance(other, bool) or not all(isinstance(v, (int, float)) for v in (one, other)):
        return bool(one == other)
    return math.isclose(one, other, rel_tol=DIGITS, abs_tol=1e-15)


def _shown(value: Any) -> str:
    if isinstance(value, (str, float)):
        return "missing" if value == "" else repr(value)[:200]
    return (
        "missing"
        if value is None
        else str(value)[:40]
        if isinstance(value, (bool, int))
        else f"a {type(value).__name__}"
    )
