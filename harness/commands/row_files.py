"""Rows of a file of any size, part by part, with all their columns; and the same rows written back with more of them.

CSV, TSV, JSONL (also .gz) and Parquet, read as labelled files are. A row keeps its values as they are in the file.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import UserError, first_line
from harness.paths import replacing
from harness.tasks.reading import ending_of, objects, opened, problem_of, require, rows_of, unit_of

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
STANDARD_INPUT = Path("/dev/stdin")
Row = dict[str, Any]


class Part(NamedTuple):
    """Some rows [n] of a file, each by column, with their texts, and where in the file each is."""

    rows: list[Row]
    texts: list[tuple[str, ...]]
    places: list[str]


def parts(path: Path, columns: Sequence[str], size: int) -> Iterator[Part]:
    """The rows of a file, or of JSON lines on standard input, in their order, `size` at a time, with the texts of `columns`. Raises UserError for a file that
    cannot be read or is not whole, and for a row whose texts are missing, no text, or all blank."""
    if not (piped := path == STANDARD_INPUT):
        kind_of(path, "--input")
        if not path.is_file():
            raise UserError(f"--input {path}: there is no such file.")
    unit, rows = ("line", objects(path, (), once=True)) if piped else (unit_of(path), rows_of(path))
    while some := list(islice(rows, size)):
        places = [f"{path}, {unit} {number}" for number, _ in some]
        for place, (_, row) in zip(places, some, strict=True):
            require(place, list(row), columns, "name another with --text")
            if problem := problem_of(columns, row):
                raise UserError(f"{place}: {problem}")
        yield Part([row for _, row in some], [tuple(row[name] for name in columns) for _, row in some], places)


def kind_of(path: Path, flag: str) -> str:
    """The format by the file's ending. Raises UserError."""
    kind = ending_of(path).lower()
    if kind not in FORMATS or (path.suffix == ".gz" and kind == ".parquet"):
        raise UserError(f"{flag} {path}: write {', '.join(FORMATS)}; all but .parquet also with .gz.")
    return kind


def check_new(path: Path) -> None:
    """Raises UserError for an --output of another format, and for one that is there, unless it is a device or pipe."""
    kind_of(path, "--output")
    if path.is_file() or path.is_dir():
        raise UserError(f"--output {path} exists already; name a new file, or delete that one.")


def json_lines(rows: Sequence[Row]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)


@contextmanager
def writer(path: Path) -> Iterator[Callable[[list[Row]], None]]:
    """Writes rows to a new file, by its ending, as `replacing` does. In JSON lines rows may have different fields; the columns of a CSV or TSV are those of the
    first part of them, and a column of Parquet has one type."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kind, made = kind_of(path, "--output"), list[Any]()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part, opened(Path(os.devnull) if kind == ".parquet" else part, "w") as file:

        def write(rows: list[Row]) -> None:
            names = list(dict.fromkeys(name for row in rows for name in row))
            try:
                if kind == ".jsonl":
                    file.write(json_lines(rows))
                elif kind == ".parquet":
                    table = pa.table({name: [row.get(name) for row in rows] for name in names})
                    made[:] = [pa.concat_tables([*made, table], promote_options="permissive")]
                else:
                    if not made:
                        made.append(csv.DictWriter(file, names, delimiter="\t" if kind == ".tsv" else ","))
                        made[0].writeheader()
                    made[0].writerows(rows)
            except (ValueError, TypeError) as error:  # of csv, and those of pyarrow
                raise UserError(
                    f"--output {path}: rows have other columns or types than those before ({first_line(error)}); write .jsonl, which keeps them."
                ) from None

        yield write
        if kind == ".parquet":
            pq.write_table(made[0], part)
