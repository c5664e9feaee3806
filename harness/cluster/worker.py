"""A worker trains one stage after another in its own process; what it reads lies in the object store as tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
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

from harness import private
from harness.bench.work import Item
from harness.cluster.heartbeat import ProcessId, start_heartbeat
from harness.cluster.nodes import checked
from harness.encoders.tokens import Tokens, Vocabulary
from harness.errors import UserError
from harness.specs import Data, Execution, Record, RowSet, Stage, Status, WorkerSetup
from harness.storage import Storage, checkpoint_of
from harness.store import Owner

if TYPE_CHECKING:
    from harness.running import Launch
    from harness.training.process_group import ProcessGroup

FETCH_SECONDS = 300.0
"""Tokens that are not on a worker's node by then never come: where a store and its disk are full Ray waits for ever."""
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
    """A process that can train nothing more, whatever the stage: an error of CUDA stays with it."""


class WorkerGroupEndedError(Exception):
    """The processes that train a stage together are no more; why, as one of them said."""


WORKER_LOST = (RayActorError, OutOfMemoryError, UnusableProcessError, WorkerGroupEndedError)
"""What a stage is tried again for, in another process."""

Tokenised = Callable[[RowSet, Data], tuple[Tokens, Any]]
"""(row set, how the stage reads it) -> its tokens and labels, as arrays; called once a row set and way of reading."""


def answer(reference: Any) -> Any:
    """`ray.get`, with a user's error said as it was said first and not wrapped in another process's trace."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        cause: Any = error
        while isinstance(cause, RayTaskError):
            cause = cause.cause
        if isinstance(cause, UserError | UnusableProcessError | WorkerGroupEndedError):
            raise type(cause)(str(cause)) from None
        raise


def death_reason(times: int, error: Exception) -> str:
    """Why a stage failed whose worker did not come back."""
    if isinstance(error, UnusableProcessError):
        return f"its worker process can train nothing more: {error}"
    if isinstance(error, WorkerGroupEndedError):
        return f"its worker group ended {times} times ({error})"
    return f"its worker process died {times} times ({type(error).__name__})"


def died_with_node(error: Exception) -> bool:
    """Whether a process ended because its node did."""
    return private.NODE_DIED in str(error)


def slots_on(resources: Mapping[str, float], execution: Execution) -> int:
    """How many workers fit on a node that has these resources. Fractions of a GPU lie whole on one."""
    cpus, gpus = execution.cpus_per_run, execution.gpus_per_run
    fit = _whole(resources.get("CPU", 0.0) / cpus)
    if gpus >= 1:
        fit = min(fit, _whole(resources.get("GPU", 0.0) / gpus))
    elif gpus > 0:
        fit = min(fit, _whole(resources.get("GPU", 0.0)) * _whole(1 / gpus))
    return fit


def _whole(share: float) -> int:
    return int(share + 1e-4)  # of Ray's own precision


def slots_in(nodes: Iterable[Mapping[str, Any]], execution: Execution) -> int:
    """How many runs, of `num_workers` workers each, fit on these of `ray.nodes()` at the same time, or fewer when asked."""
    fit = sum(slots_on(node["Resources"], execution) for node in nodes if node["Alive"]) // execution.num_workers
    return min(fit, execution.slots) if execution.slots else fit


def slots_of(execution: Execution) -> int:
    """How many runs fit into the cluster at the same time, or fewer when asked. Raises UserError when not one fits."""
    slots = slots_in(ray.nodes(), execution)
    if slots < 1:
        there, each = (
            ray.cluster_resources(),
            "each of its workers takes" if execution.num_workers > 1 else "a run takes",
        )
        raise UserError(
            f"Not one run fits: {each} {execution.cpus_per_run:g} CPUs and {execution.gpus_per_run:g} GPUs of one node, and "
            f"this cluster has {there.get('CPU', 0):g} and {there.get('GPU', 0):g} on "
            f"{sum(node['Alive'] for node in ray.nodes())} nodes; lower --cpus-per-run, --gpus-per-run or --num-workers."
        )
    return slots


class TokenCache:
    """Tokens of row sets in the object store, made once each when a stage first asks for them.

    A process that has no texts gets the `references` of one that has, and can make nothing itself.
    """

    def __init__(
        self, tokenised: Tokenised | None = None, references: Mapping[tuple[Any, ...], Any] = MappingProxyType({})
    ) -> None:
        self._tokenised = tokenised
        self.made: dict[tuple[Any, ...], Any] = dict(references)

    def references(self, stage: Stage) -> tuple[list[str], list[Any]]:
        """Digests of a stage's evaluation sets, and what it reads: its training rows, then those sets."""
        wanted = _wanted(stage)
        for rows, data in wanted:
            if _place(rows, data) not in self.made:
                assert self._tokenised is not None, f"{rows.name} is not in the token cache"
                self.made[_place(rows, data)] = _stored(rows.name, self._tokenised(rows, data))
        return [rows.digest for rows, _ in wanted[1:]], [self.made[_place(*each)] for each in wanted]


