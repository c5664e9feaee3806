"""A worker trains one stage after another in its own process, and reads tokens from the object store."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import platform
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import ray
from ray.exceptions import (
    GetTimeoutError,
    ObjectStoreFullError,
    OutOfDiskError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
)

import harness
from harness import private
from harness.cluster.stop import STOP, stop_when_asked
from harness.encoders.sources import encoder_digest, files_of
from harness.encoders.tokens import Examples, Vocabulary
from harness.errors import StoppedError, UserError
from harness.execution import Execution, WorkerSetup
from harness.paths import user_cache
from harness.planning.lifecycle import Running
from harness.planning.work import Item
from harness.processes import keep_freed_memory
from harness.specs import Data, Record, RowSet, Stage, Status
from harness.storage import Storage, StorageError, checkpoint_of

if TYPE_CHECKING:
    from harness.running import Launch
    from harness.store import Owner
    from harness.training.process_group import ProcessGroup
    from harness.training.result import Speed, TrainingResult

FETCH_SECONDS = 300.0
"""A worker waits this long for tokens: Ray waits for ever if an object store and its disk are full."""
MORE_ROOM = (
    "free some space below /tmp/ray, or give the store more memory with --object-store-memory of 'ray start' "
    "(RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION=0.5 in the environment where harness starts Ray itself)"
)


class WorkerResult(NamedTuple):
    """How a stage ended that a worker trained. `ours`: its record is; another process may have committed one first."""

    status: Status
    reason: str
    ours: bool


class UnusableProcessError(Exception):
    """This process cannot train any further stage: an error of CUDA is permanent in a process."""


class WorkerGroupEndedError(Exception):
    """The ranks that trained a stage together ended; why, as one of them reported."""


WORKER_LOST = (RayActorError, OutOfMemoryError, UnusableProcessError, WorkerGroupEndedError, StoppedError)
"""The errors after which a stage is retried in another process."""
MARK = "harness-storage"
"""A file that identifies the storage; it is never deleted."""

Tokenised = Callable[[RowSet, Data, str], tuple[Examples, Any]]
"""(row set, how the stage reads it, the digest of its encoder) -> its examples and labels, as arrays. Called once for each row set, way of
reading and encoder."""


def answer(reference: Any) -> Any:
    """`ray.get`, with a user's error as it was raised first, without the traceback of another process."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        cause: Any = error
        while isinstance(cause, RayTaskError):
            cause = cause.cause
        if isinstance(cause, UserError | UnusableProcessError | WorkerGroupEndedError | StoppedError):
            raise type(cause)(str(cause)) from None
        raise


def loss_of(error: Exception, times: int) -> tuple[str, bool]:
    """Why a stage lost its worker, and whether that says nothing of the stage; `times`: of its losses that do."""
    if isinstance(error, StoppedError):
        return str(error), True
    if died_with_node(error):
        return "its worker's node left", True
    if isinstance(error, UnusableProcessError):
        return f"its worker process cannot train any further stage: {error}", False
    if isinstance(error, WorkerGroupEndedError):
        return f"its worker group ended {times} times ({error})", False
    return f"its worker process died {times} times ({type(error).__name__})", False


def died_with_node(error: Exception) -> bool:
    """Whether a process ended because its node did."""
    return private.NODE_DIED in str(error)


def slots_on(resources: Mapping[str, float], execution: Execution) -> int:
    """How many workers fit on a node with these resources. A fraction of a GPU is a fraction of one GPU."""
    cpus, gpus = execution.cpus_per_run, execution.gpus_per_run
    fit = _whole(resources.get("CPU", 0.0) / cpus)
    if gpus >= 1:
        fit = min(fit, _whole(resources.get("GPU", 0.0) / gpus))
    elif gpus > 0:
        fit = min(fit, _whole(resources.get("GPU", 0.0)) * _whole(1 / gpus))
    return fit


def _whole(share: float) -> int:
    return int(share + 1e-4)  # Ray's precision


