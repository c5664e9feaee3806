"""The YAML of a user's own task."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field, StrictStr, model_validator

from harness.errors import UserError
from harness.tasks.metrics import check_metric
from harness.tasks.task import TASKS, Task
from harness.yaml_files import MisplacedError, Strict, load_yaml

Name = Annotated[StrictStr, Field(min_length=1)]
Title = Annotated[StrictStr, Field(min_length=1, max_length=60)]

RESERVED = ("label", "idx")
"""Column names that cannot hold text: the label itself, and GLUE's row number."""


class Splits(Strict):
    """Names of the files of each split, without their ending."""

    train: Name = "train"
    validation: Name = "validation"
    test: Name | None = None


class TaskFile(Strict):
    """What a task file may say; see `load_user_task`."""

    name: Annotated[Name, Field(max_length=100)]
    columns: Annotated[tuple[Name, ...], Field(min_length=1, max_length=2)]
    metrics: Annotated[tuple[Name, ...], Field(min_length=1)]
    classes: tuple[Name, ...] = ()
    regression: bool = False
    title: Title | None = None
    version: Annotated[int, Field(ge=1)] = 1
    splits: Splits = Splits()

    @model_validator(mode="after")
    def _fits(self) -> TaskFile:
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", self.name):
            raise MisplacedError(["name"], f"'{self.name}' should be lower-case letters, digits, '-' and '_'")
        if self.title and not self.title.isprintable():
            raise MisplacedError(["title"], "should be one line of printable characters")
        if self.name in TASKS:
            raise MisplacedError(["name"], f"'{self.name}' is a built-in task; choose another name")
        for number, column in enumerate(self.columns):
            if column in RESERVED or column in self.columns[:number]:
                raise MisplacedError(["columns", number], f"'{column}' cannot be a text column here; name another")
        if self.regression == bool(self.classes):
            raise MisplacedError(["classes"], "give either two or more classes or 'regression: true'")
        if self.classes and len(set(self.classes)) < max(2, len(self.classes)):
            raise MisplacedError(["classes"], "should be two or more different names")
        for number, name in enumerate(self.classes):
            if name != name.strip():
                raise MisplacedError(["classes", number], "begins or ends with a space, which no label does; drop it")
        for number, metric in enumerate(self.metrics):
            try:
                check_metric(metric, len(self.classes) or 1, f"task {self.name}")
            except UserError as error:
                raise MisplacedError(["metrics", number], str(error)) from None
            if metric in self.metrics[:number]:
                raise MisplacedError(["metrics", number], f"'{metric}' is given twice; keep one")
        files = [self.splits.train, self.splits.validation, self.splits.test]
        if len(set(files)) < 3:
            raise MisplacedError(["splits"], "the splits should be different files")
        for key, file in zip(("train", "validation", "test"), files, strict=True):
            if file and re.search(r"[/\\]", file):
                raise MisplacedError(["splits", key], f"'{file}' should be a file's name without folder and ending")
        return self


def load_user_task(path: str | Path) -> Task:
    """A task of the user's own from a YAML file; its text then comes from `<DIR>/<name>/<split>.{parquet,csv,jsonl}`.

    Keys: name, columns, metrics, and classes (names in the order of the codes) or `regression: true`; optional title,
    version, splits (mapping of train, validation and test to the names of the files). Where `splits` names a test file, or
    there is one called test, it is the test set, else what dev leaves of validation. Raises UserError with file, line, key.
    """
    body = load_yaml(Path(path), TaskFile)
    splits = body.splits
    return Task(
        name=body.name,
        title=body.title or body.name,
        columns=body.columns,
        classes=body.classes,
        metrics=body.metrics,
        version=body.version,
        train=splits.train,
        dev=splits.validation,
        tests=(("test", splits.test or splits.validation),),
        own=True,
    )
