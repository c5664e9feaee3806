"""A task: text columns, classes, metrics and splits, as the YAML file of a user's own says it, and `tasks.yaml` those that are built in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StrictBool, StrictStr, model_validator

from harness.answers import SpanReading
from harness.errors import UserError, unknown
from harness.hub import HUB
from harness.kinds import Kind, Spans, kind_of, number_of
from harness.paths import named_path
from harness.prompts import Prompt
from harness.tasks.metrics import check_metric
from harness.yaml_files import MisplacedError, Strict, load_yaml, placed, places_of

OWN_TEST = "test"
"""The split that is a user's test set unless the task names another."""
ROW_NUMBER = "idx"
"""GLUE's column of row numbers, which is no text."""
FILES = ("data", "dev", "test", "unlabelled")
"""Keys that name a file, a folder or 'hub:...'."""
BUILT_IN = ("evaluations", "official", "package", "published", "shared", "unanswerable")
"""Keys of tasks that are built in."""
GLUE = "nyu-mll/glue"
_SHORT = {"matched": "m", "mismatched": "mm"}


def _as_text(values: Any) -> Any:
    """With keys that are numbers or truth values as text."""
    if not isinstance(values, Mapping):
        return values
    return {f"{k:.15g}" if type(k) is float else str(k) if type(k) in (int, bool) else k: v for k, v in values.items()}


Name = Annotated[StrictStr, Field(min_length=1)]
Title = Annotated[StrictStr, Field(min_length=1, max_length=60)]
ByName = Annotated[dict[StrictStr, Name], BeforeValidator(_as_text)]
"""By a class, a score or another value of a file, as text."""


class Splits(Strict):
    """Names of the splits of a data set of the hub, or of the files of each split without their ending."""

    train: Name = "train"
    validation: Name = "validation"
    test: Name | None = None


class PromptFile(Strict):
    """The template, the label word of each class, or of the lowest and the highest score of a regression, and how it is read; see
    `harness.prompts.Prompt`."""

    template: Name
    words: ByName
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


