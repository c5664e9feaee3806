"""One line of what `doctor` reports."""

from __future__ import annotations

from typing import NamedTuple

GIB = 2**30


class Check(NamedTuple):
    """One line of the report. `ok`: True (fine), None (worth knowing; nothing fails for it) or False (needed and missing:
    exit status 1). `fix` says what to do, and is empty where there is nothing to do."""

    name: str
    ok: bool | None
    found: str
    fix: str = ""
