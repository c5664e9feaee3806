"""Worker groups: several ranks that train one stage together under Ray Train. A group starts once (seconds) and trains many
stages. Its actor has the interface of a `Worker`: it gives the ranks one stage after another and returns how each ended."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import ray

from harness import private
from harness.cluster.stop import stop_when_asked
from harness.cluster.worker import (
    Worker,
    WorkerGroupEndedError,
    WorkerResult,
    committed,
    died_with_node,
    fetched,
    prepared,
    resources_text,
    trained,
)
from harness.encoders.tokens import Vocabulary
from harness.errors import StoppedError, UserError, first_line
from harness.execution import Execution, WorkerSetup
from harness.planning.work import Item
from harness.specs import Status
from harness.store import Owner

_TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
START_SECONDS = float(os.environ.get(_TIMEOUT, 300))
"""A worker group that has not started after this time waits for resources that the cluster lacks."""
ALONE_SECONDS = 30
"""A stage that fails on every rank fails on all within a step; a rank that failed this long before the others failed alone."""

_ENVIRONMENT = {
    _TIMEOUT: str(START_SECONDS),
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # default 2: how soon a dead rank is noticed
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "120",  # default 600
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # the pool hears of nodes that leave, and the ranks ask the ledger
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths refer to the command's folder
}


@dataclass
class _GroupRun:
    """One start of the group.

    `ended`: Ray Train's reason for its end, set when its processes have ended and their resources are free; '' where the ranks
    reported the reason. `stage_end`: where the ranks wait for each other. `result`: of the stage that the group trains. `reports`: what
    the ranks reported, first report first. `unfit`: why a rank cannot train any stage.
    """

    queues: list[asyncio.Queue[Any]]
    ended: asyncio.Future[str]
    stage_end: asyncio.Barrier
    ready_ranks: set[int] = field(default_factory=set)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    result: asyncio.Future[WorkerResult | UserError | StoppedError] | None = None
    reports: list[str] = field(default_factory=list)
    unfit: str = ""

    @property
    def end_reason(self) -> str:
        return self.ended.result() or next(iter(self.reports), "a rank gave up")


@ray.remote(num_cpus=0)
class WorkerGroup:
    """A `Worker` whose stages `execution.num_workers` ranks train together. The group starts with the first stage, and again
    after it ended. If it ends during a stage, `run` raises WorkerGroupEndedError."""

    def __init__(self, setup: WorkerSetup, ledger: Any, name: str, execution: Execution) -> None:
        self._setup, self._ledger, self._name, self._execution = setup, ledger, name, execution
        self._group_run: _GroupRun | None = None
        stop_when_asked(ledger)

    def __repr__(self) -> str:
        return self._name

    async def ready(self) -> tuple[str, str]:
        """The node of this actor. Whether the ranks can train is known when they start."""
        return ray.get_runtime_context().get_node_id(), ""

    async def run(
        self, item: Item, owner: Owner | None, vocabulary: Vocabulary, digests: list[str], references: list[Any]
    ) -> WorkerResult:
        """Have all ranks train a stage, and commit its record."""
        group = self._group_run = await self._started()
        ended: asyncio.Future[WorkerResult | UserError | StoppedError] = asyncio.get_running_loop().create_future()
        group.result = ended
        for queue in group.queues:
            queue.put_nowait((item, owner, vocabulary, digests, references))
        await _either(ended, group.ended)
        if not ended.done():
            raise WorkerGroupEndedError(group.end_reason)
        result = ended.result()
        if isinstance(result, StoppedError):  # the nodes of the others are free for another group
            await self.close()
        if isinstance(result, UserError | StoppedError):
            raise result
        if result.status == "failed":  # the next stage needs a clean process group
            await self.close()
        return result

    async def close(self) -> None:
        """End the ranks."""
        if self._group_run is not None:
            for queue in self._group_run.queues:
                queue.put_nowait(None)
            await self._group_run.ended
            self._group_run = None

    # ------------------------------------------------------------------------------------------------ called by the ranks

    async def take(self, rank: int) -> Any:
        """The next stage, as soon as there is one; None when the group ends."""
        group = self._now
        group.ready_ranks.add(rank)
        if len(group.ready_ranks) == len(group.queues):
            group.started.set()
        return await group.queues[rank].get()

    async def wait_for_all(self, rank: int, status: Status, reason: str) -> None:
        """Returns when all ranks have ended the stage. Raises TimeoutError for a rank that failed alone."""
        group = self._now
        try:
            await asyncio.wait_for(group.stage_end.wait(), None if status == "done" else ALONE_SECONDS)
        except TimeoutError:
            group.reports.append(f"rank {rank} alone {status}: {reason}")
            raise

    async def give_up(self, rank: int, reason: str) -> None:
        """This rank ends, and the group with it: the others may wait for what it will not send."""
        self._now.reports.append(f"rank {rank}: {reason}")

    async def refuse(self, reason: str) -> None:
        """A rank lacks what every stage needs."""
        self._now.unfit = reason
        self._now.started.set()

    async def finish(self, result: WorkerResult | UserError | StoppedError) -> None:
        assert self._now.result is not None
        self._now.result.set_result(result)

    @property
    def _now(self) -> _GroupRun:
        assert self._group_run is not None
        return self._group_run

    # ---------------------------------------------------------------------------------------------------------- start

    async def _started(self) -> _GroupRun:
        if self._group_run is not None and not self._group_run.ended.done():
            return self._group_run
        loop, size = asyncio.get_running_loop(), self._execution.num_workers
        group = self._group_run = _GroupRun(
            [asyncio.Queue() for _ in range(size)], loop.create_future(), asyncio.Barrier(size)
        )
        actor = ray.get_runtime_context().current_actor

        def train() -> None:
            ended = self._train(actor)
            loop.call_soon_threadsafe(group.ended.set_result, ended)

        threading.Thread(target=train, daemon=True).start()
        started = asyncio.ensure_future(group.started.wait())
        await _either(started, group.ended, START_SECONDS)
        started.cancel()
        if group.ended.done():
            raise WorkerGroupEndedError(f"it did not start: {group.end_reason}")
        if group.unfit:
            await self.close()
            raise UserError(group.unfit)
        if not group.started.is_set():
            there, free = ray.cluster_resources(), ray.available_resources()
            raise UserError(
                f"The Ray Train worker group of {size} workers ({resources_text(self._execution.resources)} each) did not start in "
                f"{START_SECONDS:.0f} s; the cluster has {resources_text(there)}, of which {resources_text(free)} are free; lower "
                "--num-workers or --slots."
            )
        return group

    def _train(self, actor: Any) -> str:
        """Run the group to its end. Returns why it ended; '' where a rank reported it."""
        from fsspec.implementations.memory import MemoryFileSystem
        from pyarrow.fs import FSSpecHandler, PyFileSystem
        from ray.train import ControllerError, FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
        from ray.train.torch import TorchTrainer

        from harness.cluster.process_group_backend import ProcessGroupConfig

        logging.getLogger("ray.train").setLevel(logging.ERROR)
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        config = {"worker_group": actor, "ledger": self._ledger, "setup": self._setup}
        scaling = ScalingConfig(
            num_workers=self._execution.num_workers,
            use_gpu=self._execution.gpus_per_run > 0,
            resources_per_worker=self._execution.resources,
        )
        backend = "cpu:gloo,cuda:nccl" if self._execution.gpus_per_run >= 1 else "gloo"
        try:
            run = RunConfig(
                name=f"{self._name}-group",
                storage_path=self._name,
                storage_filesystem=PyFileSystem(FSSpecHandler(MemoryFileSystem())),  # a killed process leaves no file
                failure_config=FailureConfig(0, controller_failure_limit=0, max_preemption_failures=0),
            )
            trainer = TorchTrainer(
                stage_loop,
                train_loop_config=config,
                scaling_config=scaling,
                torch_config=ProcessGroupConfig(backend, start_seconds=START_SECONDS),
                run_config=run,
            )
            private.fit(trainer)
        except WorkerGroupError as error:
            return _dead_rank(error.worker_failures)
        except ControllerError as error:
            return (
                _node_death(error)
                or f"{type(error.controller_failure).__name__}: {first_line(error.controller_failure)}"
            )
        except Exception as error:
            return f"{type(error).__name__}: {first_line(error)}"
        return "it was closed"


def _dead_rank(failures: Mapping[int, Exception]) -> str:
    """The rank whose process died, if one did: the others fail because they wait for it."""
    for rank, why in failures.items():
        if private.worker_process_died(why):
            return f"rank {rank}: {_node_death(why) or 'its process died'}"
    return ""


def _node_death(error: Exception) -> str:
    """Ray's words for the death of a node; '' for another error."""
    return private.NODE_DIED if died_with_node(error) else ""


