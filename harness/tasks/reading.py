"""Files of text and labels, read a part at a time: what is wrong in one is a sentence with file, row and fix.

Parquet and Arrow by pyarrow; JSONL (one object a line) and CSV or TSV (a header line), also .gz, a line at a time and by Python's
own readers: those of pandas, pyarrow and `datasets` do not tell on which line a row of CSV begins. Rows are counted from 1; of
CSV, TSV and JSONL the number given is that of the line, as an editor shows it.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError, hint, quoted
from harness.kinds import number_of
from harness.tasks.rows import Rows, TextWriter
from harness.tasks.task import Task

FORMATS = (".parquet", ".csv", ".jsonl")
"""Endings of a split's file in a folder."""
LABELLED = (*FORMATS, ".tsv", ".json")
"""Endings of a file of labelled rows that a user names."""
PART = 1 << 10
"""Rows that are held as Python's own strings at a time."""
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
FIELD_CHARACTERS = 1 << 27
"""The longest field of CSV."""
RENAME = "rename one"
SHOWN_ROWS = 20
"""Bad rows that an error lists."""
BadRows = list[tuple[int, UserError]]
"""(line or row of the file, what is wrong with it) of rows that are left out."""
_SHEETS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


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

    def of(self, rows: Sequence[int]) -> FileColumns:
        """Some of its rows."""
        columns = {name: [values[row] for row in rows] for name, values in self.columns.items()}
        return replace(self, columns=columns, places=[self.places[row] for row in rows])


# ------------------------------------------------------------------------------------------------------- rows of a file


def unit_of(path: Path) -> str:
    """What the rows of a file are counted by: 'line', 'row', or 'question' of SQuAD's own format."""
    if path.suffix.lower() == ".json":
        return "question"
    return "line" if is_separated(path) or ending_of(path).lower() in (".jsonl", ".json") else "row"


