"""One task's rows as row sets: dev, tests, training sets, unlabelled texts and back-translations; unresolved where they are not at hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from harness.errors import NotAtHand, UserError
from harness.planning.data import Overlap, TaskData, TrainingSet
from harness.planning.recipe import Augment
from harness.planning.resolved import ResolvedTable
from harness.specs import UNRESOLVED, RowSet
from harness.tasks.overlap import count_overlap, without
from harness.tasks.rows import Rows
from harness.tasks.sources import ALL_ROWS, TextSource
from harness.tasks.task import Task
from harness.tasks.translation import Translator

UNLABELLED = "unlabelled texts"
"""What an `Overlap` calls the texts that a task names besides its labelled rows."""
UNKNOWN_ROWS = 10_000
"""Assumed of a full training set whose size is not published."""
TYPICAL_CHARS = {"cola": 41, "sst2": 60, "mrpc": 238, "qqp": 120, "stsb": 115, "mnli": 180, "qnli": 220, "rte": 310}
TYPICAL_CHARS |= {"amazon_polarity": 410, "yelp_polarity": 728}
"""Typical text lengths of tasks: what a plan assumes for data that are not at hand."""


@dataclass
class TaskReader:
    """One task's rows: read when a source is given and has them, unresolved otherwise. What is read is added to `library`.

    `translators` by augmentation (None: of views); `untranslated` gets the rows without back-translations yet, by digest. `read`: of each training set its rows,
    its dev set and its unlabelled texts; `missing`: why the source has not got them.
    """

    resolved: ResolvedTable
    task: Task
    source: TextSource | None
    library: dict[str, Rows]
    translators: Mapping[Augment | None, Translator]
    untranslated: dict[Translator, dict[str, Rows]]
    tests: dict[str, Rows] = field(default_factory=dict)
    read: list[tuple[Rows, Rows, Rows | None]] = field(default_factory=list)
    missing: str = ""

    def evaluations(self) -> TaskData:
        task, found = self.task, None
        try:
            found = self.resolved.protocol.evaluation_sets(task, self.source) if self.source else None
        except NotAtHand as error:
            self.source, self.missing = None, str(error)
        if found is None or self.source is None:
            # All evaluations, as every protocol has: a run is the same whether or not its table prints them all.
            roles = {c.evaluation for c in self.resolved.columns.values() if c.task == task.name} | {*task.tests}
            return TaskData(task, self.unread("dev", 500), {role: self.unread(role, 1000) for role in sorted(roles)})
        self.tests = dict(found.tests)
        labelled = {"dev": found.dev, **self.tests} if task.own else {}
        whole = ALL_ROWS if task.own and self.source.has(task, ALL_ROWS) else task.splits.train
        return TaskData(
            task,
            self.keep(found.dev, "dev"),
            {role: self.keep(rows, role) for role, rows in self.tests.items()},
            found.note,
            found.origin,
            len(self.source.unlabelled(task)) if task.unlabelled else 0,
            task.kind.summary(self.source.load(task, whole).gold) if task.own else (),
            found.rare,
            self.source.skipped[task],
            {role: task.kind.counts(rows.gold) for role, rows in labelled.items()},
        )

    def unread(self, role: str, rows: int) -> RowSet:
        name = f"{self.task.name}/{role}"
        return RowSet(f"{UNRESOLVED}{name}", name, rows, float(TYPICAL_CHARS.get(self.task.name, 110)))

    def keep(self, rows: Rows, role: str) -> RowSet:
        row_set = rows.row_set(f"{self.task.name}/{role}")
        self.library[row_set.digest] = rows
        return row_set

    def training_set(self, size: int, subset: int, num_texts: int, augment: Augment | None) -> TrainingSet:
        role, protocol = f"train-n{size}-subset{subset}" if size else "train", self.resolved.protocol
        if num_texts and self.task.unlabelled:
            raise UserError(
                f"table {self.resolved.table.name} takes its unlabelled texts from the training rows, and task {self.task.name} names "
                "others; leave those out, or take another table."
            )
        if self.source is None:
            drawn = self.task.official.get(self.task.splits.train) or UNKNOWN_ROWS
            drawn = protocol.num_rows(self.task, size) if size else drawn
            further = str(num_texts) if num_texts not in (0, drawn) else ""
            labelled, texts = self.unread(role, drawn), self.unread(f"{role}-texts{further}", num_texts or drawn)
            dev, moments = self.unread("dev", 500), tuple[float, ...]()
            whole = (self.back_translated(labelled, augment) if augment else None) or labelled
        else:
            rows = protocol.training_set(self.task, self.source, size, subset)
            dev_rows = protocol.dev_set(self.task, self.source, size, subset)
            labelled, more, name = self.keep(rows, role), None, f"{role}-texts"
            if num_texts:
                more = protocol.texts(self.task, self.source, size, subset, num_texts)
                name += str(num_texts)
            elif self.task.unlabelled:
                more, name = self.unlabelled(self.source, dev_rows), "unlabelled"
            whole = (self.back_translated(labelled, augment) if augment else None) or labelled
            self.read.append((self.library.get(whole.digest, rows), dev_rows, more))
            texts, dev = self.keep(rows.unlabelled() if more is None else more, name), self.keep(dev_rows, "dev")
            drawn, moments = len(rows), self.task.kind.moments(rows.gold) if self.task.own else ()
        return TrainingSet(whole, texts, self.back_translated(texts, None), dev, drawn, moments)

    def unlabelled(self, source: TextSource, dev: Rows) -> Rows:
        """The task's unlabelled texts, without those of dev and test where it says so."""
        texts = source.unlabelled(self.task)
        kept = without(texts, dev, *self.tests.values()) if self.task.remove_overlap else texts
        if not len(kept):
            raise UserError(
                f"task {self.task.name}: each of the {len(texts):,} unlabelled texts is in dev or test; give others."
            )
        return kept

    def back_translated(self, rows: RowSet, augment: Augment | None) -> RowSet | None:
        """The views of unlabelled rows, or labelled rows with the copies that augment them: unresolved until they are made, None where
        they cannot be made."""
        translator = self.translators[augment]
        if translator.reason:
            return None
        if augment:
            role = f"{rows.name} with {augment.copies} copies by {translator.name}"
            digest, count = f"{UNRESOLVED}{role}", rows.rows * (1 + augment.copies)
        else:
            role, digest, count = f"{rows.name}/views", f"{rows.digest}/views", rows.rows
        if not rows.resolved:
            return RowSet(digest, role, count, rows.mean_chars)
        made = translator.find(self.library[rows.digest])
        if made is None:
            self.untranslated.setdefault(translator, {})[rows.digest] = self.library[rows.digest]
            digest = f"{UNRESOLVED}{rows.digest}/{role if augment else 'views'}"
            return RowSet(digest, f"back-translation of {rows.name}", count, rows.mean_chars)
        row_set = made.row_set(role)
        self.library[row_set.digest] = made
        return row_set if augment else replace(row_set, mean_chars=row_set.mean_chars / translator.num_views)

    def overlaps(self, corpora: Mapping[str, Rows]) -> Iterator[Overlap]:
        """Overlap of the dev and test sets with the training sets of this task, and with each corpus, by name."""
        for role in ("dev", *self.tests) if self.tests else ():
            pairs = [(train, texts, self.tests.get(role, dev)) for train, dev, texts in self.read]
            compared = [("training sets", [(train, rows) for train, _, rows in pairs])]
            compared += [(UNLABELLED, [(texts, rows) for _, texts, rows in pairs if texts is not None])]
            compared += [(name, [(corpus, rows) for _, _, rows in pairs]) for name, corpus in corpora.items()]
            for label, each in compared:
                distinct = {(texts.digest, rows.digest): (texts, rows) for texts, rows in each}.values()
                counts = [(count_overlap(texts, rows), len(rows)) for texts, rows in distinct]
                if counts:
                    yield Overlap(label, f"{self.task.name}/{role}", *max(counts))
