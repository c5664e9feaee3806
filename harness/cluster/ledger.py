"""The ledger: one actor on the driver's node that holds the database and is its only writer, for bench and tune alike; and the stages
of one command: their state machine, with the ledger's and the artifact storage's answers."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import ray
from ray.exceptions import RayActorError
from ray.util.placement_group import remove_placement_group

from harness import private
from harness.cluster.stop import on_driver_node
from harness.cluster.worker import WorkerResult, answer, loss_of
from harness.errors import KEPT, UserError
from harness.planning.lifecycle import DiscardWeights, Event, Lifecycle, Output, RecordFailure, ReleaseLease, Running
from harness.planning.work import Item
from harness.specs import Parent, Record, Stage, Status, trained_again
from harness.storage import Storage, weights_of
from harness.store import RENEW_SECONDS, Grant, Owner, Store

F = TypeVar("F", bound=Callable[..., Any])
LOOK_SECONDS = 3.0
"""The time between two questions after nodes that leave."""


def _concurrent(method: F) -> F:
    """Run this method at the same time as all others."""
    return cast(F, ray.method(concurrency_group="progress")(method))


# Its calls are not shown in the dashboard, where they would hide the stages.
@ray.remote(num_cpus=0, concurrency_groups={"progress": 1}, enable_task_events=False)
class Ledger:
    """Leases and commits in the name of the driver `owner`, or of a trial's process, which can die alone. A lease is alive as
    long as its owner's process.

    What workers ask and report is heard at the same time as other calls, which may wait for the database.
    """

    def __init__(self, url: str, storage: Storage, owner: Owner) -> None:
        self._store = Store(url)
        self._storage = storage
        self._owner = owner
        self._tried: set[str] = set()
        self._stopping: frozenset[str] | None = frozenset()
        self._running: dict[str, Running] = {}
        threading.Thread(target=self._renew, daemon=True).start()

    def __repr__(self) -> str:
        return "harness-ledger"

    def _renew(self) -> None:
        while True:
            time.sleep(RENEW_SECONDS)
            try:
                self._store.renew(self._owner)
            except UserError:
                continue  # the next round renews

    def renew(self, owner: Owner) -> None:
        self._store.renew(owner)

    def lease(self, key: str, seen_attempt: int, remake: bool, owner: Owner | None = None) -> Grant:
        return self._store.lease(key, owner or self._owner, seen_attempt=seen_attempt, remake=remake)

    def commit(self, stage: Stage, record: Record, owner: Owner | None = None) -> bool:
        self._tried.add(stage.key)
        return self._store.commit(stage, record, owner or self._owner)

    def release(self, key: str, owner: Owner | None = None) -> None:
        self._store.release(owner or self._owner, key)

    def status(self, key: str) -> tuple[Status, int] | None:
        return self._store.statuses([key]).get(key)

    def look(self, key: str, retry: bool) -> tuple[int, Status | None]:
        """Attempts at a stage so far, and how it ended; None where it is still to be trained: without a record, and after a failure (with `retry` a
        divergence) that an earlier command recorded."""
        status, attempt = self._store.statuses([key]).get(key, (None, 0))
        return attempt, None if status in trained_again(retry) and key not in self._tried else status

    def records(self, metrics: dict[str, str]) -> dict[str, Record]:
        """As `counted_records` of the store."""
        # half of what a ledger would import, and a bench does not ask
        from harness.scores import counted_records

        return counted_records(self._store, metrics)

    def others_alive(self) -> bool:
        return self._store.others_alive(self._owner)

    @_concurrent
    def stop(self, nodes: frozenset[str] | None) -> None:
        """Ask the processes of these nodes to stop their stages (None: of all nodes)."""
        self._stopping = nodes

    @_concurrent
    def stops(self, node: str) -> bool:
        """Whether the processes of a node are to stop their stages."""
        return self._stopping is None or node in self._stopping

    @_concurrent
    def report(self, key: str, running: Running) -> None:
        """A worker's report of the stage that it trains."""
        self._running[key] = running

    @_concurrent
    def reports(self) -> dict[str, Running]:
        """The last report of each stage since the last question."""
        reports, self._running = self._running, {}
        return reports


def ask(ledger: Any, method: str, *arguments: Any) -> Any:
    """A ledger's answer. Raises UserError if its process died: nothing can be leased or recorded any more."""
    try:
        return answer(getattr(ledger, method).remote(*arguments))
    except RayActorError as error:
        raise UserError(
            f"The ledger's process ended ({type(error).__name__}), perhaps for lack of memory; {KEPT}."
        ) from None


