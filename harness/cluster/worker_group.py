"""Several workers that train one stage together: a Ray Train worker group that starts once (seconds) and trains many stages,
and the actor that takes a `Worker`'s place: it gives the group stage after stage and returns how each ended."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import ray
from ray.train.backend import Backend, BackendConfig

from harness import private
from harness.bench.work import Item
from harness.cluster.heartbeat import ProcessId, start_heartbeat
from harness.cluster.worker import (
    Worker,
    WorkerGroupEndedError,
    WorkerResult,
    committed,
    died_with_node,
    fetched,
    prepared,
    trained,
)
from harness.encoders.tokens import Vocabulary
from harness.errors import UserError, first_line
from harness.specs import Execution, Status, WorkerSetup
from harness.store import Owner

if TYPE_CHECKING:
    from harness.training.result import TrainingResult

_TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
START_SECONDS = float(os.environ.get(_TIMEOUT, 300))
"""A worker group that has not started by now waits for resources that are not there."""
COLLECTIVE_SECONDS = 600
"""A worker waits this long for what another one has to send; the dead are noticed at once, by Ray Train."""
ALONE_SECONDS = 30
"""What fails on every worker fails on all within a step; who failed this long before the others failed alone."""

_ENVIRONMENT = {
    _TIMEOUT: str(START_SECONDS),
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # of 2: how soon a dead worker is noticed
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "120",  # of 600; one that is stopped is killed for its silence before
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # an actor of its own, for what Ray Train would save of a dying worker
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths are the command's
}


@dataclass
class _CurrentStage:
    """A stage in the group's hands. `through`: workers that are done with it."""

    result: asyncio.Future[WorkerResult | UserError]
    through: set[int] = field(default_factory=set)
    together: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class _GroupRun:
    """One start of the group. `ended`: why it is no more, once its processes are gone and what they held is free, or '' where
    they said it themselves; `lost`: what they said, the first one first; `unfit`: why one could not train anything."""

    queues: list[asyncio.Queue[Any]]
    ended: asyncio.Future[str]
    here: set[int] = field(default_factory=set)
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    job: _CurrentStage | None = None
    lost: list[str] = field(default_factory=list)
    unfit: str = ""

    @property
    def why(self) -> str:
        """Why it ended."""
        return self.ended.result() or next(iter(self.lost), "a worker gave up")


