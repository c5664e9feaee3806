"""The bench's actor pool: long-lived workers, one a slot, train stages as their parents end. Every stage ends as a record in
the ledger, and a failed one does not stop the others. Nodes may come and go."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError

from harness.cluster.ledger import LOOK_SECONDS, StopRequests, ask, start_ledger
from harness.cluster.stages import Stages
from harness.cluster.worker import (
    TokenCache,
    Tokenised,
    answer,
    died_with_node,
    on_driver_node,
    resources_text,
    result_of,
    slots_in,
    slots_of,
    start_worker,
    submit,
)
from harness.encoders.tokens import Vocabulary
from harness.errors import UserError
from harness.execution import Execution, WorkerSetup
from harness.planning.work import Event, Item
from harness.store import Owner, Store

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
    `time.monotonic()`; then, or when this node leaves the cluster, running stages stop with a checkpoint and `run` ends. `start_worker` starts a worker: as
    `harness.cluster.worker.start_worker`.
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
        self._ledger = start_ledger(store, self._owner)
        self._stop_requests = StopRequests(self._ledger, deadline)
        self._starting: dict[Any, WorkerHandle] = {}
        """By the reference to what its `ready` returns."""
        self._idle: list[WorkerHandle] = []
        self._running: dict[Any, tuple[Item, WorkerHandle]] = {}
        """By the reference to its worker's answer."""
        self._excluded_nodes: set[str] = set()
        self._num_started = self._num_failed = 0
        self._slots = slots_of(execution)
        self._had_worker_at = time.monotonic()

    @property
    def over(self) -> str:
        """Why stages were left; '' where none were."""
        return self._stop_requests.over

    def run(self, items: Iterable[Item]) -> Iterator[Event]:
        """Train all items, parents first; yields an event for each start and each end."""
        every = list(items)
        stages = Stages(every, partial(ask, self._ledger), self._setup.storage, self._keep_weights)
        looked_at = -math.inf
        while stages.open:
            if time.monotonic() - looked_at > LOOK_SECONDS:
                looked_at = time.monotonic()
                stages.ask_again()
                for sentence in self._look():
                    yield Event("notice", every[0], sentence)
                reports = ask(self._ledger, "reports") if self._running else {}
                running = [item for item, _ in self._running.values() if item.stage.key in reports]
                yield from (Event("running", item, running=reports[item.stage.key]) for item in running)
            if self.over and not self._running:
                break
            if not self.over:
                self._scale_to(stages)
            while self._idle and not self.over and (item := stages.next()):
                worker, vocabulary = self._idle.pop(), self._vocabularies[item.stage.encoder.digest]
                name = f"{self._table}: {item.name}"
                reference = submit(worker.actor, item, vocabulary, self._token_cache, name)
                self._running[reference] = item, worker
                yield from stages.events()
            if self._starting and not self._idle and stages.ready:
                self._token_cache.references(stages.ready[0][-1].stage)  # made while workers start
            references = [*self._running, *self._starting]
            if not references:
                time.sleep(0.2)
            for reference in ray.wait(references, timeout=1.0)[0] if references else ():
                if reference in self._running:
                    self._answered(*self._running.pop(reference), reference, stages)
                elif sentence := self._started(self._starting.pop(reference), reference):
                    yield Event("notice", every[0], sentence)
            yield from stages.events()

    def _look(self) -> list[str]:
        """Ask the cluster for nodes that come and go. Returns notices for the user, one sentence each."""
        sentences = self._stop_requests.look()
        self._slots = slots_in(self._usable_nodes(), self._execution)
        for worker in [worker for worker in self._idle if worker.node in self._stop_requests.leaving]:
            self._remove(worker)
        if self._idle or self._running:
            self._had_worker_at = time.monotonic()
        elif not self.over and time.monotonic() - self._had_worker_at >= STALL_SECONDS:
            self._had_worker_at = math.inf  # this is said once
            each, free = resources_text(self._execution.resources), resources_text(ray.available_resources())
            sentences.append(f"waiting for a worker of {each}: the cluster has {free} free; recorded stages are kept.")
        return sentences

    # ------------------------------------------------------------------------------------------------------- workers

    def _scale_to(self, stages: Stages) -> None:
        """Start workers for the stages that are left, and end those of a cluster that no stage needs."""
        count = len(self._starting) + len(self._idle) + len(self._running)
        if self._execution.address == "local":
            wanted = min(self._slots, len(stages.open))
        else:
            most = self._execution.slots or max(self._slots, MOST_ASKED if self._execution.num_workers == 1 else 1)
            wanted = min(most, len(stages.ready) + len(self._running))
            for worker in [*self._starting.values(), *self._idle][: max(0, count - wanted)]:
                self._remove(worker)
        for _ in range(count, wanted):
            self._start()

    def _usable_nodes(self) -> list[dict[str, Any]]:
        unusable = self._excluded_nodes | self._stop_requests.leaving
        return [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in unusable]

    def _start(self) -> None:
        self._num_started += 1
        name = f"harness-worker-{self._num_started}"
        options: dict[str, Any] = {"name": f"{name}-{self._table}-{self._owner.token[:6]}"}
        if self._excluded_nodes:
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(self._excluded_nodes)})"}
        if self._execution.num_workers > 1:  # what starts a worker group must not die with another node
            options["scheduling_strategy"] = on_driver_node()
        worker = WorkerHandle(self._start_worker(self._execution, self._setup, self._ledger, name, **options))
        self._starting[worker.actor.ready.remote()] = worker

    def _started(self, worker: WorkerHandle, reference: Any) -> str:
        """A worker becomes idle, or is removed if it failed; then another is started. Returns why its node is not used any more, '' otherwise. Raises
        UserError if no worker can start."""
        try:
            worker.node, problem = answer(reference)
        except RayError as error:
            self._remove(worker)
            self._num_failed += not died_with_node(error) and not isinstance(error, ActorUnavailableError)
            if self._num_failed < MAX_STARTS:
                return ""
            why = f"{self._num_failed} processes in a row ended before their first stage"
            last = str(error).strip().splitlines()[-1][:300]
            raise UserError(f"No worker can start: {why} ({last}).") from None
        if not problem:
            self._num_failed = 0
            self._idle.append(worker)
            return ""
        self._remove(worker)
        known = worker.node in self._excluded_nodes
        self._excluded_nodes.add(worker.node)
        if not self._usable_nodes():
            raise UserError(problem)
        return "" if known else f"node {worker.node[:10]} is not used: {problem}"

    def _remove(self, worker: WorkerHandle) -> None:
        """End a worker's process, if it still runs; `_scale_to` starts another."""
        self._idle = [other for other in self._idle if other is not worker]
        self._starting = {reference: other for reference, other in self._starting.items() if other is not worker}
        ray.kill(worker.actor)

    def _answered(self, item: Item, worker: WorkerHandle, reference: Any, stages: Stages) -> None:
        """A worker trained its stage, or ended, or will train no other."""
        found = result_of(reference)
        worker.stages += 1
        spent = found.status in ("stopped", "left", "died") or found.reason.startswith("out of memory")
        if spent or (worker.stages >= MAX_STAGES and not self._starting):  # of these one at a time
            self._remove(worker)
        else:
            self._idle.append(worker)
        stages.ended(item, found)

    def close(self) -> None:
        self._store.release(self._owner)
