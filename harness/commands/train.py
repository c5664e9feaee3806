"""A bench: what a table lacks is back-translated, trained on Ray, remembered and tracked. What needs ray and torch is imported inside the functions."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.commands.prepare import Prepared, check_work, prepare, storage_of
from harness.commands.tracking import Trackers, check_trackers
from harness.encoders import Located
from harness.errors import UserError
from harness.machine import cores
from harness.planning.request import Request
from harness.planning.runs import Plan, best_run
from harness.planning.work import Event
from harness.specs import NO_ENCODER, Data, Record, RowSet, Run, digest_of
from harness.storage import Storage, WorkerSetup, weights_of
from harness.store import Store
from harness.tasks.translation import translate
from harness.wording import counted

if TYPE_CHECKING:
    from harness.encoders.tokens import Examples, Tokeniser, Vocabulary

Show = Callable[[Any, str], AbstractContextManager[Callable[..., None]]]
"""How the progress of something is shown, with the address of Ray's dashboard ('': it has none): a context in which is passed on each event of a table's
stages; of a study what happened to a trial ('started', 'replicate', 'ended') and the trial as it is now; and of texts, given as (the translator's name,
how many), the number that is back-translated."""


def unshown(*_: Any) -> AbstractContextManager[Callable[..., None]]:
    """Shows nothing."""
    return nullcontext(lambda *event: None)


def deadline_of(request: Request) -> float:
    """When a command that begins now ends in order, by `time.monotonic()`."""
    return math.inf if request.hours is None else time.monotonic() + 3600 * request.hours


@contextmanager
def session_of(
    request: Request, encoders: Sequence[Located], storage: Storage
) -> Iterator[tuple[str, Request, WorkerSetup]]:
    """A session of Ray: the address of its dashboard, the request with what holds there, and what workers on every node are set up with."""
    from harness.cluster.session import session

    storage.probe()
    setup = WorkerSetup(
        {each.encoder.digest: (each.folder.resolve(), each.new_config) for each in encoders if each.folder},
        storage,
        micro_batch=request.micro_batch or 0,
        checkpoint_seconds=60 * request.checkpoint_minutes,
    )
    with session(request) as (dashboard, settled):
        from harness.cluster.worker import for_nodes

        yield dashboard, settled, for_nodes(setup, request.address)


def tokenised_of(
    prepared: Prepared,
) -> tuple[dict[str, Vocabulary], Callable[[RowSet, Data, str], tuple[Examples, Any]]]:
    """By the digest of an encoder its vocabulary, and how the pool gets a row set as a stage of it reads that. Raises UserError as `check_work` does."""
    from harness.encoders.tokens import Tokeniser

    vocabularies, readers = {}, {}
    for located in prepared.plan.encoders:
        assert located.folder is not None  # unresolved encoders were refused
        tokeniser = Tokeniser(located.folder)
        check_work(prepared.work_of(located), tokeniser, located, prepared.plan.library)
        for encoder in (located.encoder, NO_ENCODER):
            vocabularies[encoder.digest] = tokeniser.vocabulary
            readers[encoder.digest] = partial(read_rows, prepared.plan, located, tokeniser, prepared.store)
    return vocabularies, lambda rows, data, encoder: readers[encoder](rows, data)


def read_rows(
    plan: Plan, located: Located, tokeniser: Tokeniser, store: Store, row_set: RowSet, data: Data
) -> tuple[Examples, Any]:
    """A row set as a stage reads it: examples, and labels or None."""
    from harness.encoders.tokens import Examples
    from harness.encoders.tokens.corpus_files import tokenise_corpus
    from harness.encoders.tokens.reading import reading_of

    reading, rows = reading_of(data), plan.library.get(row_set.digest)
    corpus = next((corpus for corpus in plan.corpora if corpus.digest == row_set.digest), None)
    if corpus and (rows is None or data.blocks == "packed"):  # tokenised once, to disk, and read from there
        identity = digest_of([corpus.digest, located.encoder.digest, data.max_length, data.blocks])
        folder = store.artifacts.parent / "blocks" / identity
        return Examples(tokenise_corpus(corpus.texts(), tokeniser, reading, folder, identity)), None
    rows = plan.library[row_set.digest]
    return reading.examples(rows.texts, tokeniser), rows.labels


def check_machine(request: Request) -> None:
    """Raises UserError, before Ray starts, for cores and GPUs that this machine lacks. The session checks another cluster."""
    if request.address == "local" and request.num_workers > cores():
        raise UserError(
            f"{request.origin('num_workers')} {request.num_workers}: {counted(cores(), 'CPU core')} may be used here; take as many workers or fewer, "
            "or name a cluster with --address."
        )
    if request.address == "local" and request.gpus_per_run:
        import torch

        if torch.cuda.device_count() < request.gpus_per_run:
            raise UserError(
                f"{request.origin('gpus_per_run')} {request.gpus_per_run:g}: torch {torch.__version__} sees "
                f"{torch.cuda.device_count()} GPUs on this machine; leave it out to train with what there is."
            )


def train(
    prepared: Prepared, show: Show, *, deadline: float = math.inf, watch: Callable[[Event], None] = lambda event: None
) -> Prepared:
    """Train the stages that are left, and keep the request. The same table: where stages are left at `deadline` (by
    `time.monotonic()`), `stopped` says why. `watch`: told each event."""
    request, plan, name = prepared.request, prepared.plan, prepared.resolved.table.name
    vocabularies, tokenised = tokenised_of(prepared)
    prepared.store = Store(prepared.store.url)
    prepared.remember()
    storage = storage_of(request, prepared.store)
    with session_of(request, plan.encoders, storage) as (dashboard, settled, setup):
        from harness.cluster.pool import Pool

        keep_all, given = request.keep == "all", (prepared.store, setup, vocabularies, tokenised, settled, name)
        pool = Pool(*given, keep_weights=keep_all, deadline=deadline)
        best = BestWeights(plan, prepared.store, storage) if request.keep == "best" else None
        try:
            with show(prepared, dashboard) as shown:
                for event in pool.run(prepared.items):
                    shown(event)
                    watch(event)
                    if best and not event.running:
                        best.ended(event.item.stage.key)
            prepared.stopped = pool.over
        finally:
            pool.close()
    prepared.statuses = prepared.store.statuses(prepared.plan.stages)
    return prepared


def trackers_of(prepared: Prepared) -> Trackers:
    """The request's trackers, with the runs of its table."""
    name = f"harness-{prepared.resolved.table.name}"
    return Trackers(prepared.request.track, name, prepared.store.url).add_plan(prepared.plan)


