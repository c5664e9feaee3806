"""The bench's actor pool: long-lived workers, one a slot, train stages as their parents end. Every stage ends as a record in
the ledger, and a failed one does not stop the others. Nodes may come and go."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
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
"""Workers that a cluster is asked for without `--slots`: those that do not fit wait, and Ray's autoscaler adds nodes for them."""
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


class WorkerSet:
    """The workers of a pool: as many as fit on this machine, or, of a cluster, as `--slots` or the stages ask for. Starting one does not block.

    `start_worker`: (name, options of the actor) -> the handle of a worker that is starting, with the interface of `WorkerProcess`.
    Call `scale_to` in every round, wait for the `references` of workers that start together with those of running stages, and give each
    one that is ready to `take_ready`. `idle`: workers without a stage; take the last one first.
    """

    def __init__(self, start_worker: Callable[[str, dict[str, Any]], Any], execution: Execution) -> None:
        self._start_worker, self._execution = start_worker, execution
        self.idle: list[WorkerHandle] = []
        self._starting: dict[Any, WorkerHandle] = {}
        self._workers: set[WorkerHandle] = set()
        self._excluded_nodes: dict[str, str] = {}
        self._num_started = self._num_failed = 0
        self._notices: list[str] = []
        self._slots, self._counted_at = slots_of(execution), time.monotonic()
        self._had_worker_at = time.monotonic()
        self._notified = False

    @property
    def references(self) -> list[Any]:
        return list(self._starting)

    def scale_to(self, life: Lifecycle) -> list[str]:
        """Start workers for the stages that are left, and end those of a cluster that no stage needs. Returns notices for the user, one sentence
        each. Raises UserError if no worker can start."""
        now = time.monotonic()
        if now - self._counted_at >= RECOUNT_SECONDS:
            self._counted_at = now
            self._recount()
        if self._execution.address == "local":
            wanted = min(self._slots, life.unfinished)
        else:
            most = self._execution.slots or max(self._slots, MOST_ASKED // self._execution.num_workers)
            wanted = min(most, life.count("ready") + life.count("running"))
            for worker in [*self._starting.values(), *self.idle][: max(0, len(self._workers) - wanted)]:
                self.remove(worker)
        for _ in range(len(self._workers), wanted):
            self._start()
        if len(self._workers) > len(self._starting):
            self._had_worker_at, self._notified = now, False
        elif not self._notified and now - self._had_worker_at >= (STALL_SECONDS if self._slots else 0):
            self._notified = True
            self._notices.append(self._waits_for())
        notices, self._notices = self._notices, []
        return notices

    def _usable_nodes(self) -> list[dict[str, Any]]:
        unusable = {*self._excluded_nodes, *private.draining_nodes()}
        return [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in unusable]

    def _recount(self) -> None:
        nodes = self._usable_nodes()
        self._slots, there = slots_in(nodes, self._execution), {node["NodeID"] for node in nodes}
        for worker in [worker for worker in self.idle if worker.node and worker.node not in there]:
            self.remove(worker)
        surplus = max(0, len(self._workers) - self._slots) if self._execution.address == "local" else 0
        for worker in list(self._starting.values())[::-1][:surplus]:  # they wait for resources that left the cluster
            self.remove(worker)

    def _waits_for(self) -> str:
        each = resources_text(self._execution.resources)
        if not self._slots:
            return f"waiting for nodes: no node of the cluster has {each}; recorded stages are kept."
        return f"waiting for a worker of {each}: the cluster has {resources_text(ray.available_resources())} free."

    def _start(self) -> None:
        self._num_started += 1
        name = f"harness-worker-{self._num_started}"
        options: dict[str, Any] = {}
        if self._excluded_nodes:
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(self._excluded_nodes)})"}
        worker = WorkerHandle(self._start_worker(name, options))
        self._workers.add(worker)
        self._starting[worker.actor.ready.remote()] = worker

    def take_ready(self, reference: Any) -> bool:
        """Whether the reference is that of a worker that starts; if so, the worker becomes idle, or is removed if it failed."""
        worker = self._starting.pop(reference, None)
        if worker is None:
            return False
        try:
            worker.node, problem = answer(reference)
        except (RayError, *WORKER_LOST) as error:
            self.remove(worker)
            if not died_with_node(error) and not isinstance(error, ActorUnavailableError):
                self._num_failed += 1
                if self._num_failed >= MAX_STARTS:
                    why = str(error).strip().splitlines()[-1][:300]
                    raise UserError(
                        f"No worker can start: {self._num_failed} processes in a row ended before their first stage ({why})."
                    ) from None
            return True
        if not problem:
            self._num_failed = 0
            self.idle.append(worker)
            return True
        self.remove(worker)
        if worker.node not in self._excluded_nodes:
            self._excluded_nodes[worker.node] = problem
            self._notices.append(f"node {worker.node[:10]} is not used: {problem}")
        self._counted_at = -RECOUNT_SECONDS
        if not self._usable_nodes():
            raise UserError(problem)
        return True

    def returned(self, worker: WorkerHandle, *, spent: bool) -> None:
        """A worker has trained a stage. It becomes idle, or is removed if it is `spent` (out of memory) or has trained MAX_STAGES; of
        these one at a time."""
        worker.stages += 1
        if spent or (worker.stages >= MAX_STAGES and not self._starting):
            self.remove(worker)
        else:
            self.idle.append(worker)

    def remove(self, worker: WorkerHandle) -> None:
        """End a worker's process, if it still runs; `scale_to` starts another."""
        self._workers.discard(worker)
        if worker in self.idle:
            self.idle.remove(worker)
        self._starting = {reference: other for reference, other in self._starting.items() if other is not worker}
        ray.kill(worker.actor)


