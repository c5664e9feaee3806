"""CSV and TSV files, a row at a time: what is wrong in one is a sentence with file, line and fix.

By Python's own reader: the readers of pandas, pyarrow and `datasets` name no line, and take `NA` for nothing and `007` for 7.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.errors import UserError

SEPARATED = (".csv", ".tsv")
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def header_of(path: Path) -> list[str]:
    """The names in the header line. Raises UserError; an empty file has none."""
    return next(separated(path), (0, []))[1]


def separated(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line on which it begins, fields) of the header and of each row, all with as many fields as the header. A line without a
    character is no row.

    The separator of `.tsv` is the tab; that of `.csv` is what separates its header: commas, semicolons or tabs. Holds one row at
    a time. Raises UserError where the file cannot be read, is not UTF-8 or not CSV, and where fields are missing.
    """
    width, line = 0, 1
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=_separator(path), strict=True)
            for row in reader:
                if row and not width:
                    row = [name.strip() for name in row]
                    width = len(row)
                if len(row) == width:
                    yield line, row
                elif row:
                    raise UserError(
                        f"{path}, line {line}: {len(row)} fields under a header of {width}; put a text with "
                        f"{SEPARATORS[reader.dialect.delimiter]} or line breaks in double quotes."
                    )
                line = reader.line_num + 1  # a quoted text may go over several
    except csv.Error as error:
        if "field limit" in str(error):
            raise UserError(
                f"{path}, line {line}: a field has more than {csv.field_size_limit():,} characters; close its quotes, or cut "
                "the text."
            ) from None
        raise UserError(f"{path}, line {line}: is not CSV ({error}); correct its quotes.") from None
    except UnicodeDecodeError:
        raise not_utf8(path) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None


def not_utf8(path: Path) -> UserError:
    """What is wrong in a file that is no UTF-8, with its first line that is not."""
    raw = path.read_bytes()
    if raw.startswith(_UTF16):
        return UserError(f"{path}: is UTF-16 (as Excel's 'Unicode text' is); save the file as UTF-8.")
    try:
        raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return UserError(f"{path}, line {line}: byte {raw[error.start]:#04x} is not UTF-8; save the file as UTF-8.")
    return UserError(f"{path}: is not UTF-8; save the file as UTF-8.")


def _separator(path: Path) -> str:
    """What separates the fields of the first line that has any."""
    if path.suffix == ".tsv":
        return "\t"
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = next((line for line in file if line.strip("\r\n")), "")
    if "\0" in first:
        raise UserError(f"{path}: holds null bytes, as UTF-16 does; save the file as UTF-8.")
    found = [separator for separator in SEPARATORS if _fields(first, separator) > 1]
    if len(found) > 1:
        both = " and ".join(SEPARATORS[separator] for separator in found)
        raise UserError(f"{path}, line 1: {both} are in its header; put a name that holds one in double quotes.")
    return found[0] if found else ","


def _fields(line: str, separator: str) -> int:
    row: Sequence[str] = next(csv.reader([line], delimiter=separator), [])
    return len(row)