async def _either(first: asyncio.Future[Any], second: asyncio.Future[Any], seconds: float | None = None) -> None:
    """Returns when one of the two is done, or after `seconds`."""
    await asyncio.wait({first, second}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


def start_worker(execution: Execution, setup: WorkerSetup, ledger: Any, name: str, /, **options: Any) -> Any:
    """Start a `Worker`, or a `WorkerGroup` where several ranks train a stage together. `options`: of the actor."""
    kind: Any = WorkerGroup if execution.num_workers > 1 else Worker
    if execution.num_workers > 1:  # the actor takes no resources: Ray Train makes a placement group for the ranks
        return kind.options(**options).remote(setup, ledger, name, execution)
    return kind.options(num_cpus=execution.cpus_per_run, num_gpus=execution.gpus_per_run, **options).remote(
        setup, ledger, name
    )


# ----------------------------------------------------------------------------------------------------- in each rank


def stage_loop(config: dict[str, Any]) -> None:
    """The training function of the group: all ranks train the same stages in the same order, until the group ends."""
    from harness.training.process_group import ProcessGroup

    worker_group, ledger, process_group = config["worker_group"], config["ledger"], ProcessGroup.current()
    stop_when_asked(ledger)
    try:
        setup = _on_device(prepared(config["setup"]))
    except UserError as error:
        ray.get(worker_group.refuse.remote(str(error)))
        return
    while (taken := ray.get(worker_group.take.remote(process_group.rank))) is not None:
        item, owner, vocabulary, digests, references = taken
        try:
            record = trained(
                item,
                setup,
                vocabulary,
                digests,
                fetched(references),
                ledger=ledger,
                launch=lambda train_function: train_function(),  # a rank runs under Ray Train already
                process_group=process_group,
            )
        except StoppedError as error:  # on all ranks
            if process_group.rank == 0:
                ray.get(worker_group.finish.remote(error))
            continue
        except Exception as error:
            ray.get(worker_group.give_up.remote(process_group.rank, f"{type(error).__name__}: {first_line(error)}"))
            raise
        ray.get(worker_group.wait_for_all.remote(process_group.rank, record.status, record.reason))
        if process_group.rank == 0:
            result: WorkerResult | UserError
            try:
                result = committed(item, record, ledger, owner, setup.storage)
            except UserError as error:
                result = error
            ray.get(worker_group.finish.remote(result))


def _on_device(setup: WorkerSetup) -> WorkerSetup:
    """Ray Train shows a rank the GPUs of all ranks of its node: make this rank's own the current device."""
    if setup.device != "cuda":
        return setup
    import torch
    from ray.train.torch import get_device

    torch.cuda.set_device(get_device())
    return replace(setup, device=str(get_device()))
