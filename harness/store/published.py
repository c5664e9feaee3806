"""Files that somebody else may have written: stores of SQLite, the compressed one of a published folder, and predictions. Nothing else opens them, and what
opens them here bounds what they take."""

from __future__ import annotations

import io
import lzma
import os
import re
import sqlite3
import time
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from functools import lru_cache
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from harness.errors import UserError
from harness.kinds import Predictions
from harness.paths import replace_file

RECORDS_FILE = "records.db.xz"
UNLABELLED_FILE = "records-without-labels.db.xz"
"""The same without gold labels: no store, `harness merge` completes it from the data."""
EXPANSION, SMALL = 50, 1 << 26
"""What a file may unpack to: so many times its size (published ones: up to 3), and at least so many bytes."""
SMALL_ARRAYS = 1 << 24
"""As SMALL, of the predictions of one record."""
LARGEST, MEMORY = 1_000_000_000, 1 << 28
"""Bytes of a file of records, and bytes that the decompressor may take."""
HEADER = b"SQLite format 3\0"
_STORED = re.compile(r"CREATE (TABLE|(UNIQUE )?INDEX) (?!.*\bAS\b)", re.IGNORECASE | re.DOTALL)
"""What a store defines. SQLite reads this text alone, whatever its catalogue calls it; AS begins a generated column."""


def connected(path: str, mode: str, seconds: float) -> sqlite3.Connection:
    """A file of SQLite: 'rw' does not create it, 'memory' is none. `seconds`: waited for a lock."""
    place = f"file:{quote(os.fsencode(path))}?mode={mode}"
    made = sqlite3.connect(place, uri=True, timeout=seconds, isolation_level=None, check_same_thread=False)
    made.execute("PRAGMA trusted_schema = OFF")
    return made


def check_schema(execute: Callable[[str], Iterable[Any]], shown: str) -> None:
    """Raises UserError where a file defines what is computed as it is read: views, triggers, virtual tables and generated columns."""
    for name, sql in execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"):
        if not _STORED.match(str(sql)):
            raise UserError(
                f"The store {shown} defines {name!r:.60} by {str(sql)[:30]!r}..., and a store holds plain tables and indexes alone; take it again from "
                "where it was made."
            )


def unpacked(blob: bytes) -> dict[str, Predictions]:
    """By the digest of their row set. Raises ValueError for other arrays than of numbers and answers (bytes), and for more of them than their bytes
    hold."""
    by_digest: dict[str, dict[str, Any]] = {}
    try:
        with np.load(io.BytesIO(blob), allow_pickle=False) as arrays:
            if sum(entry.file_size for entry in arrays.zip.infolist()) > max(SMALL_ARRAYS, EXPANSION * len(blob)):
                raise ValueError("arrays that are larger than their record")
            for path in sorted(arrays.files):
                digest, name = path.rsplit("/", 1)
                by_digest.setdefault(digest, {})[name] = array = arrays[path]
                if array.dtype.kind not in "biufS":
                    raise ValueError("an array of another form")
    except (
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        EOFError,
        OSError,
        MemoryError,
        NotImplementedError,
    ) as error:
        raise ValueError(str(error)) from None  # MemoryError: of an array that is in its header alone
    return {digest: Predictions(named, named.pop("gold")) for digest, named in by_digest.items()}


def write_packed(path: Path, packed: Path) -> None:
    """Writes a file of SQLite compressed, without its free pages."""
    with closing(connected(str(path), "rw", 0)) as made:
        made.execute("VACUUM")
    replace_file(packed, lzma.compress(path.read_bytes()))


def records_of(name: str) -> str:
    """The file of records, a path or an URL, that the name of a published table stands for: of its folder the one inside; '' for another store."""
    with suppress(OSError, ValueError, RuntimeError):
        for file in (RECORDS_FILE, UNLABELLED_FILE) if "://" not in name else ():
            if (path := Path(name).expanduser() / file).is_file():
                return str(path)
    return name if name.partition("?")[0].endswith(".db.xz") else ""


def opened(records: str) -> sqlite3.Connection:
    """Published records, from a file or an URL, as a database in memory. Raises UserError where they cannot be read, for more than the limits, and for
    what is no file of SQLite."""
    path = os.path.expanduser(records)
    made = connected(":memory:", "memory", 0)
    moment = time.monotonic() // 300  # an URL's content may be another one by then
    made.deserialize(_unpacked(path, os.stat(path).st_mtime_ns if os.path.isfile(path) else moment))
    return made


@lru_cache(maxsize=1)
def _unpacked(records: str, changed: float) -> bytes:
    """Kept for the next store of the same command; `changed`: tells another content."""
    remote = records.startswith(("http://", "https://"))
    try:
        with urllib.request.urlopen(records, timeout=60) if remote else open(records, "rb") as file:
            content = file.read(LARGEST + 1)  # what is cut off is damaged
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"{records}: cannot be read ({reason}); name a file of records or an URL that answers."
        ) from None
    most, decompressor = max(SMALL, EXPANSION * len(content)), lzma.LZMADecompressor(memlimit=MEMORY)
    unpacked = b""
    with suppress(lzma.LZMAError):
        unpacked = decompressor.decompress(content, most + 1)
    if not unpacked.startswith(HEADER) or not decompressor.eof or len(unpacked) > most:
        raise UserError(
            f"{records}: is damaged, or unpacks to more than {most:,} bytes, which records of runs do not; fetch it again from where it was published."
        )
    return unpacked
