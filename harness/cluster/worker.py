"""A worker trains one stage after another in its own process, or with others, and reads tokens from the object store."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    ObjectStoreFullError,
    OutOfDiskError,
    OutOfMemoryError,
    RayActorError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import harness
from harness import private
from harness.encoders.sources import encoder_digest, files_of
from harness.encoders.tokens import Examples, Vocabulary
from harness.errors import KEPT, StoppedError, UserError, first_line
from harness.machine import KEEP_FREED, end_with_parent, set_malloc
from harness.paths import replace_file, user_cache
from harness.planning.request import Request
from harness.planning.work import Ended, Item
from harness.specs import Data, Record, RowSet, Stage
from harness.storage import StorageError, WorkerSetup, checkpoint_of

if TYPE_CHECKING:
    from harness.training.result import Speed

ASK_SECONDS = 5.0
"""The time between two questions of a process whether it is to stop."""
FETCH_SECONDS = 300.0
COLLECTIVE = timedelta(seconds=600)
"""How long a rank waits for the others to join, and for what another has to send."""
MORE_ROOM = (
    "free some space below /tmp/ray, or give the store more memory (RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION=0.5 in the "
    f"environment, --object-store-memory of 'ray start'); {KEPT}."
)
MARK = "harness-storage"
"""A file that identifies the storage; it is never deleted."""
STOP = threading.Event()
"""Set in a process that is to stop its stage with a checkpoint: its node leaves, or the command's time is over."""
NODE_LEFT = Ended("left", "its worker's node left, or cannot be reached")

Tokenised = Callable[[RowSet, Data, str], tuple[Examples, Any]]
"""(row set, how the stage reads it, the digest of its encoder) -> its examples and labels, as arrays. Called once for each row set, way of
reading and encoder."""


def answer(reference: Any) -> Any:
    """`ray.get`, with a user's error as it was raised first, without the traceback of another process."""
    try:
        return ray.get(reference)
    except UserError as error:
        raise UserError(str(getattr(error, "cause", error))) from None


def result_of(reference: Any) -> Ended:
    """What became of the stage that a worker was given."""
    try:
        found: Ended = answer(reference)
        return found
    except (RayActorError, OutOfMemoryError) as error:
        if node_left(error):
            return NODE_LEFT
        return Ended("died", f"its worker process died ({type(error).__name__})")


def node_left(error: Exception) -> bool:
    """Whether a process ended because its node did, or that cannot be reached now."""
    return isinstance(error, ActorUnavailableError) or private.NODE_DIED in str(error)


def on_driver_node() -> NodeAffinitySchedulingStrategy:
    """For what a driver depends on, which must not die with another node than its own."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


# --------------------------------------------------------------------------------------------------------------- slots


def resources_of(request: Request) -> dict[str, float]:
    """What Ray reserves for one worker, by Ray's names."""
    return {"CPU": request.cpus_per_run, **({"GPU": request.gpus_per_run} if request.gpus_per_run else {})}


def slots_of(request: Request) -> int:
    """How many runs, of `num_workers` workers each, Ray's resources hold at the same time; at most `request.slots`, and of a cluster, which may
    grow, as many as that. Raises UserError if none fits on this machine."""
    there, each = ray.cluster_resources(), resources_of(request)
    slots = int(min(there.get(name, 0.0) / taken for name, taken in each.items()) / request.num_workers + 1e-4)
    if request.address != "local":
        return request.slots or max(1, slots)
    if slots < 1:
        who = "each worker of a run takes" if request.num_workers > 1 else "a run takes"
        raise UserError(
            f"Insufficient resources: {who} {resources_text(each)}, and this machine has {resources_text(there)}; "
            "lower --cpus-per-run, --gpus-per-run or --num-workers."
        )
    return min(slots, request.slots or slots)


def resources_text(resources: Mapping[str, float]) -> str:
    return f"{resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs"


# -------------------------------------------------------------------------------------------------------- object store


class TokenCache:
    """Tokens of row sets in the object store, each made once, when a stage first needs them. A process without texts gets what another has `made`."""

    def __init__(self, tokenised: Tokenised | None = None, made: Mapping[tuple[Any, ...], Any] | None = None) -> None:
        self._tokenised, self.made = tokenised, dict(made or {})

    def references(self, stage: Stage) -> list[Any]:
        """To a stage's tokens, as of `Stage.row_sets`."""
        encoder, data, references = stage.encoder.digest, stage.data, []
        for rows in stage.row_sets:
            key = encoder, rows.digest, data.max_length, data.views, data.blocks, data.spans, data.prompt
            if key not in self.made:
                assert self._tokenised is not None, f"{rows.name} is not in the token cache"
                self.made[key] = _stored(f"The tokens of {rows.name}", self._tokenised(rows, data, encoder))
            references.append(self.made[key])
            data = replace(stage.data, views=1)  # evaluation sets
        return references


