"""From a resolved table to its runs: data, chains, distinct stages, overlap with the evaluation sets, and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

from harness.encoders import Located
from harness.encoders.flops import forward_flops
from harness.errors import UserError
from harness.methods import mlm_head_stage
from harness.objectives.definitions import step_flops
from harness.specs import UNRESOLVED, Optim, Parent, RowSet, Run, Stage, Status
from harness.tables.recipe import Augment
from harness.tables.resolve import ResolvedTable
from harness.tables.table_data import TableData, TaskData, TrainingSet, data_settings, runs_of
from harness.tasks import (
    Corpus,
    NotAtHand,
    Rows,
    Task,
    TextSource,
    count_overlap,
    load_corpus,
    protocol_named,
    task_named,
)
from harness.tasks.unlabelled import without

K = TypeVar("K")
V = TypeVar("V")

UNLABELLED = "unlabelled texts"
"""What an `Overlap` calls the texts that a task names besides its labelled rows."""
COMPARED_TEXTS = 200_000
"""Overlap with the dev and test sets is not computed for a larger corpus: it needs all texts in memory."""
CHARS_PER_TOKEN = 4.3
"""English text under a vocabulary of 30k to 50k; used for cost only."""
UNKNOWN_ROWS = 10_000
"""Assumed of a full training set whose size is not published."""
TYPICAL_CHARS = {"cola": 41, "sst2": 60, "mrpc": 238, "qqp": 120, "stsb": 115, "mnli": 180, "qnli": 220, "rte": 310}
"""Typical text lengths of GLUE: what a plan assumes for data that are not at hand."""


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


@dataclass
class Plan:
    """What a table needs. `stages` by key, parents before children; `table_data` make the runs of other hyperparameters on the
    same data; `library` holds the rows of every row set, `corpora` the texts of pre-training, the largest fraction first;
    `untranslated`: rows whose back-translations have to be made before anything is trained, for views (None) and by augmentation."""

    resolved: ResolvedTable
    located: Located
    source: str
    runs: tuple[Run, ...]
    stages: dict[str, Stage]
    skipped: tuple[tuple[str, str, str], ...]
    table_data: TableData
    overlaps: tuple[Overlap, ...]
    library: dict[str, Rows] = field(default_factory=dict)
    corpora: tuple[Corpus, ...] = ()
    untranslated: Mapping[Augment | None, tuple[Rows, ...]] = field(default_factory=dict)

    @property
    def tasks(self) -> Mapping[str, TaskData]:
        return self.table_data.tasks

    @property
    def unresolved(self) -> tuple[str, ...]:
        missing: dict[str, None] = {}
        for stage in self.stages.values():
            missing.update(dict.fromkeys(stage.unresolved))
        return tuple(missing)

    def names(self) -> dict[str, list[str]]:
        """Run names by the keys of their chains: which runs a stage serves."""
        serves: dict[str, list[str]] = {}
        for run in self.runs:
            for stage in run.stage.chain:
                serves.setdefault(stage.key, []).append(run.name)
        return serves

    def stage_flops(self, stage: Stage) -> float:
        """Estimated FLOPs of one stage, from text lengths in characters."""
        return stage_flops(stage, self.located.config)

    @property
    def flops(self) -> float:
        """Estimated FLOPs of all stages."""
        return sum(self.stage_flops(stage) for stage in self.stages.values())

    def saved_at(self, stage: Stage) -> set[int]:
        """The updates after which the table has a stage save its weights: the last one of a row's pre-training."""
        text = self.resolved.pre_train
        if not text or stage.phase != "pre-train":
            return set()
        if any(
            child.phase == "pre-train" and child.parent and child.parent.key == stage.key
            for child in self.stages.values()
        ):
            return set()
        return self.resolved.save_at(stage.optim.steps)

    def pending(self, statuses: Mapping[str, tuple[Status, int]], retry: bool) -> list[Stage]:
        """Stages to train for their numbers: those without a record, failed ones, and with `retry` diverged ones."""
        again = {"failed", "diverged"} if retry else {"failed"}
        return [s for k, s in self.stages.items() if k not in statuses or statuses[k][0] in again]


