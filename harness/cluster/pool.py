"""The bench's actor pool: long-lived workers, one a slot, take stages as their parents finish; every stage ends as a
record in the ledger, and a failed one does not stop the others. Nodes may come and go."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import ray
from ray.exceptions import ActorUnavailableError, RayActorError
from ray.util.metrics import Gauge

from harness.bench.work import Item
from harness.cluster import heartbeat
from harness.cluster.heartbeat import on_driver_node
from harness.cluster.ledger import ask, ledger_of
from harness.cluster.worker import (
    WORKER_DEATHS,
    WORKER_LOST,
    TokenCache,
    Tokenised,
    WorkerGroupEndedError,
    answer,
    death_reason,
    died_with_node,
    submit,
)
from harness.cluster.worker_group import start_worker
from harness.cluster.worker_set import WorkerHandle, WorkerSet
from harness.encoders.tokens import Vocabulary
from harness.specs import SHARED_PHASES, Execution, Record, Stage, WorkerSetup
from harness.storage import weights_of
from harness.store import Owner, Store

POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Event:
    """What happened to a stage: started, or how it ended. 'elsewhere': another driver recorded it. 'notice': what the cluster
    lacks, while this stage waits."""

    kind: Literal["started", "done", "failed", "diverged", "elsewhere", "retried", "waiting", "notice"]
    item: Item
    reason: str = ""


@dataclass
class _Schedule:
    """Which stages can start: a heap of those whose parents are there, the dearest first."""

    waiting: dict[str, list[Item]] = field(default_factory=dict)
    ready: list[tuple[float, int, Item]] = field(default_factory=list)
    count: int = 0
    num_waiting: int = 0

    def add(self, item: Item, pending: set[str]) -> None:
        parent = item.stage.parent
        if parent and parent.key in pending:
            self.wait(parent, item)
        else:
            self.push(item)

    def wait(self, parent: Stage, item: Item) -> None:
        self.num_waiting += 1
        self.waiting.setdefault(parent.key, []).append(item)

    def push(self, item: Item) -> None:
        self.count += 1
        heapq.heappush(self.ready, (-item.cost, self.count, item))

    def release(self, key: str) -> None:
        """The children of a finished stage become ready."""
        children = self.waiting.pop(key, [])
        self.num_waiting -= len(children)
        for child in children:
            self.push(child)

    def drop(self, key: str) -> Iterator[Item]:
        """All descendants of a stage that failed: they can not run."""
        for child in self.waiting.pop(key, []):
            self.num_waiting -= 1
            yield child
            yield from self.drop(child.stage.key)


class Pool:
    """Runs items to the end. One use: `pool = Pool(...); for event in pool.run(items): ...; pool.close()`.

    `start_worker` starts a worker: as `harness.cluster.worker_group.start_worker`.
    """

    def __init__(
        self,
        store: Store,
        setup: WorkerSetup,
        vocabulary: Vocabulary,
        tokenised: Tokenised,
        execution: Execution,
        table: str,
        start_worker: Callable[..., Any] = start_worker,
    ) -> None:
        self._owner = Owner.current()
        self._store = store
        self._vocabulary = vocabulary
        self._token_cache = TokenCache(tokenised)
        self._execution = execution
        self._setup = setup
        self._start_worker = start_worker
        self._ledger = ledger_of(store, setup.storage, self._owner)
        self._schedule = _Schedule()
        self._gauge = Gauge("harness_stages", "Stages of a bench by state.", ("table", "state"))
        self._counts: Counter[str] = Counter()
        self._table = table
        self._children: Counter[str] = Counter()
        self._remade: set[str] = set()
        """Stages whose weights were deleted during the run and are made again beside the items: no item of theirs starts or ends."""

    def _count(self, state: str, by: int = 1) -> None:
        self._counts[state] += by
        self._gauge.set(self._counts[state], {"table": self._table, "state": state})

    def _worker(self, name: str, options: dict[str, Any]) -> Any:
        options["name"] = f"{name}-{self._owner.token[:6]}"
        if self._execution.num_workers > 1:  # the group's own actor must not die with another node
            options["scheduling_strategy"] = on_driver_node()
        return self._start_worker(self._execution, self._setup, self._ledger, name, **options)

    def _ask(self, what: str, *arguments: Any) -> Any:
        return ask(self._ledger, what, *arguments)

    def run(self, items: Iterable[Item]) -> Iterator[Event]:
        """Train all items, parents first; yields an event for each start and each end."""
        every, schedule = list(items), self._schedule
        pending = {item.stage.key for item in every}
        self._children.update(item.stage.parent.key for item in every if item.stage.parent)
        for item in every:
            schedule.add(item, pending)
        workers = WorkerSet(self._worker, self._execution)
        busy: dict[Any, tuple[Item, WorkerHandle]] = {}
        doubtful: dict[Any, tuple[Item, WorkerHandle]] = {}
        held: list[Item] = []
        asked_at = 0.0

        while schedule.ready or busy or doubtful or held:
            if held and time.monotonic() - asked_at > POLL_SECONDS:
                for item in held:
                    schedule.push(item)
                held.clear()
                asked_at = time.monotonic()
            wanted = len(busy) + len(doubtful) + len(held) + len(schedule.ready) + schedule.num_waiting
            for sentence in workers.scale_to(wanted):
                yield Event("notice", schedule.ready[0][2] if schedule.ready else every[0], sentence)
            while schedule.ready and workers.idle:
                item = heapq.heappop(schedule.ready)[2]
                grant = self._ask("lease", item.stage.key, item.seen_attempt, item.remake)
                if grant == "held":
                    held.append(item)
                    yield Event("waiting", item, "another driver is training it")
                elif grant == "settled":
                    yield from self._settled(item)
                elif self._orphaned(item):  # asked last: a settled stage needs no weights
                    yield from self._made_again(item)
                else:
                    worker = workers.idle.pop()
                    busy[submit(worker.actor, item, self._vocabulary, self._token_cache)] = (item, worker)
                    self._count("running")
                    if item.stage.key not in self._remade:
                        yield Event("started", item)
            references = [*busy, *doubtful, *workers.references]
            if not references:
                time.sleep(0.2 if held or schedule.ready else 0)
                continue
            for reference in ray.wait(references, timeout=POLL_SECONDS)[0]:
                if workers.take_ready(reference):
                    continue
                doubted = reference in doubtful
                item, worker = (doubtful if doubted else busy).pop(reference)
                try:
                    found = answer(reference)
                    if doubted:
                        raise RayActorError(error_msg="its process could not be reached")
                except ActorUnavailableError:  # whether its node is gone Ray knows in a minute at the latest
                    doubtful[worker.actor.ready.remote()] = (item, worker)
                except WORKER_LOST as error:
                    self._count("running", -1)
                    workers.remove(worker)
                    yield from self._gone(item, worker, error)
                else:
                    self._count("running", -1)
                    status, reason, ours = found
                    workers.returned(worker, spent=status == "failed" and reason.startswith("out of memory"))
                    yield from self._finish(Event(status, item, reason)) if ours else self._settled(item)

    def _finish(self, event: Event) -> Iterator[Event]:
        key = event.item.stage.key
        if key in self._remade:
            self._remade.discard(key)
        else:
            self._count(event.kind)
            yield event
        if event.kind in ("done", "elsewhere"):
            self._schedule.release(key)
        else:
            for child in self._schedule.drop(key):
                yield Event("failed", child, f"its parent stage {key[:10]} {event.kind}: {event.reason}")
        parent = event.item.stage.parent
        if parent and event.kind in ("done", "elsewhere"):
            self._children[parent.key] -= 1
            if not self._children[parent.key] and parent.phase not in SHARED_PHASES:
                self._discard(parent)

    def _orphaned(self, item: Item) -> bool:
        """Whether the weights that a stage starts from are gone: another driver, or a person, may have deleted them."""
        parent = item.stage.parent
        return parent is not None and not self._setup.storage.exists(weights_of(parent.key))

    def _made_again(self, item: Item) -> Iterator[Event]:
        """The weights that a stage starts from, before it."""
        parent = item.stage.parent
        assert parent is not None
        if parent.key not in self._schedule.waiting:
            name = f"weights for {item.name}"
            self._children.update([parent.parent.key] if parent.parent else [])
            self._schedule.push(Item(parent, name, item.cost, (), keep_weights=True, remake=True, seen_attempt=0))
            self._remade.add(parent.key)
            said = (
                f"the weights of stage {parent.key[:10]} ({parent.phase}) were deleted from {self._setup.storage.shown}"
            )
            yield Event("notice", item, f"{said}: they are made again.")
        self._schedule.wait(parent, item)

    def _settled(self, item: Item) -> Iterator[Event]:
        """Another driver recorded this stage first. Its weights, if wanted, may be gone by now: then make them again."""
        found = self._ask("status", item.stage.key)
        if found and found[0] != "done":
            yield from self._finish(Event(found[0], item, "recorded by another driver"))
        elif item.keep_weights and not self._setup.storage.exists(weights_of(item.stage.key)):
            item.remake = True
            self._schedule.push(item)
        else:
            yield from self._finish(Event("elsewhere", item))

    def _gone(self, item: Item, worker: WorkerHandle, error: Exception) -> Iterator[Event]:
        """A worker process is no more: the stage goes back, up to a cap of its own faults; a record that was written before
        stands."""
        found = self._ask("status", item.stage.key)
        if found and found[0] == "done" and not item.remake:
            yield from self._finish(Event("done", item))
            return
        if died_with_node(error):
            reason = "its worker's node left"
        else:
            item.deaths += 1
            reason = death_reason(item.deaths, error)
            if isinstance(error, RayActorError | WorkerGroupEndedError) and self._ask("hung", worker.name):
                reason = f"its worker did not answer for {heartbeat.HANG_SECONDS:g} s"
        if item.deaths < WORKER_DEATHS:
            self._schedule.push(item)
            yield Event("retried", item, reason)
            return
        self._ask("commit", item.stage, Record(item.stage.key, "failed", reason))
        yield from self._finish(Event("failed", item, reason))

    def _discard(self, stage: Stage) -> None:
        """Delete weights that no unfinished stage of any driver starts from."""
        if not self._ask("others_alive"):
            self._setup.storage.delete(weights_of(stage.key))

    def close(self) -> None:
        self._store.release(self._owner)
