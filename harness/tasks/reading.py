"""Files of text and labels, read a part at a time: what is wrong in one is a sentence with file, row and fix.

Parquet and Arrow by pyarrow; JSONL (one object a line) and CSV or TSV (a header line), also .gz, a line at a time and by Python's
own readers: those of pandas, pyarrow and `datasets` do not tell on which line a row of CSV begins, and fill up what is short. Rows are
counted from 1; of CSV, TSV and JSONL the number given is that of the line, as an editor shows it.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import re
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError, hint, quoted
from harness.kinds import number_of
from harness.tasks.rows import Rows

if TYPE_CHECKING:
    from harness.tasks.task import Task

FORMATS = (".parquet", ".csv", ".jsonl")
"""Endings of a split's file in a folder."""
LABELLED = (*FORMATS, ".tsv", ".json")
"""Endings of a file of labelled rows that a user names."""
PART = 1 << 10
"""Rows of Parquet that are held as Python's own values at a time."""
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
FIELD_CHARACTERS = 1 << 27
"""The longest field of CSV."""
RENAME = "rename one"
SHOWN_ROWS = 20
"""Bad rows that an error lists."""
_BINARY = (".parquet", ".arrow")
_HALF = re.compile("[\ud800-\udfff]")


# ------------------------------------------------------------------------------------------------------- rows of a file


def unit_of(path: Path) -> str:
    """What the rows of a file are counted by: 'line', 'row', or 'question' of SQuAD's own format."""
    return "question" if path.suffix.lower() == ".json" else "row" if path.suffix.lower() in _BINARY else "line"


def place_of(path: Path, line: int) -> str:
    return f"{path}, {unit_of(path)} {line}"


def each_row(path: Path, wanted: Sequence[str] = (), fix: str = RENAME) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """(line, or what else `unit_of` counts; values by column, or what is wrong) of each row, those of Parquet and Arrow with the columns `wanted`
    or with all. A file without an ending of its own is read as JSONL.

    `fix` says what to do where a wanted column is missing. Raises UserError for a file that cannot be read or is not whole, and for a header
    where a column is missing or appears twice.
    """
    if is_separated(path):
        return _csv_rows(path, wanted, fix)
    if unit_of(path) == "row":
        return _table_rows(path, wanted, fix)
    return (_squad if unit_of(path) == "question" else _objects)(path, wanted, fix)


