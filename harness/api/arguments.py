"""The arguments of the Python API, and the request that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from os import PathLike, fspath
from typing import Any, TypedDict

from harness.errors import UserError
from harness.tables.point import with_point
from harness.tables.request import FILTERS, Request, overrides_of
from harness.tables.table import Value

Set = Mapping[str, Value] | Mapping[tuple[str, ...], Value]
"""Values by key ('fine_tune.lr') or by path (('fine_tune', 'lr')), as `--set` takes them."""


class Shared(TypedDict, total=False):
    """Keyword arguments of a request; see `harness.tables.request.Request`. A filter may be one value or several."""

    tasks: str | Sequence[str]
    sizes: int | Sequence[int]
    subsets: int | Sequence[int]
    seeds: int | Sequence[int]
    encoder: str
    data: str
    corpus: str
    translator: str
    store: str
    storage: str
    address: str
    slots: int
    gpus_per_run: float
    cpus_per_run: float
    num_workers: int
    micro_batch: int
    checkpoint_minutes: float
    retry: bool


class Fields(Shared, total=False):
    """Those of a table besides."""

    preset: str
    methods: str | Sequence[str]


def request_from(table: str | PathLike[str], set: Set | None, with_file: str, given: Mapping[str, Any]) -> Request:
    known = {field.name for field in fields(Request)} - {"table", "overrides", "origins", "flags"}
    if wrong := [name for name in given if name not in known]:
        raise TypeError(f"unknown argument '{wrong[0]}'; known are table, set, with_file, {', '.join(sorted(known))}")
    values: dict[str, Any] = {
        name: several(value) if name in FILTERS and value is not None else value for name, value in given.items()
    }
    request = Request(table=fspath(table), overrides=overrides_of(set or {}), **values)
    return with_point(request, with_file) if with_file else request


def several(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, (str, int)) else tuple(value)


def with_table(request: Request) -> Request:
    if not request.table:
        raise UserError("table: name a table, such as 'few_shot', or a file with a target in with_file.")
    return request