@dataclass(frozen=True)
class _Running:
    """A stage on a worker. `doubtful`: the worker could not be reached, and was asked whether it is there."""

    item: Item
    worker: WorkerHandle
    doubtful: bool = False


class Pool:
    """Runs items to their end: `pool = Pool(...); for event in pool.run(items): ...; pool.close()`. `run` may be called again: the
    workers stay.

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
        self._owner = Owner.current()
        self._store = store
        self._vocabularies = vocabularies
        self._token_cache = TokenCache(tokenised)
        self._execution = execution
        self._setup = setup
        self._start_worker = start_worker
        self._ledger = start_ledger(store, setup.storage, self._owner)
        self._stop_requests = StopRequests(self._ledger, deadline)
        self._table = table
        self._keep_weights = keep_weights
        self._workers = WorkerSet(self._new_worker, execution)
        self._running: dict[Any, _Running] = {}
        """By the reference to its worker's answer."""

    @property
    def over(self) -> str:
        """Why stages were left; '' where none were."""
        return self._stop_requests.over

    def run(self, items: Iterable[Item]) -> Iterator[Event]:
        """Train all items, parents first; yields an event for each start and each end."""
        every = list(items)
        life = Lifecycle(every)
        stages = LeasedStages(life, self._ledger, self._setup.storage, None, self._discard)
        workers = self._workers
        running = self._running = {}
        asked_at, looked_at = 0.0, time.monotonic()
        while life.unfinished:
            if life.count("held") and time.monotonic() - asked_at > POLL_SECONDS:
                life.ask_again()
                asked_at = time.monotonic()
            for sentence in self._stop_requests.look() or ([] if self.over else workers.scale_to(life)):
                yield Event("notice", every[0], sentence)
            if self.over and not running:
                break
            while workers.idle and not self.over and (item := life.next_item()):
                yield from stages.lease(item)
                if life.state(item.stage.key) == "running":
                    worker, name = workers.idle.pop(), f"{self._table}: {item.name}"
                    vocabulary = self._vocabularies[item.stage.encoder.digest]
                    reference = submit(worker.actor, item, vocabulary, self._token_cache, name=name)
                    running[reference] = _Running(item, worker)
            if workers.references and not workers.idle and (upcoming := life.next_stage):
                self._token_cache.references(upcoming)  # made while workers start
            references = [*running, *workers.references]
            if not references:
                time.sleep(0.2)
                continue
            if time.monotonic() - looked_at > LOOK_SECONDS:
                looked_at = time.monotonic()
                reports = ask(self._ledger, "reports")
                for stage in list(running.values()):
                    if report := reports.get(stage.item.stage.key):
                        yield Event("running", stage.item, running=report)
            for reference in ray.wait(references, timeout=POLL_SECONDS)[0]:
                if not workers.take_ready(reference):
                    yield from self._answered(reference, stages)

    def _answered(self, reference: Any, stages: LeasedStages) -> list[Event]:
        """A worker's answer: a result, or that its process ended."""
        stage = self._running.pop(reference)
        item, worker = stage.item, stage.worker
        try:
            result = answer(reference)
            if stage.doubtful:
                raise RayActorError(error_msg="its process could not be reached")
        except ActorUnavailableError:  # Ray knows within a minute whether its node is gone
            self._running[worker.actor.ready.remote()] = replace(stage, doubtful=True)
            return []
        except WORKER_LOST as error:
            self._workers.remove(worker)
            return stages.lost(item, error)
        self._workers.returned(worker, spent=result.status == "failed" and result.reason.startswith("out of memory"))
        return stages.trained(item, result)

    def _new_worker(self, name: str, options: dict[str, Any]) -> Any:
        options["name"] = f"{name}-{self._table}-{self._owner.token[:6]}"
        if self._execution.num_workers > 1:  # the group's own actor must not die with another node
            options["scheduling_strategy"] = on_driver_node()
        return self._start_worker(self._execution, self._setup, self._ledger, name, **options)

    def _discard(self, stage: Stage) -> None:
        """Delete weights that no unfinished stage of any driver starts from."""
        if not self._keep_weights and not ask(self._ledger, "others_alive"):
            self._setup.storage.delete(weights_of(stage.key))

    def close(self) -> None:
        self._store.release(self._owner)
