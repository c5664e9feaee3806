"""The arguments of the Python API, and the request that they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
from typing import Any, Literal, TypedDict

from harness.errors import UserError, unknown
from harness.methods import read_methods
from harness.planning.fields import BY_NAME, Field
from harness.planning.point import with_points
from harness.planning.recipe import Value
from harness.planning.request import KEPT, Request, overrides_of, with_default_table
from harness.search.request import TuneRequest
from harness.search.trials import Mode

Set = Mapping[str, Value] | Mapping[tuple[str, ...], Value]
"""Values by key ('fine_tune.lr') or by path (('fine_tune', 'lr')), as `--set` takes them."""


Name = str | PathLike[str]
Files = Name | Sequence[Name]
"""A name, or the path of a file or folder."""


class Shared(TypedDict, total=False):
    """Keyword arguments of a request; see `harness.planning.request.Request`. A filter may be one value or several."""

    tasks: Name | Iterable[Name]
    text: str | Iterable[str]
    label: str
    kind: str
    dev: Name
    test: Name
    unlabelled: Name
    remove_overlap: bool
    skip_bad_rows: bool
    protocol: str
    sizes: int | Iterable[int]
    subsets: int | Iterable[int]
    seeds: int | Iterable[int]
    encoder: Name | Iterable[Name]
    data: Name
    corpus: Name
    translator: Name
    store: str
    storage: Name
    address: str
    slots: int
    gpus_per_run: float
    cpus_per_run: float
    num_workers: int
    micro_batch: int
    dev_points: int
    checkpoint_minutes: float
    hours: float
    retry: bool
    track: str | Iterable[str]


class Fields(Shared, total=False):
    """Those of a table besides."""

    preset: str
    methods: str | Iterable[str]
    reference: bool
    keep: Literal["best", "all", "none"]


class Search(Shared, total=False):
    """Those of a search besides; see `harness.tune`."""

    space: Name
    preset: str | None
    mode: Mode | None
    trials: int | None
    sampler: str | None
    racing: str | None
    metric: str | None
    seed: int


_OTHERS = (
    *(Field(name, str, "kept", "") for name in ("sampler", "racing", "metric")),
    Field("trials", int, "kept", "", least=1),
    Field("seed", int, "kept", ""),
    *(Field(name, float, "kept", "") for name in ("region", "points")),
)
KNOWN = BY_NAME | {field.name: field for field in _OTHERS}
"""What an argument holds, by name; those of a request are its fields."""


def request_from(
    table: Name, set: Set | None, with_file: Files, arguments: Mapping[str, Any], fields: type[Shared] = Fields
) -> Request:
    """`arguments`: those of `fields` that the caller named. Raises TypeError for another name."""
    if wrong := [name for name in arguments if name not in fields.__annotations__]:
        known = ", ".join(sorted(fields.__annotations__))
        raise TypeError(f"unknown argument '{wrong[0]}'; known besides those of the signature are {known}")
    values = {name: checked(name, value) for name, value in arguments.items() if value is not None}
    for name in values.get("methods", ()):
        read_methods(name)
    request = Request(table=fspath(table), overrides=overrides_of(set or {}), **values)
    files = [with_file] if isinstance(with_file, (str, PathLike)) else with_file
    return with_points(request, [fspath(file) for file in files if file])


def tune_request(method: str, set: Set | None, arguments: Search) -> TuneRequest:
    """Raises as `request_from` does."""
    own = Search.__annotations__.keys() - Shared.__annotations__.keys()
    shared = {name: value for name, value in arguments.items() if name not in own}
    values = {name: arguments.get(name) for name in own}
    read_methods(method)
    return TuneRequest(
        method=method,
        base=request_from("", set, "", shared, Search),
        space=fspath(arguments.get("space", "")),
        mode=arguments.get("mode"),
        seed=checked("seed", arguments.get("seed", 0)),
        **{name: checked(name, values[name]) for name in ("preset", "trials", "sampler", "racing", "metric")},
    )


def checked(name: str, value: Any) -> Any:
    """An argument as `Field.read` reads it; of several encoders one text. Raises UserError."""
    if value is None:
        return None
    if name == "keep" and value not in KEPT:
        raise unknown("choice", str(value), KEPT, name)
    if name == "encoder" and isinstance(value, Iterable) and not isinstance(value, (str, PathLike)):
        return ",".join(map(KNOWN[name].read, value))
    return KNOWN[name].read(value)


def with_table(request: Request) -> Request:
    request = with_default_table(request)
    if not request.table:
        raise UserError(
            "table: name a table, such as 'few_shot', a file of labelled rows in tasks, or a file with a target in with_file."
        )
    return request
