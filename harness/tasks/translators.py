"""Ways from English to a pivot language and back: the program apertium, and a user's own file. See `translation_models`.

A text's translation depends on that text alone and not on its neighbours.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol as Interface

from harness.errors import NotAtHand, UserError
from harness.specs import digest_of
from harness.tasks import reading


class Way(Interface):
    """There and back through one pivot."""

    @property
    def digest(self) -> str:
        """Hex digest of whatever decides what comes out."""

    @property
    def chunk(self) -> int:
        """How many texts to give to `translate` at once."""

    @property
    def at_hand(self) -> bool:
        """Whether translations are only looked up, so that keeping them gains nothing."""

    def translate(self, texts: Sequence[str]) -> list[str]:
        """The back-translations of texts that are not blank, one for each and in their order; some may be empty."""


def one_line(text: str) -> str:
    """A text without line breaks, NULs, halves of characters, and spaces that are outer or double."""
    return " ".join(text.encode("utf-8", "replace").decode().replace("\0", " ").split())


# ---------------------------------------------------------------- a user's file


@dataclass(frozen=True)
class _FileWay:
    where: str
    path: Path
    column: str
    digest: str
    views: dict[str, str] = field(repr=False)
    chunk: int = 1 << 20
    at_hand: bool = True

    def translate(self, texts: Sequence[str]) -> list[str]:
        missing = [text for text in texts if text not in self.views]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise UserError(f"{self.where}: there is no row for the text {_short(missing[0])}{more}; add it.")
        return [self.views[text] for text in texts]


def file_ways(where: str, path: Path) -> tuple[Way, ...]:
    """A way for each column view_1, view_2, ... of a file. Raises UserError for whatever is wrong in the file."""
    if path.suffix not in reading.FORMATS:
        raise UserError(f"{where}: {path.name} is none of {', '.join(reading.FORMATS)}; convert it or name another.")
    if not path.is_file():
        raise UserError(f"{where}: there is no file {path}; correct the path.")
    there = _header(path)
    columns = ["view_1"]
    while f"view_{len(columns) + 1}" in there:
        columns.append(f"view_{len(columns) + 1}")
    table = reading.read_columns(path, ("text", *columns))
    texts = reading.column_texts(table, "text")
    first = {text: index for index, text in reversed(list(enumerate(texts)))}
    ways = []
    for column in columns:
        values = reading.column_texts(table, column)
        for index, text in enumerate(texts):
            if values[index] != values[first[text]]:
                raise UserError(
                    f"{table.place(index)}: {column} of {_short(text)} is not that of {table.unit} "
                    f"{table.places[first[text]]}, where the same text stands; keep one of them."
                )
        views = dict(zip(texts, values, strict=True))
        ways.append(_FileWay(where, path, column, digest_of(["file", views]), views))
    return tuple(ways)


def _header(path: Path) -> set[str]:
    """The names of a file's columns; of JSONL, those of its first object. What is wrong in it is said by its reader."""
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return set(pq.read_schema(path).names)
        except (pa.ArrowException, OSError, ValueError):
            return set()
    _, line = next(reading.lines(path), (0, ""))
    if path.suffix == ".csv":
        return {name.strip().strip('"') for name in line.split(",")}
    try:
        return set(json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return set()


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


# ---------------------------------------------------------------- apertium


_MARKED = re.compile(r"([\\\[\]{}^$/@<>])")
_END = ".[]"
"""Ends each text, as apertium's own reader of plain text does: a full stop that is not printed where a sentence ends."""


@dataclass(frozen=True)
class _ApertiumWay:
    """Apertium by the stages of its two modes, each run over many texts with a NUL between them.

    Its hidden Markov tagger runs once a text: it carries what it has seen of one text on to the next, also past a NUL, and
    one text in ten came out differently in another order. The perceptron tagger (-x) does not. Unknown words are kept as
    they are, without the marks *, @ and #. A text that crashes one of the programs comes back blank.
    """

    modes: tuple[Path, Path]
    version: str
    chunk: int = 200
    at_hand: bool = False

    @cached_property
    def digest(self) -> str:
        whole = hashlib.sha256()
        for mode in self.modes:
            # The mode as text, and the dictionaries and rules that it names.
            named = [Path(word) for stage in _stages(mode) for word in stage[1:] if word.startswith("/")]
            for path in (mode, *(path for path in named if path.is_file())):
                whole.update(hashlib.sha256(path.read_bytes()).digest())
        return digest_of(["apertium", 1, self.version, whole.hexdigest()])

    def translate(self, texts: Sequence[str]) -> list[str]:
        found = [one_line(text) for text in texts]
        for mode in self.modes:
            found = _through(mode, found)
        return found


def apertium_way(where: str, english: str, pivot: str) -> Way:
    """The way through `pivot`, in apertium's three letters. Raises NotAtHand without the program or one of its modes."""
    package = f"apt-get install apertium apertium-{english}-{pivot}"
    program = shutil.which("apertium")
    if program is None:
        raise NotAtHand(f"{where}: the program apertium is not installed; on Debian or Ubuntu run `{package}`.")
    folder = Path(os.environ.get("APERTIUM_DATADIR", "/usr/share/apertium")) / "modes"
    modes = (folder / f"{english}-{pivot}.mode", folder / f"{pivot}-{english}.mode")
    for mode in modes:
        if not mode.is_file():
            names = {path.stem for path in folder.glob(f"*{english}*.mode")}
            pivots = {name.removeprefix(f"{english}-") for name in names if name.startswith(f"{english}-")}
            known = ", ".join(sorted(each for each in pivots if f"{each}-{english}" in names)) or "none"
            raise NotAtHand(
                f"{where}: apertium has no mode {mode.stem} (pivots installed: {known}); on Debian or Ubuntu run "
                f"`{package}`, or take another pivot."
            )
    version = _ran([program, "-V"], b"", where).decode("utf-8", "replace").strip()
    return _ApertiumWay(modes, version)


def _stages(mode: Path) -> list[list[str]]:
    """The commands of a mode's pipe, which a NUL flushes (-z) and which generate without marks ($1 is -n)."""
    lexer = shlex.shlex(mode.read_text(encoding="utf-8"), posix=True, punctuation_chars="|")
    lexer.whitespace_split, lexer.commenters = True, ""
    stages: list[list[str]] = [[]]
    for word in lexer:
        if word == "|":
            stages.append([])
        elif word != "$2":
            stages[-1].append("-n" if word == "$1" else word)
    return [[stage[0], "-z", *stage[1:]] for stage in stages if stage]


def _through(mode: Path, texts: Sequence[str]) -> list[str]:
    """Texts of one line each through a mode."""
    name = mode.stem
    parts = [_MARKED.sub(r"\\\1", text).encode("utf-8", "replace") + _END.encode() for text in texts]
    for stage in _stages(mode):
        alive = [i for i, part in enumerate(parts) if part]  # one that has crashed a stage is blank, and stays so
        given = [parts[i] for i in alive]
        if Path(stage[0]).name == "apertium-tagger" and not any(re.fullmatch("-[a-z]*x[a-z]*", word) for word in stage):
            tag = partial(_flushed, name, stage)
            with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
                given = [tagged for [tagged] in pool.map(tag, [[part] for part in given])]
        elif given:
            given = _flushed(name, stage, given)
        parts = [b""] * len(parts)
        for i, part in zip(alive, given, strict=True):
            parts[i] = part
    if len(texts) > 1 and not any(parts):
        raise UserError(
            f"apertium {name}: it crashed on each of {len(texts)} texts; reinstall apertium and its language pair, or name "
            "another translator."
        )
    found = [re.sub(r"\.?\[\]\s*$", "", part.decode("utf-8", "replace")) for part in parts]
    return [one_line(re.sub(r"\\(.)", r"\1", text)) for text in found]


class _CrashedError(UserError):
    """A program was ended by a signal."""


def _flushed(mode: str, stage: list[str], parts: Sequence[bytes]) -> list[bytes]:
    """Parts through a stage. One that crashes the program comes back blank, unless all do: seen at one text in 200 of RTE."""
    try:
        out = _ran(stage, b"".join(part + b"\0" for part in parts), f"apertium {mode}").split(b"\0")
    except _CrashedError:
        if len(parts) == 1:
            return [b""]
        half = len(parts) // 2
        found = _flushed(mode, stage, parts[:half]) + _flushed(mode, stage, parts[half:])
        if not any(found):
            raise
        return found
    # Each program of a pipe may write a NUL more at its end.
    if len(out) < len(parts) + 1 or any(each.strip() for each in out[len(parts) :]):
        count = len(out) - 1 if len(out) < len(parts) + 1 else "more"
        raise UserError(
            f"apertium {mode}: {Path(stage[0]).name} gave {count} texts back for {len(parts)}; reinstall apertium and its "
            "language pair, or name another translator."
        )
    return out[: len(parts)]


def _ran(command: list[str], given: bytes, where: str) -> bytes:
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, check=False, env={**os.environ, "LC_ALL": "C.UTF-8"}
        )
    except OSError as error:
        raise NotAtHand(f"{where}: {command[0]} cannot be run ({error.strerror}); reinstall apertium.") from None
    if done.returncode:
        said = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1][:160].rstrip(
            "."
        )
        kind = _CrashedError if done.returncode < 0 else UserError
        raise kind(
            f"{where}: {Path(command[0]).name} ended with status {done.returncode} ({said}); reinstall apertium and its "
            "language pair, or name another translator."
        )
    return done.stdout
