"""The bench's actor pool: long-lived workers, one a slot, train stages as their parents end. Every stage ends as a record in
the ledger, and a failed one does not stop the others. Nodes may come and go."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import InitVar, dataclass
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError

from harness.cluster.ledger import LOOK_SECONDS, StopRequests, ask, start_ledger
from harness.cluster.stages import Stages
from harness.cluster.worker import (
    TokenCache,
    Tokenised,
    answer,
    node_left,
    on_driver_node,
    resources_of,
    resources_text,
    result_of,
    slots_of,
    start_worker,
    submit,
)
from harness.encoders.tokens import Vocabulary
from harness.errors import UserError
from harness.planning.request import Request
from harness.planning.work import Ended, Event, Item
from harness.storage import WorkerSetup
from harness.store import Owner, Store

MOST_ASKED = 100
"""Workers that a cluster is asked for without `--slots`: those that do not fit wait, and Ray's autoscaler adds nodes for them. A worker
group that waits holds four processes, so that only one is asked for where none fits."""
STALL_SECONDS = 20.0
"""Without a worker for this long, the user reads what the pool waits for."""
MAX_STARTS = 3
"""The command ends after this many failed starts in a row. A start that fails with its node does not count."""


@dataclass
class Pool:
    """Runs items to their end: `pool = Pool(...); for event in pool.run(items): ...; pool.close()`. `run` may be called again: the
    workers stay. There are as many as fit on this machine, or, of a cluster, as `--slots` or the stages ask for.

    `vocabularies`: by the digest of the encoder; `keep_weights`: also those that no unfinished stage starts from. `deadline`: by
    `time.monotonic()`; then, or when this node leaves the cluster, running stages stop with a checkpoint and `run` ends.
    """

    store: Store
    setup: WorkerSetup
    vocabularies: Mapping[str, Vocabulary]
    tokenised: InitVar[Tokenised]
    request: Request
    table: str
    keep_weights: bool = False
    deadline: InitVar[float] = math.inf

    def __post_init__(self, tokenised: Tokenised, deadline: float) -> None:
        self._owner, self._token_cache, self._slots = Owner.current(), TokenCache(tokenised), slots_of(self.request)
        self._ledger = start_ledger(self.store, self._owner)
        self._stop_requests = StopRequests(self._ledger, deadline)
        self._nodes: dict[Any, str] = {}
        """Of the workers that have started, by Ray's id."""
        self._idle: list[Any] = []
        self._busy: dict[Any, tuple[Any, Item | None]] = {}
        """By the reference to its answer: the workers that start, and those that train a stage."""
        self._num_failed = 0
        self._had_worker_at = time.monotonic()

    @property
    def over(self) -> str:
        """Why stages were left; '' where none were."""
        return self._stop_requests.over

    @property
    def _running(self) -> list[Item]:
        return [item for _, item in self._busy.values() if item]

    def run(self, items: Iterable[Item]) -> Iterator[Event]:
        """Train all items, parents first; yields an event for each start and each end."""
        every = list(items)
        stages = Stages(every, partial(ask, self._ledger), self.setup.storage, self.keep_weights)
        looked_at = -math.inf
        while stages.open:
            if time.monotonic() - looked_at > LOOK_SECONDS:
                looked_at = time.monotonic()
                stages.ask_again()
                for sentence in self._look():
                    yield Event("notice", every[0], sentence)
                reports = ask(self._ledger, "reports") if self._running else {}
                for each in self._running:
                    if each.stage.key in reports:
                        yield Event("running", each, running=reports[each.stage.key])
            if self.over and not self._running:
                break
            if not self.over:
                self._scale_to(stages)
            while self._idle and not self.over and (item := stages.next()):
                worker, vocabulary = self._idle.pop(), self.vocabularies[item.stage.encoder.digest]
                reference = submit(worker, item, vocabulary, self._token_cache, f"{self.table}: {item.name}")
                self._busy[reference] = worker, item
                yield from stages.events()
            if stages.ready and not self._idle:
                self._token_cache.references(stages.ready[0][-1].stage)  # made while workers start or train
            if not self._busy:
                time.sleep(0.2)
            for reference in ray.wait([*self._busy], timeout=1.0)[0] if self._busy else ():
                worker, ended = self._busy.pop(reference)
                if ended:
                    stages.ended(ended, self._answered(worker, reference))
                else:
                    self._started(worker, reference)
            yield from stages.events()

    def _look(self) -> list[str]:
        """Ask the cluster for nodes that come and go. Returns notices for the user, one sentence each."""
        sentences = self._stop_requests.look()
        for worker in [worker for worker in self._idle if self._nodes[worker] in self._stop_requests.leaving]:
            self._remove(worker)
        if self._idle or self._running:
            self._had_worker_at = time.monotonic()
        elif not self.over and time.monotonic() - self._had_worker_at >= STALL_SECONDS:
            self._had_worker_at = math.inf  # this is said once
            each, free = resources_text(resources_of(self.request)), resources_text(ray.available_resources())
            sentences.append(f"waiting for a worker of {each}: the cluster has {free} free; recorded stages are kept.")
        return sentences

    # ------------------------------------------------------------------------------------------------------- workers

    def _scale_to(self, stages: Stages) -> None:
        """Start workers for the stages that are left, and end those of a cluster that no stage needs."""
        count = len(self._idle) + len(self._busy)
        if self.request.address == "local":
            wanted = min(self._slots, len(stages.open))
        else:
            most = self.request.slots or max(slots_of(self.request), MOST_ASKED if self.request.num_workers == 1 else 1)
            wanted = min(most, len(stages.ready) + len(self._running))
            starting = [worker for worker, item in self._busy.values() if not item]
            for worker in [*starting, *self._idle][: max(0, count - wanted)]:
                self._remove(worker)
        for _ in range(count, wanted):
            self._start()

    def _start(self) -> None:
        # what starts a worker group must not die with another node
        options = {"scheduling_strategy": on_driver_node()} if self.request.num_workers > 1 else {}
        worker = start_worker(self.request, self.setup, self._ledger, **options)
        self._busy[worker.ready.remote()] = worker, None

    def _started(self, worker: Any, reference: Any) -> None:
        """A worker becomes idle, or is removed if it died as it started; then another is started. Raises UserError for what its node lacks, and if no
        worker can start."""
        try:
            self._nodes[worker] = answer(reference)
            self._num_failed = 0
            self._idle.append(worker)
        except RayError as error:
            self._remove(worker)
            self._num_failed += not node_left(error)
            if self._num_failed >= MAX_STARTS:
                why = f"{self._num_failed} processes in a row ended before their first stage"
                last = str(error).strip().splitlines()[-1][:300]
                raise UserError(f"No worker can start: {why} ({last}).") from None

    def _answered(self, worker: Any, reference: Any) -> Ended:
        """What became of its stage; the worker is idle again, or removed where it has to train no other."""
        found = result_of(reference)
        if found.status in ("stopped", "left", "died") or found.reason.startswith("out of memory"):
            self._remove(worker)
        else:
            self._idle.append(worker)
        return found

    def _remove(self, worker: Any) -> None:
        """End a worker's process, if it still runs; `_scale_to` starts another."""
        self._idle = [other for other in self._idle if other != worker]
        self._busy = {reference: each for reference, each in self._busy.items() if each[0] != worker}
        ray.kill(worker)

    def close(self) -> None:
        self.store.release(self._owner)
