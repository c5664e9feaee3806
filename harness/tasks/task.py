"""A task: text columns, classes, metrics and splits; read from the YAML of a user's own, and of those that are built in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from harness.answers import SQUAD, SpanReading
from harness.errors import unknown
from harness.hub import HUB
from harness.kinds import Kind, kind_of, number_of
from harness.paths import named_path
from harness.prompts import Prompt
from harness.tasks.metrics import check_metric
from harness.yaml_files import MisplacedError, Strict, load_yaml, placed

OWN_TEST = "test"
"""The split that is a user's test set unless the task names another."""
ROW_NUMBER = "idx"
"""GLUE's column of row numbers, which is no text."""
_SHORT = {"matched": "m", "mismatched": "mm"}


@dataclass(frozen=True)
class Task:
    """One task. A model is trained once and scored on each of `evaluations`.

    `columns`: the text columns, 1 or 2. `classes`: class names in the order of the label codes; empty means regression, or with `spans`
    question answering, where the columns are question and context.
    `metrics`: the first is what checkpoints are selected by and what tables show. `version` is bumped by hand when the same
    files give other rows; part of every split. `train`, `dev`: source splits. `tests`: (evaluation, source split) pairs; an
    evaluation whose split is `dev` gets the rows that dev leaves. `official`: (split, rows) of the published files.
    `label_range`: bounds of a regression label.

    `own`: a user's task. `data`: what its YAML names to read, a file, a folder or 'hub:...'; empty where the source decides.
    `label`: the column of labels. `labels`: (value in that column, name of its class) pairs. `names_test`: whether the YAML
    names the split of the test set. `files`: (split, file) pairs of splits with a file of their own. `unlabelled`: further texts
    for post-training, a file, a folder or 'hub:...'; `remove_overlap`: without those that are also in dev or test. `skip_bad_rows`: labelled rows
    without text or with a label that is missing or none of the task's are left out and counted. `shared`: the text
    column that several rows were written for, where it is known. `prompt`: its template and label words, those of LM-BFF where it has the
    task.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    classes: tuple[str, ...]
    metrics: tuple[str, ...]
    version: int = 1
    train: str = "train"
    dev: str = "validation"
    tests: tuple[tuple[str, str], ...] = (("test", "validation"),)
    packaged: bool = False
    own: bool = False
    official: tuple[tuple[str, int], ...] = ()
    label_range: tuple[float, float] | None = None
    data: str = ""
    label: str = "label"
    labels: tuple[tuple[str, str], ...] = ()
    names_test: bool = False
    files: tuple[tuple[str, str], ...] = ()
    unlabelled: str = ""
    remove_overlap: bool = False
    skip_bad_rows: bool = False
    shared: int | None = None
    spans: SpanReading | None = None
    prompt: Prompt | None = None

    @property
    def kind(self) -> Kind:
        """What the answer is: one of the classes, a score, or a span of the context."""
        return kind_of(self.classes, self.labels, self.label_range, self.spans)

    @property
    def unit(self) -> int | None:
        """The text column of which another test set would have other texts; None: other rows."""
        return self.kind.unit if self.shared is None else self.shared

    @property
    def evaluations(self) -> tuple[str, ...]:
        """Names of the test sets that one trained model is scored on: ('matched', 'mismatched') for MNLI, else ('test',)."""
        return tuple(name for name, _ in self.tests)

    @property
    def columns_of_table(self) -> dict[str, str]:
        if len(self.tests) == 1:
            return {self.tests[0][0]: self.title}
        return {name: f"{self.title}-{_SHORT.get(name, name)}" for name in self.evaluations}

    def official_rows(self, split: str) -> int | None:
        return dict(self.official).get(split)


# ------------------------------------------------------------------------------------------------------------ YAML

Name = Annotated[StrictStr, Field(min_length=1)]
Title = Annotated[StrictStr, Field(min_length=1, max_length=60)]


class Splits(Strict):
    """Names of the splits of a data set of the hub, or of the files of each split without their ending."""

    train: Name = "train"
    validation: Name = "validation"
    test: Name | None = None


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
        with placed("prompt", "words"):
            for name in words:
                if name not in names:
                    raise unknown("class", name, names)
            if missing := [name for name in names if name not in words]:
                raise ValueError(f"there is no word for class '{missing[0]}'; give one for each")
        with placed("prompt"):
            answers = tuple(words[name] for name in names)
            made = Prompt(self.template, answers, draws=self.draws, first_length=self.first_length)
            made.check(columns)
        return made


class TaskFile(Strict):
    """What a task file may say; see `load_user_task`."""

    name: Annotated[Name, Field(max_length=100)]
    title: Title | None = None
    data: Name | None = None
    columns: Annotated[tuple[Name, ...], Field(min_length=1, max_length=2)]
    label: Name | None = None
    classes: tuple[Name, ...] = ()
    labels: dict[StrictBool | StrictInt | StrictStr, Name] = Field(default_factory=dict)
    regression: bool = False
    spans: bool = False
    metrics: Annotated[tuple[Name, ...], Field(min_length=1)]
    version: Annotated[int, Field(ge=1)] = 1
    splits: Splits = Splits()
    dev: Name | None = None
    test: Name | None = None
    unlabelled: Name | None = None
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
        for loc, problem in self._problems():
            raise MisplacedError(loc, problem)
        if self.prompt:
            self.prompt.prompt(len(self.columns), self.kind)
        return self

    def _problems(self) -> Iterator[tuple[list[str | int], str]]:
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", self.name):
            yield ["name"], f"'{self.name}' should be lower-case letters, digits, '-' and '_'"
        if self.title and not self.title.isprintable():
            yield ["title"], "should be one line of printable characters"
        if type(self) is TaskFile and self.name in TASKS:
            yield ["name"], f"'{self.name}' is a built-in task; choose another name"
        for number, column in enumerate(self.columns):
            if column in (self.label_column, ROW_NUMBER) or column in self.columns[:number]:
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

    def task(self, folder: Path = Path(), where: str = "") -> Task:
        """`folder`: that of the file, from which it names others; `where`: how errors name the file."""
        splits = self.splits

        def place(key: str) -> str:
            text = getattr(self, key) or ""
            return text if not text or text.startswith(HUB) else str(folder / named_path(text))

        files = {splits.validation: place("dev"), OWN_TEST: place("test")}
        as_they_are = ("name", "columns", "classes", "metrics", "version", "remove_overlap", "skip_bad_rows")
        return Task(
            **{name: getattr(self, name) for name in as_they_are},
            title=self.title or self.name,
            train=splits.train,
            dev=splits.validation,
            tests=(("test", splits.test or splits.validation),),
            own=True,
            data=place("data"),
            label=self.label_column,
            labels=tuple((str(value), name) for value, name in self.labels.items()),
            names_test=splits.test is not None,
            files=tuple((split, file) for split, file in files.items() if file),
            unlabelled=place("unlabelled"),
            spans=self.reading,
            label_range=self.scale,
            prompt=self.prompt.prompt(len(self.columns), self.kind) if self.prompt else None,
        )


def load_user_task(path: str | Path) -> Task:
    """A task of the user's own from a YAML file; docs/data.md has its keys. Paths in it are from its folder, and nothing need be there yet.

    Without data, the text comes from `<DIR>/<name>/<split>.{parquet,csv,jsonl}`. Where `splits` names a test split, or there is one called
    test, it is the test set, else what dev leaves of validation. Raises UserError with file, line, key.
    """
    return load_yaml(Path(path), TaskFile).task(Path(path).expanduser().absolute().parent, str(path))


class BuiltIn(TaskFile):
    """A task of `tasks.yaml`. What a user's file does not say: see `Task`; `evaluations` are its `tests`."""

    evaluations: dict[str, str] = Field(default_factory=dict)
    official: dict[str, int] = Field(default_factory=dict)
    packaged: bool = False
    shared: int | None = None
    unanswerable: bool = True

    @property
    def reading(self) -> SpanReading | None:
        return SpanReading(unanswerable=self.unanswerable) if self.spans else None

    def built_in(self) -> Task:
        made = replace(self.task(), own=False, packaged=self.packaged, official=tuple(self.official.items()))
        return replace(made, tests=tuple(self.evaluations.items()) or made.tests, shared=self.shared)


class _BuiltIns(Strict):
    tasks: tuple[BuiltIn, ...]


TASKS: Mapping[str, Task] = {
    each.name: each.built_in() for each in load_yaml(Path(__file__).with_name("tasks.yaml"), _BuiltIns).tasks
}


def task_named(name: str) -> Task:
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]
