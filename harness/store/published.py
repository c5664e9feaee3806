"""A published folder as a store: its records are one compressed file of SQLite's, which commands read and none writes."""

from __future__ import annotations

import hashlib
import lzma
from pathlib import Path

from harness.errors import UserError
from harness.paths import replace_file, user_cache

RECORDS_FILE = "records.db.xz"
UNLABELLED_FILE = "records-without-labels.db.xz"
"""The same without gold labels: no store, `harness merge` completes it from the data."""


def is_published(text: str, name: str = RECORDS_FILE) -> bool:
    """Whether the name of a store is that of a published folder, with this file of records."""
    try:
        return "://" not in text and (Path(text).expanduser() / name).is_file()
    except (OSError, ValueError, RuntimeError):
        return False


def unpacked(folder: Path, name: str = RECORDS_FILE) -> Path:
    """The records of a published folder as a file of SQLite, in the user's cache, under their digest. Raises UserError for a damaged one."""
    packed = folder / name
    try:
        content = packed.read_bytes()
        place = user_cache("published")
        path = place / f"{hashlib.sha256(content).hexdigest()}.db"
        if not path.exists():
            place.mkdir(parents=True, exist_ok=True)
            replace_file(path, lzma.decompress(content))
    except lzma.LZMAError:
        raise UserError(f"{packed}: is damaged; restore a copy of it.") from None
    except OSError as error:
        raise UserError(f"{packed}: cannot be read ({error.strerror}).") from None
    return path
