"""The bench's actor pool: long-lived workers, one a slot, take stages as their parents finish; every stage ends as a
record in the ledger, and a failed one does not stop the others."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import ray
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.util.metrics import Gauge

from harness.bench.work import Item
from harness.cluster.ledger import ledger_of
from harness.cluster.worker import WORKER_DEATHS, Shelf, Tokenised, Worker, answer, died, slots_of, submit
from harness.encoders.tokens import Vocabulary
from harness.specs import Execution, Record, Stage, Workplace
from harness.storage import weights_of
from harness.store import Owner, Store

POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Event:
    """What happened to a stage: started, or how it ended. 'elsewhere': another driver recorded it."""

    kind: Literal["started", "done", "failed", "diverged", "elsewhere", "retried", "waiting"]
    item: Item
    reason: str = ""


@dataclass
class _Schedule:
    """Which stages can start: a heap of those whose parents are there, the dearest first."""

    waiting: dict[str, list[Item]] = field(default_factory=dict)
    ready: list[tuple[float, int, Item]] = field(default_factory=list)
    count: int = 0

    def add(self, item: Item, pending: set[str]) -> None:
        parent = item.stage.parent
        if parent and parent.key in pending:
            self.waiting.setdefault(parent.key, []).append(item)
        else:
            self.push(item)

    def push(self, item: Item) -> None:
        self.count += 1
        heapq.heappush(self.ready, (-item.cost, self.count, item))

    def release(self, key: str) -> list[Item]:
        """The children of a finished stage become ready."""
        children = self.waiting.pop(key, [])
        for child in children:
            self.push(child)
        return children

    def drop(self, key: str) -> Iterator[Item]:
        """All descendants of a stage that failed: they can not run."""
        for child in self.waiting.pop(key, []):
            yield child
            yield from self.drop(child.stage.key)


class Pool:
    """Runs items to the end. One use: `with Pool(...) as pool: for event in pool.run(items): ...`."""

    def __init__(
        self,
        store: Store,
        workplace: Workplace,
        vocabulary: Vocabulary,
        tokenised: Tokenised,
        execution: Execution,
        table: str,
    ) -> None:
        self._owner = Owner.current()
        self._store = store
        self._vocabulary = vocabulary
        self._shelf = Shelf(tokenised)
        self._execution = execution
        self._workplace = workplace
        self._ledger = ledger_of(store, workplace.storage, self._owner)
        self._made = 0
        self._gauge = Gauge("harness_stages", "Stages of a bench by state.", ("table", "state"))
        self._counts: Counter[str] = Counter()
        self._table = table
        self._children: Counter[str] = Counter()

    def _count(self, state: str, by: int = 1) -> None:
        self._counts[state] += by
        self._gauge.set(self._counts[state], {"table": self._table, "state": state})

    def slots(self) -> int:
        """How many workers fit into the cluster, or fewer when asked."""
        return slots_of(self._execution)

    def _worker(self) -> Any:
        self._made += 1
        worker: Any = Worker
        return worker.options(
            name=f"harness-worker-{self._made}-{self._owner.token[:6]}",
            num_cpus=self._execution.cpus_per_run,
            num_gpus=self._execution.gpus_per_run,
        ).remote(self._workplace, self._ledger, f"harness-worker-{self._made}")

    def run(self, items: Iterable[Item]) -> Iterator[Event]:
        """Train all items, parents first; yields an event for each start and each end."""
        every = list(items)
        pending = {item.stage.key for item in every}
        self._children.update(item.stage.parent.key for item in every if item.stage.parent)
        schedule = _Schedule()
        for item in every:
            schedule.add(item, pending)
        idle = [self._worker() for _ in range(min(self.slots(), len(every)))]
        busy: dict[Any, tuple[Item, Any]] = {}
        held: list[Item] = []
        asked_at = 0.0

        def finish(event: Event) -> Iterator[Event]:
            key = event.item.stage.key
            self._count(event.kind)
            yield event
            if event.kind in ("done", "elsewhere"):
                schedule.release(key)
            else:
                for child in schedule.drop(key):
                    yield Event("failed", child, f"its parent stage {key[:10]} {event.kind}: {event.reason}")
            parent = event.item.stage.parent
            if parent and event.kind in ("done", "elsewhere"):
                self._children[parent.key] -= 1
                if not self._children[parent.key] and parent.parent:
                    self._discard(parent)

        while schedule.ready or busy or held:
            if held and time.monotonic() - asked_at > POLL_SECONDS:
                for item in held:
                    schedule.push(item)
                held.clear()
                asked_at = time.monotonic()
            while schedule.ready and idle:
                item = heapq.heappop(schedule.ready)[2]
                grant = answer(self._ledger.lease.remote(item.stage.key, item.seen_attempt, item.remake))
                if grant == "held":
                    held.append(item)
                    yield Event("waiting", item, "another driver is training it")
                elif grant == "settled":
                    yield from self._settled(item, schedule, finish)
                elif not self._orphaned(item, schedule):  # asked last: a settled stage needs no weights
                    worker = idle.pop()
                    busy[submit(worker, item, self._vocabulary, self._shelf)] = (item, worker)
                    self._count("running")
                    yield Event("started", item)
            if not busy:
                time.sleep(0.2 if held else 0)
                continue
            finished, _ = ray.wait(list(busy), timeout=POLL_SECONDS)
            for reference in finished:
                item, worker = busy.pop(reference)
                self._count("running", -1)
                try:
                    status, reason, ours = answer(reference)
                    idle.append(worker)
                    if ours:
                        yield from finish(Event(status, item, reason))
                    else:
                        yield from self._settled(item, schedule, finish)
                except (RayActorError, OutOfMemoryError) as error:
                    idle.append(self._worker())
                    yield from self._died(item, error, schedule, finish)

    def _orphaned(self, item: Item, schedule: _Schedule) -> bool:
        """Another driver may have deleted the weights that a stage starts from: then they are made again before it."""
        parent = item.stage.parent
        if parent is None or self._workplace.storage.exists(weights_of(parent.key)):
            return False
        if parent.key not in schedule.waiting:
            name = f"weights for {item.name}"
            self._children.update([parent.parent.key] if parent.parent else [])
            schedule.push(Item(parent, name, item.cost, (), keep_product=True, remake=True, seen_attempt=0))
        schedule.waiting.setdefault(parent.key, []).append(item)
        return True

    def _settled(self, item: Item, schedule: _Schedule, finish: Callable[[Event], Iterator[Event]]) -> Iterator[Event]:
        """Another driver recorded this stage first. Its weights, if wanted, may be gone by now: then make them again."""
        found = answer(self._ledger.status.remote(item.stage.key))
        if found and found[0] != "done":
            yield from finish(Event(found[0], item, "recorded by another driver"))
        elif item.keep_product and not self._workplace.storage.exists(weights_of(item.stage.key)):
            item.remake = True
            schedule.push(item)
        else:
            yield from finish(Event("elsewhere", item))

    def _died(
        self, item: Item, error: Exception, schedule: _Schedule, finish: Callable[[Event], Iterator[Event]]
    ) -> Iterator[Event]:
        """A worker process died: the stage goes back, up to a cap; a record that it wrote before dying stands."""
        found = answer(self._ledger.status.remote(item.stage.key))
        if found and found[0] == "done" and not item.remake:
            yield from finish(Event("done", item))
            return
        item.deaths += 1
        reason = died(item.deaths, error)
        if item.deaths < WORKER_DEATHS:
            schedule.push(item)
            yield Event("retried", item, reason)
            return
        answer(self._ledger.commit.remote(item.stage, Record(item.stage.key, "failed", reason)))
        yield from finish(Event("failed", item, reason))

    def _discard(self, stage: Stage) -> None:
        """Weights whose children are all done go; those of a root stage (a warm-up) stay, every table shares them."""
        if not answer(self._ledger.others_alive.remote()):
            self._workplace.storage.delete(weights_of(stage.key))

    def close(self) -> None:
        self._store.release(self._owner)
