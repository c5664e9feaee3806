"""One task's rows as row sets: dev, tests, training sets, unlabelled texts and back-translations; unresolved where they are not at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from harness.errors import UserError
from harness.specs import UNRESOLVED, RowSet
from harness.tables.recipe import Augment
from harness.tables.resolve import ResolvedTable
from harness.tables.table_data import TaskData, TrainingSet
from harness.tasks import NotAtHand, Rows, Task, TextSource, count_overlap, protocol_named
from harness.tasks.unlabelled import without

UNLABELLED = "unlabelled texts"
"""What an `Overlap` calls the texts that a task names besides its labelled rows."""
UNKNOWN_ROWS = 10_000
"""Assumed of a full training set whose size is not published."""
GLUE_CHARS = {"cola": 41, "sst2": 60, "mrpc": 238, "qqp": 120, "stsb": 115, "mnli": 180, "qnli": 220, "rte": 310}
TYPICAL_CHARS = GLUE_CHARS | {"amazon_polarity": 410, "yelp_polarity": 728}
"""Typical text lengths of tasks: what a plan assumes for data that are not at hand."""


@dataclass(frozen=True)
class Overlap:
    """Overlap of an evaluation set with training text. `most`: rows with a shared text, the largest number over the training
    sets; `rows`: all rows."""

    training: str
    evaluation: str
    most: int
    rows: int


@dataclass(frozen=True)
class Translation:
    """Back-translations for rows that contrast them, or are augmented by them. `find` returns the recorded views of rows, or the rows
    with their copies, or None; `reason`: why there can be none; `views`: their number for each text."""

    find: Callable[[Rows], Rows | None] = lambda rows: None
    views: int = 2
    reason: str = ""


NO_TRANSLATION = Translation(reason="its table names no translator")


class TaskReader:
    """One task's rows: read when a source is given and has them, unresolved otherwise."""

    def __init__(
        self,
        resolved: ResolvedTable,
        task: Task,
        source: TextSource | None,
        library: dict[str, Rows],
        translation: Translation,
        augmentations: Mapping[Augment, Translation],
    ) -> None:
        self.resolved, self.task, self.source, self.library = resolved, task, source, library
        self.translation, self.augmentations = translation, augmentations
        self.untranslated: dict[tuple[Augment | None, str], None] = {}
        """By augmentation (None: views) and digest."""
        self.protocol = protocol_named(resolved.protocol)
        self.tests: dict[str, Rows] = {}
        self.read: list[tuple[Rows, Rows, Rows | None]] = []
        """Of each training set its rows, its dev set and its unlabelled texts."""

    def evaluations(self) -> TaskData:
        if self.source is not None:
            try:
                found = self.protocol.evaluation_sets(self.task, self.source)
            except NotAtHand:
                self.source = None
            else:
                self.tests = dict(found.tests)
                dev, tests = (
                    self.keep(found.dev, "dev"),
                    {role: self.keep(rows, role) for role, rows in self.tests.items()},
                )
                more = len(self.source.unlabelled(self.task)) if self.task.unlabelled else 0
                return TaskData(self.task, dev, tests, "" if found.comparable else found.note, found.origin, more)
        roles = {c.evaluation for c in self.resolved.columns.values() if c.task == self.task.name}
        roles |= {
            *self.task.evaluations
        }  # as every protocol's: a run is the same whether or not its table prints them all
        return TaskData(self.task, self.unread("dev", 500), {role: self.unread(role, 1000) for role in sorted(roles)})

    def unread(self, role: str, rows: int) -> RowSet:
        name = f"{self.task.name}/{role}"
        return RowSet(f"{UNRESOLVED}{name}", name, rows, float(TYPICAL_CHARS.get(self.task.name, 110)))

    def keep(self, rows: Rows, role: str) -> RowSet:
        row_set = rows.row_set(f"{self.task.name}/{role}")
        self.library[row_set.digest] = rows
        return row_set

    def training_set(self, size: int, subset: int, num_texts: int, augment: Augment | None) -> TrainingSet:
        role = f"train-n{size}-subset{subset}" if size else "train"
        if num_texts and self.task.unlabelled:
            raise UserError(
                f"table {self.resolved.table.name} takes its unlabelled texts from the training rows, and task {self.task.name} names "
                "others; leave those out, or take another table."
            )
        if self.source is None:
            rows = size or self.task.official_rows(self.task.train) or UNKNOWN_ROWS
            further = str(num_texts) if num_texts not in (0, size) else ""
            labelled, texts = self.unread(role, rows), self.unread(f"{role}-texts{further}", num_texts or rows)
            whole = self.augmented(labelled, augment)
            return TrainingSet(whole, texts, self.translated(texts), self.unread("dev", 500), rows)
        found = self.protocol.training_set(self.task, self.source, size, subset)
        dev = self.protocol.dev_set(self.task, self.source, size, subset)
        more: Rows | None = None
        name = f"{role}-texts{num_texts}" if num_texts else "unlabelled"
        if num_texts:
            more = self.protocol.texts(self.task, self.source, size, subset, num_texts)
        elif self.task.unlabelled:
            more = self.unlabelled(self.source, dev)
        whole = self.augmented(self.keep(found, role), augment)
        self.read.append((self.library.get(whole.digest, found), dev, more))
        texts = self.keep(found.unlabelled(), f"{role}-texts") if more is None else self.keep(more, name)
        return TrainingSet(whole, texts, self.translated(texts), self.keep(dev, "dev"), len(found))

    def unlabelled(self, source: TextSource, dev: Rows) -> Rows:
        """The task's unlabelled texts, without those of dev and test where it says so."""
        texts = source.unlabelled(self.task)
        kept = without(texts, dev, *self.tests.values()) if self.task.remove_overlap else texts
        if not len(kept):
            raise UserError(
                f"task {self.task.name}: each of the {len(texts):,} unlabelled texts is in dev or test; give others."
            )
        return kept

    def translated(self, texts: RowSet) -> RowSet | None:
        """The back-translated views of unlabelled rows: unresolved until they are made, None where they cannot be made."""
        if self.translation.reason:
            return None
        if not texts.resolved:
            return RowSet(f"{texts.digest}/views", f"{texts.name}/views", texts.rows, texts.mean_chars)
        rows = self.library[texts.digest]
        views = self.translation.find(rows)
        if views is None:
            self.untranslated[None, texts.digest] = None
            name = f"back-translation of {texts.name}"
            return RowSet(f"{UNRESOLVED}{texts.digest}/views", name, texts.rows, texts.mean_chars)
        role = f"{texts.name}/views"
        row_set = views.row_set(role)
        self.library[row_set.digest] = views
        return RowSet(row_set.digest, role, len(views), row_set.mean_chars / self.translation.views)

    def augmented(self, labelled: RowSet, augment: Augment | None) -> RowSet:
        """Labelled rows with their copies: unresolved until these are made."""
        if augment is None or self.augmentations[augment].reason:
            return labelled
        role = f"{labelled.name} with {augment.copies} copies by {self.resolved.translator_of(augment)}"
        rows = labelled.rows * (1 + augment.copies)
        if not labelled.resolved:
            return RowSet(f"{UNRESOLVED}{role}", role, rows, labelled.mean_chars)
        copied = self.augmentations[augment].find(self.library[labelled.digest])
        if copied is None:
            self.untranslated[augment, labelled.digest] = None
            name = f"back-translation of {labelled.name}"
            return RowSet(f"{UNRESOLVED}{labelled.digest}/{role}", name, rows, labelled.mean_chars)
        row_set = copied.row_set(role)
        self.library[row_set.digest] = copied
        return row_set

    def overlaps(self, corpora: list[Rows]) -> Iterator[Overlap]:
        """Overlap of the dev and test sets with the training sets of this task, and with each corpus."""
        for role in ("dev", *self.tests) if self.tests else ():
            pairs = [(train, texts, self.tests.get(role, dev)) for train, dev, texts in self.read]
            compared = [("training sets", [(train, rows) for train, _, rows in pairs])]
            compared += [(UNLABELLED, [(texts, rows) for _, texts, rows in pairs if texts is not None])]
            compared += [(corpus.name, [(corpus, rows) for _, _, rows in pairs]) for corpus in corpora]
            for label, each in compared:
                distinct = {(texts.digest, rows.digest): (texts, rows) for texts, rows in each}.values()
                counts = [(count_overlap(texts, rows), len(rows)) for texts, rows in distinct]
                if counts:
                    yield Overlap(label, f"{self.task.name}/{role}", *max(counts))
