"""Files of text and labels, read a part at a time: what is wrong in one is a sentence with file, row and fix.

Parquet and Arrow by pyarrow; JSONL (one object a line) and CSV or TSV (a header line), also .gz, a line at a time and by Python's
own readers: those of pandas, pyarrow and `datasets` do not tell on which line a row of CSV begins, and fill up what is short. Rows are
counted from 1; of CSV, TSV and JSONL the number given is that of the line, as an editor shows it.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


# ------------------------------------------------------------------------------------------------------- rows of a file


def unit_of(path: Path) -> str:
    """What the rows of a file are counted by: 'line', 'row', or 'question' of SQuAD's own format."""
    if path.suffix.lower() == ".json":
        return "question"
    return "line" if is_separated(path) or ending_of(path).lower() in (".jsonl", ".json") else "row"


def rows_of(
    path: Path,
    wanted: Sequence[str] | None = None,
    label: str = "",
    fix: str = RENAME,
    *,
    structured: bool = False,
    bad: BadRows | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, or what else `unit_of` counts; values by column) of each row, those of Parquet and Arrow with the columns `wanted` or with all.

    Holds at most PART rows. `fix` says what to do where a wanted column is missing. Raises UserError for a file that cannot be read or is not
    whole, for a column that is missing or appears twice, and without `bad`, which takes them, for a line that is no row. In Parquet the
    columns wanted have to hold text, but for `label`, which with `structured` may hold lists and objects.
    """
    if is_separated(path):
        return _csv_rows(path, wanted or (), bad)
    if unit_of(path) != "row":
        return objects(path, wanted or (), once=True, bad=bad)
    return _table_rows(path, wanted, label, fix, structured)


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
            if line == 1 and raw.startswith((b"\xff\xfe", b"\xfe\xff")):
                return UserError(f"{path}: is UTF-16 (as Excel's 'Unicode text' is); save the file as UTF-8.")
            try:
                raw.decode()
            except UnicodeDecodeError as error:
                byte = raw[error.start]
                return UserError(f"{path}, line {line}: byte {byte:#04x} is not UTF-8; save the file as UTF-8.")
    return UserError(f"{path}: is not UTF-8; save the file as UTF-8.")


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, text without spaces around it) of each line of a UTF-8 file, also .gz, that is not blank. Raises UserError as
    `reading` does."""
    with reading(path, "\n") as file:
        yield from ((number, line) for number, text in enumerate(file, 1) if (line := text.strip()))