def _stored(what: str, content: Any) -> Any:
    """Ray spills to disk what does not fit into its object store; this fails only if both are full."""
    try:
        return ray.put(content)
    except (ObjectStoreFullError, OutOfDiskError) as error:
        raise UserError(f"{what} do not fit into Ray's object store ({type(error).__name__}); {MORE_ROOM}") from None


def fetched(references: list[Any]) -> list[Any]:
    """Objects of the object store, copied to this node. Ray would wait for ever where its object store and its disk are full."""
    try:
        objects: list[Any] = ray.get(references, timeout=FETCH_SECONDS)
        return objects
    except GetTimeoutError:
        node = f"node {ray.util.get_node_ip_address()} in {FETCH_SECONDS:g} s"
        raise UserError(f"Tokens or an encoder did not reach {node}: {MORE_ROOM}") from None


# --------------------------------------------------------------------------------------------------------------- nodes


def for_nodes(setup: WorkerSetup, address: str) -> WorkerSetup:
    """With what every node of a cluster must find: the driver's storage, code and encoders, whose files lie in the object store for nodes without
    them; one with random weights needs none."""
    storage = setup.storage
    if address == "local":  # one node, and this one
        return setup
    if not storage.exists(MARK):
        storage.write(MARK, uuid.uuid4().hex.encode())
    files = {
        digest: _stored(f"The files of {folder}", {path.name: path.read_bytes() for path in files_of(folder)})
        for digest, (folder, config) in setup.encoders.items()
        if config is None
    }
    return replace(setup, storage_mark=storage.read(MARK).decode(), code=code_digest(), files=files)


def on_this_node(setup: WorkerSetup) -> WorkerSetup:
    """The setup with folders of this node. Raises UserError that names the node and what it lacks."""
    storage, node = setup.storage, f"The node {platform.node()} ({ray.util.get_node_ip_address()})"
    storage.trust()
    if not setup.storage_mark:
        return setup
    try:
        if not storage.exists(MARK) or storage.read(MARK).decode() != setup.storage_mark:
            raise UserError(
                f"{node} sees another place than the driver under the storage {storage.shown}; name one with --storage that all "
                "nodes share: a folder on NFS, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX."
            )
        if code_digest() != setup.code:
            raise UserError(f"{node} has another harness than the driver; install the same one there.")
        storage.probe()
        encoders = {name: (_folder_here(name, *each, setup.files), each[1]) for name, each in setup.encoders.items()}
    except (StorageError, OSError) as error:
        raise UserError(f"{node} cannot use the storage, or keep an encoder in XDG_CACHE_HOME. {error}") from None
    return replace(setup, encoders=encoders)


