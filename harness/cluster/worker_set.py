"""The workers of a pool: as many as fit on the nodes of the cluster at this moment. Starting one does not block."""

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
from harness.execution import Execution

RECOUNT_SECONDS = 3.0
STALL_SECONDS = 20.0
"""Without a worker for this long, the user reads what the pool waits for."""
MAX_STARTS = 3
"""The command ends after this many failed starts in a row. A start that fails with its node does not count."""
MAX_STAGES = 500
"""A worker is replaced after this many stages: its process gives back fragmented and leaked memory."""

StartWorker = Callable[[str, dict[str, Any]], Any]
"""(name, options of the actor) -> the handle of a worker that is starting, with the interface of `WorkerProcess`."""


@dataclass(eq=False)
class WorkerHandle:
    """One worker. `process`: where it runs, once it has started; `stages`: how many it has trained."""

    name: str
    actor: Any
    process: ProcessId | None = None
    stages: int = 0


@dataclass
class WorkerSet:
    """Call `scale_to` in every round, wait for the `references` of workers that start together with those of running stages, and
    give each one that is ready to `take_ready`."""

    start_worker: StartWorker
    execution: Execution
    idle: list[WorkerHandle] = field(default_factory=list)
    """Workers without a stage; take the last one first."""

    def __post_init__(self) -> None:
        self._starting: dict[Any, WorkerHandle] = {}
        self._workers: set[WorkerHandle] = set()
        self._excluded_nodes: dict[str, str] = {}
        self._num_started = self._num_failed = 0
        self._notices: list[str] = []
        self._slots, self._counted_at = slots_of(self.execution), time.monotonic()
        self._had_worker_at = time.monotonic()
        self._notified = False

    @property
    def references(self) -> list[Any]:
        return list(self._starting)

    def scale_to(self, wanted: int) -> list[str]:
        """Start workers until there are `wanted`, or as many as fit. Returns notices for the user, one sentence each. Raises
        UserError if no worker can start."""
        now = time.monotonic()
        if now - self._counted_at >= RECOUNT_SECONDS:
            self._counted_at = now
            self._recount()
        for _ in range(len(self._workers), min(self._slots, wanted)):
            self._start()
        if len(self._workers) > len(self._starting):
            self._had_worker_at, self._notified = now, False
        elif not self._notified and now - self._had_worker_at >= (STALL_SECONDS if self._slots else 0):
            self._notified = True
            self._notices.append(self._waits_for())
        notices, self._notices = self._notices, []
        return notices

    def _recount(self) -> None:
        nodes = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in self._excluded_nodes]
        self._slots, there = slots_in(nodes, self.execution), {node["NodeID"] for node in nodes}
        for worker in [worker for worker in self.idle if worker.process and worker.process.node not in there]:
            self.remove(worker)
        surplus = max(0, len(self._workers) - self._slots)
        for worker in list(self._starting.values())[::-1][:surplus]:  # they wait for resources that left the cluster
            self.remove(worker)

    def _waits_for(self) -> str:
        each = f"{self.execution.cpus_per_run:g} CPUs and {self.execution.gpus_per_run:g} GPUs"
        if not self._slots:
            return f"waiting for nodes: no node of the cluster has {each}; recorded stages are kept."
        free = ray.available_resources()
        return f"waiting for a worker of {each}: the cluster has {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs free."

    def _start(self) -> None:
        self._num_started += 1
        name = f"harness-worker-{self._num_started}"
        options = (
            {"label_selector": {"ray.io/node-id": f"!in({','.join(self._excluded_nodes)})"}}
            if self._excluded_nodes
            else {}
        )
        worker = WorkerHandle(name, self.start_worker(name, options))
        self._workers.add(worker)
        self._starting[worker.actor.ready.remote()] = worker

    def take_ready(self, reference: Any) -> bool:
        """Whether the reference is that of a worker that starts; if so, the worker becomes idle, or is removed if it failed."""
        worker = self._starting.pop(reference, None)
        if worker is None:
            return False
        try:
            worker.process, problem = answer(reference)
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
        if problem:
            assert worker.process is not None
            self.remove(worker)
            if worker.process.node not in self._excluded_nodes:
                self._excluded_nodes[worker.process.node] = problem
                self._notices.append(f"node {worker.process.node[:10]} is not used: {problem}")
            self._counted_at = -RECOUNT_SECONDS
            if not any(n["Alive"] and n["NodeID"] not in self._excluded_nodes for n in ray.nodes()):
                raise UserError(problem)
        else:
            self._num_failed = 0
            self.idle.append(worker)
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
        self._starting = {reference: each for reference, each in self._starting.items() if each is not worker}
        ray.kill(worker.actor)
