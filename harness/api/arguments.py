"""The arguments of the Python API, and the request that they make."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from os import PathLike, fspath
from typing import Any, Literal, TypedDict

from harness.errors import UserError, unknown
from harness.tables.point import with_point
from harness.tables.recipe import Value
from harness.tables.request import FILTERS, KEPT, Request, overrides_of, with_default_table

Set = Mapping[str, Value] | Mapping[tuple[str, ...], Value]
"""Values by key ('fine_tune.lr') or by path (('fine_tune', 'lr')), as `--set` takes them."""


Name = str | PathLike[str]
"""A name, or the path of a file or folder."""


class Shared(TypedDict, total=False):
    """Keyword arguments of a request; see `harness.tables.request.Request`. A filter may be one value or several."""

    tasks: Name | Iterable[Name]
    text: str | Iterable[str]
    label: str
    kind: str
    dev: Name
    test: Name
    unlabelled: Name
    remove_overlap: bool
    protocol: str
    sizes: int | Iterable[int]
    subsets: int | Iterable[int]
    seeds: int | Iterable[int]
    encoder: Name
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
    retry: bool
    track: str | Iterable[str]


class Fields(Shared, total=False):
    """Those of a table besides."""

    preset: str
    methods: str | Iterable[str]
    keep: Literal["best", "all", "none"]


KINDS: dict[str, type] = {
    **dict.fromkeys(("preset", "methods", "tasks", "encoder", "data", "corpus", "translator"), str),
    **dict.fromkeys(("store", "storage", "address", "sampler", "racing", "metric", "keep", "track"), str),
    **dict.fromkeys(
        ("sizes", "subsets", "seeds", "slots", "num_workers", "micro_batch", "dev_points", "trials", "seed"), int
    ),
    **dict.fromkeys(("gpus_per_run", "cpus_per_run", "checkpoint_minutes", "region", "points"), float),
    **dict.fromkeys(("text", "label", "kind", "dev", "test", "unlabelled", "protocol"), str),
    **dict.fromkeys(("retry", "remove_overlap"), bool),
}
SEVERAL = (*FILTERS, "text", "metric", "track")
"""Arguments that take one value or several."""
LEAST = {"trials": 1, "num_workers": 1}
"""The least value of a number; 0 where there is none."""


def request_from(
    table: Name, set: Set | None, with_file: Name, given: Mapping[str, Any], fields: type[Shared] = Fields
) -> Request:
    """`given`: those of `fields` that the caller named. Raises TypeError for another name."""
    if wrong := [name for name in given if name not in fields.__annotations__]:
        known = ", ".join(sorted(fields.__annotations__))
        raise TypeError(f"unknown argument '{wrong[0]}'; known besides those of the signature are {known}")
    values = {name: checked(name, value) for name, value in given.items() if value is not None}
    request = Request(table=fspath(table), overrides=overrides_of(set or {}), **values)
    return with_point(request, fspath(with_file)) if with_file else request


def checked(name: str, value: Any) -> Any:
    """An argument as a request holds it: paths as text, numbers of NumPy as Python's own, several values as a tuple. Raises
    UserError for a value of another type or below the least."""
    if value is None:
        return None
    if name in SEVERAL:
        single = isinstance(value, (str, PathLike)) or not isinstance(value, Iterable)
        return tuple(_one(name, each) for each in ([value] if single else value))
    return _one(name, value)


def _one(name: str, value: Any) -> Any:
    if name == "keep" and value not in KEPT:
        raise unknown("choice", str(value), KEPT, name)
    kind, least = KINDS[name], LEAST.get(name, 0)
    if kind is str and isinstance(value, (str, PathLike)):
        return fspath(value)
    if kind is bool and isinstance(value, bool):
        return value
    numeric: Any = {int: Integral, float: Real}.get(kind, ())
    if not isinstance(value, bool) and isinstance(value, numeric) and least <= (number := kind(value)) < math.inf:
        return number
    words = {
        str: "a text",
        bool: "true or false",
        int: f"a whole number of {least} or more",
        float: "a number of 0 or more",
    }
    raise UserError(f"{name}: should be {words[kind]}, not {value!r}.")


def with_table(request: Request) -> Request:
    request = with_default_table(request)
    if not request.table:
        raise UserError(
            "table: name a table, such as 'few_shot', a file of labelled rows in tasks, or a file with a target in with_file."
        )
    return request
