"""What a user asks for, as one frozen `Request`: the same from a command line, a YAML file and Python.

Each field is written once, with its type, its group and its help: flags, arguments of Python, targets of points and what a store keeps follow
from the class. Values know their origin, so that an error names the flag, the argument, or file, line and key.
"""

from __future__ import annotations

import csv
import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BeforeValidator, Field, NonNegativeInt, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from harness.errors import UserError
from harness.paths import PYTHON
from harness.yaml_files import describe_errors, format_value, one_of, parse_value

T = TypeVar("T")

BESIDE = ("dev", "test", "unlabelled")
"""Fields that name a file beside one of labelled rows."""
YAML = (".yaml", ".yml")
"""Suffixes by which a name is a file of the user's."""
ROWS = (".csv", ".tsv", ".jsonl", ".parquet", ".json", ".txt", ".xlsx", ".xls", ".xlsm", ".ods")
"""Suffixes by which a task is a file of labelled rows; of some formats an error then says what to write instead."""
OWN_DATA = "own"
"""What stands for the data of tasks that are all files of the user's own."""
OWN_TABLE = "own"
"""The table of a request that names tasks of the user's own alone, and no table; its protocol has the same name."""


@dataclasses.dataclass(frozen=True)
class Override:
    """One changed value. `key`: 'fine_tune.lr' or 'max_length'. `row`: the row or method whose rows alone it reaches, '' for all.
    `origin`: where it was set, as errors name it ('--set', 'set'); `in_file`: that is the place of this value in a file."""

    key: str
    value: Any
    origin: str = dataclasses.field(default="set", compare=False)
    in_file: bool = dataclasses.field(default=False, compare=False)
    row: str = ""

    @property
    def group(self) -> str:
        return self.key.partition(".")[0]

    @property
    def field(self) -> str:
        return self.key.partition(".")[2]

    @property
    def keys(self) -> tuple[str, ...]:
        """In full: those of 'optim' are of two phases."""
        return (f"fine_tune.{self.field}", f"post_train.{self.field}") if self.group == "optim" else (self.key,)

    @property
    def text(self) -> str:
        return f"{f'{self.row}:' if self.row else ''}{self.key}={format_value(self.value)}"

    @property
    def place(self) -> str:
        """How errors name it."""
        return self.origin if self.in_file else f"{self.origin} {self.text}"


def names_in(value: Any) -> Any:
    """Several values: one, any number of them, or a text as of a flag: names between commas, of which one that holds a comma is a file, or
    stands in double quotes."""
    if not isinstance(value, str):
        return value if value is None or isinstance(value, Iterable) else (value,)
    if "," in value and os.path.exists(os.path.expanduser(value)):
        return (value,)
    try:
        parts = tuple(part.strip() for part in next(csv.reader([value], skipinitialspace=True), []) if part.strip())
    except csv.Error:
        raise ValueError(f"{value!r} has several lines; write names between commas") from None
    if not parts:
        raise ValueError(f"'{value}' has no name; leave it out for all")
    return parts


def names_joined(values: Iterable[Any]) -> str:
    """Several values as a flag takes them, which `names_in` reads."""
    return ",".join('"{}"'.format(text.replace('"', '""')) if "," in text else text for text in map(str, values))


def _some(value: Any) -> Any:
    """As `names_in`, where a list without a value would mean nothing."""
    if isinstance(value, Sized) and not isinstance(value, str) and len(value) == 0:
        raise ValueError("there is no value; leave it out for all")
    return names_in(value)


