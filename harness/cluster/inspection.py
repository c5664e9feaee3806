"""What a live cluster is like: facts of every node, told by a process on each, and how the nodes reach each other. Judges nothing."""

from __future__ import annotations

import hashlib
import platform
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

import harness
from harness import private
from harness.cluster import nodes
from harness.cluster.process_group_backend import ProcessGroupConfig, _join, _listen
from harness.cluster.stop import on_node
from harness.errors import first_line
from harness.execution import Execution
from harness.storage import Storage

ANSWER_SECONDS = 60.0
"""A node whose process has not answered after this time is named as one that does not."""
PACKAGES = ("ray", "torch", "transformers", "tokenizers", "numpy")
SENT_BYTES = 16 * 2**20
"""Bytes of the tensor that the nodes sum up together."""
ROUND_TRIPS = 5


@dataclass(frozen=True)
class NodeFacts:
    """One node. `versions`: of Python, packages, and the digest of the harness's own files; `clock`: seconds that its clock is ahead of this
    machine's, known to `clock_error`; `folder`: Ray's temporary one with its free and total bytes; `gpus`: as Ray counts them, and
    by name those that torch sees; `storage`: why it cannot use the storage, '' where it can; `start_seconds`: until a process of a stage could
    train there, None where none was placed in `ANSWER_SECONDS`. `problem`: why the node told nothing; the rest is empty then."""

    name: str
    problem: str = ""
    versions: Mapping[str, str] | None = None
    clock: float = 0.0
    clock_error: float = 0.0
    folder: str = ""
    free: int = 0
    total: int = 1
    ray_gpus: float = 0.0
    torch_gpus: tuple[str, ...] = ()
    storage: str = ""
    start_seconds: float | None = None


@dataclass(frozen=True)
class Group:
    """One process group over all nodes: seconds of a sum of a few bytes, and bytes a second that each node sends and receives in a sum of many
    (those of a ring). `problem`: why it could not be formed."""

    size: int
    seconds: float = 0.0
    bytes_per_second: float = 0.0
    problem: str = ""


@dataclass(frozen=True)
class Inspection:
    """`group`: None of a single node."""

    nodes: tuple[NodeFacts, ...]
    group: Group | None


def code_digest() -> str:
    """The digest of the harness's own files, by their names below the package."""
    root = Path(harness.__file__).parent
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def versions() -> dict[str, str]:
    """Of this process; '' of a package that is not installed."""
    found = {"python": platform.python_version(), "harness": f"{harness.__version__} ({code_digest()[:10]})"}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


class NodeProbe:
    """A process on a node."""

    def facts(self) -> dict[str, Any]:
        import torch

        folder = private.session_folder()
        usage = shutil.disk_usage(folder)
        names = tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
        return {
            "versions": versions(),
            "folder": folder,
            "free": usage.free,
            "total": usage.total,
            "torch_gpus": names,
        }

    def clock(self) -> float:
        return time.time()

    def listen(self) -> tuple[str, int]:
        return _listen()

    def summed(self, address: str, port: int, rank: int, size: int) -> tuple[float, float]:
        """Join a group, and sum a tensor up with the others: seconds of the least sum, and of one of `SENT_BYTES`."""
        import torch
        from torch.distributed import all_reduce, destroy_process_group

        limit = ANSWER_SECONDS / 2
        _join(ProcessGroupConfig("gloo", start_seconds=limit, collective_seconds=limit), address, port, rank, size)
        try:
            found = []
            for numbers in (1, SENT_BYTES // 4):
                tensor = torch.ones(numbers)
                seconds = []
                for _ in range(ROUND_TRIPS):
                    begun = time.perf_counter()
                    all_reduce(tensor)
                    seconds.append(time.perf_counter() - begun)
                found.append(min(seconds))
            return found[0], found[1]
        finally:
            destroy_process_group()


class Placed:
    """A process that could train a stage."""

    def ready(self) -> None:
        import torch  # noqa: F401 - most of the time until a worker can train


def inspect(storage: Storage) -> Inspection:
    """Ask every living node of the cluster that this process has joined. Leaves the storage's mark behind, as a bench does."""
    there = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    problems = nodes.storage_problems(storage)
    probe: Any = ray.remote(num_cpus=0, max_restarts=0)(NodeProbe)
    probes = {identity: probe.options(scheduling_strategy=on_node(identity)).remote() for identity in there}
    answers = {identity: actor.facts.remote() for identity, actor in probes.items()}
    ray.wait(list(answers.values()), num_returns=len(answers), timeout=ANSWER_SECONDS)
    found = {}
    for identity, node in there.items():
        try:
            facts = ray.get(answers[identity], timeout=0)
            ahead, error = _clock(probes[identity])
            found[identity] = NodeFacts(
                nodes.name_of(node),
                **facts,
                clock=ahead,
                clock_error=error,
                ray_gpus=node["Resources"].get("GPU", 0.0),
                storage=problems.get(identity, ""),
                start_seconds=_start_seconds(identity, node["Resources"]),
            )
        except (RayError, OSError) as error:
            silent = isinstance(error, GetTimeoutError)
            why = (
                f"did not answer within {ANSWER_SECONDS:g} s" if silent else f"could not be asked ({first_line(error)})"
            )
            found[identity] = NodeFacts(nodes.name_of(node), why)
    answering = [probes[identity] for identity, facts in found.items() if not facts.problem]
    group = _group(answering) if len(answering) > 1 else None
    for actor in probes.values():
        ray.kill(actor)
    return Inspection(tuple(found.values()), group)


def _clock(actor: Any) -> tuple[float, float]:
    """How far a node's clock is ahead of this one, by the shortest of some round trips, and half of that."""
    trips = []
    for _ in range(ROUND_TRIPS):
        begun = time.time()
        there = ray.get(actor.clock.remote(), timeout=ANSWER_SECONDS)
        ended = time.time()
        trips.append((ended - begun, there - (begun + ended) / 2))
    seconds, ahead = min(trips)
    return ahead, seconds / 2


def _start_seconds(identity: str, resources: Mapping[str, float]) -> float | None:
    """Seconds until a process with what a run reserves by default could train on a node."""
    run = Execution(gpus_per_run=min(1.0, resources.get("GPU", 0.0)))
    begun = time.perf_counter()
    placed: Any = ray.remote(num_cpus=min(run.cpus_per_run, resources.get("CPU", 0.0)), num_gpus=run.gpus_per_run)(
        Placed
    )
    actor = placed.options(scheduling_strategy=on_node(identity)).remote()
    try:
        ray.get(actor.ready.remote(), timeout=ANSWER_SECONDS)
        return time.perf_counter() - begun
    except GetTimeoutError:
        return None
    finally:
        ray.kill(actor)


def _group(actors: list[Any]) -> Group:
    size = len(actors)
    try:
        address, port = ray.get(actors[0].listen.remote(), timeout=ANSWER_SECONDS)
        references = [actor.summed.remote(address, port, rank, size) for rank, actor in enumerate(actors)]
        answers = ray.get(references, timeout=2 * ANSWER_SECONDS)
    except GetTimeoutError:
        return Group(size, problem=f"did not form within {2 * ANSWER_SECONDS:g} s")
    except RayError as error:
        return Group(size, problem=str(error).strip().splitlines()[-1][:200])
    few, many = (max(seconds) for seconds in zip(*answers, strict=True))
    return Group(size, few, 2 * (size - 1) / size * SENT_BYTES / many)
