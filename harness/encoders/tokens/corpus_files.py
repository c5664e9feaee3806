"""A corpus of any size as token sequences on disk: tokenised once as a stream, then memory-mapped wherever it is read.
A folder holds the arrays of `Tokens` as they are in memory, and `manifest.json`. It is written under another name and
renamed when it is whole; a killed run starts again, and of two processes that want the same folder the second one
waits."""

from __future__ import annotations

import json
import mmap
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from harness.encoders.tokens import Reading, Tokeniser, Tokens
from harness.errors import UserError

VERSION = 1
"""Raised by hand when the same texts give other sequences, or the format of the files changes."""

BATCH_TEXTS = 1000
BATCH_CHARS = 500_000

_ARRAYS: dict[str, Any] = {"ids": np.int32, "types": np.int8, "special": np.bool_, "offsets": np.int64}
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class MappedTokens(Tokens):
    """`Tokens` whose arrays are files in `folder`: `take` reads only the given rows. Pickles as the folder's path,
    which a worker has to see."""

    folder: Path
    maps: tuple[mmap.mmap, ...] = field(repr=False, compare=False)

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> Tokens:
        """The sequences of `rows`, in that order, copied into memory."""
        taken = super().take(rows)
        for each in self.maps:
            # The file's pages stay with the system's cache and no longer count as this process's memory, which would seem
            # to grow to the size of the corpus: Ray stops workers by that figure.
            each.madvise(mmap.MADV_DONTNEED)
        return taken

    def __reduce__(self) -> tuple[Callable[[str], MappedTokens], tuple[str]]:
        return _reopened, (str(self.folder),)


def _reopened(folder: str) -> MappedTokens:
    found = open_blocks(Path(folder))
    if found is None:
        raise UserError(
            f"{folder}: the tokenised corpus is not there or not whole on this machine; run the command again."
        )
    return found


def open_blocks(folder: Path, **expected: Any) -> MappedTokens | None:
    """The sequences in a finished folder, or None when there is none, or it is damaged, of another version, or its manifest
    differs from `expected` (`max_length`, `blocks`, `identity`)."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        expected = {"version": VERSION, **expected}
        if any(manifest[name] != value for name, value in expected.items()):
            return None
        counts = {**dict.fromkeys(_ARRAYS, manifest["tokens"]), "offsets": manifest["sequences"] + 1}
        maps = {name: _mapped(folder, name, count) for name, count in counts.items()}
        arrays = {name: np.frombuffer(maps[name], dtype=_ARRAYS[name]) for name in maps}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if arrays["offsets"][0] != 0 or arrays["offsets"][-1] != manifest["tokens"]:
        return None
    return MappedTokens(**arrays, folder=folder.absolute(), maps=tuple(maps.values()))


def _mapped(folder: Path, name: str, count: int) -> mmap.mmap:
    path = folder / f"{name}.bin"
    with path.open("rb") as file:
        found = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if len(found) != count * np.dtype(_ARRAYS[name]).itemsize:
        raise ValueError(f"{path} is not whole")
    return found


def tokenise_corpus(
    texts: Iterable[str], tokeniser: Tokeniser, reading: Reading, folder: Path, *, identity: str = ""
) -> MappedTokens:
    """Tokenise `texts` into `folder` and open it; holds one batch of about 1,000 texts at a time. A finished folder of
    the same `identity` (digests of texts and tokenizer) and reading is opened and `texts` not read; anything else under
    that name is replaced, and everything without identity. Raises UserError when no text has a token."""
    settings = {"max_length": reading.max_length, "blocks": reading.name, "identity": identity}
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = folder.with_name(f".{folder.name}.part")
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        found = open_blocks(folder, **settings) if identity else None
        if found is None:
            for old in (part, folder):
                shutil.rmtree(old, ignore_errors=True)
                old.unlink(missing_ok=True)
            part.mkdir()
            try:
                _write(reading.sequences(_batches(texts), tokeniser), part, settings)
                part.rename(folder)
            finally:
                shutil.rmtree(part, ignore_errors=True)
            found = open_blocks(folder, **settings)
    if found is None:
        raise UserError(f"{folder}: the tokenised corpus cannot be read back; free the disk or remove it.")
    return found


def _batches(texts: Iterable[str]) -> Iterator[list[tuple[str]]]:
    batch: list[tuple[str]] = []
    chars = 0
    for text in texts:
        batch.append((text,))
        chars += len(text)
        if len(batch) >= BATCH_TEXTS or chars >= BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


def _write(sequences: Iterable[Tokens], part: Path, settings: dict[str, Any]) -> None:
    count = tokens = content = 0
    with ExitStack() as stack:
        files = {name: stack.enter_context((part / f"{name}.bin").open("wb")) for name in _ARRAYS}
        files["offsets"].write(np.zeros(1, np.int64).tobytes())
        for some in sequences:
            for name in ("ids", "types", "special"):
                files[name].write(np.ascontiguousarray(getattr(some, name), _ARRAYS[name]).data)
            files["offsets"].write((some.offsets[1:] + tokens).astype(np.int64).data)
            count += len(some)
            tokens += len(some.ids)
            content += len(some.ids) - int(some.special.sum())
    if not content:
        raise UserError("The corpus has no text that this encoder's tokenizer makes a token of; give it other texts.")
    manifest = {"version": VERSION, "sequences": count, "tokens": tokens, "content": content, **settings}
    (part / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
