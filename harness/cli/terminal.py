"""Standard output and standard error while a command runs, the signals that end it, and lines that fit a terminal."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO, cast

from harness.errors import masked
from harness.wording import escaped, wrapped

if TYPE_CHECKING:
    from harness.views.view import View

BROKEN_PIPE = 141
"""128 + SIGPIPE: a shell's exit status for a program whose reader closed the pipe."""
CLEANUP_SECONDS = 20.0
"""After a signal; then the next one breaks the cleanup off, or the work, where Python lost the first one in a destructor."""


class OutputError(OSError):
    """Standard output cannot be written."""


class Stream:
    """A text stream that writes to /dev/null once it failed: Python's own flush at exit would fail again. Standard output (`strict`) takes text `escaped` and bytes as they are, and raises
    OutputError again at each flush, so that nobody takes an unwritten table for a success."""

    def __init__(self, stream: TextIO, strict: bool = False) -> None:
        self._stream, self._strict, self._error = stream, strict, cast(OSError | None, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _tried(self, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:
            self._error = error
            with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:  # a test's has no file
                os.dup2(nowhere.fileno(), self._stream.fileno())
        if self._strict and self._error:
            raise OutputError(self._error.errno, self._error.strerror or str(self._error))

    def write(self, text: str) -> int:
        self._tried(lambda: self._stream.write(escaped(text, lines=True) if self._strict else text))
        return len(text)

    def write_bytes(self, content: bytes) -> None:
        self.flush()
        self._tried(lambda: self._stream.buffer.write(content))
        self.flush()

    def flush(self) -> None:
        self._tried(self._stream.flush)


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Inside, standard error that nobody reads is ignored, standard output that cannot be written raises OutputError, and neither fails for a character
    that its encoding lacks. A closed one is /dev/null: the next file would get its descriptor, and messages would be written into a database."""
    before = sys.stdin, sys.stdout, sys.stderr
    opened: list[Any] = [each or open(os.devnull, mode) for each, mode in zip(before, "rww", strict=True)]  # noqa: SIM115 - to the end
    for stream in opened[1:]:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdin, out, err = opened
    sys.stdout, sys.stderr = cast(TextIO, Stream(out, strict=True)), cast(TextIO, Stream(err))
    try:
        yield
    finally:
        sys.stderr.flush()
        sys.stdin, sys.stdout, sys.stderr = before


@contextlib.contextmanager
def interruptible() -> Iterator[list[int]]:
    """Inside, a SIGTERM (of a scheduler, `timeout`, `ray job stop`) or SIGHUP (of a closed terminal) raises KeyboardInterrupt in the main thread, as
    Ctrl-C does; later ones are ignored for some seconds, so that the cleanup can end, and one that was ignored before stays so, as under `nohup`. Yields the
    signals that came, none for Ctrl-C: for one that arrives while Ray waits, Ray raises a KeyboardInterrupt of its own, which does not tell."""
    received, until = list[int](), 0.0

    def interrupt(number: int, frame: object) -> None:
        nonlocal until
        received.append(number)
        if time.monotonic() > until:
            until = time.monotonic() + CLEANUP_SECONDS
            raise KeyboardInterrupt

    handled = [signal.SIGTERM, signal.SIGHUP] if threading.current_thread() is threading.main_thread() else []
    before = {n: signal.signal(n, interrupt) for n in handled if signal.getsignal(n) is not signal.SIG_IGN}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def printable(line: str) -> str:
    """A line as a terminal gets it: nothing in it steers the terminal, and no password is readable."""
    return masked(escaped(line))


def columns(stream: TextIO) -> int | None:
    """Columns of a stream's terminal; None for a file or a pipe, whose lines are not wrapped."""
    with contextlib.suppress(OSError, ValueError):
        if stream.isatty():
            return int(os.environ.get("COLUMNS") or os.get_terminal_size(stream.fileno()).columns) or None
    return None


def print_lines(lines: Iterable[str], stream: TextIO | None = None, indent: int = 2) -> None:
    """Print sentences, `printable` and wrapped where the stream (standard output) is a terminal; nothing where there are none."""
    stream = stream or sys.stdout
    width = columns(stream)
    parts = (part for line in lines for part in wrapped(printable(line), width, indent))
    print("".join(f"{part}\n" for part in parts), end="", file=stream, flush=True)


def say(*lines: str) -> None:
    """The same on standard error."""
    print_lines(lines, sys.stderr)


def print_view(view: View) -> None:
    print(masked(view.text(columns(sys.stdout))), end="", flush=True)


def duration(hours: float) -> str:
    """Hours in the unit that gives a small number: '13 s', '5 min', '3.2 h', '4.1 days'."""
    if round(hours * 3600) < 60:
        return f"{max(1, round(hours * 3600))} s"
    if round(hours * 60) < 60:
        return f"{round(hours * 60)} min"
    days = hours / 24
    return f"{hours:.1f} h" if days < 2 else f"{days:.1f} days" if days < 730.5 else f"{days / 365.25:.1f} years"


def timestamp(seconds: float) -> str:
    """Unix time as local ISO 8601 time with its offset."""
    return time.strftime("%Y-%m-%d %H:%M:%S%z", time.localtime(seconds))
