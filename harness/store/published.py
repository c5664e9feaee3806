"""A published folder as a store: its records are one compressed file of SQLite's, which commands read and none writes."""

from __future__ import annotations

import hashlib
import lzma
import os
import secrets
import tempfile
import urllib.request
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from harness.errors import UserError
from harness.paths import user_cache

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
        content = packed.read_bytes()
        place = user_cache("published")
        path = place / f"{hashlib.sha256(content).hexdigest()}.db"
        if not path.exists():
            place.mkdir(parents=True, exist_ok=True)
            _unpack(packed, content, path)
    except lzma.LZMAError:
        raise UserError(f"{packed}: is damaged; restore a copy of it.") from None
    except OSError as error:
        raise UserError(f"{packed}: cannot be read ({error.strerror}).") from None
    return path


def _unpack(packed: Path, content: bytes, path: Path) -> None:
    """Part by part into a file beside `path`, which takes its place once it is whole. Raises UserError above the limit, and keeps nothing."""
    most, decompressor = max(SMALL, EXPANSION * len(content)), lzma.LZMADecompressor(memlimit=MEMORY)
    part = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        with part.open("wb") as file:
            while not decompressor.eof:
                file.write(decompressor.decompress(content, PART))
                content = b""
                if file.tell() > most:
                    raise UserError(
                        f"{packed}: unpacks to more than {most:,} bytes, {EXPANSION} times its size, which records of runs do not; "
                        "fetch it again from where it was published."
                    )
                if decompressor.needs_input:
                    raise lzma.LZMAError("the file ends early")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


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
        with tempfile.TemporaryDirectory() as folder, urllib.request.urlopen(name, timeout=60) as answer:
            path = Path(folder) / UNLABELLED_FILE
            content = answer.read(LARGEST + 1)
            if len(content) > LARGEST:
                raise UserError(f"{shown}: has more than {LARGEST:,} bytes; fetch it yourself and name the file.")
            path.write_bytes(content)
            return unpacked(path)
    except (OSError, HTTPException, ValueError) as error:
        raise UserError(
            f"{shown}: cannot be fetched ({error}); name a file of records or an URL that answers."
        ) from None
