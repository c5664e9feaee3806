"""What a user asks for, as one frozen `Request`: the same from a command line, a YAML file and Python.

Values keep their types, and each knows its origin, so that an error names the flag, the argument, or file, line and key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.paths import PYTHON
from harness.planning.fields import BY_NAME, Field, names_of
from harness.yaml_files import format_value, parse_value

FILTERS = names_of("filter")
"""Fields that select a part of a table; each is a tuple, or None for the preset's."""
BESIDE = ("dev", "test", "unlabelled")
"""Fields that name a file beside one of labelled rows."""
LABELLED = names_of("labelled")
"""Fields that describe a file of labelled rows in `tasks`; see `harness.tasks.inferred.Description`."""
FIELDS = names_of("table", "filter", "labelled", "data")
"""Fields that decide what is computed, beside the table and the overrides."""
KEPT = ("best", "all", "none")
"""Which weights stay in the storage: of the best run by dev of each cell, of every stage, or those that runs share alone."""
YAML = (".yaml", ".yml")
"""Suffixes by which a name is a file of the user's."""
ROWS = (".csv", ".tsv", ".jsonl", ".parquet", ".json", ".txt", ".xlsx", ".xls", ".xlsm", ".ods")
"""Suffixes by which a task is a file of labelled rows; of some formats an error then says what to write instead."""
SEVERAL = tuple(name for name in FIELDS if BY_NAME[name].several)
"""Fields that hold several values."""
OWN_DATA = "own"
"""What stands for the data of tasks that are all files of the user's own."""
OWN_TABLE = "own"
"""The table of a request that names tasks of the user's own alone, and no table; its protocol has the same name."""


@dataclass(frozen=True)
class Override:
    """One changed value. `path`: ('fine_tune', 'lr'), ('cmlm', 'alpha') or ('max_length',). `row`: the row or method whose rows
    alone it reaches, '' for all. `origin`: where it was set, as errors name it ('--set', 'set'); `in_file`: the origin is the place of
    this value in a file."""

    path: tuple[str, ...]
    value: Any
    origin: str = field(default="set", compare=False)
    in_file: bool = field(default=False, compare=False)
    row: str = ""

    @property
    def key(self) -> str:
        return ".".join(self.path)

    @property
    def text(self) -> str:
        """KEY=VALUE or ROW:KEY=VALUE, as `--set` reads it back."""
        return f"{f'{self.row}:' if self.row else ''}{self.key}={format_value(self.value)}"

    @property
    def place(self) -> str:
        """How errors name it."""
        return self.origin if self.in_file else f"{self.origin} {self.text}"


@dataclass(frozen=True)
class Study:
    """What the point of a `file` was selected on: the dev rows of `tasks` under a `protocol` (empty `sizes` and `subsets`: the
    preset's)."""

    file: str
    protocol: str
    tasks: tuple[str, ...]
    sizes: tuple[int, ...]
    subsets: tuple[int, ...]


@dataclass(frozen=True)
class Request:
    """What to compute, and how it is executed.

    `table`: a name or the path of a YAML file. `methods` takes names of rows as written ('w/ SimCLR') or of methods ('cmlm':
    all its rows); a method without a row gets one ('taco', 'cmlm+scl'). `reference`: the reference rows that it lacks, too. `tasks`: names, YAML files of the user's own, or files of
    labelled rows, which `text`, `label`, `kind`, `dev`, `test`, `unlabelled`, `remove_overlap` and `skip_bad_rows` describe. `protocol`: another than
    the table's. `encoder`: one, or several comma-separated, whose rows make one table.
    `studies`: those of the points that it takes. `subsets`: indices from 0. `gpus_per_run` and `num_workers` None: what the cluster and the table say. `origins`: where the
    fields were set that a file or a store gave.
    """

    table: str = ""
    preset: str | None = None
    reference: bool | None = None
    methods: tuple[str, ...] | None = None
    tasks: tuple[str, ...] | None = None
    sizes: tuple[int, ...] | None = None
    subsets: tuple[int, ...] | None = None
    seeds: tuple[int, ...] | None = None
    overrides: tuple[Override, ...] = ()
    protocol: str | None = None
    text: tuple[str, ...] | None = None
    label: str | None = None
    kind: str | None = None
    dev: str | None = None
    test: str | None = None
    unlabelled: str | None = None
    remove_overlap: bool | None = None
    skip_bad_rows: bool | None = None
    encoder: str | None = None
    data: str | None = None
    corpus: str | None = None
    translator: str | None = None
    store: str | None = None
    storage: str | None = None
    address: str = "local"
    slots: int = 0
    gpus_per_run: float | None = None
    cpus_per_run: float = 1.0
    num_workers: int | None = None
    micro_batch: int = 0
    dev_points: int = 0
    checkpoint_minutes: float = 10.0
    hours: float | None = None
    retry: bool = False
    keep: str = "none"
    track: tuple[str, ...] = ()
    studies: tuple[Study, ...] = field(default=(), compare=False)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)

    def origin(self, name: str) -> str:
        """Where a field was set, as errors name it."""
        return self.origins.get(name) or f"--{name.replace('_', '-')}"

    @property
    def encoders(self) -> tuple[str, ...]:
        """The encoders that it names, comma-separated; none where it leaves them to the preset."""
        return encoder_names(self.encoder or "")


