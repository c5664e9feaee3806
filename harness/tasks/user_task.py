"""The YAML of a user's own task."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from harness.answers import SQUAD, SpanReading
from harness.errors import UserError, unknown
from harness.kinds import Kind, kind_of, number_of
from harness.paths import named_path
from harness.prompts import Prompt
from harness.tasks.hub_data import HUB, parsed
from harness.tasks.metrics import check_metric
from harness.tasks.task import OWN_TEST, TASKS, Task
from harness.yaml_files import MisplacedError, Strict, load_yaml

Name = Annotated[StrictStr, Field(min_length=1)]
Title = Annotated[StrictStr, Field(min_length=1, max_length=60)]

ROW_NUMBER = "idx"
"""GLUE's column of row numbers, which is no text."""


class Splits(Strict):
    """Names of the splits of a data set of the hub, or of the files of each split without their ending."""

    train: Name = "train"
    validation: Name = "validation"
    test: Name | None = None


class Hub(Strict):
    """A data set of the Hugging Face hub."""

    hub: Name
    config: Name | None = None
    revision: Name | None = None

    def __str__(self) -> str:
        return (
            f"{HUB}{self.hub}{f':{self.config}' if self.config else ''}{f'@{self.revision}' if self.revision else ''}"
        )


class PromptFile(Strict):
    """What a task file may say of prompts: the template, the label word of each class, or of the lowest and the highest score of a regression, and
    how it is read; see `harness.prompts.Prompt`."""

    template: Name
    words: dict[StrictBool | StrictInt | StrictFloat | StrictStr, Name]
    draws: Annotated[int, Field(ge=1)] = 16
    first_length: Annotated[int, Field(ge=0)] = 0

    @property
    def scale(self) -> tuple[float, float]:
        """Of a regression. Raises MisplacedError where the words do not stand for two scores."""
        numbers = sorted(number for name in self.words if (number := number_of(name)) is not None)
        if not len(numbers) == len(self.words) == len(set(numbers)) == 2:
            raise MisplacedError(
                ["prompt", "words"],
                'should give a word for the lowest and one for the highest score, as {0: "No", 5: "Yes"}',
            )
        return numbers[0], numbers[1]

    def prompt(self, columns: int, kind: Kind) -> Prompt:
        """Raises MisplacedError for what does not fit the task."""
        words = {f"{name:.15g}" if type(name) in (int, float) else str(name): word for name, word in self.words.items()}
        names = kind.word_names
        for name in words:
            if name not in names:
                raise MisplacedError(["prompt", "words"], str(unknown("class", name, names)))
        if missing := [name for name in names if name not in words]:
            raise MisplacedError(["prompt", "words"], f"there is no word for class '{missing[0]}'; give one for each")
        made = Prompt(
            self.template, tuple(words[name] for name in names), draws=self.draws, first_length=self.first_length
        )
        try:
            made.check(columns, names)
        except UserError as error:
            raise MisplacedError(["prompt"], str(error)) from None
        return made