Text = Annotated[str, BeforeValidator(lambda value: fspath(value) if isinstance(value, PathLike) else value)]
Texts = Annotated[tuple[Text, ...] | None, BeforeValidator(_some)]
Numbers = Annotated[tuple[NonNegativeInt, ...] | None, BeforeValidator(_some)]
Count = Annotated[int, Field(ge=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Group = Literal["table", "filter", "labelled", "data", "execution", "kept"]


def _said(group: Group, help: str, metavar: str | None = None, default: Any = None) -> Any:
    """`help` and `metavar`: of its flag; a `default` of None keeps the table's."""
    return Field(default, description=help, json_schema_extra={"group": group, "metavar": metavar})


@dataclass(frozen=True, config={"extra": "forbid"})
class Request:
    """What to compute, and how it is executed.

    `table`: a name or the path of a YAML file. `methods` takes names of rows as written ('w/ SimCLR') or of methods ('cmlm': all its rows); a
    method without a row gets one ('taco', 'cmlm+scl'). `tasks`: names, YAML files of the user's own, or files of labelled rows, which the
    fields of that group describe. `selected`: the targets of the points that it takes, by their files. `origins`: where fields were set that a file or a store gave.
    """

    table: Text = ""
    preset: Text | None = _said(
        "table",
        "preset, of those that the table has: quick, laptop, paper, base, grid, seeds, large, roberta_base, roberta_large "
        "(default: the table's, mostly quick)",
    )
    reference: bool | None = _said(
        "table", "also the reference rows: majority class, TF-IDF, and the frozen encoder's states and head"
    )
    methods: Texts = _said("filter", "methods or rows of the table, comma-separated, or a method's own Python file")
    tasks: Texts = _said("filter", "tasks, comma-separated: names, files of labelled rows (.csv ...) or YAML files")
    sizes: Numbers = _said("filter", "numbers of labelled training examples, comma-separated")
    subsets: Numbers = _said("filter", "indices of training subsets from 0, comma-separated")
    seeds: Numbers = _said("filter", "training seeds, comma-separated")
    overrides: tuple[Override, ...] = ()
    protocol: Text | None = _said(
        "data", "which rows are train, dev and test: own, own_redrawn, own_cross_validated or k_shot"
    )
    text: Texts = _said("labelled", "text column, or the two of a pair: COLUMN,COLUMN", "COLUMN")
    label: Text | None = _said("labelled", "label column", "COLUMN")
    kind: Text | None = _said("labelled", "what the labels are", "classes|regression|spans")
    dev: Text | None = _said(
        "labelled", "dev set, which selects checkpoints (default: a fifth of the other rows)", "FILE"
    )
    test: Text | None = _said("labelled", "test set (default: a quarter of the rows, drawn by their text)", "FILE")
    unlabelled: Text | None = _said("labelled", "texts for post-training: a file, a folder or hub:OWNER/NAME", "FILE")
    remove_overlap: bool | None = _said("labelled", "leave out unlabelled texts that are also in dev or test")
    skip_bad_rows: bool | None = _said(
        "labelled", "leave out rows without text or with a label that is missing or unknown"
    )
    encoder: Texts = _said(
        "data", "encoder: a packaged name, a folder or a Hugging Face model id; several comma-separated: rows of each"
    )
    data: Text | None = _said("data", "data: 'hub', or a folder with TASK/SPLIT.parquet, .csv or .jsonl")
    corpus: Text | None = _said("data", "pre-training corpus: a name, files or hub:OWNER/NAME", "NAME")
    translator: Text | None = _said(
        "data",
        "translator for the back-translations of CSSL and of rows with augment ('harness list translators')",
        "NAME",
    )
    store: Text | None = _said("kept", "database of records (default: sqlite:///.harness/harness.db)", "URL")
    storage: Text | None = _said(
        "kept",
        "artifact storage (weights, checkpoints): a folder, s3://... or gs://... (default: beside the store)",
        "URI",
    )
    slots: Count | None = _said("execution", "runs at the same time (default: one per CPU core or GPU share)")
    gpus_per_run: Amount | None = _said(
        "execution", "GPUs reserved by each run, such as 1 or 0.5 (default: 1 if there is a GPU)"
    )
    cpus_per_run: Annotated[Amount, Field(gt=0)] = _said(
        "execution", "CPU cores reserved by each run (default: 1)", default=1.0
    )
    num_workers: Count = _said(
        "execution", "workers that train one stage together by Ray Train (default: 1)", default=1
    )
    micro_batch: Count | None = _said(
        "execution", "sequences per forward pass on a worker; the batch size is unchanged"
    )
    checkpoint_minutes: Amount = _said(
        "execution", "minutes between two checkpoints of a running stage (default: 10; 0: none)", default=10.0
    )
    hours: Amount | None = _said(
        "execution", "end in order after so many hours; the same command goes on (default: no limit)"
    )
    address: Text = _said(
        "execution", "address of a Ray cluster: 'auto' or HOST:PORT (default: this machine)", default="local"
    )
    retry: bool = _said("execution", "also retrain diverged stages (failed stages always are)", default=False)
    keep: Annotated[str, one_of("choice", ("best", "all", "none"))] = _said(
        "kept",
        "weights that stay in the storage: of each cell's best run by dev, of all stages, or none (default)",
        "best|all|none",
        "none",
    )
    track: Annotated[tuple[Text, ...], BeforeValidator(names_in)] = _said(
        "kept",
        "also write what is recorded to these trackers, comma-separated: tensorboard, mlflow, wandb",
        "TRACKER",
        (),
    )
    selected: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False, hash=False)
    origins: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False, hash=False)

    def origin(self, name: str) -> str:
        """Where a field was set, as errors name it."""
        return self.origins.get(name) or flag_of(name)