class StopRequests:
    """Asks running stages to stop with a checkpoint: those on nodes that leave the cluster (a drain, a spot notice), and all when the
    time of the command is over or its own node leaves. Frees what worker groups held whose controller is dead. `deadline`: by
    `time.monotonic()`. `over`: why no further stage may start."""

    def __init__(self, ledger: Any, deadline: float = math.inf) -> None:
        self._ledger, self._deadline = ledger, deadline
        self._own_node = ray.get_runtime_context().get_node_id()
        self._asked: frozenset[str] | None = frozenset()
        self._looked_at = -math.inf
        self.over = ""

    def look(self) -> list[str]:
        """Call it often: it asks the cluster every LOOK_SECONDS. Returns notices for the user, one sentence each."""
        now = time.monotonic()
        if self.over or now - self._looked_at < LOOK_SECONDS:
            return []
        self._looked_at = now
        for group in private.orphaned_placement_groups():
            remove_placement_group(group)
        leaving = frozenset(private.draining_nodes())
        if self._own_node in leaving:
            self.over = "the node of this command leaves the cluster"
        elif now >= self._deadline:
            self.over = "the time of this command is over"
        asked = None if self.over else leaving
        if asked == self._asked:
            return []
        new = leaving - (self._asked or frozenset())
        ask(self._ledger, "stop", asked)
        self._asked = asked
        if self.over:
            return [f"{self.over}: running stages stop with a checkpoint."]
        return [f"node {node[:10]} leaves the cluster: its stages stop with a checkpoint." for node in sorted(new)]


def start_ledger(store: Store, storage: Storage, owner: Owner) -> Any:
    """Start a ledger for this driver on the driver's node. Does not wait for it: the first answer comes once its process has
    started and its database has answered."""
    actor: Any = Ledger
    return actor.options(name=f"harness-ledger-{owner.token[:6]}", scheduling_strategy=on_driver_node()).remote(
        store.url, storage, owner
    )


# -------------------------------------------------------------------------------------------------------------- stages


@dataclass
class LeasedStages:
    """Leases and ends stages in the name of `owner` (None: the driver). `discard` deletes the weights of a stage when nothing in
    `life` starts from them any more. Every report returns its events, after it did what follows from it."""

    life: Lifecycle
    ledger: Any
    storage: Storage
    owner: Owner | None
    discard: Callable[[Stage], None]

    def lease(self, item: Item) -> list[Event]:
        """Ask for the lease of an item that `life.next_item` returned. Where it is granted, and nothing else must come first, the
        stage is 'running' afterwards: train it, and report with `trained` or `lost`."""
        grant = ask(self.ledger, "lease", item.stage.key, item.seen_attempt, item.remake, self.owner)
        if grant == "held":
            outputs = self.life.held(item)
        elif grant == "settled":
            outputs = self._recorded(item)
        elif item.remake and self._stored(*item.stored):
            outputs = self.life.weights_found(item)
        elif isinstance(start := item.stage.init, Parent) and not self._stored(weights_of(start.stage.key, start.step)):
            outputs = self.life.weights_missing(item, self.storage.shown)
        else:
            outputs = self.life.started(item)
        return self._events(outputs)

    def trained(self, item: Item, result: WorkerResult) -> list[Event]:
        """A worker returned this result."""
        if result.ours:
            return self._events(self.life.finished(item, result.status, result.reason))
        return self._events(self._recorded(item))

    def lost(self, item: Item, error: Exception) -> list[Event]:
        """The process that trained the stage ended or stopped it, as one of WORKER_LOST says."""
        status, attempt = ask(self.ledger, "status", item.stage.key) or (None, 0)
        recorded = status if attempt > item.seen_attempt else None
        reason, with_node = loss_of(error, item.deaths + 1)
        return self._events(self.life.worker_lost(item, reason, with_node=with_node, recorded=recorded))

    def _recorded(self, item: Item) -> list[Output]:
        """Another driver recorded the stage, or has its lease and will."""
        status, attempt = ask(self.ledger, "status", item.stage.key) or (None, 0)
        if status is None or (attempt <= item.seen_attempt and not item.remake):
            return self.life.held(item)
        return self.life.recorded(item, status, weights=self._stored(*item.stored))

    def _stored(self, *names: str) -> bool:
        return all(map(self.storage.exists, names))

    def _events(self, outputs: Iterable[Output]) -> list[Event]:
        events = []
        for output in outputs:
            match output:
                case Event():
                    events.append(output)
                case RecordFailure(item, reason):
                    ask(self.ledger, "commit", item.stage, Record(item.stage.key, "failed", reason), self.owner)
                case ReleaseLease(item):
                    ask(self.ledger, "release", item.stage.key, self.owner)
                case DiscardWeights(stage):
                    self.discard(stage)
        return events
