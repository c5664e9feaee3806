"""Errors of a database, one sentence each: which of them a retry may cure, and which not."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from harness.errors import UserError, first_line
from harness.retry import TransientOutageError

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
    if served and "read-only" in text:  # a standby, until it takes over
        return TransientOutageError(place, "is read-only", "make it writable or name another store")
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