def translate_texts(prepared: Prepared, show: Show, warn: Callable[[str], None]) -> None:
    """Make the back-translations of a table, whose stages have their keys once it is prepared again."""
    empty = 0
    for translator, rows in prepared.plan.untranslated.items():
        with show((translator.name, sum(map(len, rows))), "") as done:
            empty += translate(rows, translator, Store(prepared.store.url), done)
    if empty:
        warn(f"Empty back-translations: {empty}; the text itself is used instead.")


def bench(
    request: Request,
    show: Show = unshown,
    warn: Callable[[str], None] = warnings.warn,
    agree: Callable[[Prepared], None] = lambda prepared: None,
) -> tuple[Prepared, Trackers]:
    """Train what the table of a request lacks: the table, and its trackers. `warn`: called with one sentence. `agree`: called before
    anything is trained; raises an error to train nothing."""
    check_trackers(request.track, request.origin("track"))
    prepared, deadline = prepare(request, train=True), deadline_of(request)
    agree(prepared)
    if prepared.items and prepared.plan.untranslated:
        translate_texts(prepared, show, warn)
        prepared = prepare(request, train=True)
    trackers = trackers_of(prepared)

    def track(event: Event) -> None:
        if event.ended:
            trackers.write([event.item.stage.key], warn)

    if prepared.items:
        check_machine(request)
        prepared = train(prepared, show, deadline=deadline, watch=track)
    elif prepared.plan.runs:
        prepared.remember()
    return prepared, trackers


class BestWeights:
    """Of the runs of each cell keeps the weights of the one that `best_run` selects among those with stored weights, and deletes the
    others' as soon as they end. A run without stored weights, recorded by an earlier command, takes part in nothing."""

    def __init__(self, plan: Plan, store: Store, storage: Storage) -> None:
        self._store, self._storage, self._ended = store, storage, dict[str, Record]()
        self._parents = {stage.parent.key for stage in plan.stages.values() if stage.parent}
        self._cells: dict[tuple[str, str, int], list[Run]] = {}
        for run in plan.runs:
            self._cells.setdefault((plan.resolved.titles[run.row], run.task, run.size), []).append(run)
        self._leaves = {run.stage.key for run in plan.runs}
        self.ended(*store.statuses(self._leaves))

    def ended(self, *keys: str) -> None:
        """Something happened to stages. Of those that are recorded with weights keep them where one is the best of a cell, and delete those that
        are the best of none. What only starts, over weights that a killed command left, has no record."""
        stored = [key for key in keys if key in self._leaves and self._storage.exists(weights_of(key))]
        if not stored:
            return
        self._ended |= self._store.records(stored)
        best = {run.stage.key for runs in self._cells.values() if (run := best_run(runs, self._ended))}
        for each in self._ended.keys() - best - self._parents:
            self._storage.delete(weights_of(each))
            del self._ended[each]