def whole_rows(path: Path, bad: BadRows | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, or row of a Parquet or Arrow file: see `unit_of`; all columns with their values as they are in the file) of each row.

    Holds at most PART rows. Raises UserError for a file that cannot be read or is not whole,
    for a column that appears twice, and without `bad`, which takes them, for a line that is no row.
    """
    if is_separated(path):
        header, rows = _headed(path, (), bad)
        yield from ((line, dict(zip(header, row, strict=True))) for line, row in rows)
    elif unit_of(path) != "row":
        yield from objects(path, (), once=True, bad=bad)
    else:
        with _table(path) as (schema, read):
            require(str(path), schema.names, schema.names)
            batches = (batch.to_pylist() for batch in read(schema.names, PART))
            yield from enumerate(itertools.chain.from_iterable(batches), 1)


def parts_of(
    path: Path,
    wanted: Sequence[str],
    label: str = "",
    fix: str = RENAME,
    *,
    structured: bool = False,
    bad: BadRows | None = None,
) -> Iterator[FileColumns]:
    """The columns `wanted` of a file in parts of at most PART rows; one without rows where the file has none.

    `bad` takes lines that are no row. `fix` says what to do where a column is missing. Raises UserError; in Parquet all but `label` have to hold text; `structured`: that may
    hold lists and objects.
    """
    if unit_of(path) == "row":
        yield from _table_parts(path, wanted, label, fix, structured)
        return
    rows: Iterator[tuple[int, Any]] = objects(path, wanted, once=True, bad=bad)
    keys: Sequence[Any] = wanted
    if is_separated(path):
        header, rows = _headed(path, wanted, bad)
        keys = [header.index(name) for name in wanted]
    part = list(itertools.islice(rows, PART))
    while True:
        columns = {name: [row[key] for _, row in part] for name, key in zip(wanted, keys, strict=True)}
        yield FileColumns(path, columns, unit_of(path), [line for line, _ in part])
        if not (part := list(itertools.islice(rows, PART))):
            return


def existing_file(path: Path, where: str, endings: Sequence[str] = LABELLED) -> Path:
    """`path`, where it is a file of rows. Raises UserError where there is none, or one with another ending."""
    if path.suffix.lower() in _SHEETS:
        raise UserError(f"{where}: {path}: spreadsheets are not read; save the sheet as CSV (UTF-8).")
    if path.is_dir():
        raise UserError(
            f"{where}: {path}: is a folder; name a file of rows, or the folder under data in a task's YAML."
        )
    if path.suffix not in endings:
        raise UserError(f"{where}: {path}: is none of {', '.join(endings)}; write its rows to one of these.")
    if not path.is_file():
        raise UserError(f"{where}: there is no file {path}; correct the path.")
    return path


def require(place: str, names: Sequence[str], wanted: Sequence[str], fix: str = RENAME) -> None:
    """Raises UserError unless all wanted columns are among `names`, once."""
    for column in wanted:
        if column not in names:
            there = ", ".join(names) or "none"
            raise UserError(
                f"{place}: there is no column '{column}'.{hint(column, names)} Its columns are {there}; {fix}."
            )
        if list(names).count(column) > 1:
            raise UserError(f"{place}: column '{column}' appears twice; rename or drop one.")


# ---------------------------------------------------------------------------------------------- CSV, JSONL and plain text


def ending_of(path: Path) -> str:
    """The ending that says what a file holds: '.csv' of 'a.csv' and of 'a.csv.gz'."""
    return Path(path.name.removesuffix(".gz")).suffix


def is_separated(path: Path) -> bool:
    return ending_of(path).lower() in (".csv", ".tsv")


def opened(path: Path, mode: str = "r", newline: str = "") -> Any:
    """A UTF-8 file as text, without a byte-order mark, or with 'rb' as bytes; also .gz. 'w' writes text."""
    opener = gzip.open if path.suffix == ".gz" else open
    if "b" in mode:
        return opener(path, mode)
    return opener(path, f"{mode}t", encoding="utf-8-sig" if mode == "r" else "utf-8", newline=newline)


@contextmanager
def reading(path: Path, newline: str = "") -> Iterator[Any]:
    """A file `opened` to be read. Raises UserError where it cannot be, with the line where it is not UTF-8."""
    try:
        with opened(path, "r", newline) as file:
            yield file
    except UnicodeDecodeError:
        raise _not_utf8(path) from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{path}: cannot be read ({reason.rstrip('.')}); fetch or write it again.") from None


def _not_utf8(path: Path) -> UserError:
    """What is wrong in a file that is no UTF-8, with its first line that is not. Holds one line at a time."""
    with opened(path, "rb") as file:
        for line, raw in enumerate(file, 1):
            if line == 1 and raw.startswith(_UTF16):
                return UserError(f"{path}: is UTF-16 (as Excel's 'Unicode text' is); save the file as UTF-8.")
            try:
                raw.decode()
            except UnicodeDecodeError as error:
                byte = raw[error.start]
                return UserError(f"{path}, line {line}: byte {byte:#04x} is not UTF-8; save the file as UTF-8.")
    return UserError(f"{path}: is not UTF-8; save the file as UTF-8.")


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, text without spaces around it) of each line of a UTF-8 file, also .gz, that is not blank.

    Holds one line at a time. Raises UserError as `reading` does.
    """
    with reading(path, "\n") as file:
        yield from ((number, line) for number, text in enumerate(file, 1) if (line := text.strip()))


def objects(
    path: Path, wanted: Sequence[str], fix: str = RENAME, *, once: bool = False, bad: BadRows | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, object) of a JSONL file; `once` refuses a key that stands twice, of which Python would keep the last.

    Of a `.json` file in SQuAD's own format, (number, object) of each question. Raises UserError with the line of what is no object (without
    `bad`, which takes them), or lacks one of `wanted`; `fix` says what to do then.
    """
    if path.suffix.lower() == ".json":
        yield from _squad(path, wanted, fix)
        return
    hook, example, whole = _once if once else None, next(iter(wanted), "text"), False
    for line, text in lines(path):
        try:
            row = json.loads(text, object_pairs_hook=hook)
        except (ValueError, RecursionError) as error:
            problem = getattr(error, "msg", str(error))
            _leave_out(bad, line, f"{path}, line {line}: is not JSON ({problem}); write one object a line.")
            continue
        if not isinstance(row, dict):
            _leave_out(bad, line, f'{path}, line {line}: is not an object like {{"{example}": ...}}; write one a line.')
            continue
        if all(name in row for name in wanted):
            whole = True
            yield line, row
            continue
        try:
            require(f"{path}, line {line}", list(row), wanted, fix)
        except UserError as error:
            if bad is None or not whole:  # without a row that has them the file has other columns
                raise
            bad.append((line, error))


def _squad(path: Path, wanted: Sequence[str], fix: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, object with title, context, question and answers) of each question of a file in SQuAD's own format."""
    try:
        with reading(path, "\n") as file:
            body = json.load(file)
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
    for number, row in enumerate(rows, 1):
        require(f"{path}, question {number}", list(row), wanted, fix)
        yield number, row