class Task(Strict):
    """One task; docs/data.md has the keys of a user's own. A model is trained once and scored on each of `tests`.

    `columns`: the text columns, 1 or 2. `classes`: class names in the order of the label codes; with `spans` the columns are question and
    context. `metrics`: the first is what checkpoints are selected by and what tables show. `version` is bumped by hand when the same files give
    other rows; part of every split. `data`, `dev`, `test`, `unlabelled`: see `FILES`; without data the source decides. `labels`: the class of
    a value in the column `label`. `remove_overlap`: post-training without texts that are also in dev or test. `skip_bad_rows`: labelled rows
    without text or with a label that is missing or none of the task's are left out and counted.

    Of tasks that are built in: `evaluations`: the source split of each test set, several or another than `splits` says. `official`: rows of the
    published files. `package`: the Python package that holds its text, or `published`: the data set of the hub. `shared`: the text column that several rows were written for, where it
    is known. `unanswerable`: whether there are questions without an answer.
    """

    name: Annotated[Name, Field(max_length=100)]
    title: Title = ""
    data: StrictStr = ""
    columns: Annotated[tuple[Name, ...], Field(min_length=1, max_length=2)]
    label: Name = ""
    classes: tuple[Name, ...] = ()
    labels: ByName = Field(default_factory=dict)
    regression: bool = False
    spans: bool = False
    metrics: Annotated[tuple[Name, ...], Field(min_length=1)]
    version: Annotated[int, Field(ge=1)] = 1
    splits: Splits = Splits()
    dev: StrictStr = ""
    test: StrictStr = ""
    unlabelled: StrictStr = ""
    remove_overlap: StrictBool = False
    skip_bad_rows: StrictBool = False
    prompt: PromptFile | None = None
    evaluations: dict[str, str] = Field(default_factory=dict)
    official: dict[str, int] = Field(default_factory=dict)
    package: str = ""
    published: str = GLUE
    shared: int | None = None
    unanswerable: bool = True

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def own(self) -> bool:
        """Whether it is a user's."""
        return self.name not in TASKS

    @property
    def reading(self) -> SpanReading | None:
        return SpanReading(unanswerable=self.unanswerable) if self.spans else None

    @property
    def kind(self) -> Kind:
        """What the answer is: one of the classes, a score, or a span of the context."""
        scale = self.prompt.scale if self.prompt and self.regression else None
        return kind_of(self.classes, tuple(self.labels.items()), scale, self.reading)

    @property
    def unit(self) -> int | None:
        """The text column of which another test set would have other texts; None: other rows."""
        return self.kind.unit if self.shared is None else self.shared

    @property
    def tests(self) -> dict[str, str]:
        """The source split of each test set that one trained model is scored on: 'matched' and 'mismatched' for MNLI, else 'test'. One whose
        split is that of dev gets the rows that dev leaves."""
        return self.evaluations or {"test": self.splits.test or self.splits.validation}

    @property
    def files(self) -> dict[str, str]:
        """The file of each split that has one of its own."""
        named = {self.splits.validation: self.dev, OWN_TEST: self.test}
        return {split: file for split, file in named.items() if file}

    @property
    def columns_of_table(self) -> dict[str, str]:
        if len(self.tests) == 1:
            return dict.fromkeys(self.tests, self.title)
        return {name: f"{self.title}-{_SHORT.get(name, name)}" for name in self.tests}

    @property
    def cloze(self) -> Prompt | None:
        """How its prompt reads a row. Raises MisplacedError for what does not fit the task."""
        if self.prompt is None:
            return None
        words, names, scale = self.prompt.words, self.kind.word_names, self.kind.scale
        with placed("prompt", "words"):
            for name in words:
                if name not in names:
                    raise unknown("class", name, names)
            if missing := [name for name in names if name not in words]:
                raise ValueError(f"there is no word for class '{missing[0]}'; give one for each")
        with placed("prompt"):
            answers, draws, length = tuple(words[name] for name in names), self.prompt.draws, self.prompt.first_length
            made = Prompt(self.prompt.template, answers, draws=draws, first_length=length, bounds=scale or ())
            made.check(len(self.columns))
        return made

    @model_validator(mode="before")
    @classmethod
    def _filled(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        said = {key: value for key, value in values.items() if value is not None}
        label = Spans.label_column if said.get("spans") is True else Kind.label_column
        return {"title": str(said.get("name") or "data")[:60], "label": label, **said}

    @model_validator(mode="after")
    def _fits(self) -> Task:
        for loc, problem in self._problems():
            raise MisplacedError(loc, problem)
        _ = self.cloze
        return self

    def _problems(self) -> Iterator[tuple[list[str | int], str]]:
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", self.name):
            yield ["name"], f"'{self.name}' should be lower-case letters, digits, '-' and '_'"
        if not self.title.isprintable():
            yield ["title"], "should be one line of printable characters"
        for number, column in enumerate(self.columns):
            if column in (self.label, ROW_NUMBER) or column in self.columns[:number]:
                yield ["columns", number], f"'{column}' cannot be a text column here; name another"
        if self.regression + self.spans + bool(self.classes) != 1:
            kinds = "give either two or more classes, 'regression: true', or 'spans: true' for question answering"
            yield ["classes"], kinds
        if self.spans and len(self.columns) != 2:
            yield ["columns"], "question answering takes two, question and context"
        if self.classes and len(set(self.classes)) < max(2, len(self.classes)):
            yield ["classes"], "should be two or more different names"
        for number, metric in enumerate(self.metrics):
            with placed("metrics", number):
                check_metric(metric, self.kind, f"task {self.name}")
            if metric in self.metrics[:number]:
                yield ["metrics", number], f"'{metric}' is given twice; keep one"
        for value, name in self.labels.items():
            if name not in self.classes:
                allowed = f"should be one of {', '.join(self.classes)}" if self.classes else "this task has no classes"
                yield ["labels", str(value)], f"'{name}': {allowed}"
        if self.splits.train in (self.splits.validation, self.splits.test):
            yield ["splits"], "train should be another split than validation and test"
        if self.test and self.splits.test:
            yield ["test"], "splits names a test split too; keep one"
        if self.remove_overlap and not self.unlabelled:
            yield ["remove_overlap"], "there are no unlabelled texts; add unlabelled"


def load_user_task(path: str | Path) -> Task:
    """A task of the user's own from a YAML file; docs/data.md has its keys. Paths in it are from its folder, and nothing need be there yet.

    Without data, the text comes from `<DIR>/<name>/<split>.{parquet,csv,jsonl}`. Where `splits` names a test split, or there is one called
    test, it is the test set, else what dev leaves of validation. Raises UserError with file, line, key.
    """
    task, folder = load_yaml(Path(path), Task), Path(path).expanduser().absolute().parent
    if not task.own:
        raise UserError(f"{places_of(Path(path))('name')}: '{task.name}' is a built-in task; choose another name.")
    if key := next((key for key in BUILT_IN if key in task.model_fields_set), ""):
        raise UserError(f"{places_of(Path(path))(key)}: only a built-in task has this key; leave it out.")
    named = {key: text for key in FILES if (text := getattr(task, key)) and not text.startswith(HUB)}
    return task.model_copy(update={key: str(folder / named_path(text)) for key, text in named.items()})


class _BuiltIns(Strict):
    tasks: tuple[Task, ...]


TASKS: Mapping[str, Task] = {
    each.name: each for each in load_yaml(Path(__file__).with_name("tasks.yaml"), _BuiltIns).tasks
}


def task_named(name: str) -> Task:
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]
