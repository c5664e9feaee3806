"""Retries of calls that a database or a bucket cannot answer at the moment, with one sentence about the outage."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from harness.errors import UserError

OUTAGE_SECONDS = float(os.environ.get("HARNESS_OUTAGE_SECONDS", "120"))
"""How long a call is retried during an outage (a restart, a cut connection, a lock, a full disk, credentials that are renewed) before it fails."""
REPORT_SECONDS = 5.0
"""An outage of this length is reported on standard error."""
INTERVAL_SECONDS = 0.5

T = TypeVar("T")

outages: dict[str, str] = {}
"""What this process waits for: a sentence by the name of the place."""


class TransientOutageError(UserError):
    """An error of a place that may answer again in a moment. `state`: its predicate, after the place's name."""

    def __init__(self, place: str, state: str, fix: str, *, known: bool = False) -> None:
        super().__init__(f"{place} {state}; {fix}.")
        self.place, self.state = place, state
        self.known = known
        """Such a place exists: the call is retried even if it never answered before."""


class OutageRetry:
    """Retries calls that a place could not answer, and reports the outage on standard error.

    Threads may share one: an outage concerns all of them at once.
    """

    def __init__(self, place: str) -> None:
        self.message = ""
        """The outage at this moment, in a sentence; '' while the place answers."""
        self.reached = False
        """Whether the place answered before: one that never did is not retried, since its name may be wrong."""
        self._place = place
        self._since: float | None = None
        self._lock = threading.Lock()

    def call(self, act: Callable[[bool], T]) -> T:
        """The result of `act`, whose argument says whether this is a retry. Raises UserError if a retry cannot help, or after
        OUTAGE_SECONDS; later calls are then tried once, until one succeeds."""
        is_retry = False
        while True:
            begun = time.monotonic()
            try:
                result = act(is_retry)
            except TransientOutageError as outage:
                if not (self.reached or outage.known):
                    raise UserError(str(outage)) from None
                self._since = begun if self._since is None else self._since
                waited = time.monotonic() - self._since
                if waited >= OUTAGE_SECONDS:
                    raise UserError(str(outage)) from None  # which can travel between processes
                if waited >= REPORT_SECONDS:
                    self._report(outage.state, OUTAGE_SECONDS - waited)
            else:
                self._answered()
                return result
            time.sleep(INTERVAL_SECONDS)
            is_retry = True

    def report_slow(self) -> None:
        """Report a call that has not been answered for REPORT_SECONDS."""
        begun = time.monotonic() - REPORT_SECONDS
        self._since = begun if self._since is None else self._since
        self._report("does not answer", max(0.0, OUTAGE_SECONDS - (time.monotonic() - self._since)))

    def _report(self, state: str, left: float) -> None:
        with self._lock:
            if not self.message:
                until = time.strftime("%H:%M:%S", time.localtime(time.time() + left))
                self.message = f"{self._place} {state}; trying again until {until}."
                outages[self._place] = self.message
                print(self.message, file=sys.stderr, flush=True)

    def _answered(self) -> None:
        with self._lock:
            self.reached, self._since = True, None
            if self.message:
                self.message = ""
                outages.pop(self._place, None)
                print(answers_again(self._place), file=sys.stderr, flush=True)


def answers_again(place: str) -> str:
    return f"{place} answers again."