def slots_in(nodes: Iterable[Mapping[str, Any]], execution: Execution) -> int:
    """How many runs, of `num_workers` workers each, fit on these of `ray.nodes()` at the same time; at most `execution.slots`."""
    fit = sum(slots_on(node["Resources"], execution) for node in nodes if node["Alive"]) // execution.num_workers
    return min(fit, execution.slots) if execution.slots else fit


def slots_of(execution: Execution) -> int:
    """How many runs fit on the nodes at the same time; at most `execution.slots`, and of a cluster, which may grow, as many as that. Raises
    UserError if none fits on this machine."""
    slots = slots_in(ray.nodes(), execution)
    if slots < 1 and execution.address == "local":
        each = "each worker of a run takes" if execution.num_workers > 1 else "a run takes"
        raise UserError(
            f"Insufficient resources: {each} {resources_text(execution.resources)} of one node, and this machine has "
            f"{resources_text(ray.cluster_resources())}; lower --cpus-per-run, --gpus-per-run or --num-workers."
        )
    return slots if execution.address == "local" else execution.slots or max(1, slots)


def resources_text(resources: Mapping[str, float]) -> str:
    return f"{resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs"


class TokenCache:
    """Tokens of row sets in the object store, each made once, when a stage first needs them.

    A process without texts gets the `references` of a process with texts, and makes none itself.
    """

    def __init__(
        self, tokenised: Tokenised | None = None, references: Mapping[tuple[Any, ...], Any] = MappingProxyType({})
    ) -> None:
        self._tokenised = tokenised
        self.made: dict[tuple[Any, ...], Any] = dict(references)

    def references(self, stage: Stage) -> tuple[list[str], list[Any]]:
        """Digests of a stage's evaluation sets, and references to its tokens: training rows first, then those sets."""
        wanted, encoder = _wanted(stage), stage.encoder.digest
        for rows, data in wanted:
            if _cache_key(rows, data, encoder) not in self.made:
                assert self._tokenised is not None, f"{rows.name} is not in the token cache"
                self.made[_cache_key(rows, data, encoder)] = _stored(
                    f"The tokens of {rows.name}", self._tokenised(rows, data, encoder)
                )
        return [rows.digest for rows, _ in wanted[1:]], [self.made[_cache_key(*each, encoder)] for each in wanted]


def _stored(what: str, content: Any) -> Any:
    """Ray spills to disk what does not fit into its object store; this fails only if both are full."""
    try:
        return ray.put(content)
    except (ObjectStoreFullError, OutOfDiskError) as error:
        raise UserError(
            f"{what} do not fit into Ray's object store, nor on the disk that it spills to "
            f"({type(error).__name__}); {MORE_ROOM}, and run the same command again: recorded stages are kept."
        ) from None


def fetched(references: list[Any]) -> list[Any]:
    """Objects of the object store, copied to this node."""
    try:
        objects: list[Any] = ray.get(references, timeout=FETCH_SECONDS)
    except GetTimeoutError:
        raise UserError(
            f"Tokens or an encoder did not reach node {ray.util.get_node_ip_address()} in {FETCH_SECONDS:g} s: its object store or its "
            f"disk may be full; {MORE_ROOM}, and run the same command again: recorded stages are kept."
        ) from None
    return objects


def _wanted(stage: Stage) -> list[tuple[RowSet, Data]]:
    train, *evaluations = stage.row_sets
    one_view = replace(stage.data, views=1)
    return [(train, stage.data), *((rows, one_view) for rows in evaluations)]


def _cache_key(rows: RowSet, data: Data, encoder: str) -> tuple[Any, ...]:
    return (encoder, rows.digest, data.max_length, data.views, data.blocks, data.spans, data.prompt)


