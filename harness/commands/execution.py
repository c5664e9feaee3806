"""Where a request's work runs and where its weights are kept."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from harness.encoders import Located
from harness.errors import UserError
from harness.execution import Execution, WorkerSetup
from harness.planning.request import Request
from harness.planning.resolved import ResolvedTable
from harness.storage import Storage
from harness.store import Store


def deadline_of(request: Request) -> float:
    """When a command that begins now ends in order, by `time.monotonic()`."""
    return math.inf if request.hours is None else time.monotonic() + 3600 * request.hours


def execution_of(request: Request, resolved: ResolvedTable) -> Execution:
    """`gpus_per_run` below 0: 1 where the cluster has GPUs."""
    gpus = -1.0 if request.gpus_per_run is None else request.gpus_per_run
    return Execution(request.address, request.slots or 0, gpus, request.cpus_per_run, num_workers=resolved.num_workers)


def storage_of(request: Request, store: Store) -> Storage:
    """The request's storage; without one, a folder beside the store."""
    return Storage.named(request.storage) if request.storage else Storage(str(store.artifacts.resolve()))


def worker_setup_of(
    request: Request, encoders: Sequence[Located], storage: Storage, execution: Execution
) -> WorkerSetup:
    """For workers of a session, on every node."""
    from harness.cluster.worker import for_nodes

    setup = WorkerSetup(
        {each.encoder.digest: (each.folder.resolve(), each.new_config) for each in encoders if each.folder},
        storage,
        micro_batch=request.micro_batch or 0,
        dev_points=request.dev_points,
        checkpoint_seconds=60 * request.checkpoint_minutes,
    )
    return for_nodes(setup, execution)


def check_machine(request: Request) -> None:
    """Raises UserError, before Ray starts, for GPUs that this machine lacks. The session checks another cluster."""
    if request.address == "local" and request.gpus_per_run:
        import torch

        if torch.cuda.device_count() < request.gpus_per_run:
            raise UserError(
                f"{request.origin('gpus_per_run')} {request.gpus_per_run:g}: torch {torch.__version__} sees "
                f"{torch.cuda.device_count()} GPUs on this machine; leave it out to train with what there is."
            )
