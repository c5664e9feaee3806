"""Standard output and standard error while a command runs. A lost standard output ends it; a lost standard error does not."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

BROKEN_PIPE = 141
"""128 + SIGPIPE: a shell's exit status for a program whose reader closed the pipe."""


class OutputError(OSError):
    """Standard output cannot be written. `left`: its reader closed the pipe, as 'head' does."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.errno, error.strerror or str(error))
        self.left = isinstance(error, BrokenPipeError)


class Stream:
    """Standard output or standard error: a text stream whose errors go to `_lost`; everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lost(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lost(error)

    def write_bytes(self, content: bytes) -> None:
        self.flush()
        try:
            self._stream.buffer.write(content)
        except OSError as error:
            self._lost(error)
        self.flush()

    def _lost(self, error: OSError) -> None:
        """From now on the stream writes to /dev/null: Python's own flush at exit would fail again."""
        with contextlib.suppress(OSError, ValueError):  # a stream of a test has no file
            number = self._stream.fileno()
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)


class _StandardOutput(Stream):
    """Standard output. Raises OutputError again at each flush, so that nobody takes an unwritten table for a success."""

    _error: OSError | None = None

    def flush(self) -> None:
        super().flush()
        if self._error:
            raise OutputError(self._error)

    def _lost(self, error: OSError) -> None:
        super()._lost(error)
        self._error = error
        raise OutputError(error) from None


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
    with open(os.devnull, encoding="utf-8") as nothing, open(os.devnull, "w", encoding="utf-8") as nowhere:
        out, err = before[1] or nowhere, before[2] or nowhere
        for stream in (out, err):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        sys.stdin = before[0] or nothing
        sys.stdout, sys.stderr = cast(TextIO, _StandardOutput(out)), cast(TextIO, Stream(err))
        try:
            yield before[1] is not None
        finally:
            sys.stderr.flush()
            sys.stdin, sys.stdout, sys.stderr = before
