"""Numbers, names and lists in words, as every sentence writes them: points, counts, sizes, the letters of footnotes."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SHOWN_MEMBERS = 6
MAX_REASON = 200
_UNSEEN = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_IN_LINES, _IN_LINE = re.compile(f"[{_UNSEEN}]"), re.compile(f"[{_UNSEEN}\t\n]")


def escaped(text: str, lines: bool = False) -> str:
    """A text of a record, a file or a user, as it may be shown: control characters, a terminal's escapes among them, marks of direction
    and lone surrogates as \\u001b or \\u202e, which JSON reads back. `lines`: it has lines and tabs of its own."""
    return (_IN_LINES if lines else _IN_LINE).sub(
        lambda found: found[0].encode("unicode_escape").decode().replace("\\x", "\\u00"), text
    )


def wrapped(line: str, width: int | None, indent: int = 2) -> list[str]:
    """A line in parts of at most `width` columns, broken between words; all but the first part are indented."""
    if width is None or len(line) <= width:
        return [line]
    start = " " * max(len(line) - len(line.lstrip()), min(indent, width // 2))
    return textwrap.wrap(line, width, subsequent_indent=start, break_long_words=False, break_on_hyphens=False)


def shortened(reason: str) -> str:
    return reason if len(reason) <= MAX_REASON else reason[: MAX_REASON - 3] + "..."


def some_of(names: Sequence[str], most: int = SHOWN_MEMBERS) -> str:
    """The first names, and how many more there are."""
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def in_points(value: float, sign: bool = False) -> str:
    """A value with 1 for 100 % in points with two decimals, never -0.00."""
    text = f"{100 * value:+.2f}" if sign else f"{100 * value:.2f}"
    return text.replace("-", "") if float(text) == 0 else text


def two_digits(value: float) -> str:
    """A number of 0 or more in two digits or as a whole one, without an exponent."""
    return f"{value:,.0f}" if value >= 9.95 or not value else f"{value:.2g}" if value >= 0.001 else "less than 0.001"


def letter(index: int) -> str:
    """a, b, ..., z, aa, ab, ..."""
    text = chr(ord("a") + index % 26)
    return text if index < 26 else letter(index // 26 - 1) + text


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def examples(size: int, unit: str = "training examples") -> str:
    """For the title of a panel or a place: '1,000 examples'. `unit`: what a protocol's sizes count."""
    return f"{size:,} {unit.removeprefix('training ')}" if size else "all examples"


def training_examples(size: int, unit: str) -> str:
    """For a sentence: '1,000 training examples'. `unit`: what a protocol's sizes count."""
    return f"{size:,} {unit}" if size else "full training set"


def sizes_text(sizes: Iterable[int], unit: str) -> str:
    """'20, 100 and 1000 training examples and the full training set'."""
    counts = [str(size) for size in sizes if size]
    full = ["the full training set"] if 0 in tuple(sizes) else []
    return " and ".join([*([f"{listed(counts)} {unit}"] if counts else []), *full])


def listed(items: Iterable[str]) -> str:
    """'a, b and c'."""
    *first, last = [*items] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def shares(classes: Mapping[str, int]) -> str:
    """' (good 49 %, bad 51 %)'; of many classes the largest."""
    total = sum(classes.values())
    if not total:
        return ""
    shown = classes.items() if len(classes) <= SHOWN_MEMBERS else [max(classes.items(), key=lambda pair: pair[1])]
    text = ", ".join(f"{name} {100 * count / total:.0f} %" for name, count in shown)
    return f" ({text})" if len(shown) == len(classes) else f" ({len(classes)} classes, the largest {text})"


def value_text(value: Any) -> str:
    """A setting as it is printed; a number in the fewest digits that give it back."""
    if isinstance(value, Mapping):
        return ", ".join(f"{value_text(v)} at {k}" for k, v in value.items())
    if isinstance(value, (tuple, list, range)):
        return ", ".join(map(value_text, value))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(float(value))
    return str(value) or "none"
