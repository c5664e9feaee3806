"""A point of hyperparameters as a YAML file: what `harness tune` ends in, and what a request can start from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, create_model

from harness.errors import UserError, unknown
from harness.methods import known_methods, methods_named
from harness.planning.recipe import Scalar
from harness.planning.request import FIELDS, MODEL_FIELDS, Override, Request, flag_of, parse_override, same_table
from harness.planning.resolve import table_wide
from harness.planning.table import Table, load_table
from harness.yaml_files import Places, Strict, load_yaml, places_of

Name = Annotated[str, Field(min_length=1)]
TARGET = tuple(name for name in FIELDS if name not in ("preset", "methods", "reference"))
"""The fields of a request that a target has too; what is left out is the preset's. Paths are as on the command line, from the current folder."""
_FIELDS: dict[str, Any] = {name: (MODEL_FIELDS[name].annotation, MODEL_FIELDS[name]) for name in TARGET}
_FIELDS |= {"table": Name, "preset": Name, "row": Name, "set": (tuple[str, ...], ())}
PointTarget: Any = create_model("PointTarget", __base__=Strict, **_FIELDS)
"""Where a point was judged: one row of a table under a preset. `set`: KEY=VALUE texts that all points of the study ran under."""


class PointFile(Strict):
    """`method`: 'cmlm', several as 'cmlm+scl', or a method's own file. `set`: its hyperparameters by name ('cmlm.alpha' where there are several
    methods), and settings of the recipe under their own keys (fine_tune.lr). `chosen`: how it was found, for readers."""

    method: str
    set: dict[str, Scalar]
    target: Annotated[Any, BeforeValidator(PointTarget.model_validate)] | None = None
    chosen: dict[str, Any] = Field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        """Its method by name; the command names the file that defines it, too."""
        return known_methods(self.method)


def _alone(override: Override, row: str) -> Override:
    return override if table_wide(override.key) else replace(override, row=row)


def with_points(request: Request, files: Iterable[str]) -> Request:
    """The request with the points of some files: their overrides, each for the rows of its point alone, come before the request's
    own, and their targets give the fields that the request leaves out; the rows of several are joined.

    A target counts where the request names no table and no preset, or the same ones; else only method and `set` of the
    point are taken. Raises UserError for what is wrong in a file, and for targets that differ in what the request leaves out; a
    request without a table, where no target names one either, comes back without one.
    """
    asked, overrides, selected = request, list[Override](), dict[str, Any]()
    for file in files:
        point, places = load_yaml(Path(file), PointFile), places_of(Path(file))
        methods_named(point.name, places("method"))
        target, row = point.target, point.name
        if target:
            table = load_table(target.table, places("target", "table"))
            selected[file] = target
            if not request.table:
                request = _taking(request, {"table": target.table}, places)
            if same_table(request.table, target.table) and asked.preset in (None, target.preset):
                asked_as = _row_of(table, point, target.row, places)
                row = known_methods(asked_as)
                shared = [parse_override(text, places("target", "set", i), True) for i, text in enumerate(target.set)]
                overrides += [_alone(each, row) for each in shared]
                left_out = (name for name in ("preset", *TARGET) if getattr(asked, name) is None)
                taken = {name: value for name in left_out if (value := getattr(target, name))}
                for name, value in taken.items():
                    if getattr(request, name) not in (None, value):
                        where, theirs = places("target", name), request.origin(name)
                        raise UserError(f"{where}: differs from {theirs}; say which holds with {flag_of(name)}.")
                taken |= {"methods": (*(request.methods or ()), asked_as)} if asked.methods is None else {}
                request = _taking(request, taken, places)
        for name, value in point.set.items():
            key = name if "." in name or table_wide(name) else f"{point.name}.{name}"
            overrides.append(_alone(Override(key, value, places("set", name), True), row))
    held: dict[tuple[str, str], Override] = {}
    for each in overrides:
        other = held.setdefault((each.row, each.key), each)
        if other.value != each.value:
            raise UserError(
                f"{each.place}: {each.key} of {each.row or 'all rows'} differs from {other.place}; name one of the files."
            )
    return replace(request, overrides=(*overrides, *request.overrides), selected=selected)


def _taking(request: Request, values: Mapping[str, Any], places: Places) -> Request:
    origins = {name: places("target", name) for name in values}
    return replace(request, **values, origins={**request.origins, **origins})


def _row_of(table: Table, point: PointFile, row: str, places: Places) -> str:
    """The row of a target; of a method that the table has no row for, and gets one, the method."""
    names = {text.lower() for each in table.rows for text in (each.name, each.method)}
    if row.lower() in names:
        return row
    if row.lower() != "+".join(method.title for method in methods_named(point.name)).lower():
        raise unknown("row", row, [each.name for each in table.rows], places("target", "row"))
    return point.method
