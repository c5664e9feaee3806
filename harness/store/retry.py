"""Errors of a database as sentences, and retries of calls during a transient outage."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa

from harness.errors import UserError, first_line

OUTAGE_SECONDS = float(os.environ.get("HARNESS_OUTAGE_SECONDS", "120"))
"""How long a call is retried during an outage (a restart, a cut connection, a lock, a full disk) before it fails."""
REPORT_SECONDS = 5.0
"""An outage of this length is reported on standard error."""
INTERVAL_SECONDS = 0.5

T = TypeVar("T")


class TransientOutageError(UserError):
    """An error of a database that may answer again in a moment. `state`: its predicate, after the database's name."""

    def __init__(self, place: str, state: str, fix: str, *, known: bool = False) -> None:
        super().__init__(f"{place} {state}; {fix}.")
        self.place, self.state = place, state
        self.known = known
        """Such a database exists: the call is retried even if it never answered before."""


_DAMAGED = ("malformed", "no such table", "no such column", "unsupported file format", "missing from index")
"""SQLite's words for a damaged file; a table is missing if the page of table names is damaged."""


def sentence(place: str, error: sa.exc.DBAPIError, path: Path | None = None) -> UserError:
    """A database's error as one sentence. `path`: SQLite's file."""
    text, state = first_line(error.orig or error), getattr(error.orig, "sqlstate", None)
    served = hasattr(error.orig, "sqlstate")
    if path and path.is_dir():
        return UserError(f"{place} cannot be opened: it is a folder; name a file.")
    if path and (gone := _gone(path, error)):
        return UserError(
            f"{place} {gone} while it was open; restore it, or run the same command again to create a new one."
        )
    if path and any(sign in text for sign in _DAMAGED):
        return damaged(place, text, path)
    if "locked" in text and not served:
        return TransientOutageError(
            place, "is locked by another program", "close that one and run the same command again", known=True
        )
    if "disk is full" in text or state == "53100":
        return TransientOutageError(
            place, "is on a full disk", "free some space and run the same command again: recorded stages are kept"
        )
    if "disk I/O" in text:
        return TransientOutageError(
            place, f"could not be read or written ({text})", "check the disk and run the same command again"
        )
    for sign, fix in {
        "readonly": "is read-only; make it writable or name another store",
        "read-only": "is read-only; make it writable or name another store",
        "not a database": "is not a database; move that file away or name another store",
        "unable to open": "cannot be opened; check that its folder exists and is writable",
    }.items():
        if sign in text:
            return UserError(f"{place} {fix}.")
    if served and (isinstance(error, sa.exc.OperationalError) or error.connection_invalidated):
        return TransientOutageError(
            place,
            f"does not answer ({text.rstrip('.')})",
            "check that it runs and that its URL is right, and run the same command again: recorded stages are kept",
        )
    return UserError(f"{place} answered: {text}.")


def damaged(place: str, text: str, path: Path) -> UserError:
    """The error for a damaged file of SQLite, to which nothing more is written. `text`: SQLite's words."""
    return UserError(
        f"{place} is damaged ({' '.join(text.split())[:160].rstrip('.')}); restore a copy, or recover what can be read with "
        f"'sqlite3 {path} .recover | sqlite3 {path.with_suffix('.recovered.db')}' and name that as the store."
    )


def _gone(path: Path, error: sa.exc.DBAPIError) -> str:
    """What happened to a file that was open; '' if it is still there."""
    name = getattr(error.orig, "sqlite_errorname", "")
    if name not in ("SQLITE_READONLY_DBMOVED", "SQLITE_CANTOPEN"):
        return ""
    try:
        path.stat()
    except FileNotFoundError:
        return "was deleted or moved away" if path.parent.is_dir() else "lost its folder"
    except OSError:
        return ""
    return "was replaced by another file" if name == "SQLITE_READONLY_DBMOVED" else ""


class OutageRetry:
    """Retries calls that a database could not answer, and reports the outage on standard error.

    Threads may share one: an outage concerns all of them at once.
    """

    def __init__(self, place: str) -> None:
        self.message = ""
        """The outage at this moment, in a sentence; '' while the database answers."""
        self._place = place
        self._since: float | None = None
        self._reached = False
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
                if not (self._reached or outage.known):
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
                print(self.message, file=sys.stderr, flush=True)

    def _answered(self) -> None:
        with self._lock:
            self._reached, self._since = True, None
            if self.message:
                self.message = ""
                print(f"{self._place} answers again.", file=sys.stderr, flush=True)
