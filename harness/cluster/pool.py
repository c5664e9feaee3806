"""The bench's actor pool: long-lived workers, one a slot, train stages as their parents end. Every stage ends as a record in
the ledger, and a failed one does not stop the others. Nodes may come and go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError

from harness.cluster.gauges import StagesGauge
from harness.cluster.heartbeat import on_driver_node
from harness.cluster.ledger import ask, start_ledger
from harness.cluster.stages import LeasedStages
from harness.cluster.worker import WORKER_LOST, TokenCache, Tokenised, answer, submit
from harness.cluster.worker_group import start_worker
from harness.cluster.worker_set import WorkerHandle, WorkerSet
from harness.encoders.tokens import Vocabulary
from harness.execution import Execution, WorkerSetup
from harness.specs import Stage
from harness.storage import weights_of
from harness.store import Owner, Store
from harness.tables.lifecycle import Event, Lifecycle
from harness.tables.work import Item

POLL_SECONDS = 1.0
"""The time between two questions after a stage that another driver trains."""
LOOK_SECONDS = 2.0
"""The time between two questions how far the running stages are."""


@dataclass(frozen=True)
class _Running:
    """A stage on a worker. `doubtful`: the worker could not be reached, and was asked whether it is there."""

    item: Item
    worker: WorkerHandle
    doubtful: bool = False


class Pool:
    """Runs items to their end: `pool = Pool(...); for event in pool.run(items): ...; pool.close()`. `run` may be called again: the
    workers stay.

    `keep_weights`: also those that no unfinished stage starts from. `start_worker` starts a worker: as `harness.cluster.worker_group.start_worker`.
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
        keep_weights: bool = False,
    ) -> None:
        self._owner = Owner.current()
        self._store = store
        self._vocabulary = vocabulary
        self._token_cache = TokenCache(tokenised)
        self._execution = execution
        self._setup = setup
        self._start_worker = start_worker
        self._ledger = start_ledger(store, setup.storage, self._owner)
        self._gauge = StagesGauge(table)
        self._table = table
        self._keep_weights = keep_weights
        self._workers = WorkerSet(self._new_worker, execution)

    def run(self, items: Iterable[Item]) -> Iterator[Event]:
        """Train all items, parents first; yields an event for each start and each end."""
        every = list(items)
        life = Lifecycle(every)
        stages = LeasedStages(life, self._ledger, self._setup.storage, None, self._discard)
        workers = self._workers
        running: dict[Any, _Running] = {}  # by the reference to its worker's answer
        asked_at, looked_at = 0.0, time.monotonic()
        while life.unfinished:
            if life.count("held") and time.monotonic() - asked_at > POLL_SECONDS:
                life.ask_again()
                asked_at = time.monotonic()
            for sentence in workers.scale_to(life.unfinished):
                yield Event("notice", every[0], sentence)
            while workers.idle and (item := life.next_item()):
                yield from stages.lease(item)
                if life.state(item.stage.key) == "running":
                    worker = workers.idle.pop()
                    running[self._submitted(worker, item)] = _Running(item, worker)
            self._gauge.show(life)
            references = [*running, *workers.references]
            if not references:
                time.sleep(0.2)
                continue
            if time.monotonic() - looked_at > LOOK_SECONDS:
                looked_at = time.monotonic()
                reports = ask(self._ledger, "reports")
                for each in list(running.values()):
                    if found := reports.get(each.item.stage.key):
                        yield Event("running", each.item, running=found)
            for reference in ray.wait(references, timeout=POLL_SECONDS)[0]:
                if not workers.take_ready(reference):
                    yield from self._answered(reference, stages, workers, running)
        self._gauge.show(life)

    def _answered(
        self, reference: Any, stages: LeasedStages, workers: WorkerSet, running: dict[Any, _Running]
    ) -> list[Event]:
        """A worker's answer: a result, or that its process ended."""
        stage = running.pop(reference)
        item, worker = stage.item, stage.worker
        try:
            result = answer(reference)
            if stage.doubtful:
                raise RayActorError(error_msg="its process could not be reached")
        except ActorUnavailableError:  # Ray knows within a minute whether its node is gone
            running[worker.actor.ready.remote()] = replace(stage, doubtful=True)
            return []
        except WORKER_LOST as error:
            workers.remove(worker)
            return stages.lost(item, error, worker.name)
        workers.returned(worker, spent=result.status == "failed" and result.reason.startswith("out of memory"))
        return stages.trained(item, result)

    def _submitted(self, worker: WorkerHandle, item: Item) -> Any:
        """A reference to the worker's answer; the dashboard shows the task by table and run."""
        return submit(worker.actor, item, self._vocabulary, self._token_cache, name=f"{self._table}: {item.name}")

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
