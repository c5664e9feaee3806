"""A point of hyperparameters as a YAML file: what `harness tune` ends in, and what a request can start from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, create_model, model_validator

from harness.errors import UserError, unknown
from harness.methods import known_methods, methods_named
from harness.planning.overrides import table_wide
from harness.planning.recipe import Scalar
from harness.planning.request import (
    FIELDS,
    MODEL_FIELDS,
    OWN_DATA,
    Override,
    Request,
    Study,
    parse_override,
    same_table,
)
from harness.planning.table import Table, load_table
from harness.yaml_files import MisplacedError, Places, Strict, load_yaml

TABLE_WIDE = ("max_length",)
"""Keys without a dot that are settings of the table, not hyperparameters of the method."""

Name = Annotated[str, Field(min_length=1)]
TARGET = tuple(name for name in FIELDS if name not in ("preset", "methods", "reference"))
"""The fields of a request that a target has too; what is left out is the preset's. Paths are as on the command line, from the current folder."""


class PointTarget(Strict):
    """Where a point was judged: one row of a table under a preset. `set`: KEY=VALUE texts that all points of the study ran under."""

    table: Name
    preset: Name
    row: Name
    set: tuple[str, ...] = ()

    @property
    def fields(self) -> dict[str, Any]:
        """What it gives of a request."""
        return {name: value for name in ("preset", *TARGET) if (value := getattr(self, name))}


_fields: dict[str, Any] = {name: (MODEL_FIELDS[name].annotation, MODEL_FIELDS[name]) for name in TARGET}
_Target = create_model("PointTarget", __base__=PointTarget, **_fields)


class PointFile(Strict):
    """`method`: 'cmlm', several as 'cmlm+scl', or a method's own file. `set`: its hyperparameters by name ('cmlm.alpha' where there are several
    methods), and settings of the recipe under their own keys (fine_tune.lr). `chosen`: how it was found, for readers."""

    method: str
    set: dict[str, Scalar]
    target: Annotated[PointTarget, BeforeValidator(_Target.model_validate)] | None = None
    chosen: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _whose(self) -> Self:
        parts = self.method.split("+")
        for key in self.set:
            if len(parts) > 1 and "." not in key and key not in TABLE_WIDE:
                known = " or ".join(f"{part}.{key}" for part in parts)
                raise MisplacedError(["set", key], f"the point has several methods; write {known}")
        return self

    @cached_property
    def name(self) -> str:
        """Its method by name; the command names the file that defines it, too."""
        return known_methods(self.method)


def load_point(path: Path) -> PointFile:
    """A point's file. Raises UserError for a file that does not fit and for an unknown method."""
    point = load_yaml(path, PointFile)
    methods_named(point.name, Places(path)("method"))
    return point


def settings(point: PointFile, places: Places, row: str) -> tuple[Override, ...]:
    """The point's `set` as overrides of its `row`. `places`: of its file."""
    found = []
    for key, value in point.set.items():
        whole = key if "." in key or key in TABLE_WIDE else f"{point.name}.{key}"
        found.append(_alone(Override(tuple(whole.split(".")), value, origin=places("set", key), in_file=True), row))
    return tuple(found)


def _alone(override: Override, row: str) -> Override:
    """The same for one row, where rows can differ in it."""
    return override if table_wide(override.path) else replace(override, row=row)


def with_points(request: Request, files: Iterable[str]) -> Request:
    """The request with the points of some files: their overrides, each for the rows of its point alone, come before the request's
    own, and their targets give the fields that the request leaves out; the rows of several are joined.

    A target counts where the request names no table and no preset, or the same ones; else only method and `set` of the
    point are taken. Raises UserError for what is wrong in a file, and for targets that differ in what the request leaves out; a
    request without a table, where no target names one either, comes back without one.
    """
    asked, overrides, studies = request, list[Override](), []
    for file in files:
        point, places = load_point(Path(file)), Places(Path(file))
        target, row = point.target, point.name
        if not request.table and target:
            request = _taking(request, {"table": target.table}, places)
        if target and same_table(request.table, target.table) and asked.preset in (None, target.preset):
            values = _target_values(load_table(request.table, request.origin("table")), point, target, places)
            (asked_as,) = values["methods"]
            row = known_methods(asked_as)
            if asked.methods is None:
                values["methods"] = (*(request.methods or ()), asked_as)
            shared = [
                parse_override(text, places("target", "set", i), in_file=True) for i, text in enumerate(target.set)
            ]
            overrides += [_alone(override, row) for override in shared]
            taken = {name: value for name, value in values.items() if getattr(asked, name) is None}
            for name, value in taken.items():
                if name != "methods" and getattr(request, name) not in (None, value):
                    raise UserError(
                        f"{places('target', name)}: differs from {request.origin(name)}; say which holds with --{name.replace('_', '-')}."
                    )
            request = _taking(request, taken, places)
        if target:
            given = target.fields
            protocol = given.get("protocol") or load_table(target.table, places("target", "table")).protocol
            studies.append(Study(file, protocol, *(given.get(name, ()) for name in ("tasks", "sizes", "subsets"))))
        overrides += settings(point, places, row)
    _check_shared(overrides)
    return replace(request, overrides=(*overrides, *request.overrides), studies=tuple(studies))


def _check_shared(overrides: Iterable[Override]) -> None:
    """Raises UserError where points differ in a value that holds for the whole table."""
    held: dict[str, Override] = {}
    for override in overrides:
        other = held.setdefault(override.key, override) if not override.row else override
        if other.value != override.value:
            raise UserError(
                f"{override.place}: {override.key} holds for all rows and differs from {other.place}; name one of the files."
            )


def _taking(request: Request, values: Mapping[str, Any], places: Places) -> Request:
    """The request with values of a point's target."""
    origins = {name: places("target", name) for name in values}
    return replace(request, **values, origins={**request.origins, **origins})


def _target_values(table: Table, point: PointFile, target: PointTarget, places: Places) -> dict[str, Any]:
    """What a target gives of a request, by field."""
    values = target.fields
    preset = table.presets.get(target.preset)
    if values.get("data") == OWN_DATA or (preset and preset.data == values.get("data")):
        values.pop("data", None)  # a name for where the preset's tasks come from, nothing that a request takes
    names = {text.lower() for row in table.rows for text in (row.name, row.method)}
    title = "+".join(method.title for method in methods_named(point.name))
    if target.row.lower() not in names and target.row.lower() != title.lower():
        raise unknown("row", target.row, [row.name for row in table.rows], places("target", "row"))
    # A method that the table has no row for gets one, but by the method's name, not by its title.
    return values | {"methods": (target.row if target.row.lower() in names else point.method,)}