def _leave_out(bad: BadRows | None, line: int, sentence: str) -> None:
    """Adds a line to the `bad` ones. Raises UserError where nothing takes it."""
    if bad is None:
        raise UserError(sentence) from None
    bad.append((line, UserError(sentence)))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {quoted(double)} appears twice")
    return row


def _headed(
    path: Path, wanted: Sequence[str], bad: BadRows | None = None
) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The header of a CSV file and the rows below it. Raises UserError without a header; for one of the columns `wanted`, or without
    them of any, that is missing or appears twice."""
    rows = _separated(path, bad)
    header = next(rows, (0, []))[1]
    if not header:
        names = f"with {', '.join(wanted)} " if wanted else ""
        raise UserError(f"{path}: is empty; write a header line {names}and a line for each row.")
    require(str(path), header, wanted or header)
    return header, rows


def _separated(path: Path, bad: BadRows | None) -> Iterator[tuple[int, list[str]]]:
    """(line on which it begins, fields) of the header and of each row, all with as many fields as the header. A line without a
    character is no row.

    The separator of `.tsv` is the tab; that of `.csv` is what separates its header: commas, semicolons or tabs. Holds at most
    PART rows. Raises UserError where the file cannot be read or is not CSV, and without `bad`, which takes them, where fields are missing.
    """
    width, line = 0, 1
    try:
        with reading(path) as file:
            separator, line = _separator(path)
            skipped = len(list(itertools.islice(file, line - 1)))
            for row, end in _with_ends(csv.reader(file, delimiter=separator, strict=True)):
                if row and not width:
                    row = [name.strip() for name in row]
                    width = len(row)
                if separator == "\t" and skipped + end > line and any(map(_spans_rows, row)):
                    raise csv.Error("a quoted text goes over several lines and holds tabs, so its file may not quote")
                if row and len(row) == width:
                    yield line, row
                elif row:
                    _leave_out(
                        bad,
                        line,
                        f"{path}, line {line}: {len(row)} fields under a header of {width}; put a text with "
                        f"{SEPARATORS[separator]} or line breaks in double quotes.",
                    )
                line = skipped + end + 1  # a quoted text may go over several
    except csv.Error as error:
        if "field limit" in str(error):
            raise UserError(
                f"{path}, line {line}: a field has more than {FIELD_CHARACTERS:,} characters; close its quotes, or cut the text."
            ) from None
        raise UserError(f"{path}, line {line}: is not CSV ({error}); correct its quotes, or write JSONL.") from None


@contextmanager
def _long_fields() -> Iterator[None]:
    """csv's limit is the whole process's: whoever else reads finds it as it was."""
    before = csv.field_size_limit(FIELD_CHARACTERS)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _with_ends(reader: Any) -> Iterator[tuple[list[str], int]]:
    """Each row of a `csv.reader` with the line on which it ends. Raises csv.Error after the rows before it."""
    while True:
        part, problem = list[tuple[list[str], int]](), None
        try:
            with _long_fields():
                part.extend((row, reader.line_num) for row in itertools.islice(reader, PART))
        except csv.Error as error:
            problem = error
        yield from part
        if problem:
            raise problem
        if len(part) < PART:
            return


def _spans_rows(text: str) -> bool:
    """Whether a text of TSV is more likely several rows of a file that does not quote, as GLUE's own, than one text."""
    return "\t" in text and "\n" in text


