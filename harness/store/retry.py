"""What goes wrong with a database, as one sentence each, and how long one that is away for a moment is asked again."""

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
"""How long a database that is away (restarted, cut off, locked, on a full disk) is asked again before it is given up."""
SPEAK_SECONDS = 5.0
"""A database that is away for so long is spoken of."""
INTERVAL_SECONDS = 0.5

T = TypeVar("T")


class TransientOutageError(UserError):
    """A database that may be back in a moment. `state`: what it does or is, to be said after its name."""

    def __init__(self, place: str, state: str, mend: str, *, known: bool = False) -> None:
        super().__init__(f"{place} {state}; {mend}.")
        self.place, self.state = place, state
        self.known = known
        """There is such a database: worth waiting for even when it never answered before."""


_DAMAGED = ("malformed", "no such table", "no such column", "unsupported file format", "missing from index")
"""What SQLite says of a file that is not whole; a table is missing where the page of their names is damaged."""


def sentence(place: str, error: sa.exc.DBAPIError, path: Path | None = None) -> UserError:
    """A database's error as one sentence for people. `path`: SQLite's file."""
    text, state = first_line(error.orig or error), getattr(error.orig, "sqlstate", None)
    served = hasattr(error.orig, "sqlstate")
    if path and path.is_dir():
        return UserError(f"{place} cannot be opened: it is a folder; name a file with --store.")
    if path and (gone := _gone(path, error)):
        return UserError(
            f"{place} {gone} while it was open; put it back, or run the same command again to begin a new one there."
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
    for sign, mend in {
        "readonly": "is read-only; make it writable or name another --store",
        "read-only": "is read-only; make it writable or name another --store",
        "not a database": "is not a database; move that file away or name another --store",
        "unable to open": "cannot be opened; check that its folder exists and is writable",
    }.items():
        if sign in text:
            return UserError(f"{place} {mend}.")
    if served and (isinstance(error, sa.exc.OperationalError) or error.connection_invalidated):
        return TransientOutageError(
            place,
            f"does not answer ({text.rstrip('.')})",
            "see that it runs and that --store names it rightly, and run the same command again: recorded stages are kept",
        )
    return UserError(f"{place} answered: {text}.")


def damaged(place: str, text: str, path: Path) -> UserError:
    """Of SQLite's file, whose structure is not whole: nothing more is written to it. `text`: what SQLite says of it."""
    return UserError(
        f"{place} is damaged ({' '.join(text.split())[:160].rstrip('.')}); put a copy in its place, or recover what can be read with "
        f"'sqlite3 {path} .recover | sqlite3 {path.with_suffix('.recovered.db')}' and name that with --store."
    )


def _gone(path: Path, error: sa.exc.DBAPIError) -> str:
    """What became of a file that was open; empty where it is there."""
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
    """Asks again what a database could not answer, and says on standard error what is waited for.

    Threads may share one: a database is away for all of them at once.
    """

    def __init__(self, place: str) -> None:
        self.trouble = ""
        """What is waited for at this moment, in a sentence; empty while the database answers."""
        self._place = place
        self._since: float | None = None
        self._reached = False
        self._lock = threading.Lock()

    def call(self, act: Callable[[bool], T]) -> T:
        """What `act` returns, which is told whether it is asked again. Raises UserError where waiting is no use or was in
        vain; what is asked after that is tried once, until something is answered."""
        again = False
        while True:
            begun = time.monotonic()
            try:
                result = act(again)
            except TransientOutageError as away:
                if not (self._reached or away.known):
                    raise UserError(str(away)) from None
                self._since = begun if self._since is None else self._since
                waited = time.monotonic() - self._since
                if waited >= OUTAGE_SECONDS:
                    raise UserError(str(away)) from None  # which can travel between processes
                if waited >= SPEAK_SECONDS:
                    self._speak(away.state, OUTAGE_SECONDS - waited)
            else:
                self._answered()
                return result
            time.sleep(INTERVAL_SECONDS)
            again = True

    def late(self) -> None:
        """It was asked SPEAK_SECONDS ago and has not answered yet."""
        begun = time.monotonic() - SPEAK_SECONDS
        self._since = begun if self._since is None else self._since
        self._speak("does not answer", max(0.0, OUTAGE_SECONDS - (time.monotonic() - self._since)))

    def _speak(self, state: str, left: float) -> None:
        with self._lock:
            if not self.trouble:
                until = time.strftime("%H:%M:%S", time.localtime(time.time() + left))
                self.trouble = f"{self._place} {state}; trying again until {until}."
                print(self.trouble, file=sys.stderr, flush=True)

    def _answered(self) -> None:
        with self._lock:
            self._reached, self._since = True, None
            if self.trouble:
                self.trouble = ""
                print(f"{self._place} answers again.", file=sys.stderr, flush=True)
