"""A point of hyperparameters as a YAML file: what `harness tune` ends in and `--with` takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from harness.bench.table import Seed, Size, Value
from harness.methods import methods_named
from harness.yaml_files import MisplacedError, Strict, load_yaml, parse_value

TABLE_WIDE = ("max_length",)
"""Keys without a dot that are settings of the table, not hyperparameters of the method."""

Text = Annotated[str, Field(min_length=1)]


def _one(value: object) -> object:
    if not isinstance(value, (bool, int, float, str)):
        raise ValueError(f"should be a number, a word, true or false, not {value!r}")
    return value


OneValue = Annotated[Value, BeforeValidator(_one)]
"""A value, told to be wrong in one sentence and not in one for each kind that it might have been."""


class PointTarget(Strict):
    """Where a point was judged: one row of a table under a preset. What is left out is the preset's.

    `tasks`: names, or YAML files of the user's own; `set`: KEY=VALUE texts that all points of the study ran under. Paths are
    as on the command line, from the current folder.
    """

    table: Text
    preset: Text
    row: Text
    tasks: tuple[Text, ...] = ()
    sizes: tuple[Size, ...] = ()
    subsets: tuple[Annotated[int, Field(ge=0)], ...] = ()
    seeds: tuple[Seed, ...] = ()
    encoder: str = ""
    data: str = ""
    corpus: str = ""
    translator: str = ""
    set: tuple[str, ...] = ()


class Point(Strict):
    """`method`: 'cmlm', or several as 'cmlm+scl'. `set`: its hyperparameters by name ('cmlm.alpha' where there are several
    methods), and settings of the recipe under their own keys (fine_tune.lr). `chosen`: how it was found, for readers."""

    method: str
    set: dict[str, OneValue]
    target: PointTarget | None = None
    chosen: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _whose(self) -> Point:
        parts = self.method.split("+")
        for key in self.set:
            if len(parts) > 1 and "." not in key and key not in TABLE_WIDE:
                known = " or ".join(f"{part}.{key}" for part in parts)
                raise MisplacedError(["set", key], f"the point has several methods; write {known}")
        return self


def load_point(path: Path) -> Point:
    """A point's file. Raises UserError for a file that does not fit and for an unknown method."""
    point = load_yaml(path, Point)
    methods_named(point.method, f"{path}, key method")
    return point


def settings(point: Point) -> tuple[str, ...]:
    """The point's `set` as the texts that `--set` takes."""
    return tuple(
        f"{key if '.' in key or key in TABLE_WIDE else f'{point.method}.{key}'}={value_text(value)}"
        for key, value in point.set.items()
    )


def value_text(value: Value) -> str:
    """A value as `--set` reads it back: the string 'true' is quoted, the truth is not."""
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    return json.dumps(value) if isinstance(value, str) and parse_value(text) != value else text