def rows_of(path: Path, wanted: Sequence[str] = (), fix: str = RENAME) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a file as `each_row` reads them. Raises UserError for one that is wrong, too."""
    for line, row in each_row(path, wanted, fix):
        if isinstance(row, str):
            raise UserError(f"{place_of(path, line)}: {row}")
        yield line, row


def text_rows(
    path: Path, columns: Sequence[str], fix: str = RENAME, *, blank: bool = False, whole: bool = False
) -> Iterator[tuple[str, dict[str, Any], tuple[str, ...]]]:
    """(place, row, texts of the columns) of each row, that of Parquet and Arrow `whole` or of these columns alone. Raises UserError as `rows_of` does,
    and for a null, for what is no text, and unless texts may be `blank` for a row of blank ones."""
    for line, row in rows_of(path, () if whole else columns, fix):
        place = place_of(path, line)
        if problem := missing(row, columns, fix) or problem_of(columns, row, blank=blank):
            raise UserError(f"{place}: {problem}")
        yield place, row, tuple(row[column] for column in columns)


def existing_file(path: Path, where: str, endings: Sequence[str] = LABELLED) -> Path:
    """`path`, where it is a file of rows. Raises UserError where there is none, or one with another ending."""
    if path.suffix not in endings:
        folder = ", or name the folder under data in a task's YAML" if path.is_dir() else ""
        raise UserError(f"{where}: {path}: is none of {', '.join(endings)}; write its rows to one of these{folder}.")
    if not path.is_file():
        raise UserError(f"{where}: there is no file {path}; correct the path.")
    return path


def missing(names: Iterable[str], wanted: Iterable[str], fix: str) -> str:
    """Which of the wanted columns is not among `names`; '' where none is missing."""
    lacking = next((column for column in wanted if column not in names), None)
    if lacking is None:
        return ""
    return f"there is no column '{lacking}'.{hint(lacking, names)} Its columns are {', '.join(names) or 'none'}; {fix}."


def _check_header(path: Path, names: Sequence[str], wanted: Sequence[str], fix: str) -> None:
    twice = next((column for column in wanted or names if names.count(column) > 1), None)
    if problem := missing(names, wanted, fix) or (twice and f"column '{twice}' appears twice; rename or drop one."):
        raise UserError(f"{path}: {problem}")


# ---------------------------------------------------------------------------------------------- CSV, JSONL and plain text


def ending_of(path: Path) -> str:
    """The ending that says what a file holds: '.csv' of 'a.csv' and of 'a.csv.gz'."""
    return Path(path.name.removesuffix(".gz")).suffix


def is_separated(path: Path) -> bool:
    return ending_of(path).lower() in (".csv", ".tsv")


def raw_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, text with its line break) of each line of a UTF-8 file, also .gz, without a byte-order mark. Raises UserError for a file
    that cannot be read, with the line where it is not UTF-8."""
    number = 0
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if number > 1:
                    yield number, line.decode()
                    continue
                if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in line[:2]:
                    raise UserError(f"{path}: is UTF-16 (as Excel's 'Unicode text' is); save the file as UTF-8.")
                yield number, line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = f"byte {error.object[error.start]:#04x}"
        raise UserError(f"{path}, line {number}: {byte} is not UTF-8; save the file as UTF-8.") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{path}: cannot be read ({reason.rstrip('.')}); fetch or write it again.") from None


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, text without spaces around it) of each line that is not blank. Raises UserError as `raw_lines` does."""
    return ((number, line) for number, text in raw_lines(path) if (line := text.strip()))


def _objects(path: Path, wanted: Sequence[str], fix: str) -> Iterator[tuple[int, dict[str, Any] | str]]:
    for line, text in lines(path):
        try:
            row = json.loads(text)
            if isinstance(row, dict) and text.count(":") > len(row):
                json.loads(text, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            yield line, f"is not JSON ({getattr(error, 'msg', error)}); write one object a line."
        else:
            of_object = 'is not an object like {"text": ...}; write one a line.'
            yield line, (missing(row, wanted, fix) or row) if isinstance(row, dict) else of_object


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"the key {quoted(twice)} appears twice")
    return dict(pairs)


def _squad(path: Path, wanted: Sequence[str], fix: str) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Title, context, question and answers of each question of a file in SQuAD's own format."""
    try:
        body = json.loads("".join(line for _, line in raw_lines(path)))
        rows = [
            {"title": article.get("title", ""), "context": paragraph["context"], **question}
            for article in body["data"]
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        problem = f"no {error}" if isinstance(error, KeyError) else getattr(error, "msg", "another structure")
        raise UserError(
            f"{path}: is not SQuAD's JSON with data, paragraphs and qas ({problem}); write one object a line to a .jsonl file."
        ) from None
    return ((number, missing(row, wanted, fix) or row) for number, row in enumerate(rows, 1))


def _csv_rows(path: Path, wanted: Sequence[str], fix: str) -> Iterator[tuple[int, dict[str, str] | str]]:
    """(line on which it begins, fields by the header's names) of each row, all with as many fields as the header. A line without a character
    is no row. The separator of `.tsv` is the tab; that of `.csv` is what Excel's 'sep=;' states, else what separates its header."""
    csv.field_size_limit(FIELD_CHARACTERS)
    numbered, header = raw_lines(path), list[str]()
    line, first = _first_of(numbered)
    if "\r" in first.rstrip("\r\n"):  # each line ends with one, as Excel's 'CSV (Macintosh)' has it
        numbered = enumerate((each for _, text in raw_lines(path) for each in StringIO(text, newline="")), 1)
        line, first = _first_of(numbered)
    if stated := re.fullmatch(r"sep=([,;\t])\r?\n?", first):
        separator, line, first = stated[1], line + 1, next(numbered, (0, ""))[1]
    else:
        separator = "\t" if ending_of(path).lower() == ".tsv" else _separator(path, first)
    before = line - 1
    rows = csv.reader(chain([first], map(itemgetter(1), numbered)), delimiter=separator, strict=True)
    try:
        for row in rows:
            end = before + rows.line_num
            if separator == "\t" and end > line and any("\t" in text and "\n" in text for text in row):
                # more likely several rows of a file that does not quote, as GLUE's own, than one text
                raise csv.Error("a quoted text goes over several lines and holds tabs, so its file may not quote")
            if row and not header:
                header = [name.strip() for name in row]
                _check_header(path, header, wanted, fix)
            elif row and len(row) == len(header):
                yield line, dict(zip(header, row, strict=True))
            elif row:
                quotes = f"put a text with {SEPARATORS[separator]} or line breaks in double quotes"
                yield line, f"{len(row)} fields under a header of {len(header)}; {quotes}."
            line = end + 1  # a quoted text may go over several
    except csv.Error as error:
        raise UserError(f"{path}, line {line}: is not CSV ({error}); correct its quotes, or write JSONL.") from None
    if not header:
        names = f"with {', '.join(wanted)} " if wanted else ""
        raise UserError(f"{path}: is empty; write a header line {names}and a line for each row.")


def _first_of(numbered: Iterator[tuple[int, str]]) -> tuple[int, str]:
    """The first line that holds a character."""
    return next(((number, text) for number, text in numbered if text.strip("\r\n")), (1, ""))


def _separator(path: Path, header: str) -> str:
    """What separates the fields of a header line."""
    inside = [separator for separator in SEPARATORS if len(next(csv.reader([header], delimiter=separator), [])) > 1]
    if len(inside) > 1:
        both = " and ".join(SEPARATORS[separator] for separator in inside)
        raise UserError(f"{path}, line 1: {both} are in its header; put a name that holds one in double quotes.")
    return inside[0] if inside else ","


# --------------------------------------------------------------------------------------------------- Parquet and Arrow


def _table_rows(path: Path, wanted: Sequence[str], fix: str) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    before, arrow = 0, path.suffix == ".arrow"
    try:
        with path.open("rb") as raw:
            file: Any = pa.ipc.open_stream(raw) if arrow else pq.ParquetFile(raw)
            names = file.schema.names if arrow else file.schema_arrow.names
            _check_header(path, names, wanted, fix)
            chosen = list(wanted or names)
            for batch in file if arrow else file.iter_batches(PART, columns=chosen):
                yield from enumerate(batch.select(chosen).to_pylist(), before + 1)
                before += batch.num_rows
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        problem = " ".join(str(error).split()).rstrip(".")
        kind = "Arrow" if arrow else "Parquet"
        raise UserError(f"{path}: is not a whole {kind} file ({problem[:200]}); fetch or write it again.") from None


def code_names(path: Path, column: str) -> Sequence[str]:
    """The names of a column of codes (ClassLabel), as `datasets` writes them into its Parquet files; empty without."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(path).metadata if path.suffix == ".parquet" else {}
        kind = json.loads(metadata[b"huggingface"])["info"]["features"][column]
        return tuple(kind["names"]) if kind.get("_type") == "ClassLabel" else ()
    except (LookupError, TypeError, ValueError, AttributeError, OSError, pa.ArrowException):
        # a file that is not whole has no rows either
        return ()


# --------------------------------------------------------------------------------------------------- texts and labels


def problem_of(columns: Sequence[str], row: Mapping[str, Any], *, blank: bool = False) -> str:
    """What is wrong with the values of a row's text columns, which may be `blank` or not; '' where nothing is."""
    fine = blank
    for column in columns:
        value = row[column]
        if value is None:
            return f"'{column}' is null; fill the text in or delete the row."
        if not isinstance(value, str):
            return f"'{column}' is {quoted(value)}, not text; write it in quotes."
        if not value.isascii() and _HALF.search(value):
            return f"'{column}' holds half a character (a lone surrogate); correct the text."
        fine = fine or bool(value.strip())
    if not fine:
        return f"{' and '.join(columns)} blank; fill the text in or delete the row."
    return ""


@dataclass(frozen=True)
class Labelled:
    """A file's rows with text, before a task says what the labels mean: `texts` [n, columns], `lines` [n] or what else `unit_of` counts, and
    `codes` [n], of each row the place of its label in `values`, the different ones as they stand there. `bad`: line of each other row, and
    what is wrong with it."""

    path: Path
    texts: NDArray[np.object_]
    lines: NDArray[np.int64]
    codes: NDArray[np.int32]
    values: Sequence[Any]
    bad: Sequence[tuple[int, str]]


def read_labelled(path: Path, columns: Sequence[str], label: str) -> Labelled:
    """The rows of a file; one whose texts are null, no text or blank is a bad one. Raises UserError as `each_row` does."""
    texts, lines, codes, values = list[str](), array("q"), array("i"), list[Any]()
    bad, known = list[tuple[int, str]](), dict[Any, int]()
    for line, row in each_row(path, (*columns, label)):
        if isinstance(row, str) or (problem := problem_of(columns, row)):
            bad.append((line, row if isinstance(row, str) else problem))
            continue
        value = row[label]
        key = _json(value) if isinstance(value, (list, dict)) else (type(value), value)
        if key not in known:
            known[key] = len(values)
            values.append(value)
        texts += [row[column] for column in columns]
        lines.append(line)
        codes.append(known[key])
    of_rows = np.array(texts, dtype=object).reshape(-1, len(columns))
    return Labelled(path, of_rows, np.asarray(lines), np.asarray(codes), values, bad)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def read_rows(files: Sequence[Labelled], task: Task, names: Sequence[str] = ()) -> Rows:
    """The rows of files for `task`, one file after the other, in their order. `names`: those of the codes in the column of
    labels; left out, those that a file gives.

    Raises UserError where there are no rows, and unless the task skips bad rows for these, and for a label that is unknown, out of range or
    hidden.
    """
    kind, classes = task.kind, [each.casefold() for each in task.classes]
    texts, codes, labels, bad = list[Any](), list[Any](), list[Any](), list[str]()
    form: Literal["names", "codes", "named codes"] = "names"
    for file in files:
        named = _names_in_use(task, names or code_names(file.path, task.label))
        values = [_json(value) if isinstance(value, (list, dict)) else value for value in file.values]
        if kind.reads_codes and any(number_of(v) is not None and str(v).casefold() not in classes for v in values):
            form = "named codes" if named else "codes"
        read = [kind.read(name_of(value, named)) for value in values]
        good = np.array([label is not None for label in read], dtype=np.bool_)
        places = len(labels) + np.cumsum(good) - 1
        labels += [label for label in read if label is not None]
        wrong = [
            "" if label is not None else _bad_label(task, value) for label, value in zip(read, values, strict=True)
        ]
        kept, lost = good[file.codes], [*file.bad]
        for row in range(len(kept)) if task.spans else np.flatnonzero(~kept):
            code = file.codes[row]
            if problem := wrong[code] or kind.misplaced(file.texts[row], labels[places[code]]):
                kept[row] = False
                lost.append((file.lines[row], problem))
        bad += [f"{place_of(file.path, line)}: {problem}" for line, problem in sorted(lost)]
        texts.append(file.texts[kept])
        codes.append(places[file.codes[kept]])
    whole = np.concatenate(codes)
    if not len(whole) or (bad and not task.skip_bad_rows):
        raise _bad_rows(files[-1].path, bad, len(whole), task)
    rows = Rows(np.concatenate(texts), kind.narrowed(np.array(labels, dtype=kind.dtype))[whole])
    rows.skipped, rows.label_form = len(bad), form
    return rows


def _names_in_use(task: Task, names: Sequence[str]) -> Sequence[str]:
    """`names` of codes, where these are classes of the task and its `labels` say nothing of codes; else none."""
    mapping = task.labels
    coded = any(str(code) in mapping for code in range(len(names)))
    return names if not coded and any(mapping.get(name, name) in task.classes for name in names) else ()


def name_of(value: Any, names: Sequence[str]) -> Any:
    """The name of a value that is a code of `names`, else the value."""
    return names[value] if type(value) is int and 0 <= value < len(names) else value


def _bad_label(task: Task, value: Any) -> str:
    allowed = task.kind.allowed
    if value is None or not str(value).strip():
        return f"the label is missing; it should be {allowed}."
    if number_of(value) == -1:
        return (
            f"label -1 means that the label is hidden, as in GLUE's test files; give a split with labels ({allowed})."
        )
    fix = ", or stand under labels in the task's YAML" if task.own and task.classes else ""
    return f"label {quoted(value)} is unknown to task {task.name}; it should be {allowed}{fix}."


def _bad_rows(path: Path, bad: Sequence[str], good: int, task: Task) -> UserError:
    """What is wrong with the first of `bad` rows where none is `good`, as in a file of another form, or with the only one; of several with the
    first SHOWN_ROWS."""
    if not good:
        return UserError(bad[0] if bad else f"{path}: there are no rows in it; give a file with labelled rows.")
    fix = ", or leave {} out with --skip-bad-rows (skip_bad_rows: true in a task's YAML)" if task.own else ""
    if len(bad) == 1:
        return UserError(f"{bad[0].removesuffix('.')}{fix.format('it')}.")
    shown = "; ".join(each.removeprefix(f"{path}, ").partition("; ")[0] for each in bad[:SHOWN_ROWS])
    more = f"; and {len(bad) - SHOWN_ROWS:,} more" if len(bad) > SHOWN_ROWS else ""
    return UserError(
        f"{path}: {len(bad):,} of {good + len(bad):,} rows cannot be read: {shown}{more}; correct them{fix.format('them')}."
    )