def _separator(path: Path) -> tuple[str, int]:
    """What separates the fields of the first line that has any, and the line from which on the file is read: behind Excel's 'sep=;'."""
    if ending_of(path).lower() == ".tsv":
        return "\t", 1
    with opened(path) as file:
        number, first = next(((n, line) for n, line in enumerate(file, 1) if line.strip("\r\n")), (1, ""))
    if stated := re.fullmatch(r"sep=([,;\t])", first.strip("\r\n")):
        return stated[1], number + 1
    if "\0" in first:
        raise UserError(f"{path}: holds null bytes, as UTF-16 does; save the file as UTF-8.")
    with _long_fields():
        inside = [separator for separator in SEPARATORS if len(next(csv.reader([first], delimiter=separator), [])) > 1]
    if len(inside) > 1:
        both = " and ".join(SEPARATORS[separator] for separator in inside)
        raise UserError(f"{path}, line 1: {both} are in its header; put a name that holds one in double quotes.")
    return inside[0] if inside else ",", 1


# --------------------------------------------------------------------------------------------------- Parquet and Arrow


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


def _table_parts(path: Path, wanted: Sequence[str], label: str, fix: str, structured: bool) -> Iterator[FileColumns]:
    """See `parts_of`."""
    rows = 0
    with _table(path) as (schema, read):
        _check_columns(path, schema, wanted, fix, label, structured)
        for batch in read(list(wanted), PART):
            columns = {name: _values(path, name, batch.column(name), rows) for name in wanted}
            yield FileColumns(path, columns, "row", range(rows + 1, rows + batch.num_rows + 1), _code_names(schema))
            rows += batch.num_rows
    if not rows:
        yield FileColumns(path, {name: [] for name in wanted}, "row", ())


def _check_columns(path: Path, schema: Any, wanted: Sequence[str], fix: str, label: str, structured: bool) -> None:
    import pyarrow as pa

    require(str(path), schema.names, wanted, fix)
    for name in wanted:
        kind = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        free = name == label and (number or structured)
        if not (text or pa.types.is_null(kind) or free):
            expected = "text or numbers" if name == label else "text"
            raise UserError(f"{path}: column '{name}' holds {kind}, not {expected}; write it as {expected}.")


def _values(path: Path, name: str, column: Any, before: int) -> list[Any]:
    """A column of a batch as Python values; `before` rows of the file stand before it. Raises UserError with the row."""
    try:
        values: list[Any] = column.to_pylist()
        return values
    except UnicodeDecodeError:  # Arrow does not check that its strings are UTF-8
        for row, value in enumerate(column, before + 1):
            try:
                value.as_py()
            except UnicodeDecodeError:
                raise UserError(f"{path}, row {row}: '{name}' is not UTF-8; save the file as UTF-8.") from None
        raise


def _code_names(schema: Any) -> dict[str, list[str]]:
    """Names of coded labels (ClassLabel) by column, as `datasets` writes them into its files; empty without."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        return {name: kind["names"] for name, kind in features.items() if kind.get("_type") == "ClassLabel"}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


# --------------------------------------------------------------------------------------------------- texts and labels


def is_half(text: str) -> bool:
    """Whether `text` holds half a character, a lone surrogate, which is in no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def column_texts(table: FileColumns, column: str) -> list[str]:
    """The texts of a column. Raises UserError for what is no text."""
    values = table.columns[column]
    if set(map(type, values)) <= {str} and not is_half("".join(values)):
        return values
    for index, value in enumerate(values):
        if value is None:
            raise UserError(f"{table.place(index)}: '{column}' is null; fill the text in or delete the row.")
        if not isinstance(value, str):
            raise UserError(f"{table.place(index)}: '{column}' is {quoted(value)}, not text; write it in quotes.")
        if is_half(value):
            raise UserError(
                f"{table.place(index)}: '{column}' holds half a character (a lone surrogate); correct the text."
            )
    return values


def filled_texts(table: FileColumns, columns: Sequence[str]) -> list[str]:
    """The texts of rows that are not blank, row after row."""
    texts = [column_texts(table, column) for column in columns]
    for index, row in enumerate(zip(*texts, strict=True)):
        if not row[0].strip() and not any(text.strip() for text in row):
            raise UserError(f"{table.place(index)}: {' and '.join(columns)} blank; fill the text in or delete the row.")
    return texts[0] if len(texts) == 1 else [text for row in zip(*texts, strict=True) for text in row]