def trained(
    item: Item,
    setup: WorkerSetup,
    vocabulary: Vocabulary,
    digests: list[str],
    sets: list[tuple[Examples, Any]],
    *,
    ledger: Any,
    launch: Launch | None = None,
    process_group: ProcessGroup | None = None,
) -> Record:
    """Train a stage, and report to the ledger how far it is. Raises UnusableProcessError if this process cannot train any further stage,
    and StoppedError where the ledger asked it to stop.

    `sets`: training rows, then one for each evaluation digest. `launch`: wraps the training function instead of Ray Train's local
    mode. `process_group`: of the ranks that train the stage together.
    """
    from harness.running import run_stage
    from harness.training.loop import Inputs
    from harness.training.process_group import SINGLE_PROCESS

    (train, labels), *evaluations = sets
    sets_of = dict(zip(digests, evaluations, strict=True))
    inputs = Inputs(train, labels, sets_of)
    group = process_group or SINGLE_PROCESS
    record = run_stage(
        item.stage,
        inputs,
        vocabulary,
        item.metrics,
        setup,
        keep_weights=item.keep_weights,
        save_at=item.save_at,
        until=item.until,
        launch=launch or launch_alone,
        report_speed=(lambda _: None) if group.rank else partial(_report_speed, item, ledger),
        stopping=STOP.is_set,
        process_group=group,
    )
    if record.status == "failed" and "CUDA error" in record.reason:
        raise UnusableProcessError(record.reason)
    return record


def _report_speed(item: Item, ledger: Any, speed: Speed) -> None:
    """Tell the ledger how fast a stage trains, and how far it is."""
    running = Running(speed.step, speed.steps, speed.tokens, speed.flops, speed.seconds_left)
    ledger.report.remote(item.stage.key, running)


def launch_alone(train_function: Callable[[], TrainingResult]) -> TrainingResult:
    """Run the training function in Ray Train's local mode, which costs a third of a millisecond. Returns its result; its own exceptions
    pass unchanged."""
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    logging.getLogger("ray.train").setLevel(logging.ERROR)
    caught: list[BaseException] = []

    def train_loop() -> TrainingResult | None:
        try:
            return train_function()
        except (Exception, SystemExit) as error:  # Ray Train would wrap it, and the record needs the stage's own reason
            caught.append(error)
            return None

    result = TorchTrainer(train_loop, scaling_config=ScalingConfig(num_workers=0)).fit()
    if caught:
        raise caught[0]
    outcome: TrainingResult = result.return_value
    return outcome


def committed(item: Item, record: Record, ledger: Any, owner: Owner | None, storage: Storage) -> WorkerResult:
    """Commit a stage's record in the name of `owner` (None: the driver), and delete its checkpoint. The record of a remake is not
    committed."""
    ours = True
    if item.remake:  # its record stands, whether or not its weights could be made
        answer(ledger.release.remote(item.stage.key, owner))
    else:
        ours = bool(answer(ledger.commit.remote(item.stage, record, owner)))
    if record.status != "failed" and record.provenance.get("checkpoints"):
        storage.delete(checkpoint_of(item.stage.key))
    return WorkerResult(record.status, record.reason, ours)


def for_nodes(setup: WorkerSetup, execution: Execution, digest: str) -> WorkerSetup:
    """With what every node of a cluster must find: the driver's storage and code, and the encoders, the first with this digest. Their files
    lie in the object store for nodes without them; one with random weights needs none."""
    if execution.address == "local":  # one node, and this one
        return setup
    storage = setup.storage
    if not storage.exists(MARK):
        storage.write(MARK, uuid.uuid4().hex.encode())
    mark, setup = storage.read(MARK).decode(), replace(setup, encoder_digest=digest)
    folders = {each.encoder_digest: each.encoder_folder for each in setup.by_encoder if each.encoder_config is None}
    files = {
        name: _stored(f"The files of {folder}", {path.name: path.read_bytes() for path in files_of(folder)})
        for name, folder in folders.items()
    }
    return replace(setup, storage_mark=mark, code=code_digest(), files=files)


