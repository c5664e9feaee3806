"""A check, its finding, and the rows of the table. No torch."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["pass", "fail", "skipped"]
HEADERS = ("check", "", "figure", "tolerance", "s", "why")


class SkippedError(Exception):
    """The machine lacks what a check needs; the message says what."""


@dataclass(frozen=True)
class Finding:
    """What a check measured. `figure` and `tolerance` as the table shows them ('-': none), `values` as JSON keeps them.
    `reason`: why it did not pass."""

    passed: bool
    figure: str = "-"
    tolerance: str = "-"
    values: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""


def within(tolerances: Mapping[str, float], values: Mapping[str, float]) -> Finding:
    """Whether each of `values` is at most its tolerance. NaN is not. Both by name; a single one is shown without it."""
    wrong = [name for name, limit in tolerances.items() if not values[name] <= limit]
    reason = "; ".join(f"{name} is {values[name]:.1e}, more than {tolerances[name]:.0e}" for name in wrong)
    return Finding(
        not wrong, _shown(tolerances, values, ".1e"), _shown(tolerances, tolerances, ".0e"), dict(values), reason
    )


def _shown(names: Iterable[str], values: Mapping[str, float], form: str) -> str:
    texts = {name: "0" if values[name] == 0 else format(values[name], form) for name in names}
    return ", ".join(texts.values() if len(texts) == 1 else (f"{name} {text}" for name, text in texts.items()))


@dataclass(frozen=True)
class Row:
    """One line of the table. `poisoned`: this process can compute nothing more on its device."""

    name: str
    status: Status
    figure: str = "-"
    tolerance: str = "-"
    seconds: float = 0.0
    reason: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    poisoned: bool = False


def row_of(name: str, check: Callable[[], Finding]) -> Row:
    """Run a check. Whatever it raises becomes its row."""
    started = time.perf_counter()
    status: Status
    try:
        found = check()
        status = "pass" if found.passed else "fail"
    except SkippedError as error:
        status, found = "skipped", Finding(False, reason=str(error))
    except Exception as error:  # the other checks run all the same
        status, found = "fail", Finding(False, reason=f"{type(error).__name__}: {one_line(error)}")
    seconds = time.perf_counter() - started
    poisoned = status == "fail" and "CUDA error" in found.reason
    return Row(name, status, found.figure, found.tolerance, seconds, found.reason, found.values, poisoned)


def one_line(error: object) -> str:
    """The first line of a text, at most 300 characters of it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else "no message"


def table(rows: Sequence[Row]) -> str:
    """The rows as text, columns aligned."""
    lines = [HEADERS, *((r.name, r.status, r.figure, r.tolerance, f"{r.seconds:.1f}", r.reason) for r in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADERS) - 1)]
    return "\n".join(
        "  ".join([*(text.ljust(width) for text, width in zip(line, widths, strict=False)), line[-1]]).rstrip()
        for line in lines
    )


def summary(rows: Sequence[Row]) -> str:
    counts = {status: sum(row.status == status for row in rows) for status in ("pass", "fail", "skipped")}
    return f"{counts['pass']} passed, {counts['fail']} failed, {counts['skipped']} skipped"


def as_json(machine: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Everything that was measured. JSON has no NaN and no infinity: they are texts."""
    return json.dumps({"machine": dict(machine), "rows": [_plain(asdict(row)) for row in rows]}, indent=1)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def line_of(row: Row) -> str:
    """A row as one line of JSON, for `read_line`."""
    return json.dumps(_plain(asdict(row)))


def read_line(text: str) -> Row:
    return Row(**json.loads(text))
