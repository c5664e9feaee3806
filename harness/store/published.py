"""A published folder as a store: its records are one compressed file of SQLite's, which commands read and none writes."""

from __future__ import annotations

import hashlib
import lzma
import urllib.request
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from harness.errors import UserError
from harness.paths import replacing, user_cache

RECORDS_FILE = "records.db.xz"
UNLABELLED_FILE = "records-without-labels.db.xz"
"""The same without gold labels: no store, `harness merge` completes it from the data."""
SUFFIX = ".db.xz"
EXPANSION, SMALL = 50, 1 << 26
"""What a file may unpack to: so many times its size (published ones: up to 3), and at least so many bytes."""
PART, MEMORY = 1 << 20, 1 << 28
"""Bytes that are unpacked at once, and that the decompressor may take."""
LARGEST = 1_000_000_000
"""Bytes of a file of records that are fetched."""


def is_published(text: str, name: str = RECORDS_FILE) -> bool:
    """Whether the name of a store is that of a published folder, with this file of records."""
    try:
        return "://" not in text and (Path(text).expanduser() / name).is_file()
    except (OSError, ValueError, RuntimeError):
        return False


def unpacked(packed: Path) -> Path:
    """A file of published records as a file of SQLite, in the user's cache, under its digest. Raises UserError for a damaged one."""
    try:
        return _unpacked(packed.read_bytes(), str(packed))
    except OSError as error:
        raise UserError(f"{packed}: cannot be read ({error.strerror}).") from None


def _unpacked(content: bytes, shown: str) -> Path:
    """See `unpacked`; part by part. Raises UserError also above the limit, and keeps nothing then."""
    path = user_cache("published") / f"{hashlib.sha256(content).hexdigest()}.db"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    most, decompressor = max(SMALL, EXPANSION * len(content)), lzma.LZMADecompressor(memlimit=MEMORY)
    try:
        with replacing(path) as part, part.open("wb") as file:
            while not decompressor.eof:
                file.write(decompressor.decompress(content, PART))
                content = b""
                if file.tell() > most:
                    raise UserError(
                        f"{shown}: unpacks to more than {most:,} bytes, {EXPANSION} times its size, which records of runs do not; "
                        "fetch it again from where it was published."
                    )
                if decompressor.needs_input:
                    raise lzma.LZMAError("the file ends early")
    except lzma.LZMAError:
        raise UserError(f"{shown}: is damaged; restore a copy of it.") from None
    return path


def is_records(name: str) -> bool:
    """Whether a name is that of a file of published records, on this machine or behind an URL."""
    return urlsplit(name).path.endswith(SUFFIX)


def has_labels(name: str) -> bool:
    return not urlsplit(name).path.endswith(UNLABELLED_FILE)


def unpacked_from(name: str, shown: str) -> Path:
    """Published records, from a file or an URL, as `unpacked` gives them; `shown`: the name without a password. Raises UserError, also above LARGEST
    bytes behind an URL."""
    if urlsplit(name).scheme not in ("http", "https"):
        return unpacked(Path(name).expanduser())
    try:
        with urllib.request.urlopen(name, timeout=60) as answer:
            content = answer.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise UserError(f"{shown}: has more than {LARGEST:,} bytes; fetch it yourself and name the file.")
        return _unpacked(content, shown)
    except (OSError, HTTPException, ValueError) as error:
        raise UserError(
            f"{shown}: cannot be fetched ({error}); name a file of records or an URL that answers."
        ) from None