def read_texts(path: Path, columns: Sequence[str], name: str) -> Rows:
    """The rows of text columns that are not blank, in the file's order. Raises UserError."""
    writer = TextWriter(len(columns))
    for part in parts_of(path, columns):
        rows = zip(*(column_texts(part, column) for column in columns), strict=True)
        writer.add([text for row in rows if any(text and not text.isspace() for text in row) for text in row])
    return Rows(writer.buffer(), None, name)


@dataclass(frozen=True)
class LabelledFile:
    """A file of labelled rows, read before it is known which labels are right: `values[codes[i]]` is the label of row i as the file
    gives it, codes int32 [n]. `texts`: the rows without labels; `unit`, `places`: see `FileColumns`; `names`: those that the file gives the
    codes in its label column; `bad`: rows without text, and lines that are no row."""

    path: Path | str
    texts: Rows
    codes: NDArray[np.int32]
    values: Sequence[Any]
    unit: str
    places: NDArray[np.int64]
    names: Sequence[str]
    bad: Sequence[tuple[int, UserError]] = ()

    @cached_property
    def _first(self) -> NDArray[np.int64]:
        """The first row of each value: codes count the values as they appear."""
        return np.flatnonzero(np.diff(np.maximum.accumulate(self.codes), prepend=-1))

    def place(self, code: int) -> str:
        """Where a value stands first."""
        return f"{self.path}, {self.unit} {self.places[self._first[code]]}"

    def named(self, task: Task) -> Sequence[Any]:
        """`values`, with the file's own names in place of codes where these are classes of the task, and its `labels` say nothing of codes."""
        mapping = dict(task.labels)
        if any(str(code) in mapping for code in range(len(self.names))) or not any(
            mapping.get(name, name) in task.classes for name in self.names
        ):
            return self.values
        return with_names(self.values, self.names)

    def rows(self, task: Task, name: str) -> Rows:
        """The rows of a task, with its labels. Raises UserError as `read_rows` does."""
        values = self.named(task)
        labels = [task.kind.read(value) for value in values]
        unread = {code: _bad_label(task, values[code]) for code, label in enumerate(labels) if label is None}
        good = self.good(unread, skip=task.skip_bad_rows, own=task.own)
        if not good.any():
            raise UserError(f"{self.path}: there are no rows in it; give a file with labelled rows.")
        neutral = next(label for label in labels if label is not None)
        read: NDArray[Any] = np.array([neutral if label is None else label for label in labels], dtype=task.kind.dtype)
        read = task.kind.narrowed(read)
        texts, read = (self.texts, read[self.codes]) if good.all() else (self.texts.take(good), read[self.codes[good]])
        if misplaced := task.kind.misplaced(texts, read):
            row, problem = misplaced
            raise UserError(f"{self.path}, {self.unit} {self.places[good][row]}: {problem}; correct it.")
        rows = texts.with_labels(read, name)
        rows.skipped = len(self.bad) + int((~good).sum())
        known = {each.casefold() for each in task.classes}
        if task.kind.reads_codes and any(
            number_of(value) is not None and str(value).casefold() not in known for value in self.values
        ):
            rows.label_form = "codes" if values is self.values else "named codes"
        return rows

    def good(self, wrong: Mapping[int, str], *, skip: bool, own: bool = True) -> NDArray[np.bool_]:
        """Mask [n] of the rows whose label is none of `wrong` (code -> what is wrong and the fix). Raises UserError unless bad rows are
        skipped: for one row, or where no line is a row, what is wrong with the first, for several the first `SHOWN_ROWS` of them with their
        number."""
        good = np.isin(self.codes, [*wrong], invert=True) if wrong else np.ones(len(self.codes), dtype=np.bool_)
        left_out = np.flatnonzero(~good)
        count = len(self.bad) + len(left_out)
        if skip or not count:
            return good
        rows = [(int(self.places[row]), wrong[self.codes[row]]) for row in left_out[:SHOWN_ROWS].tolist()]
        sentences = [(line, UserError(f"{self.path}, {self.unit} {line}: {problem}")) for line, problem in rows]
        first = sorted([*self.bad, *sentences], key=lambda each: each[0])[:SHOWN_ROWS]
        if count == 1 or not len(self.codes):  # without one good row the file is of another form
            raise first[0][1]
        shown = "; ".join(str(error).removeprefix(f"{self.path}, ").partition("; ")[0] for _, error in first)
        more = f"; and {count - len(first):,} more" if count > len(first) else ""
        fix = ", or leave them out with --skip-bad-rows (skip_bad_rows: true in a task's YAML)" if own else ""
        raise UserError(
            f"{self.path}: {count:,} of {len(self.codes) + len(self.bad):,} rows cannot be read: {shown}{more}; correct them{fix}."
        )


