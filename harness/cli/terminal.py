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


# ------------------------------------------------------------------------------------------------------------- streams


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
            with contextlib.suppress(OSError, ValueError):  # a stream of a test has no file
                _discard(self._stream.fileno())
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


def _discard(descriptor: int) -> None:
    """Send to /dev/null what is written to a descriptor."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


@contextlib.contextmanager
def standard_streams() -> Iterator[bool]:
    """Inside, a closed standard error is ignored, a closed standard output raises OutputError, and neither fails for a
    character that its encoding lacks. Yields whether standard output is open."""
    before = sys.stdin, sys.stdout, sys.stderr
    # The next file would get a closed descriptor's number, and messages would be written into a database.
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)
    out, err = before[1] or os.fdopen(1, "w", closefd=False), before[2] or os.fdopen(2, "w", closefd=False)
    for stream in (out, err):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdin = before[0] or os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = cast(TextIO, Stream(out, strict=True)), cast(TextIO, Stream(err))
    try:
        yield before[1] is not None
    finally:
        sys.stderr.flush()
        sys.stdin, sys.stdout, sys.stderr = before


# ------------------------------------------------------------------------------------------------------------- signals


@contextlib.contextmanager
def interruptible() -> Iterator[list[int]]:
    """Inside, the first SIGTERM (of a scheduler, `timeout`, `ray job stop`) or SIGHUP (of a closed terminal) raises KeyboardInterrupt in the main
    thread, as Ctrl-C does; later ones are ignored, so that the cleanup can end. A signal that was ignored before stays ignored, as under `nohup`. Python drops an exception that is raised in a
    destructor or in a weak reference's callback: of these and of SIGINT one that is lost so is sent again. Yields the signals that ended the command, none
    for Ctrl-C: for one that arrives while Ray waits, Ray raises a KeyboardInterrupt of its own, which does not tell."""
    received, awaited = list[int](), True
    main, report_lost = threading.main_thread(), sys.unraisablehook

    def interrupt(number: int, frame: object) -> None:
        nonlocal awaited
        if awaited:
            awaited = False
            received.append(number)  # first: another signal may break this off
            for descriptor in (1, 2):  # a closed terminal refuses every write, and the cleanup must not fail
                try:
                    os.write(descriptor, b"")
                except OSError:
                    _discard(descriptor)
            raise KeyboardInterrupt

    def send_again(lost: sys.UnraisableHookArgs) -> None:
        nonlocal awaited
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            report_lost(lost)
            return
        awaited = True
        # by then the callback that it interrupted has returned
        sender = threading.Timer(0.05, signal.pthread_kill, (main.ident, (*received, signal.SIGINT)[0]))
        sender.daemon = True
        sender.start()

    handled = [signal.SIGTERM, signal.SIGHUP] if threading.current_thread() is main else []
    before = {n: signal.signal(n, interrupt) for n in handled if signal.getsignal(n) is not signal.SIG_IGN}
    sys.unraisablehook = send_again
    try:
        yield received
    finally:
        sys.unraisablehook = report_lost
        for number, handler in before.items():
            signal.signal(number, handler)


# --------------------------------------------------------------------------------------------------------------- lines


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
