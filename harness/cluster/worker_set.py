"""The workers of a pool: as many as fit on the nodes that are there now, started without waiting for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError

from harness.cluster.heartbeat import ProcessId
from harness.cluster.worker import WORKER_LOST, answer, died_with_node, slots_in, slots_of
from harness.errors import UserError
from harness.specs import Execution

RECOUNT_SECONDS = 3.0
STALL_SECONDS = 20.0
"""With no worker for this long, what is waited for is said."""
MAX_STARTS = 3
"""So many starts in a row may fail, nodes that leave not counted."""
MAX_STAGES = 500
"""A worker is replaced after so many stages: fragmented memory and what libraries leak go with its process."""

StartWorker = Callable[[str, dict[str, Any]], Any]
"""(name, options of the actor) -> a worker that starts, with the interface of `WorkerProcess`."""


@dataclass(eq=False)
class WorkerHandle:
    """One worker. `place`: where it is, once it runs."""

    name: str
    actor: Any
    place: ProcessId | None = None
    stages: int = 0


@dataclass
class WorkerSet:
    """`scale_to` it every round, wait for its `references` with those of the stages, and let it `take_ready` the ones that are there."""

    start_worker: StartWorker
    execution: Execution
    idle: list[WorkerHandle] = field(default_factory=list)
    """Give stages to these, the last first."""

    def __post_init__(self) -> None:
        self._starting: dict[Any, WorkerHandle] = {}
        self._workers: set[WorkerHandle] = set()
        self._barred: dict[str, str] = {}
        self._made = self._failed = 0
        self._news: list[str] = []
        self._slots, self._counted_at = slots_of(self.execution), time.monotonic()
        self._had_one_at = time.monotonic()
        self._said = False

    @property
    def references(self) -> list[Any]:
        return list(self._starting)

    def scale_to(self, wanted: int) -> list[str]:
        """Have `wanted` workers, or as many as fit. Returns what is to be said of the cluster, one sentence each. Raises
        UserError when workers cannot be started at all."""
        now = time.monotonic()
        if now - self._counted_at >= RECOUNT_SECONDS:
            self._counted_at = now
            self._recount()
        for _ in range(len(self._workers), min(self._slots, wanted)):
            self._start()
        if len(self._workers) > len(self._starting):
            self._had_one_at, self._said = now, False
        elif not self._said and now - self._had_one_at >= (STALL_SECONDS if self._slots else 0):
            self._said = True
            self._news.append(self._waits_for())
        news, self._news = self._news, []
        return news

    def _recount(self) -> None:
        nodes = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in self._barred]
        self._slots, there = slots_in(nodes, self.execution), {node["NodeID"] for node in nodes}
        for worker in [worker for worker in self.idle if worker.place and worker.place.node not in there]:
            self.remove(worker)
        surplus = max(0, len(self._workers) - self._slots)
        for worker in list(self._starting.values())[::-1][:surplus]:  # they would wait for what went
            self.remove(worker)

    def _waits_for(self) -> str:
        each = f"{self.execution.cpus_per_run:g} CPUs and {self.execution.gpus_per_run:g} GPUs"
        if not self._slots:
            return f"waiting for nodes: none that is there now has {each}; recorded stages are kept."
        free = ray.available_resources()
        return f"waiting for a worker of {each}: the cluster has {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs free."

    def _start(self) -> None:
        self._made += 1
        name = f"harness-worker-{self._made}"
        options = {"label_selector": {"ray.io/node-id": f"!in({','.join(self._barred)})"}} if self._barred else {}
        worker = WorkerHandle(name, self.start_worker(name, options))
        self._workers.add(worker)
        self._starting[worker.actor.ready.remote()] = worker

    def take_ready(self, reference: Any) -> bool:
        """Whether the reference was ours."""
        worker = self._starting.pop(reference, None)
        if worker is None:
            return False
        try:
            worker.place, wrong = answer(reference)
        except (RayError, *WORKER_LOST) as error:
            self.remove(worker)
            if not died_with_node(error) and not isinstance(error, ActorUnavailableError):
                self._failed += 1
                if self._failed >= MAX_STARTS:
                    why = str(error).strip().splitlines()[-1][:300]
                    raise UserError(
                        f"No worker can be started: {self._failed} processes in a row ended before their first stage ({why})."
                    ) from None
            return True
        if wrong:
            assert worker.place is not None
            self.remove(worker)
            if worker.place.node not in self._barred:
                self._barred[worker.place.node] = wrong
                self._news.append(f"node {worker.place.node[:10]} is not used: {wrong}")
            self._counted_at = -RECOUNT_SECONDS
            if not any(n["Alive"] and n["NodeID"] not in self._barred for n in ray.nodes()):
                raise UserError(wrong)
        else:
            self._failed = 0
            self.idle.append(worker)
        return True

    def returned(self, worker: WorkerHandle, *, spent: bool) -> None:
        """A worker is free again, or replaced when it is `spent` or has done enough, one worker after another."""
        worker.stages += 1
        if spent or (worker.stages >= MAX_STAGES and not self._starting):
            self.remove(worker)
        else:
            self.idle.append(worker)

    def remove(self, worker: WorkerHandle) -> None:
        """Its process ends, if it has not; `scale_to` starts another."""
        self._workers.discard(worker)
        if worker in self.idle:
            self.idle.remove(worker)
        self._starting = {reference: each for reference, each in self._starting.items() if each is not worker}
        ray.kill(worker.actor)