def on_this_node(setup: WorkerSetup) -> WorkerSetup:
    """The setup with folders of this node. Raises UserError that names the node and what it lacks."""
    storage, node = setup.storage, f"The node {platform.node()} ({ray.util.get_node_ip_address()})"
    storage.trust()
    if not setup.storage_mark:
        return setup
    try:
        seen = storage.read(MARK).decode() if storage.exists(MARK) else ""
    except StorageError as error:
        raise UserError(f"{node} cannot use the storage. {error}") from None
    if seen != setup.storage_mark:
        raise UserError(
            f"{node} sees another place than the driver under the storage {storage.shown}; name one with --storage that all nodes "
            "share: a folder on NFS, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX."
        )
    if code_digest() != setup.code:
        raise UserError(f"{node} has another harness than the driver; install the same one there.")
    storage.probe()
    try:
        first, *others = [replace(each, encoder_folder=_folder_here(each)) for each in setup.by_encoder]
    except OSError as error:
        raise UserError(f"{node} cannot keep an encoder ({error}); set XDG_CACHE_HOME there.") from None
    return replace(first, further={each.encoder_digest: (each.encoder_folder, each.encoder_config) for each in others})


def code_digest() -> str:
    """Of this process's harness."""
    files = sorted(Path(harness.__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _folder_here(setup: WorkerSetup) -> Path:
    """The encoder's folder, or where this node lacks it one of its cache. One worker of the node fetches it; the others wait."""
    digest = setup.encoder_digest
    if digest not in setup.files or _has(setup.encoder_folder, digest):
        return setup.encoder_folder
    folder = user_cache("encoders") / digest
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _has(folder, digest):
            for name, content in fetched([setup.files[digest]])[0].items():
                (folder / name).write_bytes(content)
    return folder


def _has(folder: Path, digest: str) -> bool:
    try:
        return encoder_digest(folder) == digest
    except (OSError, UserError):
        return False


def prepared(setup: WorkerSetup) -> WorkerSetup:
    """Prepare this process, once: its memory, torch's threads, the device that Ray assigned, the encoder and the storage. Raises UserError if
    this node lacks one of them."""
    import torch

    setup = on_this_node(setup)
    keep_freed_memory()
    torch.set_num_threads(setup.threads)
    torch.set_float32_matmul_precision("highest")  # TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, set in some images, allows TF32
    if setup.device == "cpu" and torch.cuda.is_available() and ray.get_gpu_ids():
        return replace(setup, device="cuda")
    return setup


class WorkerProcess:
    """Imports torch once, then trains one stage after another."""

    def __init__(self, setup: WorkerSetup, ledger: Any, name: str) -> None:
        self._setup, self._ledger, self._name = setup, ledger, name
        self._prepared = False
        stop_when_asked(ledger)

    def __repr__(self) -> str:
        return self._name

    def ready(self) -> tuple[str, str]:
        """The node of this process, once it can train; and why it cannot, '' if it can."""
        node = ray.get_runtime_context().get_node_id()
        try:
            self._prepare()
        except UserError as error:
            return node, str(error)
        return node, ""

    def _prepare(self) -> None:
        if not self._prepared:
            self._setup, self._prepared = prepared(self._setup), True

    def run(
        self, item: Item, owner: Owner | None, vocabulary: Vocabulary, digests: list[str], references: list[Any]
    ) -> WorkerResult:
        self._prepare()
        record = self.record(item, vocabulary, digests, references)
        return committed(item, record, self._ledger, owner, self._setup.storage)

    def record(self, item: Item, vocabulary: Vocabulary, digests: list[str], references: list[Any]) -> Record:
        return trained(item, self._setup, vocabulary, digests, fetched(references), ledger=self._ledger)


Worker: Any = ray.remote(WorkerProcess)


def submit(
    worker: Any, item: Item, vocabulary: Vocabulary, token_cache: TokenCache, owner: Owner | None = None, name: str = ""
) -> Any:
    """A reference to the result of `Worker.run`; the dashboard shows the task under `name` (default: the item's)."""
    digests, references = token_cache.references(item.stage)
    return worker.run.options(name=name or item.name).remote(item, owner, vocabulary, digests, references)