@ray.remote(num_cpus=0)
class WorkerGroup:
    """A `Worker` whose stages `execution.num_workers` train together. The group starts with the first stage, and again after
    it ended; when it ends under a stage, `run` raises WorkerGroupEndedError. The workers beat in the ledger as `name/rank`."""

    def __init__(self, setup: WorkerSetup, ledger: Any, name: str, execution: Execution) -> None:
        self._setup, self._ledger, self._name, self._execution = setup, ledger, name, execution
        self._group_run: _GroupRun | None = None
        start_heartbeat(ledger, name)

    def __repr__(self) -> str:
        return self._name

    async def ready(self) -> tuple[ProcessId, str]:
        """Where it is; whether its workers can train shows when they start."""
        return ProcessId.current(), ""

    async def run(
        self, item: Item, owner: Owner | None, vocabulary: Vocabulary, digests: list[str], references: list[Any]
    ) -> WorkerResult:
        """Have a stage trained by all workers, and its record committed."""
        team = self._group_run = await self._started()
        job = team.job = _CurrentStage(asyncio.get_running_loop().create_future())
        for queue in team.queues:
            queue.put_nowait((item, owner, vocabulary, digests, references))
        await _either(job.result, team.ended)
        if not job.result.done():
            raise WorkerGroupEndedError(team.why)
        result = job.result.result()
        if isinstance(result, UserError):
            raise result
        if result.status == "failed":  # the next stage must not meet what this one may have left in the process group
            await self.close()
        return result

    async def close(self) -> None:
        """Send the workers home."""
        if self._group_run is not None:
            for queue in self._group_run.queues:
                queue.put_nowait(None)
            await self._group_run.ended
            self._group_run = None

    # ------------------------------------------------------------------------------------------- what the workers call

    async def take(self, rank: int) -> Any:
        """The next stage, as soon as there is one; None when there will be none."""
        team = self._now
        team.here.add(rank)
        if len(team.here) == len(team.queues):
            team.complete.set()
        return await team.queues[rank].get()

    async def through(self, rank: int, status: Status, reason: str) -> None:
        """Returns when all workers are through with the stage; TimeoutError for one that failed alone."""
        team, job = self._now, self._now.job
        assert job is not None
        job.through.add(rank)
        if len(job.through) == len(team.queues):
            job.together.set()
        try:
            await asyncio.wait_for(job.together.wait(), None if status == "done" else ALONE_SECONDS)
        except TimeoutError:
            team.lost.append(f"worker {rank} alone {status}: {reason}")
            raise

    async def give_up(self, rank: int, reason: str) -> None:
        """This worker ends, and with it the group: the others may be waiting for what it will not send."""
        self._now.lost.append(f"worker {rank}: {reason}")

    async def refuse(self, reason: str) -> None:
        """A worker lacks what every stage needs."""
        self._now.unfit = reason
        self._now.complete.set()

    async def finish(self, result: WorkerResult | UserError) -> None:
        assert self._now.job is not None
        self._now.job.result.set_result(result)

    @property
    def _now(self) -> _GroupRun:
        assert self._group_run is not None
        return self._group_run

    # ----------------------------------------------------------------------------------------------------- its start

    async def _started(self) -> _GroupRun:
        if self._group_run is not None and not self._group_run.ended.done():
            return self._group_run
        loop, size = asyncio.get_running_loop(), self._execution.num_workers
        team = self._group_run = _GroupRun([asyncio.Queue() for _ in range(size)], loop.create_future())
        worker_group = ray.get_runtime_context().current_actor

        def fit() -> None:
            ended = self._fit(worker_group)
            loop.call_soon_threadsafe(team.ended.set_result, ended)

        threading.Thread(target=fit, daemon=True).start()
        complete = asyncio.ensure_future(team.complete.wait())
        await _either(complete, team.ended, START_SECONDS)
        complete.cancel()
        if team.ended.done():
            raise WorkerGroupEndedError(f"it did not start: {team.why}")
        if team.unfit:
            await self.close()
            raise UserError(team.unfit)
        if not team.complete.is_set():
            each = " and ".join(f"{count:g} {name}s" for name, count in self._resources().items())
            there, free = ray.cluster_resources(), ray.available_resources()
            raise UserError(
                f"The Ray Train worker group of {size} workers ({each} each) did not start in {START_SECONDS:.0f} s; the "
                f"cluster has {there.get('CPU', 0):g} CPUs ({free.get('CPU', 0):g} free) and {there.get('GPU', 0):g} GPUs "
                f"({free.get('GPU', 0):g} free); lower --num-workers or --slots."
            )
        return team

    def _resources(self) -> dict[str, float]:
        """Of one worker."""
        gpus = {"GPU": self._execution.gpus_per_run} if self._execution.gpus_per_run else {}
        return {"CPU": self._execution.cpus_per_run, **gpus}

    def _fit(self, worker_group: Any) -> str:
        """Run the group to its end; why it ended, or '' where a worker said it."""
        from ray.train import ControllerError, FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
        from ray.train.torch import TorchTrainer

        logging.getLogger("ray.train").setLevel(logging.ERROR)
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        config = {"worker_group": worker_group, "ledger": self._ledger, "setup": self._setup, "name": self._name}
        scaling = ScalingConfig(
            num_workers=self._execution.num_workers,
            use_gpu=self._execution.gpus_per_run > 0,
            resources_per_worker=self._resources(),
        )
        together = Together("cpu:gloo,cuda:nccl" if self._execution.gpus_per_run >= 1 else "gloo")
        try:
            with tempfile.TemporaryDirectory(prefix="harness-", ignore_cleanup_errors=True) as folder:
                run = RunConfig(
                    name=f"{self._name}-group",
                    storage_path=folder,  # of Ray Train's own files: nothing is kept there
                    failure_config=FailureConfig(0, controller_failure_limit=0, max_preemption_failures=0),
                )
                TorchTrainer(
                    stage_loop, train_loop_config=config, scaling_config=scaling, torch_config=together, run_config=run
                ).fit()
        except WorkerGroupError as error:
            return _died(error.worker_failures)
        except ControllerError as error:
            return _gone(error) or f"{type(error.controller_failure).__name__}: {first_line(error.controller_failure)}"
        except Exception as error:
            return f"{type(error).__name__}: {first_line(error)}"
        return "it was sent home"


def _died(failures: Mapping[int, Exception]) -> str:
    """Which process is gone, if one is: the others fail with it, since they miss it."""
    for rank, why in failures.items():
        if private.worker_process_died(why):
            return f"worker {rank}: {_gone(why) or 'its process died'}"
    return ""