MODEL_FIELDS: Mapping[str, FieldInfo] = Request.__pydantic_fields__  # type: ignore[attr-defined]
"""What pydantic knows of each field."""


def said_of(name: str) -> dict[str, Any]:
    """The group, the help and the metavar of a field; empty where it is no flag of a plain value."""
    field = MODEL_FIELDS[name]
    return {"help": field.description, **field.json_schema_extra} if isinstance(field.json_schema_extra, dict) else {}


def names_of(*groups: Group) -> tuple[str, ...]:
    """The fields of some groups, in their order."""
    return tuple(name for name in MODEL_FIELDS if said_of(name).get("group") in groups)


FILTERS = names_of("filter")
"""Fields that select a part of a table; each is a tuple, or None for the preset's."""
LABELLED = names_of("labelled")
"""Fields that describe a file of labelled rows in `tasks`; see `infer_task`."""
FIELDS = names_of("table", "filter", "labelled", "data")
"""Fields that decide what is computed, beside the table and the overrides."""
PLAIN = names_of(*get_args(Group))
"""Fields of plain values: all but the table, the overrides and where these come from."""


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def read(kind: Callable[..., T], values: Mapping[str, Any], place: Callable[[str], str] = str) -> T:
    """Values as a `kind`, a dataclass of pydantic. Raises UserError for what does not fit, which names the `place` of the field."""
    try:
        return kind(**values)
    except ValidationError as error:
        raise UserError(describe_errors(error, "", values, {name: place(name) for name in values})) from None


def value_of(kind: Any, value: Any, place: str) -> Any:
    """A value as a type that pydantic reads. Raises UserError, which names the place."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise UserError(describe_errors(error, place)) from None


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
    return Override(key.strip(), value, origin, in_file, row)


def overrides_of(values: Mapping[str, Any], origin: str = "set") -> tuple[Override, ...]:
    """Values by key: 'fine_tune.lr', 'cmlm:fine_tune.lr'."""
    parts = ((*str(key).rpartition(":"), value) for key, value in values.items())
    return tuple(Override(key, value, origin, row=row) for row, _, key, value in parts)


# --------------------------------------------------------------------------------------------------------------- JSON


def to_json(request: Request) -> dict[str, Any]:
    """What a store keeps of a request: everything that decides what is computed, and the folder that its paths start from."""
    given = {name: value for name in FIELDS if (value := getattr(request, name)) is not None}
    kept = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    if request.encoder:  # text, by which stored benches are told apart
        kept["encoder"] = names_joined(request.encoder)
    return {"table": request.table, "folder": str(Path.cwd()), **kept, "set": [each.text for each in request.overrides]}


def from_json(values: Mapping[str, Any]) -> Request:
    """The request that a store kept; in another folder than the current one its paths are absolute. Raises UserError for values of another kind."""
    place = "recorded bench, {}".format
    fields = {"table": values.get("table")}
    fields |= {name: values[name] for name in FIELDS if values.get(name) not in (None, [], "")}
    try:
        request = read(Request, {**fields, "origins": {name: place(name) for name in fields}}, place)
        folder = value_of(Text, values.get("folder"), place("folder"))
        texts = value_of(Texts, values.get("set") or None, place("set"))
    except UserError as error:
        raise UserError(f"{error} Name a table with its flags, or restore a copy of the store.") from None
    overrides = tuple(parse_override(text, place("set")) for text in texts or ())
    return _rooted(replace(request, overrides=overrides), Path(folder))


def _rooted(request: Request, folder: Path) -> Request:
    """With relative paths of something in `folder` made absolute; whatever else a user may name stays as it is."""
    if folder == Path.cwd():
        return request

    def rooted(text: str, of_file: bool = True) -> str:
        relative = of_file and not text.startswith(("/", "~"))
        return str(folder / text) if relative and (folder / text).exists() else text

    named = ((name, getattr(request, name)) for name in ("data", "corpus", *BESIDE))
    paths: dict[str, Any] = {name: rooted(text) for name, text in named if text}
    methods = (m.split("+") for m in request.methods or ())
    return replace(
        request,
        **paths,
        table=rooted(request.table, request.table.endswith(YAML)),
        encoder=request.encoder and tuple(map(rooted, request.encoder)),
        tasks=request.tasks and tuple(rooted(task, is_own(task)) for task in request.tasks),
        methods=request.methods and tuple("+".join(rooted(p, p.endswith(PYTHON)) for p in parts) for parts in methods),
    )


def same_table(name: str, other: str) -> bool:
    """Two names of one table: a packaged one by name, or one file however its path is written."""
    if name.endswith(YAML) and other.endswith(YAML):
        return Path(name).expanduser().resolve() == Path(other).expanduser().resolve()
    return name == other