class TaskFile(Strict):
    """What a task file may say; see `load_user_task`."""

    name: Annotated[Name, Field(max_length=100)]
    columns: Annotated[tuple[Name, ...], Field(min_length=1, max_length=2)]
    metrics: Annotated[tuple[Name, ...], Field(min_length=1)]
    classes: tuple[Name, ...] = ()
    regression: bool = False
    spans: bool = False
    title: Title | None = None
    version: Annotated[int, Field(ge=1)] = 1
    splits: Splits = Splits()
    data: Hub | Name | None = None
    label: Name | None = None
    labels: dict[StrictBool | StrictInt | StrictStr, Name] = Field(default_factory=dict)
    dev: Name | None = None
    test: Name | None = None
    unlabelled: Hub | Name | None = None
    remove_overlap: StrictBool = False
    skip_bad_rows: StrictBool = False
    prompt: PromptFile | None = None

    @property
    def reading(self) -> SpanReading | None:
        return SQUAD if self.spans else None

    @property
    def scale(self) -> tuple[float, float] | None:
        """Of a regression, what the words of its prompt say of it."""
        return self.prompt.scale if self.prompt and self.regression else None

    @property
    def kind(self) -> Kind:
        return kind_of(self.classes, bounds=self.scale, spans=self.reading)

    @property
    def label_column(self) -> str:
        return self.label or kind_of(self.classes, spans=self.reading).label_column

    @model_validator(mode="after")
    def _fits(self) -> TaskFile:
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", self.name):
            raise MisplacedError(["name"], f"'{self.name}' should be lower-case letters, digits, '-' and '_'")
        if self.title and not self.title.isprintable():
            raise MisplacedError(["title"], "should be one line of printable characters")
        if self.name in TASKS:
            raise MisplacedError(["name"], f"'{self.name}' is a built-in task; choose another name")
        for number, column in enumerate(self.columns):
            if column in (self.label_column, ROW_NUMBER) or column in self.columns[:number]:
                raise MisplacedError(["columns", number], f"'{column}' cannot be a text column here; name another")
        if self.regression + self.spans + bool(self.classes) != 1:
            raise MisplacedError(
                ["classes"],
                "give either two or more classes, 'regression: true', or 'spans: true' for question answering",
            )
        if self.spans and len(self.columns) != 2:
            raise MisplacedError(["columns"], "question answering takes two, question and context")
        if self.classes and len(set(self.classes)) < max(2, len(self.classes)):
            raise MisplacedError(["classes"], "should be two or more different names")
        for number, name in enumerate(self.classes):
            if name != name.strip():
                raise MisplacedError(["classes", number], "begins or ends with a space, which no label does; drop it")
        for number, metric in enumerate(self.metrics):
            try:
                check_metric(metric, self.kind, f"task {self.name}")
            except UserError as error:
                raise MisplacedError(["metrics", number], str(error)) from None
            if metric in self.metrics[:number]:
                raise MisplacedError(["metrics", number], f"'{metric}' is given twice; keep one")
        for value, name in self.labels.items():
            if name not in self.classes:
                allowed = f"should be one of {', '.join(self.classes)}" if self.classes else "this task has no classes"
                raise MisplacedError(["labels", value], f"'{name}': {allowed}")
        if self.splits.train in (self.splits.validation, self.splits.test):
            raise MisplacedError(["splits"], "train should be another split than validation and test")
        for key, file in self.splits:
            if file and re.search(r"[/\\]", file):
                raise MisplacedError(["splits", key], f"'{file}' should be a file's name without folder and ending")
        for key, named in (("data", self.data), ("unlabelled", self.unlabelled)):
            if str(named or "").startswith(HUB):
                try:
                    parsed(str(named))
                except UserError as error:
                    raise MisplacedError([key], str(error)) from None
        for key in ("dev", "test"):
            if getattr(self, key) and not self.data:
                raise MisplacedError([key], "names a file beside data, which is not given; add data")
        if self.test and self.splits.test:
            raise MisplacedError(["test"], "splits names a test split too; keep one")
        if self.remove_overlap and not self.unlabelled:
            raise MisplacedError(["remove_overlap"], "there are no unlabelled texts; add unlabelled")
        if self.prompt and self.spans:
            raise MisplacedError(["prompt"], "no word answers a question for a span; drop it")
        if self.prompt:
            self.prompt.prompt(len(self.columns), self.kind)
        return self


def load_user_task(path: str | Path) -> Task:
    """A task of the user's own from a YAML file.

    Keys: name, columns, metrics, and classes (names in the order of the codes), `regression: true` or `spans: true` (question answering: the
    columns are question and context, and the label is their answers); optional title,
    version, splits (mapping of train, validation and test to the names of the files or splits), label (the column of
    labels), labels (mapping of values in that column to classes), data: a data set of the hub, a file, or a folder of
    files, by its path from the YAML file, dev and test: files of these splits, unlabelled: further texts, remove_overlap
    (without those that are also in dev or test), skip_bad_rows (rows that cannot be read are left out and counted), and prompt: template and words (see `PromptFile`); nothing need be there yet. Without data, the text comes from `<DIR>/<name>/<split>.{parquet,csv,jsonl}`. Where `splits` names a test
    split, or there is one called test, it is the test set, else what dev leaves of validation. Raises UserError with file,
    line, key.
    """
    body = load_yaml(Path(path), TaskFile)
    splits, folder = body.splits, Path(path).expanduser().absolute().parent

    def place(key: str) -> str:
        text = str(getattr(body, key) or "")
        return text if not text or text.startswith(HUB) else str(folder / named_path(text, f"{path}, key {key}"))

    files = {splits.validation: place("dev"), OWN_TEST: place("test")}
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
        data=place("data"),
        label=body.label_column,
        labels=tuple((str(value), name) for value, name in body.labels.items()),
        names_test=splits.test is not None,
        files=tuple((split, file) for split, file in files.items() if file),
        unlabelled=place("unlabelled"),
        remove_overlap=body.remove_overlap,
        skip_bad_rows=body.skip_bad_rows,
        spans=body.reading,
        label_range=body.scale,
        prompt=body.prompt.prompt(len(body.columns), body.kind) if body.prompt else None,
    )
