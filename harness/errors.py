"""Errors for people: one sentence that names the place and the mend."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user wrote, or the machine lacks, with the mend in the message. The command exits with status 2."""


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> UserError:
    """An unknown name, answered with the closest known one and the full list."""
    choices = sorted(known)
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    place = f"{where}: " if where else ""
    return UserError(f"{place}unknown {kind} '{name}'.{hint} Known: {', '.join(choices) or 'none'}.")


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else "no message"
