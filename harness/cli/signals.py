"""SIGTERM (a scheduler, `timeout`, `ray job stop`) and SIGHUP (a closed terminal) end the command as Ctrl-C does."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

ENDING = (signal.SIGTERM, signal.SIGHUP)


class Received:
    """The signal that ends the command. It is not part of the exception: for a signal that arrives while Ray waits, Ray
    raises a KeyboardInterrupt of its own."""

    def __init__(self) -> None:
        self.number: signal.Signals | None = None

    @property
    def status(self) -> int:
        """Exit status by the shell's convention."""
        return 128 + (self.number or signal.SIGINT)

    @property
    def sentence(self) -> str:
        by = f" by {self.number.name}" if self.number else ""
        return f"interrupted{by}; recorded stages are kept, and the same command resumes."


@contextmanager
def interruptible() -> Iterator[Received]:
    """Inside, the first SIGTERM or SIGHUP raises KeyboardInterrupt in the main thread; later ones are ignored, so that the
    cleanup can end. A signal that was ignored before stays ignored, as under `nohup`."""
    received = Received()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if received.number is None:
            received.number = signal.Signals(number)
            _leave_lost_terminal()
            raise KeyboardInterrupt

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in ENDING}
        before = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}
    for each in before:
        signal.signal(each, interrupt)
    try:
        yield received
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _leave_lost_terminal() -> None:
    """A closed terminal refuses every write: the standard streams go to /dev/null, so that the cleanup does not fail."""
    for stream in (1, 2):
        try:
            os.write(stream, b"")
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream)
            os.close(null)