def _bad_label(task: Task, value: Any) -> str:
    allowed = task.kind.allowed
    if value is None or value == "":
        return f"the label is missing; it should be {allowed}."
    if number_of(value) == -1:
        return (
            f"label -1 means that the label is hidden, as in GLUE's test files; give a split with labels ({allowed})."
        )
    fix = ", or stand under labels in the task's YAML" if task.own and task.classes else ""
    return f"label {quoted(value)} is unknown to task {task.name}; it should be {allowed}{fix}."


def read_labelled(
    path: Path, columns: Sequence[str], label: str, shown: str = "", *, structured: bool = False
) -> LabelledFile:
    """The text columns and the labels of a file, read once. Raises UserError as `read_rows` does, except for labels: which are
    right, the task says. `shown`: how errors name the file; its path where left out. `structured`: labels may be lists and objects, which
    become JSON text."""
    writer, known, codes, places = TextWriter(len(columns)), dict[Any, int](), [], []
    bad: BadRows = []
    for part in parts_of(path, (*columns, label), label, structured=structured, bad=bad):
        part, texts = _filled(replace(part, path=shown or path), columns, bad)
        writer.add(texts)
        codes.append(_label_codes(part, label, known, structured))
        places.append(np.asarray(part.places, dtype=np.int64))
    return LabelledFile(
        part.path,
        Rows(writer.buffer()),
        np.concatenate(codes),
        [key if isinstance(key, str) else key[1] for key in known],
        part.unit,
        np.concatenate(places),
        part.names.get(label, ()),
        bad,
    )


def with_names(values: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Values with the name of each that is a code of `names`."""
    return [names[value] if type(value) is int and 0 <= value < len(names) else value for value in values]


def _filled(table: FileColumns, columns: Sequence[str], bad: BadRows) -> tuple[FileColumns, list[str]]:
    """The rows of a part that have text, and their texts; the others are added to `bad`."""
    try:
        return table, filled_texts(table, columns)
    except UserError:
        good = [index for index in range(len(table.places)) if _has_text(table, index, columns, bad)]
    table = table.of(good)
    return table, filled_texts(table, columns)


def _has_text(table: FileColumns, index: int, columns: Sequence[str], bad: BadRows) -> bool:
    try:
        filled_texts(table.of([index]), columns)
    except UserError as error:
        bad.append((table.places[index], error))
        return False
    return True


def _label_codes(table: FileColumns, label: str, known: dict[Any, int], structured: bool) -> NDArray[np.int32]:
    """The number of each label among those that differ; `known` counts them as they appear, with the type of what is no text."""
    values = table.columns[label]
    if structured:
        values = [
            json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else value for value in values
        ]
    for index, value in enumerate(values if set(map(type, values)) & {list, dict} else ()):
        if isinstance(value, (list, dict)):
            raise UserError(f"{table.place(index)}: label {quoted(value)} is neither text nor a number.")
    keys = (value if type(value) is str else (type(value), value) for value in values)
    return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int32)


def read_rows(path: Path, task: Task, name: str) -> Rows:
    """The rows of a file for `task`, in the file's order. `name` labels them.

    Raises UserError: file missing or broken, column missing, no rows, a text that is null, not text or blank, a label that
    is unknown, out of range or hidden.
    """
    return read_labelled(path, task.columns, task.label, structured=task.kind.structured).rows(task, name)


def rows_of_all(tables: Sequence[LabelledFile], task: Task, name: str) -> Rows:
    """The rows of several files, of which some may be empty, one file after another. Raises UserError as `read_rows` does."""
    parts = [table.rows(task, name) for table in tables if len(table.texts) or len(tables) == 1]
    if len(parts) == 1:
        return parts[0]
    rows = Rows((texts for part in parts for texts in part.texts), np.concatenate([part.gold for part in parts]), name)
    rows.skipped, rows.label_form = sum(part.skipped for part in parts), parts[0].label_form
    return rows
