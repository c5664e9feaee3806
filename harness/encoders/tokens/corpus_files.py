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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from harness.encoders.tokens import Tokeniser, Tokens
from harness.encoders.tokens.reading import Reading
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

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> Tokens:
        """The sequences of `rows`, in that order, copied into memory."""
        taken = super().take(rows)
        for array in (self.ids, self.types, self.special, self.offsets):
            # The file's pages stay with the system's cache and no longer count as this process's memory, which would seem
            # to grow to the size of the corpus: Ray stops workers by that figure.
            cast("mmap.mmap", array.base).madvise(mmap.MADV_DONTNEED)
        return taken

    def __reduce__(self) -> tuple[Callable[[str], MappedTokens], tuple[str]]:
        return _reopened, (str(self.folder),)


def _reopened(folder: str) -> MappedTokens:
    if (found := open_blocks(Path(folder))) is None:
        raise UserError(
            f"{folder}: the tokenised corpus is not there or not whole on this machine; run the command again."
        )
    return found


def open_blocks(folder: Path, identity: str | None = None) -> MappedTokens | None:
    """The sequences in a finished folder, or None when there is none, or it is damaged, of another version or `identity`."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        arrays = {name: np.memmap(folder / f"{name}.bin", dtype, "r") for name, dtype in _ARRAYS.items()}
        ends, tokens = arrays["offsets"][[0, -1]].tolist(), manifest["tokens"]
        whole = {len(arrays[name]) for name in _ARRAYS if name != "offsets"} == {tokens} and ends == [0, tokens]
        whole &= len(arrays["offsets"]) == manifest["sequences"] + 1 and manifest["version"] == VERSION
        whole &= identity in (None, manifest["identity"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return MappedTokens(**arrays, folder=folder.absolute()) if whole else None


def tokenise_corpus(
    texts: Iterable[str], tokeniser: Tokeniser, reading: Reading, folder: Path, identity: str
) -> MappedTokens:
    """Tokenise `texts` into `folder` and open it; holds one batch of about 1,000 texts at a time. A finished folder of
    the same `identity` (a digest of texts, tokenizer and reading) is opened and `texts` not read; anything else under
    that name is replaced. Raises UserError when no text has a token."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = folder.with_name(f".{folder.name}.part")
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if found := open_blocks(folder, identity):
            return found
        for old in (part, folder):
            shutil.rmtree(old, ignore_errors=True)
            old.unlink(missing_ok=True)
        part.mkdir()
        try:
            _write(reading.sequences(_batches(texts), tokeniser), part, identity)
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return _reopened(str(folder))


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


def _write(sequences: Iterable[Tokens], part: Path, identity: str) -> None:
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
    manifest = {"version": VERSION, "sequences": count, "tokens": tokens, "identity": identity}
    (part / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