def encoder_names(text: str) -> tuple[str, ...]:
    """Encoders that are written comma-separated, each once; a folder may hold a comma."""
    if "," in text and os.path.exists(os.path.expanduser(text)):
        return (text,)
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def has_rows(task: str) -> bool:
    """Whether a task is a file of labelled rows, or a data set of the hub."""
    return task.startswith("hub:") or task.lower().endswith(ROWS)


def is_own(task: str) -> bool:
    """Whether a task is the user's own: a YAML file, or what `has_rows`."""
    return task.endswith(YAML) or has_rows(task)


def with_default_table(request: Request) -> Request:
    """The request with a table where it names none and all its tasks are the user's own."""
    if request.table or not request.tasks or not all(map(is_own, request.tasks)):
        return request
    return replace(request, table=OWN_TABLE)


_OF_ROW = re.compile(r"(?![\w.+]*=)([^:]+):([\w.]+=.*)", re.DOTALL)
"""ROW:KEY=VALUE; a name before the first '=' that is a key is none of a row, whatever its value holds."""


def parse_override(text: str, origin: str = "set", in_file: bool = False) -> Override:
    """KEY=VALUE, or ROW:KEY=VALUE for the rows of that name or method alone, the value read as YAML. Raises UserError."""
    scoped = _OF_ROW.fullmatch(text)
    row, rest = (scoped[1].strip(), scoped[2]) if scoped else ("", text)
    key, equals, raw = rest.partition("=")
    value = parse_value(raw.strip())
    if not equals or not key.strip() or value is None:
        raise UserError(f"{origin} {text}: should be KEY=VALUE, for example fine_tune.lr=1e-5.")
    return Override(tuple(key.strip().split(".")), value, origin, in_file, row)


def overrides_of(values: Mapping[Any, Any], origin: str = "set") -> tuple[Override, ...]:
    """Values by key ('fine_tune.lr', 'cmlm:fine_tune.lr') or by path (('fine_tune', 'lr'))."""
    found = []
    for key, value in values.items():
        row, _, path = key.rpartition(":") if isinstance(key, str) else ("", "", ".".join(key))
        found.append(Override(tuple(path.split(".")), value, origin, row=row))
    return tuple(found)


# --------------------------------------------------------------------------------------------------------------- JSON


def to_json(request: Request) -> dict[str, Any]:
    """What a store keeps of a request: everything that decides what is computed, and the folder that its paths start from."""
    kept: dict[str, Any] = {"table": request.table, "folder": str(Path.cwd())}
    for name in FIELDS:
        value = getattr(request, name)
        if value is not None:
            kept[name] = list(value) if name in SEVERAL else value
    return kept | {"set": [override.text for override in request.overrides]}


def from_json(values: Mapping[str, Any]) -> Request:
    """The request that a store kept; in another folder than the current one its paths are absolute. Raises UserError for values of another kind."""
    try:
        table, folder, texts = (field.read(values.get(field.name)) for field in _BESIDE)
        fields = {name: BY_NAME[name].read(values[name]) for name in FIELDS if values.get(name) not in (None, [])}
    except UserError as error:
        raise UserError(
            f"recorded bench, {error} Name a table with its flags, or restore a copy of the store."
        ) from None
    overrides = tuple(parse_override(text, "recorded bench, set") for text in texts)
    origins = {name: f"recorded bench, {name}" for name in ("table", *fields)}
    return _rooted(Request(table, overrides=overrides, origins=origins, **fields), Path(folder))


_BESIDE = [Field(name, str, "kept", "", several=name == "set") for name in ("table", "folder", "set")]
"""What a store keeps beside the fields of a request."""


def rooted_path(text: Any, folder: Path) -> Any:
    """A relative path of something in `folder`, made absolute; whatever else a user may name stays as it is."""
    relative = text and not text.startswith(("/", "~"))
    return str(folder / text) if relative and (folder / text).exists() else text


def _rooted(request: Request, folder: Path) -> Request:
    if folder == Path.cwd():
        return request

    def rooted(text: Any) -> Any:
        return rooted_path(text, folder)

    changes: dict[str, Any] = {name: rooted(getattr(request, name)) for name in ("data", "corpus", *BESIDE)}
    changes["encoder"] = ",".join(map(rooted, request.encoders)) or None
    if request.table.endswith(YAML):
        changes["table"] = rooted(request.table)
    tasks = None if request.tasks is None else tuple(rooted(t) if is_own(t) else t for t in request.tasks)
    if request.methods is not None:
        parts = [[rooted(part) if part.endswith(PYTHON) else part for part in m.split("+")] for m in request.methods]
        changes["methods"] = tuple(map("+".join, parts))
    return replace(request, **changes, tasks=tasks)


def same_table(name: str, other: str) -> bool:
    """Two names of one table: a packaged one by name, or one file however its path is written."""
    if name.endswith(YAML) and other.endswith(YAML):
        return Path(name).expanduser().resolve() == Path(other).expanduser().resolve()
    return name == other
