"""A Ray Train worker group that walks the stages of a trial: it starts once (seconds) and serves every trial of its actor.

The workers take stages from a desk, one each, so that `num_workers` replicates of a point run side by side; a stage's
numbers do not depend on who trains it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError

from harness.bench.work import Item
from harness.cluster.worker import Shelf, answer, prepared, train_item
from harness.errors import UserError, first_line
from harness.specs import Status
from harness.store import Owner

if TYPE_CHECKING:
    from harness.cluster.trial import Means
    from harness.training.loop import Outcome

_TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
START_SECONDS = float(os.environ.get(_TIMEOUT, 120))
"""A worker group takes 11 to 17 s to start; one that has not by now waits for resources that are not there."""
POLL_SECONDS = 0.5

Result = tuple[Status, str, bool]
"""Status, reason, and whether the record is ours."""


@ray.remote(num_cpus=0)
class Desk:
    """Where stages wait for a worker, and a trial for what becomes of them."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[tuple[int, Any] | None] = asyncio.Queue()
        self._results: dict[int, asyncio.Future[Result]] = {}
        self._jobs = self._workers = 0

    def __repr__(self) -> str:
        return "harness-desk"

    async def enter(self) -> None:
        self._workers += 1

    async def workers(self) -> int:
        return self._workers

    async def train(self, what: Any) -> Result:
        """Returns when a worker is done with it: until then the dashboard shows a running task of the item's name."""
        self._jobs += 1
        job, result = self._jobs, asyncio.get_running_loop().create_future()
        self._results[job] = result
        await self._waiting.put((job, what))
        done: Result = await result
        return done

    async def take(self) -> tuple[int, Any] | None:
        """The next job, as soon as there is one; None when there will be none."""
        return await self._waiting.get()

    async def finish(self, job: int, result: Result) -> None:
        self._results.pop(job).set_result(result)

    async def close(self) -> None:
        for _ in range(self._workers):
            await self._waiting.put(None)


def walk(config: dict[str, Any]) -> None:
    """The training function of the group: every worker takes stages until the desk closes."""
    means, desk = config["means"], config["desk"]
    workplace = prepared(means.workplace)
    ray.get(desk.enter.remote())
    while (taken := ray.get(desk.take.remote())) is not None:
        job, (item, owner, digests, references) = taken
        sets = ray.get(references)
        result = train_item(item, owner, means.ledger, workplace, means.vocabulary, digests, sets, launch=_as_it_is)
        ray.get(desk.finish.remote(job, result))


def _as_it_is(train_function: Callable[[], Outcome]) -> Outcome:
    """A worker of the group runs under Ray Train already."""
    return train_function()


@dataclass
class _Team:
    """One start of the group. `ended`: why it is no more."""

    desk: Any
    ended: str | None = None


class Group:
    """Started with the first stage that it trains, and again after a worker of it died."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._shelf = Shelf(references=means.made)
        self._lock = threading.Lock()
        self._team: _Team | None = None
        self._cannot: UserError | None = None

    def _started(self) -> _Team:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        logging.getLogger("ray.train").setLevel(logging.ERROR)
        os.environ.setdefault(_TIMEOUT, str(START_SECONDS))
        means, execution = self._means, self._means.execution
        desk: Any = Desk
        team = _Team(desk.remote())
        resources = {"CPU": execution.cpus_per_run}
        if execution.gpus_per_run:
            resources["GPU"] = execution.gpus_per_run
        trainer = TorchTrainer(
            walk,
            train_loop_config={"means": means, "desk": team.desk},
            scaling_config=ScalingConfig(
                num_workers=means.num_workers, use_gpu=execution.gpus_per_run > 0, resources_per_worker=resources
            ),
            # The workers send each other nothing, and NCCL refuses two that share a GPU.
            torch_config=TorchConfig(backend="gloo"),
            run_config=RunConfig(
                name=f"workers-{os.getpid()}",
                storage_path=str(Path(means.workplace.storage.uri).parent / "tune" / means.label),
                failure_config=FailureConfig(max_failures=0),
            ),
        )

        def fit() -> None:
            try:
                trainer.fit()
                team.ended = "it was closed"
            except Exception as error:
                team.ended = f"{type(error).__name__}: {first_line(error)}"

        threading.Thread(target=fit, daemon=True).start()
        until = time.monotonic() + START_SECONDS
        while answer(team.desk.workers.remote()) < means.num_workers:
            if team.ended is not None:
                raise UserError(f"The Ray Train worker group did not start: {team.ended}.")
            if time.monotonic() > until:
                there, free = ray.cluster_resources(), ray.available_resources()
                raise UserError(
                    f"The Ray Train worker group of {means.num_workers} workers ({resources} each) did not start in "
                    f"{START_SECONDS:.0f} s; the cluster has {there.get('CPU', 0):g} CPUs ({free.get('CPU', 0):g} free) and "
                    f"{there.get('GPU', 0):g} GPUs; lower --num-workers or --slots."
                )
            time.sleep(POLL_SECONDS)
        return team

    def train(self, item: Item, owner: Owner) -> Result:
        """Train a stage on whichever worker is free; RayActorError when the group died under it."""
        with self._lock:
            if self._cannot:
                raise self._cannot
            if self._team is None or self._team.ended is not None:
                try:
                    self._team = self._started()
                except UserError as error:
                    self._cannot = error
                    raise
            team = self._team
        what = (item, owner, *self._shelf.references(item.stage))
        reference = team.desk.train.options(name=item.name).remote(what)
        while not ray.wait([reference], timeout=POLL_SECONDS)[0]:
            if team.ended is not None:
                raise RayActorError(error_msg=f"the Ray Train worker group ended: {team.ended}")
        result: Result = answer(reference)
        return result

    def close(self) -> None:
        if self._team is not None:
            ray.get(self._team.desk.close.remote())
            self._team = None
