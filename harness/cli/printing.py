"""Lines of the command line: wrapped between words on a terminal, without control characters; durations and timestamps."""

from __future__ import annotations

import os
import re
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from typing import TextIO

from harness.tables.estimate import Estimate

MIN_WIDTH = 40
"""Columns of a terminal below which lines are not wrapped here."""
YEAR = 365.25 * 24
"""Hours."""
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, among them a terminal's escapes, marks that reverse the direction of a line, and lone surrogates."""
_RULE = re.compile(r"-+(  -+)+|-+")


def escaped(text: str) -> str:
    """A text of a record or a user, safe to print: characters that control a terminal are shown as \\x1b or \\u202e."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def columns(stream: TextIO) -> int | None:
    """Columns of a stream's terminal; None for a file or a pipe, whose lines are not wrapped."""
    if not stream.isatty():
        return None
    named = os.environ.get("COLUMNS", "")
    if named.isdigit() and int(named):
        return int(named)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def wrapped(line: str, width: int | None, indent: int = 2) -> list[str]:
    """A line in parts of at most `width` columns, broken between words; all but the first part are indented."""
    if width is None or width < MIN_WIDTH or len(line) <= width:
        return [line]
    start = len(line) - len(line.lstrip())
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=" " * max(start, min(indent, width // 2)),
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_lines(lines: Iterable[str], stream: TextIO | None = None, indent: int = 2) -> None:
    """Print sentences, wrapped where the stream (standard error) is a terminal."""
    stream = stream or sys.stderr
    width = columns(stream)
    print("\n".join(part for line in lines for part in wrapped(line, width, indent)), file=stream, flush=True)


def print_table(text: str, stream: TextIO) -> None:
    """Print plain text with tables: rows are not wrapped, sentences are. Ends with one newline."""
    width = columns(stream)
    print("\n".join(_laid_out(text.rstrip("\n").split("\n"), width)), file=stream, flush=True)


def _laid_out(lines: list[str], width: int | None) -> Iterator[str]:
    """A table is a header, a rule below it, and rows up to an empty line."""
    table = False
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        table = bool(line) and (table or _RULE.fullmatch(following) is not None)
        yield from [line] if table else wrapped(line, width)


def duration(hours: float) -> str:
    """Hours in the unit that gives a small number: '13 s', '5 min', '3.2 h', '4.1 days'."""
    if round(hours * 3600) < 60:
        return f"{max(1, round(hours * 3600))} s"
    if round(hours * 60) < 60:
        return f"{round(hours * 60)} min"
    if hours < 48:
        return f"{hours:.1f} h"
    return f"{hours / 24:.1f} days" if hours < 2 * YEAR else f"{hours / YEAR:.1f} years"


def size_of(size: float) -> str:
    """Bytes in the unit that gives a small number: '17 MB', '2.1 GB'."""
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 10 else f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def magnitude(hours: float) -> str:
    """Hours as an order of magnitude."""
    for limit, words in (
        (1 / 60, "seconds"),
        (1 / 6, "minutes"),
        (1, "tens of minutes"),
        (10, "hours"),
        (48, "tens of hours"),
        (10 * 24, "days"),
        (60 * 24, "weeks"),
        (2 * YEAR, "months"),
    ):
        if hours < limit:
            return words
    return "years"


def time_range(estimate: Estimate) -> str:
    """'12 min (8 to 20 min)': the estimated time and its interval."""
    likely, low, high = (duration(each / 3600) for each in (estimate.seconds, estimate.low, estimate.high))
    if low == high:
        return likely
    number, _, unit = low.partition(" ")
    return f"{likely} ({number if high.endswith(f' {unit}') else low} to {high})"


def timestamp(seconds: float) -> str:
    """Unix time as local ISO 8601 time with its offset."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S%z", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):  # a damaged record may hold any number
        return str(seconds)
