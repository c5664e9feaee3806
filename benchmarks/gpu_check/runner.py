"""Runs the checks in a process of their own, so that none can stop the others: after an error of CUDA, a crash or a hang the
rest runs in the next process. No torch."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.gpu_check.rows import Row, one_line, read_line

CHECK_SECONDS = 150.0
"""A check that takes longer is ended. Those with Ray take up to a minute."""
BEGUN, ENDED = "begun ", "ended "
"""What the lines of the report file begin with: a check's name, and its row."""
POLL_SECONDS = 0.1

Start = Callable[[Sequence[str], Path, Path], "subprocess.Popen[bytes]"]
"""(names of checks, report file, log file) -> a process that runs them in order and appends a line to the report before and
after each. It ends early after a row that is `poisoned`."""


def run_all(names: Sequence[str], start: Start, log: Path, minutes: float, show: Callable[[Row], None]) -> list[Row]:
    """The rows of all checks, each given to `show` as soon as it is known. Checks that have not ended after `minutes` are
    skipped."""
    until = time.monotonic() + 60 * minutes
    rows: dict[str, Row] = {}

    def add(row: Row) -> None:
        rows[row.name] = row
        show(row)

    while left := [name for name in names if name not in rows]:
        if time.monotonic() >= until:
            for name in left:
                add(Row(name, "skipped", reason=f"the {minutes:g} minutes were over"))
            break
        before = len(rows)
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report"
            report.touch()
            process = start(left, report, log)
            try:
                stopped = _follow(process, report, until, rows, add)
            finally:
                _end(process)
            under = _read(report, rows, add)
        if stopped and time.monotonic() >= until:
            continue
        if under or len(rows) == before:  # it ended within a check, or never came to one
            add(Row(under or left[0], "fail", reason=_why(stopped, process.returncode, log)))
    return [rows[name] for name in names]


def _follow(
    process: subprocess.Popen[bytes], report: Path, until: float, rows: dict[str, Row], add: Callable[[Row], None]
) -> bool:
    """Report rows until the process ends. Returns whether it has to be stopped: a check takes too long, or the time is over."""
    known, since = len(rows), time.monotonic()
    while process.poll() is None:
        _read(report, rows, add)
        if len(rows) != known:
            known, since = len(rows), time.monotonic()
        if time.monotonic() >= min(until, since + CHECK_SECONDS):
            return True
        time.sleep(POLL_SECONDS)
    return False


def _read(report: Path, rows: dict[str, Row], add: Callable[[Row], None]) -> str:
    """Add what a report has of new rows. Returns the check that has begun and not ended, '' for none."""
    text, under = report.read_text(encoding="utf-8"), ""
    for line in text[: text.rfind("\n") + 1].splitlines():
        under = line.removeprefix(BEGUN) if line.startswith(BEGUN) else ""
        if line.startswith(ENDED) and (row := read_line(line.removeprefix(ENDED))).name not in rows:
            add(row)
    return under


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and those that it started: it leads a session of its own."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _why(stopped: bool, status: int, log: Path) -> str:
    if stopped:
        return f"it did not end within {CHECK_SECONDS:g} s"
    how = f"signal {-status}" if status < 0 else f"status {status}"
    last = (log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []) or [""]
    return f"its process ended with {how}: {one_line(last[-1])}"
