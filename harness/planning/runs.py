"""From a resolved table to its runs: data, chains, distinct stages, overlap with the evaluation sets, and cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from harness.encoders import Located, adapted
from harness.encoders.flops import forward_flops
from harness.encoders.packaged import HEAD_TRAINING
from harness.errors import UserError
from harness.methods import definition_of, mlm_head_stage
from harness.planning.data import TableData, TaskData, TrainingSet, runs_of
from harness.planning.recipe import Augment
from harness.planning.resolved import ResolvedTable
from harness.planning.task_reader import TaskReader
from harness.specs import UNRESOLVED, Optim, Parent, Record, RowSet, Run, Stage, Status, trained_again
from harness.tasks.corpora import CORPORA, Corpus, part_name
from harness.tasks.rows import Rows
from harness.tasks.sources import TextSource
from harness.tasks.task import Task, task_named
from harness.tasks.translation import UNNAMED, Translator

K = TypeVar("K")
V = TypeVar("V")

COMPARED_TEXTS = 200_000
"""Overlap with the dev and test sets is not computed for a larger corpus: it needs all texts in memory."""
CHARS_PER_TOKEN = 4.3
"""English text under a vocabulary of 30k to 50k; used for cost only."""
SAMPLE = 500
"""Texts that are tokenised at most, evenly spread over those that are long enough to be cut."""


@dataclass(frozen=True)
class Truncation:
    """Of `rows` rows so many are `cut`; `counted`: all that could be were tokenised, else a sample of them."""

    cut: int
    rows: int
    counted: bool


@dataclass
class Plan:
    """What a table needs. `skipped`: row, task and why; `library`: the rows of every row set; `corpora`: the texts of pre-training, the largest part
    first; `untranslated`: rows to be back-translated before anything is trained; `unread`: why tasks could not be read."""

    resolved: ResolvedTable
    table_data: TableData
    runs: tuple[Run, ...]
    skipped: tuple[tuple[str, str, str], ...] = ()
    library: dict[str, Rows] = field(default_factory=dict)
    corpora: tuple[Corpus, ...] = ()
    untranslated: Mapping[Translator, tuple[Rows, ...]] = field(default_factory=dict)
    unread: tuple[str, ...] = ()

    @cached_property
    def stages(self) -> dict[str, Stage]:
        """By key, parents before children."""
        return {stage.key: stage for run in self.runs for stage in run.stage.chain}

    @property
    def encoders(self) -> tuple[Located, ...]:
        return tuple(self.table_data.located.values())

    def encoder_of(self, stage: Stage) -> Located:
        """The encoder that a stage starts from."""
        digest = stage.encoder.digest
        return next((each for each in self.encoders if each.encoder.digest == digest), self.encoders[0])

    @cached_property
    def task_of(self) -> Mapping[str, Task]:
        """By the key of the last stage of a run the task on whose dev set it is evaluated."""
        return {run.stage.key: self.tasks[run.task].task for run in reversed(self.runs)}

    @property
    def runs_with_weights(self) -> tuple[Run, ...]:
        """Those that end with a model: what scikit-learn fits is kept as its predictions alone."""
        return tuple(run for run in self.runs if not definition_of(run.stage.objective).fitted)

    @property
    def tasks(self) -> Mapping[str, TaskData]:
        return self.table_data.tasks

    @property
    def unresolved(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for run in self.runs for name in run.stage.unresolved))

    def names(self) -> dict[str, list[str]]:
        """Run names by the keys of their chains: which runs a stage serves."""
        serves: dict[str, list[str]] = {}
        for run in self.runs:
            for stage in run.stage.chain:
                serves.setdefault(stage.key, []).append(run.name)
        return serves

    def stage_flops(self, stage: Stage) -> float:
        """Estimated FLOPs of one stage, from text lengths in characters."""
        return stage_flops(stage, self.encoder_of(stage).config)

    @cached_property
    def truncations(self) -> dict[tuple[str, str], Truncation]:
        """How many texts are cut, by encoder and task that was read: those of dev, the test sets and its largest training set."""
        read: dict[str, list[Rows]] = {}
        for name, data in self.tasks.items():
            trained = [each.labelled for key, each in self.table_data.training.items() if key[0] == name]
            largest = max(trained, key=lambda rows: rows.rows, default=data.dev)
            digests = dict.fromkeys(each.digest for each in (largest, data.dev, *data.tests.values()))
            read[name] = [self.library[digest] for digest in digests if digest in self.library]
        return {
            (encoder, name): counted
            for encoder, located in self.table_data.located.items()
            for name, rows in read.items()
            if rows and not self.tasks[name].task.spans  # contexts are read in windows
            if (counted := truncation(located.folder, rows, self.resolved.max_length))
        }

    def saved_at(self, stage: Stage) -> set[int]:
        """The updates after which the table has a stage save its weights: the last one of a row's pre-training."""
        if stage.phase != "pre-train":
            return set()
        last = any(s.phase != "pre-train" and s.parent and s.parent.key == stage.key for s in self.stages.values())
        return self.resolved.save_at(stage.optim.steps) if last else set()

    def pending(self, statuses: Mapping[str, tuple[Status, int]], retry: bool) -> list[Stage]:
        """Stages to train for their numbers: those without a record, failed ones, and with `retry` diverged ones."""
        again = trained_again(retry)
        return [s for k, s in self.stages.items() if k not in statuses or statuses[k][0] in again]


