"""SIGTERM (a scheduler, `timeout`, `ray job stop`) and SIGHUP (a closed terminal) end the command as Ctrl-C does, whatever it does when
they arrive."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

ENDING = (signal.SIGTERM, signal.SIGHUP)
AGAIN_SECONDS = 0.05
"""After which a signal is sent again whose KeyboardInterrupt was lost: by then the callback that it interrupted has returned."""


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
    cleanup can end. A signal that was ignored before stays ignored, as under `nohup`. Python drops an exception that is raised in a
    destructor or in a weak reference's callback: of these and of SIGINT one that is lost so is sent again."""
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
    report_lost = sys.unraisablehook

    def send_again(lost: sys.UnraisableHookArgs) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            report_lost(lost)
            return
        number, received.number = received.number or signal.SIGINT, None
        main = threading.main_thread().ident
        assert main is not None
        threading.Timer(AGAIN_SECONDS, signal.pthread_kill, (main, number)).start()

    sys.unraisablehook = send_again
    try:
        yield received
    finally:
        sys.unraisablehook = report_lost
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