def code_digest() -> str:
    """Of this process's harness."""
    files = sorted(Path(harness.__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _folder_here(digest: str, folder: Path, config: dict[str, Any] | None, files: Mapping[str, Any]) -> Path:
    """The encoder's folder, or where this node lacks it one of its cache."""
    cached = user_cache("encoders") / digest
    for place in (folder, cached):
        with suppress(OSError, UserError):
            if config or encoder_digest(place) == digest:
                return place
    cached.mkdir(parents=True, exist_ok=True)
    for name, content in fetched([files[digest]])[0].items():  # other workers of the node may write the same
        replace_file(cached / name, content)
    return cached


def prepared(setup: WorkerSetup) -> WorkerSetup:
    """Prepare this process, once: its memory, torch's thread, the device that Ray assigned, the encoder and the storage. Raises UserError if
    this node lacks one of them."""
    import torch

    setup = on_this_node(setup)
    set_malloc(KEEP_FREED)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")  # TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, set in some images, allows TF32
    if setup.device == "cpu" and torch.cuda.is_available() and ray.get_gpu_ids():
        return replace(setup, device="cuda")
    return setup


def stop_when_asked(ledger: Any) -> None:
    """Set STOP once the ledger asks the processes of this node to stop, and end this process with its raylet.

    From a thread: training releases the interpreter's lock while it computes.
    """
    end_with_parent()
    node = ray.get_runtime_context().get_node_id()

    def ask() -> None:
        with suppress(RayActorError):  # the ledger ends with its driver
            while not ray.get(ledger.stops.remote(node)):
                time.sleep(ASK_SECONDS)
            STOP.set()

    threading.Thread(target=ask, daemon=True).start()


# ------------------------------------------------------------------------------------------------------------ training


def train(
    item: Item, setup: WorkerSetup, vocabulary: Vocabulary, sets: list[tuple[Examples, Any]], ledger: Any
) -> Record | Ended:
    """Train a stage in this process, as a rank of the default process group or alone, and report to the ledger how far it is. Returns its record, or why it
    has none. `sets`: as of `TokenCache.references`."""
    from harness.running import run_stage
    from harness.training.loop import Inputs
    from harness.training.process_group import ProcessGroup

    group = ProcessGroup.current()

    def report(speed: Speed) -> None:
        if not group.rank:
            ledger.report.remote(item.stage.key, speed)

    (rows, labels), *evaluations = sets
    names = [each.digest for each in item.stage.row_sets][1:]
    try:
        record = run_stage(
            item.stage,
            Inputs(rows, labels, dict(zip(names, evaluations, strict=True))),
            vocabulary,
            item.metrics,
            setup,
            keep_weights=item.keep_weights,
            save_at=item.save_at,
            until=item.until,
            report_speed=report,
            stopping=STOP.is_set,
            process_group=group,
        )
    except StoppedError as error:
        # raised, it would end the other ranks, the first of which may still write a checkpoint
        return Ended("stopped", str(error))
    if record.status == "failed" and "CUDA error" in record.reason:  # which is permanent in a process
        return Ended("died", f"its worker process cannot train any further stage: {record.reason}")
    return record


def _train_rank(given: dict[str, Any]) -> Record | Ended:
    """In each rank of a worker group, to which Ray Train shows the GPUs of all ranks of its node."""
    import torch
    from ray.train.torch import get_device

    item, setup, vocabulary, references, ledger, backend = given["given"]
    stop_when_asked(ledger)
    setup = prepared(setup)
    if setup.device == "cuda":
        torch.cuda.set_device(get_device())
        setup = replace(setup, device=str(get_device()))
    _join(backend if torch.cuda.is_available() else "gloo")
    return train(item, setup, vocabulary, fetched(references), ledger)


def _join(backend: str) -> None:
    """Join the process group of the ranks. Its store is on the address that Ray uses; Ray Train's would be on all addresses of the machine."""
    import psutil
    from ray.train import get_context
    from ray.train.collective import broadcast_from_rank_zero
    from torch.distributed import TCPStore, init_process_group  # type: ignore[attr-defined]

    rank, size, here = get_context().get_world_rank(), get_context().get_world_size(), ray.util.get_node_ip_address()
    # gloo would take the address of the host's name, which Debian maps to the loopback
    for interface, addresses in psutil.net_if_addrs().items():
        if any(each.address == here for each in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    family = socket.AF_INET6 if ":" in here else socket.AF_INET
    listener = socket.create_server((here, 0), family=family) if rank == 0 else None
    address, port = broadcast_from_rank_zero(listener and listener.getsockname()[:2])
    opened: dict[str, Any] = {"master_listen_fd": listener.detach()} if listener else {}
    store = TCPStore(address, port, size, rank == 0, timeout=COLLECTIVE, **opened)
    init_process_group(backend, store=store, rank=rank, world_size=size, timeout=COLLECTIVE)


class WorkerProcess:
    """Imports torch once, then trains one stage after another. Where several ranks train a stage together, it prepares nothing, and starts a worker
    group of Ray Train's for each stage."""

    def __init__(self, setup: WorkerSetup, ledger: Any, request: Request) -> None:
        self._setup, self._ledger, self._request = setup, ledger, request
        self._prepared = request.num_workers > 1
        stop_when_asked(ledger)

    def ready(self) -> str:
        """The node of this process, once it can train. Raises UserError for what that lacks."""
        if not self._prepared:
            self._setup, self._prepared = prepared(self._setup), True
        return str(ray.get_runtime_context().get_node_id())

    def run(self, item: Item, vocabulary: Vocabulary, references: list[Any]) -> Ended:
        """Train a stage, commit its record, and delete its checkpoint. The record of a remake is not committed."""
        self.ready()
        record, key, ours = self.record(item, vocabulary, references), item.stage.key, True
        if isinstance(record, Ended):
            return record
        if item.remake:  # its record stands, whether or not its weights could be made
            answer(self._ledger.release.remote(key))
        else:
            ours = answer(self._ledger.commit.remote(item.stage, record))
        if record.status != "failed" and record.provenance.get("checkpoints"):
            self._setup.storage.delete(checkpoint_of(key))
        return Ended(record.status if ours else "elsewhere", record.reason)

    def record(self, item: Item, vocabulary: Vocabulary, references: list[Any]) -> Record | Ended:
        """Train under Ray Train: in its local mode, which costs a third of a millisecond, or by a worker group."""
        from ray.train import ScalingConfig
        from ray.train.torch import TorchTrainer

        logging.getLogger("ray.train").setLevel(logging.ERROR)
        if self._request.num_workers > 1:
            return self.record_of_group(item, vocabulary, references)

        def alone() -> Record | Ended:
            return train(item, self._setup, vocabulary, fetched(references), self._ledger)

        found: Record | Ended = TorchTrainer(alone, scaling_config=ScalingConfig(num_workers=0)).fit().return_value
        return found

    def record_of_group(self, item: Item, vocabulary: Vocabulary, references: list[Any]) -> Record | Ended:
        from fsspec.implementations.memory import MemoryFileSystem
        from pyarrow.fs import FSSpecHandler, PyFileSystem
        from ray.train import BackendConfig, FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        class NoBackend(BackendConfig):
            backend = "none"  # the ranks join by themselves

        resources = resources_of(self._request)
        # NCCL refuses two ranks that share a GPU
        backend = "cpu:gloo,cuda:nccl" if resources.get("GPU", 0) >= 1 else "gloo"
        trainer = TorchTrainer(
            _train_rank,
            train_loop_config={"given": (item, self._setup, vocabulary, references, self._ledger, backend)},
            scaling_config=ScalingConfig(
                num_workers=self._request.num_workers, use_gpu="GPU" in resources, resources_per_worker=resources
            ),
            torch_config=NoBackend(),
            run_config=RunConfig(
                storage_path="group",
                storage_filesystem=PyFileSystem(FSSpecHandler(MemoryFileSystem())),  # a killed process leaves no file
                failure_config=FailureConfig(0, controller_failure_limit=0, max_preemption_failures=0),
            ),
        )
        try:
            found: Record | Ended = trainer.fit().return_value  # the first rank's
            return found
        except Exception as error:
            return _group_ended(error)


def _group_ended(error: Exception) -> Ended:
    """What the end of a worker group means for its stage. Raises UserError where the command has to end."""
    failures: dict[int, Exception] = getattr(error, "worker_failures", {})
    for each in failures.values():
        if isinstance(each, UserError):
            raise each
    if any(map(node_left, (error, *failures.values()))):
        return NODE_LEFT
    cause = getattr(error, "controller_failure", error)
    if type(cause).__name__ == "WorkerGroupStartupTimeoutError":  # a cluster may grow
        free = resources_text(ray.available_resources())
        return Ended("left", f"its worker group did not start in time: the cluster has {free} free")
    ranks = "; ".join(f"rank {rank}: {type(each).__name__}: {first_line(each)}" for rank, each in failures.items())
    return Ended("died", f"its worker group ended ({ranks or f'{type(cause).__name__}: {first_line(cause)}'})")


Worker: Any = ray.remote(WorkerProcess)


def start_worker(request: Request, setup: WorkerSetup, ledger: Any, **options: Any) -> Any:
    """`options`: of the actor."""
    if request.num_workers > 1:
        # Ray Train's cleaner of placement groups would ask the Ray that this machine started last; NCCL's ranks see each other's GPUs
        address = ray.get_runtime_context().gcs_address
        options["runtime_env"] = {"env_vars": {"RAY_ADDRESS": address, "TRAIN_ENABLE_SHARE_CUDA_VISIBLE_DEVICES": "1"}}
        options["num_cpus"] = 0
    else:
        options |= {"num_cpus": request.cpus_per_run, "num_gpus": request.gpus_per_run}
    return Worker.options(**options).remote(setup, ledger, request)


def submit(worker: Any, item: Item, vocabulary: Vocabulary, token_cache: TokenCache, name: str = "") -> Any:
    """A reference to what `Worker.run` returns; the dashboard shows the task under `name` (default: the item's)."""
    return worker.run.options(name=name or item.name).remote(item, vocabulary, token_cache.references(item.stage))
