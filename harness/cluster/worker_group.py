"""Worker groups: several ranks of Ray Train that train one stage together. Each stage starts a group of its own."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Any

import ray

from harness import private
from harness.cluster.stop import stop_when_asked
from harness.cluster.worker import (
    Worker,
    WorkerGroupEndedError,
    WorkerProcess,
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
from harness.specs import Record

_TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
START_SECONDS = float(os.environ.get(_TIMEOUT, 300))
"""A worker group that has not started after this time lacks resources: on a cluster its stage is retried, on one machine the command ends."""

_ENVIRONMENT = {
    _TIMEOUT: str(START_SECONDS),
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # default 2: how soon a dead rank is noticed
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "120",  # default 600
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # the pool hears of nodes that leave, and the ranks ask the ledger
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths refer to the command's folder
}


class WorkerGroupProcess(WorkerProcess):
    """A worker whose stages `execution.num_workers` ranks train together. It takes no resources and prepares nothing: the ranks do."""

    def __init__(self, setup: WorkerSetup, ledger: Any, name: str, execution: Execution) -> None:
        super().__init__(setup, ledger, name)
        self._execution = execution

    def _prepare(self) -> None:
        pass

    def record(self, item: Item, vocabulary: Vocabulary, digests: list[str], references: list[Any]) -> Record:
        from fsspec.implementations.memory import MemoryFileSystem
        from pyarrow.fs import FSSpecHandler, PyFileSystem
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        from harness.cluster.process_group_backend import ProcessGroupConfig

        logging.getLogger("ray.train").setLevel(logging.ERROR)
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        on_gpus = self._execution.gpus_per_run > 0
        backend = "cpu:gloo,cuda:nccl" if self._execution.gpus_per_run >= 1 else "gloo"
        trainer = TorchTrainer(
            train_rank,
            train_loop_config={"given": (item, self._setup, vocabulary, digests, references, self._ledger)},
            scaling_config=ScalingConfig(
                num_workers=self._execution.num_workers,
                use_gpu=on_gpus,
                resources_per_worker=self._execution.resources,
            ),
            torch_config=ProcessGroupConfig(backend, start_seconds=START_SECONDS),
            run_config=RunConfig(
                name=f"{self._name}-group",
                storage_path=self._name,
                storage_filesystem=PyFileSystem(FSSpecHandler(MemoryFileSystem())),  # a killed process leaves no file
                failure_config=FailureConfig(0, controller_failure_limit=0, max_preemption_failures=0),
            ),
        )
        try:
            outcome: Record | StoppedError = trainer.fit().return_value
        except Exception as error:
            raise self._ended(error) from None
        if isinstance(outcome, StoppedError):
            raise outcome
        return outcome

    def _ended(self, error: Exception) -> Exception:
        """What a group that ended with this error means for its stage."""
        from ray.train import PreemptionError

        failures: dict[int, Exception] = getattr(error, "worker_failures", {})
        for each in failures.values():
            if isinstance(each, UserError):
                return each
        cause = getattr(error, "controller_failure", error)
        if type(cause).__name__ == "WorkerGroupStartupTimeoutError":
            there, free = ray.cluster_resources(), ray.available_resources()
            kind = UserError if self._execution.address == "local" else StoppedError  # a cluster may grow
            return kind(
                f"The Ray Train worker group of {self._execution.num_workers} workers ({resources_text(self._execution.resources)} "
                f"each) did not start in {START_SECONDS:.0f} s; the cluster has {resources_text(there)}, of which "
                f"{resources_text(free)} are free; lower --num-workers or --slots."
            )
        if isinstance(error, PreemptionError) or any(map(died_with_node, (error, *failures.values()))):
            return WorkerGroupEndedError(private.NODE_DIED)
        ranks = "; ".join(f"rank {rank}: {type(each).__name__}: {first_line(each)}" for rank, each in failures.items())
        return WorkerGroupEndedError(ranks or f"{type(cause).__name__}: {first_line(cause)}")


def train_rank(config: dict[str, Any]) -> Record | StoppedError:
    """In each rank. A rank that stopped returns its error: one that is raised would end the others, the first of which may still write its
    checkpoint."""
    from harness.training.process_group import ProcessGroup

    item, setup, vocabulary, digests, references, ledger = config["given"]
    stop_when_asked(ledger)
    try:
        return trained(
            item,
            _on_device(prepared(setup)),
            vocabulary,
            digests,
            fetched(references),
            ledger=ledger,
            launch=lambda train_function: train_function(),  # a rank runs under Ray Train already
            process_group=ProcessGroup.current(),
        )
    except StoppedError as error:
        return error


def _on_device(setup: WorkerSetup) -> WorkerSetup:
    """Ray Train shows a rank the GPUs of all ranks of its node: make this rank's own the current device."""
    if setup.device != "cuda":
        return setup
    import torch
    from ray.train.torch import get_device

    torch.cuda.set_device(get_device())
    return replace(setup, device=str(get_device()))


WorkerGroup: Any = ray.remote(num_cpus=0)(WorkerGroupProcess)


def start_worker(execution: Execution, setup: WorkerSetup, ledger: Any, name: str, /, **options: Any) -> Any:
    """Start a `Worker`, or a `WorkerGroup` where several ranks train a stage together. `options`: of the actor."""
    if execution.num_workers > 1:
        # Ray Train's cleaner of placement groups would ask the Ray that this machine started last
        options["runtime_env"] = {"env_vars": {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}}
        return WorkerGroup.options(**options).remote(setup, ledger, name, execution)
    return Worker.options(num_cpus=execution.cpus_per_run, num_gpus=execution.gpus_per_run, **options).remote(
        setup, ledger, name
    )
