"""The bench's actor pool: long-lived workers, one a slot, train stages as their parents end. Every stage ends as a record in
the ledger, and a failed one does not stop the others. Nodes may come and go."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from harness import private
from harness.cluster.ledger import LeasedStages, StopRequests, ask, start_ledger
from harness.cluster.stop import on_driver_node
from harness.cluster.worker import (
    WORKER_LOST,
    TokenCache,
    Tokenised,
    WorkerResult,
    answer,
    died_with_node,
    resources_text,
    slots_in,
    slots_of,
    submit,
)
from harness.cluster.worker_group import start_worker
from harness.encoders.tokens import Vocabulary
from harness.errors import UserError
from harness.execution import Execution, WorkerSetup
from harness.planning.lifecycle import Event, Lifecycle
from harness.planning.work import Item
from harness.specs import Stage
from harness.storage import weights_of
from harness.store import Owner, Store

POLL_SECONDS = 1.0
"""The time between two questions after a stage that another driver trains."""
LOOK_SECONDS = 2.0
"""The time between two questions after the progress of the running stages."""
RECOUNT_SECONDS = 3.0
MOST_ASKED = 100
"""Workers that a cluster is asked for without `--slots`: those that do not fit wait, and Ray's autoscaler adds nodes for them. A worker
group that waits holds four processes, so that only one is asked for where none fits."""
STALL_SECONDS = 20.0
"""Without a worker for this long, the user reads what the pool waits for."""
MAX_STARTS = 3
"""The command ends after this many failed starts in a row. A start that fails with its node does not count."""
MAX_STAGES = 500
"""A worker is replaced after this many stages: its process gives back fragmented and leaked memory."""


@dataclass(eq=False)
class WorkerHandle:
    """One worker. `node`: where it runs, once it has started; `stages`: how many it has trained."""

    actor: Any
    node: str = ""
    stages: int = 0


class Pool:
    """Runs items to their end: `pool = Pool(...); for event in pool.run(items): ...; pool.close()`. `run` may be called again: the
    workers stay. There are as many as fit on this machine, or, of a cluster, as `--slots` or the stages ask for.

    `vocabularies`: by the digest of the encoder; `keep_weights`: also those that no unfinished stage starts from. `deadline`: by
    `time.monotonic()`; then, or when this node leaves the cluster, running stages stop with a checkpoint and `run` ends. `start_worker` starts a worker: as `harness.cluster.worker_group.start_worker`.
    """

    def __init__(
        self,
        store: Store,
        setup: WorkerSetup,
        vocabularies: Mapping[str, Vocabulary],
        tokenised: Tokenised,
        execution: Execution,
        table: str,
        start_worker: Callable[..., Any] = start_worker,
        keep_weights: bool = False,
        deadline: float = math.inf,
    ) -> None:
        self._owner, self._store, self._setup, self._execution = Owner.current(), store, setup, execution
        self._vocabularies, self._token_cache = vocabularies, TokenCache(tokenised)
        self._start_worker, self._table, self._keep_weights = start_worker, table, keep_weights
        self._ledger = start_ledger(store, setup.storage, self._owner)
        self._stop_requests = StopRequests(self._ledger, deadline)
        self._starting: dict[Any, WorkerHandle] = {}
        """By the reference to what its `ready` returns."""
        self._idle: list[WorkerHandle] = []
        self._running: dict[Any, tuple[Item, WorkerHandle]] = {}
        """By the reference to its worker's answer."""
        self._excluded_nodes: set[str] = set()
        self._num_started = self._num_failed = 0
        self._slots, self._counted_at = slots_of(execution), time.monotonic()
        self._had_worker_at, self._notified = time.monotonic(), False

    @property
    def over(self) -> str:
        """Why stages were left; '' where none were."""
        return self._stop_requests.over

    def run(self, items: Iterable[Item]) -> Iterator[Event]:
        """Train all items, parents first; yields an event for each start and each end."""
        every = list(items)
        life = Lifecycle(every)
        stages = LeasedStages(life, self._ledger, self._setup.storage, None, self._discard)
        asked_at, looked_at = 0.0, time.monotonic()
        while life.unfinished:
            if life.count("held") and time.monotonic() - asked_at > POLL_SECONDS:
                life.ask_again()
                asked_at = time.monotonic()
            for sentence in self._stop_requests.look() or ([] if self.over else self._scale_to(life)):
                yield Event("notice", every[0], sentence)
            if self.over and not self._running:
                break
            while self._idle and not self.over and (item := life.next_item()):
                yield from stages.lease(item)
                if life.state(item.stage.key) == "running":
                    worker, vocabulary = self._idle.pop(), self._vocabularies[item.stage.encoder.digest]
                    name = f"{self._table}: {item.name}"
                    reference = submit(worker.actor, item, vocabulary, self._token_cache, name=name)
                    self._running[reference] = item, worker
            if self._starting and not self._idle and (upcoming := life.next_stage):
                self._token_cache.references(upcoming)  # made while workers start
            if self._running and time.monotonic() - looked_at > LOOK_SECONDS:
                looked_at, reports = time.monotonic(), ask(self._ledger, "reports")
                for item, _ in list(self._running.values()):
                    if report := reports.get(item.stage.key):
                        yield Event("running", item, running=report)
            references = [*self._running, *self._starting]
            if not references:
                time.sleep(0.2)
                continue
            for reference in ray.wait(references, timeout=POLL_SECONDS)[0]:
                if reference not in self._starting:
                    yield from self._answered(reference, stages)
                elif sentence := self._started(self._starting.pop(reference), reference):
                    yield Event("notice", every[0], sentence)

    # ------------------------------------------------------------------------------------------------------- workers

    def _scale_to(self, life: Lifecycle) -> list[str]:
        """Start workers for the stages that are left, and end those of a cluster that no stage needs. Returns notices for the user, one sentence each."""
        now = time.monotonic()
        if now - self._counted_at >= RECOUNT_SECONDS:
            self._counted_at, nodes = now, self._usable_nodes()
            self._slots, there = slots_in(nodes, self._execution), {node["NodeID"] for node in nodes}
            for worker in [worker for worker in self._idle if worker.node not in there]:
                self._remove(worker)
        count = len(self._starting) + len(self._idle) + len(self._running)
        if self._execution.address == "local":
            wanted = min(self._slots, life.unfinished)
        else:
            most = self._execution.slots or max(self._slots, MOST_ASKED if self._execution.num_workers == 1 else 1)
            wanted = min(most, life.count("ready") + life.count("running"))
            for worker in [*self._starting.values(), *self._idle][: max(0, count - wanted)]:
                self._remove(worker)
        for _ in range(count, wanted):
            self._start()
        if self._idle or self._running:
            self._had_worker_at, self._notified = now, False
        elif not self._notified and now - self._had_worker_at >= (STALL_SECONDS if self._slots else 0):
            self._notified = True
            each = resources_text(self._execution.resources)
            if not self._slots:
                return [f"waiting for nodes: no node of the cluster has {each}; recorded stages are kept."]
            free = resources_text(ray.available_resources())
            return [f"waiting for a worker of {each}: the cluster has {free} free."]
        return []

    def _usable_nodes(self) -> list[dict[str, Any]]:
        unusable = {*self._excluded_nodes, *private.draining_nodes()}
        return [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in unusable]

    def _start(self) -> None:
        self._num_started += 1
        name = f"harness-worker-{self._num_started}"
        options: dict[str, Any] = {"name": f"{name}-{self._table}-{self._owner.token[:6]}"}
        if self._excluded_nodes:
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(self._excluded_nodes)})"}
        if self._execution.num_workers > 1:  # the group's own actor must not die with another node
            options["scheduling_strategy"] = on_driver_node()
        worker = WorkerHandle(self._start_worker(self._execution, self._setup, self._ledger, name, **options))
        self._starting[worker.actor.ready.remote()] = worker

    def _started(self, worker: WorkerHandle, reference: Any) -> str:
        """A worker becomes idle, or is removed if it failed; then another is started. Returns why its node is not used any more, '' otherwise. Raises
        UserError if no worker can start."""
        try:
            worker.node, problem = answer(reference)
        except (RayError, *WORKER_LOST) as error:
            self._remove(worker)
            if not died_with_node(error) and not isinstance(error, ActorUnavailableError):
                self._num_failed += 1
                if self._num_failed >= MAX_STARTS:
                    why = str(error).strip().splitlines()[-1][:300]
                    raise UserError(
                        f"No worker can start: {self._num_failed} processes in a row ended before their first stage ({why})."
                    ) from None
            return ""
        if not problem:
            self._num_failed = 0
            self._idle.append(worker)
            return ""
        self._remove(worker)
        known = worker.node in self._excluded_nodes
        self._excluded_nodes.add(worker.node)
        self._counted_at = -RECOUNT_SECONDS
        if not self._usable_nodes():
            raise UserError(problem)
        return "" if known else f"node {worker.node[:10]} is not used: {problem}"

    def _remove(self, worker: WorkerHandle) -> None:
        """End a worker's process, if it still runs; `_scale_to` starts another."""
        self._idle = [other for other in self._idle if other is not worker]
        self._starting = {reference: other for reference, other in self._starting.items() if other is not worker}
        ray.kill(worker.actor)

    # -------------------------------------------------------------------------------------------------------- stages

    def _answered(self, reference: Any, stages: LeasedStages) -> list[Event]:
        """A worker's answer: a result, or that its process ended."""
        item, worker = self._running.pop(reference)
        try:
            result = answer(reference)
            if not isinstance(result, WorkerResult):  # its process is there again, and may still train
                raise RayActorError(error_msg="its process could not be reached")
        except ActorUnavailableError:  # Ray knows within a minute whether its node is gone
            self._running[worker.actor.ready.remote()] = item, worker
            return []
        except WORKER_LOST as error:
            self._remove(worker)
            return stages.lost(item, error)
        worker.stages += 1
        spent = result.status == "failed" and result.reason.startswith("out of memory")
        if spent or (worker.stages >= MAX_STAGES and not self._starting):  # of these one at a time
            self._remove(worker)
        else:
            self._idle.append(worker)
        return stages.trained(item, result)

    def _discard(self, stage: Stage) -> None:
        """Delete weights that no unfinished stage of any driver starts from."""
        if not self._keep_weights and not ask(self._ledger, "others_alive"):
            self._setup.storage.delete(weights_of(stage.key))

    def close(self) -> None:
        self._store.release(self._owner)
