"""The fields of a request: what each holds, and its help. Parser, Python API, points and stored requests follow from this list;
imports the standard library alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from os import PathLike, fspath
from typing import Any, Literal, NamedTuple

from harness.errors import UserError, quoted

Group = Literal["table", "filter", "labelled", "data", "execution", "kept"]


class Field(NamedTuple):
    """One field of `harness.planning.request.Request`. `kind`: of a value, or of each of `several`; `least`: of a number; `default`: None
    keeps the table's. `metavar`: of its flag."""

    name: str
    kind: type
    group: Group
    help: str
    several: bool = False
    metavar: str | None = None
    default: Any = None
    least: int = 0

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    def read(self, value: Any) -> Any:
        """A value of Python or of JSON as a request holds it: paths as text, numbers of NumPy as Python's own, several values as a tuple. Raises
        UserError for a value of another type or below the least."""
        if self.several:
            single = isinstance(value, (str, PathLike, Mapping)) or not isinstance(value, Iterable)
            return tuple(map(self._one, [value] if single else value))
        return self._one(value)

    def _one(self, value: Any) -> Any:
        if self.kind is str and isinstance(value, (str, PathLike)):
            return fspath(value)
        if self.kind is bool and isinstance(value, bool):
            return value
        numeric: Any = {int: Integral, float: Real}.get(self.kind, ())
        number = self.kind(value) if isinstance(value, numeric) and not isinstance(value, bool) else -1
        if self.least <= number < math.inf:
            return number
        words = {str: "a text", bool: "true or false", int: f"a whole number of {self.least} or more"}
        raise UserError(f"{self.name}: should be {words.get(self.kind, 'a number of 0 or more')}, not {quoted(value)}.")


REQUEST_FIELDS = (
    Field(
        "preset", str, "table", "preset, of those that the table has: {presets} (default: the table's, mostly quick)"
    ),
    Field(
        "reference",
        bool,
        "table",
        "also the reference rows: majority class, TF-IDF, and the frozen encoder's states and head",
    ),
    Field(
        "methods",
        str,
        "filter",
        "methods or rows of the table, comma-separated, or a method's own Python file",
        several=True,
    ),
    Field(
        "tasks",
        str,
        "filter",
        "tasks, comma-separated: names, files of labelled rows (.csv ...) or YAML files",
        several=True,
    ),
    Field("sizes", int, "filter", "numbers of labelled training examples, comma-separated", several=True),
    Field("subsets", int, "filter", "indices of training subsets from 0, comma-separated", several=True),
    Field("seeds", int, "filter", "training seeds, comma-separated", several=True),
    Field(
        "protocol",
        str,
        "data",
        "which rows are train, dev and test: own, own_redrawn, own_small_dev, own_cross_validated or k_shot",
    ),
    Field("text", str, "labelled", "text column, or the two of a pair: COLUMN,COLUMN", several=True, metavar="COLUMN"),
    Field("label", str, "labelled", "label column", metavar="COLUMN"),
    Field("kind", str, "labelled", "what the labels are", metavar="classes|regression|spans"),
    Field(
        "dev",
        str,
        "labelled",
        "dev set, which selects checkpoints (default: a fifth of the other rows)",
        metavar="FILE",
    ),
    Field("test", str, "labelled", "test set (default: a quarter of the rows, drawn by their text)", metavar="FILE"),
    Field("unlabelled", str, "labelled", "texts for post-training: a file, a folder or hub:OWNER/NAME", metavar="FILE"),
    Field("remove_overlap", bool, "labelled", "leave out unlabelled texts that are also in dev or test"),
    Field("skip_bad_rows", bool, "labelled", "leave out rows without text or with a label that is missing or unknown"),
    Field(
        "encoder",
        str,
        "data",
        "encoder: a packaged name, a folder or a Hugging Face model id; several comma-separated: rows of each",
    ),
    Field("data", str, "data", "data: 'hub', or a folder with TASK/SPLIT.parquet, .csv or .jsonl"),
    Field("corpus", str, "data", "pre-training corpus: a name, files or hub:OWNER/NAME", metavar="NAME"),
    Field(
        "translator",
        str,
        "data",
        "translator for the back-translations of CSSL and of rows with augment ('harness list translators')",
        metavar="NAME",
    ),
    Field("store", str, "kept", "database of records (default: sqlite:///.harness/harness.db)", metavar="URL"),
    Field(
        "storage",
        str,
        "kept",
        "artifact storage (weights, checkpoints): a folder, s3://... or gs://... (default: beside the store)",
        metavar="URI",
    ),
    Field(
        "slots", int, "execution", "runs at the same time (default: one per CPU core or GPU share)", default=0, least=1
    ),
    Field(
        "gpus_per_run", float, "execution", "GPUs reserved by each run, such as 1 or 0.5 (default: 1 if there is a GPU)"
    ),
    Field("cpus_per_run", float, "execution", "CPU cores reserved by each run (default: 1)", default=1.0),
    Field("num_workers", int, "execution", "workers that train one stage together by Ray Train (default: 1)", least=1),
    Field(
        "micro_batch",
        int,
        "execution",
        "sequences per forward pass on a worker; the batch size is unchanged",
        default=0,
        least=1,
    ),
    Field(
        "dev_points",
        int,
        "execution",
        "score dev this often along a stage for its learning curve; selects nothing (default: 0)",
        default=0,
    ),
    Field(
        "checkpoint_minutes",
        float,
        "execution",
        "minutes between two checkpoints of a running stage (default: 10; 0: none)",
        default=10.0,
    ),
    Field(
        "hours",
        float,
        "execution",
        "end in order after so many hours; the same command goes on (default: no limit)",
    ),
    Field(
        "address",
        str,
        "execution",
        "address of a Ray cluster: 'auto' or HOST:PORT (default: this machine)",
        default="local",
    ),
    Field("retry", bool, "execution", "also retrain diverged stages (failed stages always are)", default=False),
    Field(
        "keep",
        str,
        "kept",
        "weights that stay in the storage: of each cell's best run by dev, of all stages, or none (default)",
        metavar="best|all|none",
        default="none",
    ),
    Field(
        "track",
        str,
        "kept",
        "also write what is recorded to these trackers, comma-separated: tensorboard, mlflow, wandb",
        several=True,
        metavar="TRACKER",
        default=(),
    ),
)
BY_NAME = {field.name: field for field in REQUEST_FIELDS}


def names_of(*groups: Group) -> tuple[str, ...]:
    """The fields of some groups, in the order of the list."""
    return tuple(field.name for field in REQUEST_FIELDS if field.group in groups)
