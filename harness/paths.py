"""Paths as users type them."""

from __future__ import annotations

import os
from pathlib import Path

from harness.errors import UserError


def named_path(text: str, place: str = "") -> Path:
    """The path that a user named, `~` expanded; nothing need be there.

    `place` names the flag or key in errors. Raises UserError for a path that the system cannot look up: a name that is
    too long, a `~USER` that does not exist, a folder that may not be read.
    """
    named = f"{place}: " if place else ""
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        user = text.partition("/")[0]
        raise UserError(f"{named}there is no user for '{_short(user)}'; write the path without '~'.") from None
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{named}'{_short(text)}' cannot be looked up ({reason}); name another path.") from None
    return path


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file at once: until it is whole, the earlier one, or none, is there. Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