def _gone(error: Exception) -> str:
    """Whether a node left, in Ray's words; '' where none did."""
    return private.NODE_DIED if died_with_node(error) else ""


async def _either(first: asyncio.Future[Any], second: asyncio.Future[Any], seconds: float | None = None) -> None:
    """Returns when one of the two is done, or after `seconds`."""
    await asyncio.wait({first, second}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


def start_worker(execution: Execution, setup: WorkerSetup, ledger: Any, name: str, /, **options: Any) -> Any:
    """What trains one stage after another: a `Worker`, or a `WorkerGroup` where several train a stage together. `options` of the
    actor."""
    kind: Any = WorkerGroup if execution.num_workers > 1 else Worker
    if execution.num_workers > 1:  # takes nothing itself: its group has a placement group of its own
        # When this actor is killed, one of Ray Train frees that, if it knows which Ray of this machine is meant (2.60).
        address = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
        return kind.options(runtime_env={"env_vars": address}, **options).remote(setup, ledger, name, execution)
    return kind.options(num_cpus=execution.cpus_per_run, num_gpus=execution.gpus_per_run, **options).remote(
        setup, ledger, name
    )


# ------------------------------------------------------------------------------------------------- in the group's workers


def stage_loop(config: dict[str, Any]) -> None:
    """The training function of the group: all workers take the same stages in the same order, until there are no more."""
    from harness.training.process_group import ProcessGroup

    worker_group, ledger, process_group = config["worker_group"], config["ledger"], ProcessGroup.current()
    start_heartbeat(ledger, f"{config['name']}/{process_group.rank}")
    try:
        setup = _on_device(prepared(config["setup"]))
    except UserError as error:
        ray.get(worker_group.refuse.remote(str(error)))
        return
    while (taken := ray.get(worker_group.take.remote(process_group.rank))) is not None:
        item, owner, vocabulary, digests, references = taken
        try:
            record = trained(
                item, setup, vocabulary, digests, fetched(references), launch=_as_it_is, process_group=process_group
            )
        except Exception as error:
            ray.get(worker_group.give_up.remote(process_group.rank, f"{type(error).__name__}: {first_line(error)}"))
            raise
        ray.get(worker_group.through.remote(process_group.rank, record.status, record.reason))
        if process_group.rank == 0:
            result: WorkerResult | UserError
            try:
                result = committed(item, record, ledger, owner, setup.storage)
            except UserError as error:
                result = error
            ray.get(worker_group.finish.remote(result))


def _on_device(setup: WorkerSetup) -> WorkerSetup:
    """Ray Train shows a worker the GPUs of all workers of its node: this one's own is the current device from here on."""
    if setup.device != "cuda":
        return setup
    import torch
    from ray.train.torch import get_device

    torch.cuda.set_device(get_device())
    return replace(setup, device=str(get_device()))


def _as_it_is(train_function: Callable[[], TrainingResult]) -> TrainingResult:
    """A worker of the group runs under Ray Train already."""
    return train_function()


@dataclass
class Together(BackendConfig):
    """The workers' process group. As `ray.train.torch.TorchConfig`, whose store listens on all of a machine's addresses;
    here it is on the one that Ray is on. NCCL refuses two workers that share a GPU, gloo does not."""

    backend: str

    @property
    def backend_cls(self) -> type[Backend]:
        return _Joining


class _Joining(Backend):
    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: Together) -> None:
        size = len(worker_group)
        address, port = worker_group.execute_single(0, _listen)
        ray.get(
            [
                worker_group.execute_single_async(rank, _join, backend_config.backend, address, port, rank, size)
                for rank in range(size)
            ]
        )


_LISTENERS: list[socket.socket] = []


def _listen() -> tuple[str, int]:
    """Open the store's socket on this node's address."""
    address = ray.util.get_node_ip_address()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    _LISTENERS.append(socket.create_server((address, 0), family=family))
    return address, _LISTENERS[0].getsockname()[1]


def _join(backend: str, address: str, port: int, rank: int, size: int) -> None:
    import torch
    from torch.distributed import TCPStore, init_process_group  # type: ignore[attr-defined]

    backend = backend if torch.cuda.is_available() else "gloo"
    if address.startswith("127.") or address == "::1":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    timeout = timedelta(seconds=START_SECONDS)
    if rank == 0:
        store = TCPStore(address, port, size, True, timeout=timeout, master_listen_fd=_LISTENERS[0].detach())
    else:
        store = TCPStore(address, port, size, False, timeout=timeout)
    init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=COLLECTIVE_SECONDS))