def objects(
    path: Path, wanted: Sequence[str], fix: str = RENAME, *, once: bool = False, bad: BadRows | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, object) of a JSONL file; `once` refuses a key that stands twice, of which Python would keep the last. Of a `.json` file in
    SQuAD's own format, (number, object) of each question.

    Raises UserError with the line of what is no object (without `bad`, which takes them), or lacks one of `wanted`; `fix` says what to do
    then.
    """
    if path.suffix.lower() == ".json":
        yield from _squad(path, wanted, fix)
        return
    hook, example, whole = _once if once else None, next(iter(wanted), "text"), False
    for line, text in lines(path):
        place = f"{path}, line {line}"
        try:
            row = json.loads(text, object_pairs_hook=hook)
            if isinstance(row, dict):
                if not all(name in row for name in wanted):
                    require(place, list(row), wanted, fix)
                whole = True
                yield line, row
                continue
            error = UserError(f'{place}: is not an object like {{"{example}": ...}}; write one a line.')
        except (ValueError, RecursionError) as raised:
            problem = getattr(raised, "msg", str(raised))
            error = UserError(f"{place}: is not JSON ({problem}); write one object a line.")
        except UserError as missing:
            if not whole:  # without a row that has them the file has other columns
                raise
            error = missing
        _leave_out(bad, line, error)


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


def _leave_out(bad: BadRows | None, line: int, error: UserError) -> None:
    if bad is None:
        raise error from None
    bad.append((line, error))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {quoted(double)} appears twice")
    return row


def _csv_rows(path: Path, wanted: Sequence[str], bad: BadRows | None) -> Iterator[tuple[int, dict[str, str]]]:
    """(line on which it begins, fields by the header's names) of each row, all with as many fields as the header. A line without a character
    is no row. The separator of `.tsv` is the tab; that of `.csv` is what separates its header: commas, semicolons or tabs."""
    header, line = list[str](), 1
    try:
        with reading(path) as file, _long_fields():
            separator, line = _separator(path)
            skipped = len(list(islice(file, line - 1)))
            rows = csv.reader(file, delimiter=separator, strict=True)
            for row in rows:
                end = skipped + rows.line_num
                if separator == "\t" and end > line and any("\t" in text and "\n" in text for text in row):
                    # more likely several rows of a file that does not quote, as GLUE's own, than one text
                    raise csv.Error("a quoted text goes over several lines and holds tabs, so its file may not quote")
                if row and not header:
                    header = [name.strip() for name in row]
                    require(str(path), header, wanted or header)
                elif row and len(row) == len(header):
                    yield line, dict(zip(header, row, strict=True))
                elif row:
                    fix = f"put a text with {SEPARATORS[separator]} or line breaks in double quotes"
                    problem = f"{path}, line {line}: {len(row)} fields under a header of {len(header)}; {fix}."
                    _leave_out(bad, line, UserError(problem))
                line = end + 1  # a quoted text may go over several
    except csv.Error as error:
        problem, fix = f"is not CSV ({error})", "correct its quotes, or write JSONL"
        if "field limit" in str(error):
            problem = f"a field has more than {FIELD_CHARACTERS:,} characters"
            fix = "close its quotes, or cut the text"
        raise UserError(f"{path}, line {line}: {problem}; {fix}.") from None
    if not header:
        names = f"with {', '.join(wanted)} " if wanted else ""
        raise UserError(f"{path}: is empty; write a header line {names}and a line for each row.")


@contextmanager
def _long_fields() -> Iterator[None]:
    """csv's limit is the whole process's: whoever reads afterwards finds it as it was."""
    before = csv.field_size_limit(FIELD_CHARACTERS)
    try:
        yield
    finally:
        csv.field_size_limit(before)


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
    inside = [separator for separator in SEPARATORS if len(next(csv.reader([first], delimiter=separator), [])) > 1]
    if len(inside) > 1:
        both = " and ".join(SEPARATORS[separator] for separator in inside)
        raise UserError(f"{path}, line 1: {both} are in its header; put a name that holds one in double quotes.")
    return inside[0] if inside else ",", 1


# --------------------------------------------------------------------------------------------------- Parquet and Arrow


def _table_rows(
    path: Path, wanted: Sequence[str] | None, label: str, fix: str, structured: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow as pa

    before = 0
    try:
        with _table(path) as (file, schema):
            names = list(schema.names if wanted is None else wanted)
            require(str(path), schema.names, names, fix)
            for name in wanted or ():
                _check_type(path, name, schema.field(name).type, name == label, structured)
            arrow = path.suffix == ".arrow"
            for batch in (batch.select(names) for batch in file) if arrow else file.iter_batches(PART, columns=names):
                columns = [_values(path, name, batch.column(name), before) for name in names]
                for row, values in enumerate(zip(*columns, strict=True), before + 1):
                    yield row, dict(zip(names, values, strict=True))
                before += batch.num_rows
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        problem = " ".join(str(error).split()).rstrip(".")
        kind = "Arrow" if path.suffix == ".arrow" else "Parquet"
        raise UserError(f"{path}: is not a whole {kind} file ({problem[:200]}); fetch or write it again.") from None


@contextmanager
def _table(path: Path) -> Iterator[tuple[Any, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with path.open("rb"):  # for the system's own error, if there is one: Arrow's are longer
        arrow = path.suffix == ".arrow"
        file: Any = pa.ipc.open_stream(pa.memory_map(str(path))) if arrow else pq.ParquetFile(path, buffer_size=1 << 20)
    with file:
        yield file, file.schema if arrow else file.schema_arrow


def _check_type(path: Path, name: str, kind: Any, is_label: bool, structured: bool) -> None:
    import pyarrow.types as types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind) or types.is_null(kind)
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if not (text or (is_label and (number or structured))):
        expected = "text or numbers" if is_label else "text"
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


def _code_names(path: Path, column: str) -> Sequence[str]:
    """The names of a column of codes (ClassLabel), as `datasets` writes them into its files; empty without."""
    if unit_of(path) != "row":
        return ()
    with _table(path) as (_, schema):
        try:
            kind = json.loads(schema.metadata[b"huggingface"])["info"]["features"][column]
            return tuple(kind["names"]) if kind.get("_type") == "ClassLabel" else ()
        except (KeyError, TypeError, ValueError, AttributeError):
            return ()


# --------------------------------------------------------------------------------------------------- texts and labels


def is_half(text: str) -> bool:
    """Whether `text` holds half a character, a lone surrogate, which is in no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def problem_of(columns: Sequence[str], row: Mapping[str, Any], *, blank: bool = False) -> str:
    """What is wrong with the values of a row's text columns, which may be `blank` or not; '' where nothing is."""
    fine = blank
    for column in columns:
        value = row[column]
        if value is None:
            return f"'{column}' is null; fill the text in or delete the row."
        if not isinstance(value, str):
            return f"'{column}' is {quoted(value)}, not text; write it in quotes."
        if not value.isascii() and is_half(value):
            return f"'{column}' holds half a character (a lone surrogate); correct the text."
        fine = fine or bool(value.strip())
    if not fine:
        return f"{' and '.join(columns)} blank; fill the text in or delete the row."
    return ""


def text_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(place, texts) of each row. Raises UserError for a null and for what is no text; texts may be blank."""
    for number, row in rows_of(path, columns):
        place = f"{path}, {unit_of(path)} {number}"
        if problem := problem_of(columns, row, blank=True):
            raise UserError(f"{place}: {problem}")
        yield place, tuple(row[column] for column in columns)


def read_texts(path: Path, columns: Sequence[str], name: str) -> Rows:
    """The rows of text columns that are not blank, in the file's order. Raises UserError."""
    rows = (texts for _, texts in text_rows(path, columns) if any(map(str.strip, texts)))
    return Rows(rows, None, name)


@dataclass(frozen=True)
class LabelledFile:
    """A file of labelled rows, read before it is known which labels are right: `values[codes[i]]` is the label of row i as the file
    gives it, codes int32 [n]. `texts`: the rows without labels; `places` [n]: the line, or what else `unit` says, of each; `names`: those that
    the file gives the codes in its label column; `bad`: rows without text, and lines that are no row."""

    path: str
    texts: Rows
    codes: NDArray[np.int32]
    values: Sequence[Any]
    unit: str
    places: NDArray[np.int64]
    names: Sequence[str]
    bad: Sequence[tuple[int, UserError]] = ()

    def place(self, code: int) -> str:
        return f"{self.path}, {self.unit} {self.places[np.argmax(self.codes == code)]}"

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
        if not len(self.codes):  # without one good row the file is of another form
            raise first[0][1]
        fix = ", or leave {} out with --skip-bad-rows (skip_bad_rows: true in a task's YAML)" if own else ""
        if count == 1:
            raise UserError(f"{str(first[0][1]).removesuffix('.')}{fix.format('it')}.")
        shown = "; ".join(str(error).removeprefix(f"{self.path}, ").partition("; ")[0] for _, error in first)
        more = f"; and {count - len(first):,} more" if count > len(first) else ""
        raise UserError(
            f"{self.path}: {count:,} of {len(self.codes) + len(self.bad):,} rows cannot be read: {shown}{more}; correct them{fix.format('them')}."
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
    known, codes, places = dict[tuple[type, Any], int](), array("i"), array("q")
    bad, unit, shown = BadRows(), unit_of(path), shown or str(path)

    def good() -> Iterator[list[str]]:
        for number, row in rows_of(path, (*columns, label), label, structured=structured, bad=bad):
            if problem := problem_of(columns, row):
                bad.append((number, UserError(f"{shown}, {unit} {number}: {problem}")))
                continue
            value = row[label]
            if type(value) in (list, dict):
                if not structured:
                    raise UserError(f"{shown}, {unit} {number}: label {quoted(value)} is neither text nor a number.")
                value = json.dumps(value, ensure_ascii=False)
            codes.append(known.setdefault((type(value), value), len(known)))
            places.append(number)
            yield [row[column] for column in columns]

    flat = np.fromiter(chain.from_iterable(good()), dtype=object)
    texts, names = Rows(flat.reshape(-1, len(columns))), _code_names(path, label)
    values, lines = [value for _, value in known], np.array(places, dtype=np.int64)
    return LabelledFile(shown, texts, np.array(codes, dtype=np.int32), values, unit, lines, names, bad)


def with_names(values: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Values with the name of each that is a code of `names`."""
    return [names[value] if type(value) is int and 0 <= value < len(names) else value for value in values]


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