def make_plan(
    resolved: ResolvedTable,
    source: TextSource | None,
    *located: Located,
    user_tasks: Mapping[str, Task] | None = None,
    translator_of: Callable[[Augment | None], Translator] = lambda augment: UNNAMED,
    corpora: Mapping[float, Corpus] = MappingProxyType({}),
) -> Plan:
    """All runs of a table, with its encoders `located` in their order. Without a source nothing is read and every row set is unresolved, which is enough for a cost.

    `translator_of`: of views (None), and of an augmentation; `corpora`: what rows are pre-trained on, by fraction, where it was opened.
    Raises UserError for unknown tasks, methods and hyperparameters, for objectives that the encoder cannot be trained with, and for data
    that are wrong.
    """
    library: dict[str, Rows] = {}
    encoders, mlm_heads = dict[str, Located](), dict[str, Parent]()
    for name, each in zip(resolved.encoders, located, strict=True):
        encoders[name] = replace(each, encoder=adapted(each.encoder, resolved.encoder_settings, each.config))
        if head := _mlm_head(resolved, encoders[name], library, bool(source)):
            mlm_heads[name] = head
    heads = [head.stage.data.train for head in mlm_heads.values()]
    prose = {rows.name: library[rows.digest] for rows in heads if rows.digest in library}
    translators: dict[Augment | None, Translator] = {None: UNNAMED}
    translators |= {augment: translator_of(augment) for augment in resolved.translations}
    readers, untranslated = dict[str, TaskReader](), dict[Translator, dict[str, Rows]]()

    def evaluations(name: str) -> TaskData:
        task = (user_tasks or {}).get(name) or task_named(name)
        readers[name] = TaskReader(resolved, task, source, library, translators, untranslated)
        return readers[name].evaluations()

    # Read when `runs_of` needs them, so that a wrong row is refused before any data are read.
    tasks = _Lazy(evaluations)
    training: _Lazy[tuple[str, int, int, int, Augment | None], TrainingSet] = _Lazy(
        lambda key: readers[key[0]].training_set(*key[1:])
    )
    table_data = TableData(
        tasks=tasks,
        training=training,
        located=encoders,
        mlm_heads=mlm_heads,
        corpora={each: _corpus_rows(resolved, each, corpora) for each in resolved.fractions},
        views=translators[None].num_views,
        untranslated=translators[None].reason,
        unaugmented={augment: each.reason for augment, each in translators.items() if augment and each.reason},
    )
    runs, skipped = runs_of(resolved, table_data)
    corpus = next(iter(corpora.values()), None)
    if corpus and corpus.rows <= COMPARED_TEXTS and corpus.digest not in {rows.digest for rows in prose.values()}:
        prose[corpus.name] = Rows(tuple((text,) for text in corpus.texts()))
    places = dict.fromkeys(source.describe(found.task) for found in tasks.values()) if source else ["not read"]
    overlaps = tuple(overlap for reader in readers.values() for overlap in reader.overlaps(prose))
    return Plan(
        resolved,
        replace(table_data, tasks=dict(tasks), training=dict(training), source="; ".join(places), overlaps=overlaps),
        runs,
        skipped,
        library=library,
        corpora=tuple(corpora.values()),
        untranslated={translator: tuple(rows.values()) for translator, rows in untranslated.items()},
        unread=tuple(reader.missing for reader in readers.values() if reader.missing),
    )


def best_run(runs: Sequence[Run], records: Mapping[str, Record]) -> Run | None:
    """Of the runs that were trained the one with the best dev score by its selection; of equal ones the first in the plan, whichever
    ended first. `records`: how each ended, by the key of its last stage; None where none of them was trained."""
    scored = []
    for run in runs:
        record, selection = records.get(run.stage.key), run.stage.selection
        if record and record.status == "done" and selection:
            scored.append((record.dev_scores[selection.metric], run))
    return max(scored, key=lambda each: each[0])[1] if scored else None


