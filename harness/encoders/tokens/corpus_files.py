"""A corpus of any size as token sequences on disk: tokenised once as a stream, then memory-mapped wherever it is read.

A folder holds `ids.bin` (int32), `types.bin` (int8), `special.bin` (bool), `offsets.bin` (int64), the arrays of `Tokens` as
they are in memory, and `manifest.json`. It is written under another name and renamed when it is whole, so a folder that is
there is finished; a killed run starts again, and of two processes that make the same folder at once the first one wins.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil
from numpy.typing import NDArray

from harness.encoders.tokens import Frame, Tokeniser, Tokens
from harness.errors import UserError

Blocks = Literal["text", "packed"]

VERSION = 1
"""Raised by hand when the same texts give other sequences, or the format of the files changes."""

MIN_TAIL = 8
"""A shorter last block is kept if it has this many tokens of text."""

BATCH_TEXTS = 1000
BATCH_CHARS = 500_000

_ARRAYS: dict[str, Any] = {"ids": np.int32, "types": np.int8, "special": np.bool_, "offsets": np.int64}
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class MappedTokens(Tokens):
    """`Tokens` whose arrays are files in `folder`: `take` reads only the given rows.

    Pickles as the folder's path and is mapped again where it is unpickled, so sending it to a worker ships no data; the
    worker has to see the folder.
    """

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
    texts: Iterable[str],
    tokeniser: Tokeniser,
    max_length: int,
    blocks: Blocks,
    folder: Path,
    *,
    identity: str = "",
) -> MappedTokens:
    """Tokenise `texts` into `folder` and open it; holds one batch of about 1,000 texts at a time.

    blocks 'text': one sequence a text, cut off at `max_length` tokens, as `Tokeniser` does it. 'packed': the tokens of all
    texts end to end with a separator between two texts, cut into blocks of exactly `max_length` tokens; each block has the
    first and last token that the tokenizer puts around one text. So a block may hold the end of one text and the beginning
    of the next, as in the papers' own pre-training (docs/papers.md T7), and a long text goes on over many blocks. Only the last
    block may be shorter; it is dropped with fewer than MIN_TAIL tokens of text, unless it is the only one. `special` marks
    first and last tokens and separators.

    `identity` says which texts and which tokenizer these are (digests). A finished folder of the same identity, blocks and
    length is opened and `texts` not read; anything else under that name is replaced. Without identity it is always made.
    Raises UserError when no text has a token, or `max_length` leaves no room in a block.
    """
    settings = {"max_length": max_length, "blocks": blocks, "identity": identity}
    found = open_blocks(folder, **settings) if identity else None
    if found is not None:
        return found
    if blocks == "packed":
        sequences = _packed(_batches(texts), tokeniser, max_length)
    else:
        sequences = (tokeniser([(text,) for text in batch], max_length) for batch in _batches(texts))
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    part = _part(folder)
    part.mkdir()
    try:
        _write(sequences, part, settings)
        return _published(part, folder, settings)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    chars = 0
    for text in texts:
        batch.append(text)
        chars += len(text)
        if len(batch) >= BATCH_TEXTS or chars >= BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


def _packed(batches: Iterable[list[str]], tokeniser: Tokeniser, max_length: int) -> Iterator[Tokens]:
    """Blocks of `max_length`, as many at a time as a batch of texts fills, and the last one."""
    frame = tokeniser.frame
    width = max_length - len(frame.first) - len(frame.last)
    if width < 2:  # two, so that no block is a separator alone
        raise UserError(f"max_length {max_length}: leaves {max(0, width)} tokens of text in a packed block; raise it.")
    rest, between, begun, cut = np.zeros(0, np.int32), np.zeros(0, np.bool_), False, False
    for batch in batches:
        ids, separators = _joined(*tokeniser.content(batch), frame.separator, begun)
        begun = begun or len(ids) > 0
        rest, between = np.concatenate([rest, ids]), np.concatenate([between, separators])
        whole = len(rest) // width * width
        if whole:
            cut = True
            yield _framed(rest[:whole].reshape(-1, width), between[:whole].reshape(-1, width), frame)
            rest, between = rest[whole:], between[whole:]
    if len(rest) and (not cut or int((~between).sum()) >= MIN_TAIL):
        yield _framed(rest[None, :], between[None, :], frame)


def _joined(
    ids: NDArray[np.int32], lengths: NDArray[np.int64], separator: int, begun: bool
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Texts [T] with a separator before each, except the first of a corpus; and a mask of the separators."""
    starts = (np.cumsum(lengths) - lengths)[lengths > 0]  # a text without tokens leaves no trace
    if not begun:
        starts = starts[1:]
    joined = np.insert(ids, starts, separator)
    places = np.zeros(len(joined), dtype=np.bool_)
    places[starts + np.arange(len(starts))] = True
    return joined, places


def _framed(content: NDArray[np.int32], separators: NDArray[np.bool_], frame: Frame) -> Tokens:
    """Blocks of equal length from content [n, width]."""
    count, width = content.shape
    inside = slice(len(frame.first), len(frame.first) + width)
    length = len(frame.first) + width + len(frame.last)
    ids = np.empty((count, length), dtype=np.int32)
    types = np.full((count, length), frame.types, dtype=np.int8)
    special = np.ones((count, length), dtype=np.bool_)
    for block, column in ((ids, 0), (types, 1)):
        block[:, : inside.start] = frame.first[:, column]
        block[:, inside.stop :] = frame.last[:, column]
    ids[:, inside] = content
    special[:, inside] = separators
    return Tokens(ids.ravel(), types.ravel(), special.ravel(), np.arange(count + 1, dtype=np.int64) * length)


def _write(sequences: Iterable[Tokens], part: Path, settings: dict[str, Any]) -> None:
    count = tokens = content = 0
    with ExitStack() as stack:
        files = {name: stack.enter_context((part / f"{name}.bin").open("wb")) for name in _ARRAYS}
        with suppress(OSError):  # a file system without locks
            fcntl.flock(files["ids"], fcntl.LOCK_EX)
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


def _published(part: Path, folder: Path, settings: dict[str, Any]) -> MappedTokens:
    """Rename `part` to its final name, unless another process was faster."""
    for _ in range(5):
        with suppress(OSError):  # a folder with something in it is not replaced
            os.rename(part, folder)
        found = open_blocks(folder, **settings)
        if found is not None and (settings["identity"] or not part.exists()):
            return found
        away = _part(folder)
        with suppress(OSError):
            os.rename(folder, away)
        shutil.rmtree(away, ignore_errors=True)
        if away.is_file():
            away.unlink()
    raise UserError(f"{folder}: cannot be replaced by the tokenised corpus; remove it.")


def _part(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}")


def _sweep(folder: Path) -> None:
    """Remove unfinished copies of the same folder that killed processes of this machine left; they may fill a disk."""
    begins = f".{folder.name}.{socket.gethostname()}."
    for path in folder.parent.iterdir():
        pid = path.name.removeprefix(begins).partition(".")[0] if path.name.startswith(begins) else ""
        if not pid.isdigit() or psutil.pid_exists(int(pid)):
            continue
        with suppress(OSError), (path / "ids.bin").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held by a container of the same name: other process ids
            shutil.rmtree(path, ignore_errors=True)