def _stored(name: str, tokens: Any) -> Any:
    """Ray spills to disk what its store has no room for; only with both full is there none."""
    try:
        return ray.put(tokens)
    except (ObjectStoreFullError, OutOfDiskError) as error:
        raise UserError(
            f"The tokens of {name} have no room in Ray's object store, nor on the disk that it spills to "
            f"({type(error).__name__}); {MORE_ROOM}, and run the same command again: recorded stages are kept."
        ) from None


def fetched(references: list[Any]) -> list[Any]:
    """What lies in the object store, brought to this node."""
    try:
        found: list[Any] = ray.get(references, timeout=FETCH_SECONDS)
    except GetTimeoutError:
        raise UserError(
            f"Tokens did not reach node {ray.util.get_node_ip_address()} in {FETCH_SECONDS:g} s: its object store or its "
            f"disk may be full; {MORE_ROOM}, and run the same command again: recorded stages are kept."
        ) from None
    return found


def _wanted(stage: Stage) -> list[tuple[RowSet, Data]]:
    plain = replace(stage.data, views=1, blocks="text")
    evaluations = [*([stage.data.dev] if stage.data.dev else []), *stage.data.tests]
    return [(stage.data.train, stage.data), *((rows, plain) for rows in evaluations)]


def _place(rows: RowSet, data: Data) -> tuple[Any, ...]:
    return (rows.digest, data.max_length, data.views, data.blocks)


def trained(
    item: Item,
    setup: WorkerSetup,
    vocabulary: Vocabulary,
    digests: list[str],
    sets: list[tuple[Tokens, Any]],
    *,
    launch: Launch | None = None,
    process_group: ProcessGroup | None = None,
) -> Record:
    """Train a stage. Raises UnusableProcessError when this process can train nothing more.

    `sets`: training rows, then one an evaluation digest. `launch`: what wraps the training function where it is not Ray
    Train's local mode. `process_group`: this worker's place among those that train it together.
    """
    from harness.cluster import local_trainer
    from harness.running import run_stage
    from harness.training.loop import Inputs
    from harness.training.process_group import SINGLE_PROCESS

    (train, labels), *evaluations = sets
    inputs = Inputs(train, labels, dict(zip(digests, evaluations, strict=True)), item.stage.data.views)
    record = run_stage(
        item.stage,
        inputs,
        vocabulary,
        item.metrics,
        setup,
        keep_weights=item.keep_weights,
        launch=launch or local_trainer.launch,
        process_group=process_group or SINGLE_PROCESS,
    )
    if record.status == "failed" and "CUDA error" in record.reason:
        raise UnusableProcessError(record.reason)
    return record


def committed(item: Item, record: Record, ledger: Any, owner: Owner | None, storage: Storage) -> WorkerResult:
    """Commit a stage's record in the name of `owner`, the driver where it is None; its checkpoint, if one was written, has
    served then."""
    ours = True
    if item.remake:  # its record stands, whatever became of the weights this time
        answer(ledger.release.remote(item.stage.key, owner))
    else:
        ours = bool(answer(ledger.commit.remote(item.stage, record, owner)))
    if record.status != "failed" and record.provenance.get("checkpoints"):
        storage.delete(checkpoint_of(item.stage.key))
    return WorkerResult(record.status, record.reason, ours)


def prepared(setup: WorkerSetup) -> WorkerSetup:
    """Once a process: torch with its number of threads, on the device that Ray gave, and what its node must have. Raises
    UserError where that is not there."""
    import torch

    setup = checked(setup)
    torch.set_num_threads(setup.threads)
    if setup.device == "cpu" and torch.cuda.is_available() and ray.get_gpu_ids():
        return replace(setup, device="cuda")
    return setup


class WorkerProcess:
    """Imports torch once, then trains one stage after another; beats in the ledger under its name."""

    def __init__(self, setup: WorkerSetup, ledger: Any, name: str) -> None:
        self._setup, self._ledger, self._name = setup, ledger, name
        self._prepared = False
        start_heartbeat(ledger, name)

    def __repr__(self) -> str:
        return self._name

    def ready(self) -> tuple[ProcessId, str]:
        """Where it is, once it could train, and why it cannot if so."""
        try:
            self._prepare()
        except UserError as error:
            return ProcessId.current(), str(error)
        return ProcessId.current(), ""

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
        return trained(item, self._setup, vocabulary, digests, fetched(references))


Worker: Any = ray.remote(WorkerProcess)


def submit(worker: Any, item: Item, vocabulary: Vocabulary, token_cache: TokenCache, owner: Owner | None = None) -> Any:
    """A reference to what `Worker.run` will return; the dashboard shows the task under the item's name."""
    digests, references = token_cache.references(item.stage)
    return worker.run.options(name=item.name).remote(item, owner, vocabulary, digests, references)