class _Lazy(dict[K, V]):
    """Values that are read at first access."""

    def __init__(self, read: Callable[[K], V]) -> None:
        self._read = read

    def __missing__(self, key: K) -> V:
        return self.setdefault(key, self._read(key))


def _corpus_rows(resolved: ResolvedTable, fraction: float, corpora: Mapping[float, Corpus]) -> RowSet:
    if fraction in corpora:
        return corpora[fraction].row_set()
    assert resolved.pre_train is not None
    name = part_name(resolved.pre_train.corpus, fraction)
    return RowSet(f"{UNRESOLVED}{name}", name, 10000, 500.0)


def _mlm_head(resolved: ResolvedTable, located: Located, library: dict[str, Rows], read: bool) -> Parent | None:
    """The stage that gives the encoder an MLM head, whose corpus is read into the library; None where the encoder has one."""
    unknown = located.folder is None and not located.new  # not at hand yet
    training = located.head_training or (HEAD_TRAINING if unknown else None)
    steps = resolved.mlm_head.steps if resolved.mlm_head.steps is not None else (training.steps if training else 0)
    if not steps:
        return None
    if training is None:
        head = "draws its MLM head with its other weights" if located.new else "has its own MLM head"
        raise UserError(f"mlm_head.steps is {steps}, but {located.name} {head}; leave it out.")
    row_set = RowSet(f"{UNRESOLVED}{training.corpus}", training.corpus, 9000, 500.0)
    if read:
        corpus = CORPORA[training.corpus]()
        row_set = corpus.row_set(training.corpus)
        library[row_set.digest] = corpus
    optim = Optim(training.lr, training.batch_size, steps, warmup=training.warmup)
    frozen = resolved.mlm_head.frozen
    return Parent(mlm_head_stage(located.encoder, row_set, optim, training.max_length, training.seed, frozen=frozen))


def truncation(folder: Path | None, sets: Sequence[Rows], max_length: int) -> Truncation | None:
    """Of the rows of several sets, at `max_length` tokens with special ones; None where the encoder's folder has no tokenizer.json.

    No token has less than a byte, so a row of fewer bytes is not cut."""
    tokenizer = _tokenizer(folder / "tokenizer.json") if folder else None
    if tokenizer is None:
        return None
    cut, counted = 0.0, True
    for rows in sets:
        sizes = rows.each(lambda text: len(text.encode())).sum(axis=1)
        long = np.flatnonzero(sizes > max_length - tokenizer.num_special_tokens_to_add(rows.columns > 1))
        drawn = long[:: -(-len(long) // SAMPLE)] if len(long) else long
        counted &= len(drawn) == len(long)
        texts = [row[0] if len(row) == 1 else row for row in rows.take(drawn).texts]
        over = sum(len(each) > max_length for each in tokenizer.encode_batch(texts))
        cut += over * len(long) / max(1, len(drawn))
    return Truncation(round(cut), sum(map(len, sets)), counted)


@lru_cache(maxsize=4)
def _tokenizer(path: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        found: Any = Tokenizer.from_file(str(path))
    except Exception:  # of no file and of a damaged one, of which is told where it is used
        return None
    found.no_truncation()
    found.no_padding()
    return found


def stage_flops(stage: Stage, config: Mapping[str, Any]) -> float:
    """Computed FLOPs of one stage; 0 when the encoder's shape is unknown."""
    definition = definition_of(stage.objective)
    if "hidden_size" not in config or not definition.encoded:
        return 0.0
    data, optim, prompt, kind = stage.data, stage.optim, stage.data.prompt, stage.data.kind

    def sequences(rows: RowSet) -> tuple[float, float]:
        """(sequences of a row, tokens of a sequence)."""
        whole = alone = rows.mean_chars / CHARS_PER_TOKEN + 2.5
        if prompt:
            shown = len(prompt.words) if prompt.demonstrations else 0
            whole = alone + (1 + shown) * len(prompt.template) / CHARS_PER_TOKEN + shown * alone
        return kind.sequences(whole, data.max_length) if kind else 1.0, min(data.max_length, whole)

    many, mean = (1.0, data.max_length) if data.blocks == "packed" else sequences(data.train)
    rows = min(optim.batch_size, max(1, data.train.rows)) * many
    total = definition.flops(config, definition.expected(rows, mean)) * optim.steps
    if definition.encodes_once:
        total = data.train.rows * forward_flops(config, mean, mean * mean)
    if stage.selection and data.dev:
        draws, dev_times = max(1, prompt.draws) if prompt else 1, 1 if definition.encodes_once else stage.evaluations
        for rows_of, times in ((data.dev, dev_times), *((test, 1) for test in data.tests)):
            many, each = sequences(rows_of)
            total += times * draws * rows_of.rows * many * forward_flops(config, each, each * each)
    return total