def make_plan(
    resolved: ResolvedTable,
    source: TextSource | None,
    located: Located,
    *,
    user_tasks: Mapping[str, Task] | None = None,
    translation: Translation = NO_TRANSLATION,
    augmentations: Mapping[Augment, Translation] | None = None,
    corpora: Mapping[float, Corpus] = MappingProxyType({}),
) -> Plan:
    """All runs of a table. Without a source nothing is read and every row set is unresolved, which is enough for a cost.

    `corpora`: what rows are pre-trained on, by fraction, where it was opened; `augmentations`: left out, they can be made where `translation` can.
    Raises UserError for unknown tasks, methods and
    hyperparameters, for objectives that the encoder cannot be trained with, and for data that are wrong.
    """
    library: dict[str, Rows] = {}
    located = located.adapted(resolved.encoder_settings)
    mlm_head, prose = _mlm_head(resolved, located, library, bool(source))
    if augmentations is None:
        augmentations = dict.fromkeys(resolved.augmentations, Translation(reason=translation.reason))
    translation = translation if resolved.contrasts_views else NO_TRANSLATION
    readers: dict[str, _Reader] = {}

    def evaluations(name: str) -> TaskData:
        task = (user_tasks or {}).get(name) or task_named(name)
        readers[name] = _Reader(resolved, task, source, library, translation, augmentations)
        return readers[name].evaluations()

    # Read when `runs_of` needs them, so that a wrong row is refused before any data are read.
    tasks = _Lazy(evaluations)
    training: _Lazy[tuple[str, int, int, int, Augment | None], TrainingSet] = _Lazy(
        lambda key: readers[key[0]].training_set(*key[1:])
    )
    table_data = TableData(
        tasks=tasks,
        training=training,
        base=located.encoder,
        mlm_head=mlm_head,
        corpora={fraction: _corpus_rows(resolved, fraction, corpora) for fraction in resolved.fractions},
        config=located.config,
        encoder=located.name,
        views=translation.views,
        untranslated=translation.reason,
        unaugmented={augment: found.reason for augment, found in augmentations.items() if found.reason},
        read_under=data_settings(resolved),
    )
    runs, skipped = runs_of(resolved, table_data)
    table_data = replace(table_data, tasks=dict(tasks), training=dict(training))
    places = dict.fromkeys(source.describe(found.task) for found in tasks.values()) if source else ["not read"]
    untranslated: dict[Augment | None, dict[str, Rows]] = {}
    for reader in readers.values():
        for augment, digest in reader.untranslated:
            untranslated.setdefault(augment, {})[digest] = library[digest]
    return Plan(
        resolved=resolved,
        located=located,
        source="; ".join(places),
        runs=runs,
        stages={stage.key: stage for run in runs for stage in run.stage.chain},
        skipped=skipped,
        table_data=table_data,
        overlaps=_overlaps(readers.values(), next(iter(corpora.values()), None), prose),
        library=library,
        corpora=tuple(corpora.values()),
        untranslated={augment: tuple(rows.values()) for augment, rows in untranslated.items()},
    )


def _overlaps(readers: Iterable[_Reader], corpus: Corpus | None, prose: Rows | None) -> tuple[Overlap, ...]:
    """Overlap of all evaluation sets with their training sets, the corpus and the `prose` of the MLM head."""
    corpora = [prose] if prose else []
    if corpus and corpus.rows <= COMPARED_TEXTS and not (prose and prose.digest == corpus.digest):
        corpora.append(Rows(tuple((text,) for text in corpus.texts()), None, corpus.name))
    return tuple(overlap for reader in readers for overlap in reader.overlaps(corpora))


class _Lazy(dict[K, V]):
    """Values that are read at first access."""

    def __init__(self, read: Callable[[K], V]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, key: K) -> V:
        self[key] = value = self._read(key)
        return value


def _corpus_rows(resolved: ResolvedTable, fraction: float, corpora: Mapping[float, Corpus]) -> RowSet:
    """A fraction of the corpus as a row set, unresolved while it is not at hand."""
    if fraction in corpora:
        return corpora[fraction].row_set()
    assert resolved.pre_train is not None
    name = resolved.pre_train.corpus if fraction == 1 else f"{100 * fraction:g} % of {resolved.pre_train.corpus}"
    return RowSet(f"{UNRESOLVED}{name}", name, 10000, 500.0)


def _mlm_head(
    resolved: ResolvedTable, located: Located, library: dict[str, Rows], read: bool
) -> tuple[Parent | None, Rows | None]:
    """The stage that gives the encoder an MLM head and the corpus that it reads; None where the encoder has one."""
    training = located.head_training
    steps = resolved.mlm_head.steps if resolved.mlm_head.steps is not None else (training.steps if training else 0)
    if not steps:
        return None, None
    if training is None:
        raise UserError(f"mlm_head.steps is {steps}, but {located.name} has its own MLM head; leave it out.")
    corpus: Rows | None = None
    row_set = RowSet(f"{UNRESOLVED}{training.corpus}", training.corpus, 9000, 500.0)
    if read:
        corpus = load_corpus(training.corpus)
        row_set = corpus.row_set(training.corpus)
        library[row_set.digest] = corpus
    optim = Optim(training.lr, training.batch_size, steps, warmup=training.warmup)
    frozen = resolved.mlm_head.frozen
    stage = mlm_head_stage(located.encoder, row_set, optim, training.max_length, training.seed, frozen=frozen)
    return Parent(stage), corpus


class _Reader:
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


def stage_flops(stage: Stage, config: Mapping[str, Any]) -> float:
    """Computed FLOPs of one stage; 0 when the encoder's shape is unknown."""
    if "hidden_size" not in config:
        return 0.0

    def length(rows: RowSet) -> float:
        return min(stage.data.max_length, rows.mean_chars / CHARS_PER_TOKEN + 2.5)

    optim = stage.optim
    mean = stage.data.max_length if stage.data.blocks == "packed" else length(stage.data.train)
    rows = min(optim.batch_size, max(1, stage.data.train.rows))
    total = step_flops(stage.objective, config, rows, mean) * optim.steps
    if stage.selection and stage.data.dev:
        evaluations = -(-optim.steps // stage.selection.every)
        for rows_of, times in [(stage.data.dev, evaluations), *((t, 1) for t in stage.data.tests)]:
            each = length(rows_of)
            total += times * rows_of.rows * forward_flops(config, each, each * each)
    return total
