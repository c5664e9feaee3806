"""Files that somebody else may have written: stores of SQLite, the compressed one of a published folder, and the arrays of a record. Nothing
else opens them, and what opens them here bounds what they take."""

from __future__ import annotations

import hashlib
import io
import lzma
import math
import os
import re
import sqlite3
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.paths import replace_file, replacing, user_cache

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
CACHE = 1 << 32
"""Bytes of unpacked files that stay in the cache: those that were read last."""
SMALL_ARRAYS = 1 << 24
"""As SMALL, of the arrays of one record."""
HEADER = b"SQLite format 3\0"
STEPS = 1_000_000
"""Instructions of SQLite between two looks at the signals that arrived."""
_STORED = re.compile(r"CREATE (TABLE|(UNIQUE )?INDEX) (?!.*\bAS\b)", re.IGNORECASE | re.DOTALL)
"""What a store defines. SQLite reads this text alone, whatever its catalogue calls it; AS begins a generated column."""


def connected(path: str, mode: str, seconds: float) -> sqlite3.Connection:
    """A file of SQLite: 'rw' does not create it, 'ro' does not write it. `seconds`: waited for a lock. A query ends with SQLITE_INTERRUPT where a signal
    raises an error."""
    place = f"file:{quote(os.fsencode(path))}?mode={mode}"
    made = sqlite3.connect(place, uri=True, timeout=seconds, isolation_level=None, check_same_thread=False)
    made.execute("PRAGMA trusted_schema = OFF")
    made.set_progress_handler(lambda: 0, STEPS)
    return made


def check_schema(execute: Callable[[str], Iterable[Any]], shown: str) -> None:
    """Raises UserError where a file defines what is computed as it is read: views, triggers, virtual tables and generated columns."""
    for name, sql in execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"):
        if not _STORED.match(str(sql)):
            raise UserError(
                f"The store {shown} defines {name!r:.60} by {str(sql)[:30]!r}..., and a store holds plain tables and indexes alone; take it again from "
                "where it was made."
            )


def arrays_of(blob: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of a record by name. Raises ValueError for others than numbers and answers (bytes), and for more of them than their bytes hold."""
    found, most = dict[str, NDArray[Any]](), max(SMALL_ARRAYS, EXPANSION * len(blob))
    try:
        with zipfile.ZipFile(io.BytesIO(blob)) as archive:
            entries = archive.infolist()
            others = {entry.compress_type for entry in entries} - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
            if others or sum(entry.file_size for entry in entries) > most:
                raise ValueError("arrays that are larger than their record")
            for entry in entries:
                found[entry.filename.removesuffix(".npy")] = _array(io.BytesIO(archive.read(entry)))
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, NotImplementedError) as error:
        raise ValueError(str(error)) from None
    return found


def _array(file: io.BytesIO) -> NDArray[Any]:
    """Of numbers or bytes, and of as many as its header says: NumPy takes memory by that."""
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an array of another form")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.kind not in "biufS" or math.prod(shape) * dtype.itemsize != len(file.getbuffer()) - file.tell():
        raise ValueError("an array that is not what its header says")
    file.seek(0)
    array: NDArray[Any] = np.load(file, allow_pickle=False)
    return array


def write_packed(path: Path, packed: Path) -> None:
    """Writes a file of SQLite compressed, without its free pages."""
    with closing(connected(str(path), "rw", 0)) as made:
        made.execute("VACUUM")
    replace_file(packed, lzma.compress(path.read_bytes()))


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
    """See `unpacked`; part by part. Raises UserError also above the limit and for another file than a store's, and keeps nothing then."""
    path = user_cache("published") / f"{hashlib.sha256(content).hexdigest()}.db"
    if path.exists():
        with suppress(OSError):
            path.touch()
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    most, decompressor = max(SMALL, EXPANSION * len(content)), lzma.LZMADecompressor(memlimit=MEMORY)
    try:
        with replacing(path) as part, part.open("wb") as file:
            while not decompressor.eof:
                unpacked = decompressor.decompress(content, PART)
                content = b""
                if not file.tell() and not unpacked.startswith(HEADER):
                    raise lzma.LZMAError("no file of SQLite")
                file.write(unpacked)
                if file.tell() > most:
                    raise UserError(
                        f"{shown}: unpacks to more than {most:,} bytes, {EXPANSION} times its size, which records of runs do not; "
                        "fetch it again from where it was published."
                    )
                if decompressor.needs_input:
                    raise lzma.LZMAError("the file ends early")
            file.flush()
            with closing(connected(str(part), "ro", 0)) as made:
                check_schema(made.execute, shown)
    except (lzma.LZMAError, sqlite3.DatabaseError, UnicodeDecodeError):
        raise UserError(f"{shown}: is damaged; restore a copy of it.") from None
    _forget(path)
    return path


def _forget(newest: Path) -> None:
    """Delete the files of the cache that were read longest ago, above its size."""
    with suppress(OSError):  # another command does the same
        files = sorted(
            newest.parent.glob("*.db"), key=lambda path: (path == newest, path.stat().st_mtime), reverse=True
        )
        sizes = np.cumsum([path.stat().st_size for path in files])
        for path in (path for path, size in zip(files[1:], sizes[1:], strict=True) if size > CACHE):
            path.unlink()


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
