"""A Ray Train worker group that walks the stages of a trial: it starts once (seconds) and serves every trial of its actor.

The workers take stages from a desk, one each, so that `num_workers` replicates of a point run side by side; a stage's
numbers do not depend on who trains it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError

from harness.bench.work import Item
from harness.cluster.worker import Shelf, answer, prepared, train_item
from harness.errors import UserError
from harness.specs import Status
from harness.store import Owner

if TYPE_CHECKING:
    from harness.cluster.trial import Means

START_SECONDS = 120.0
"""A worker group takes 11 to 17 s to start; one that has not by now waits for resources that are not there."""
POLL_SECONDS = 0.1


@ray.remote(num_cpus=0, max_concurrency=2)
class Desk:
    """Stages that wait for a worker, and results that wait for the trial."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[str, Any]] = deque()
        self._results: dict[str, tuple[Status, str, bool]] = {}
        self._workers = 0
        self._open = True

    def enter(self) -> None:
        self._workers += 1

    def workers(self) -> int:
        return self._workers

    def put(self, job: str, what: Any) -> None:
        self._jobs.append((job, what))

    def take(self) -> tuple[str, Any] | bool | None:
        """The next job; None when there is none yet, False when there will be none."""
        if not self._open:
            return False
        return self._jobs.popleft() if self._jobs else None

    def finish(self, job: str, result: tuple[Status, str, bool]) -> None:
        self._results[job] = result

    def result(self, job: str) -> tuple[Status, str, bool] | None:
        return self._results.pop(job, None)

    def close(self) -> None:
        self._open = False


def walk(config: dict[str, Any]) -> None:
    """The training function of the group: every worker takes stages until the desk closes."""
    means, desk = config["means"], config["desk"]
    workplace = prepared(means.workplace)
    ray.get(desk.enter.remote())
    while True:
        taken = ray.get(desk.take.remote())
        if taken is False:
            return
        if taken is None:
            time.sleep(POLL_SECONDS)
            continue
        job, (item, owner, digests, references) = taken
        sets = ray.get(references)
        result = train_item(item, owner, means.ledger, workplace, means.vocabulary, digests, sets)
        ray.get(desk.finish.remote(job, result))


class Group:
    """Started with the first stage that it trains."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._shelf = Shelf(references=means.made)
        self._lock = threading.Lock()
        self._jobs = 0
        self._desk: Any = None
        self._ended: str | None = None

    def _start(self) -> None:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        logging.getLogger("ray.train").setLevel(logging.ERROR)
        os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", str(START_SECONDS))
        means, execution = self._means, self._means.execution
        desk: Any = Desk
        self._desk, self._ended = desk.remote(), None
        resources = {"CPU": execution.cpus_per_run}
        if execution.gpus_per_run:
            resources["GPU"] = execution.gpus_per_run
        trainer = TorchTrainer(
            walk,
            train_loop_config={"means": means, "desk": self._desk},
            scaling_config=ScalingConfig(
                num_workers=means.num_workers, use_gpu=execution.gpus_per_run > 0, resources_per_worker=resources
            ),
            run_config=RunConfig(
                name=f"harness-{means.label}-{os.getpid()}",
                storage_path=str(means.products.parent / "tune"),
                failure_config=FailureConfig(max_failures=0),
            ),
        )

        def fit() -> None:
            try:
                trainer.fit()
                self._ended = "it was closed"
            except Exception as error:
                self._ended = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"

        threading.Thread(target=fit, daemon=True).start()
        until = time.monotonic() + START_SECONDS
        while answer(self._desk.workers.remote()) < means.num_workers:
            if self._ended is not None:
                raise UserError(f"The Ray Train worker group did not start: {self._ended}.")
            if time.monotonic() > until:
                there, free = ray.cluster_resources(), ray.available_resources()
                raise UserError(
                    f"The Ray Train worker group of {means.num_workers} workers ({resources} each) did not start in "
                    f"{START_SECONDS:.0f} s; the cluster has {there.get('CPU', 0):g} CPUs ({free.get('CPU', 0):g} free) and "
                    f"{there.get('GPU', 0):g} GPUs; lower --num-workers or --slots."
                )
            time.sleep(POLL_SECONDS)

    def train(self, item: Item, owner: Owner) -> tuple[Status, str, bool]:
        """Train a stage on whichever worker is free; RayActorError when the group died under it."""
        with self._lock:
            if self._desk is None or self._ended is not None:
                self._start()
            self._jobs += 1
            job, desk = f"{self._jobs}", self._desk
        digests, references = self._shelf.references(item.stage)
        answer(desk.put.remote(job, (item, owner, digests, references)))
        while True:
            result: tuple[Status, str, bool] | None = answer(desk.result.remote(job))
            if result is not None:
                return result
            if self._ended is not None:
                raise RayActorError(error_msg=f"the Ray Train worker group ended: {self._ended}")
            time.sleep(POLL_SECONDS)

    def close(self) -> None:
        if self._desk is not None:
            ray.get(self._desk.close.remote())
            self._desk = None
