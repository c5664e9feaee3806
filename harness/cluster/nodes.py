"""Checks of every node before anything trains: it must see the driver's artifact storage and the encoder. A node without the
encoder's folder gets its files through the storage."""

from __future__ import annotations

import fcntl
import json
import platform
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import NodeDiedError, RayError

from harness.cluster.stop import on_node
from harness.encoders.sources import encoder_digest, files_of
from harness.errors import UserError, first_line
from harness.execution import Execution, WorkerSetup
from harness.paths import user_cache
from harness.storage import Storage, StorageError

ANSWER_SECONDS = 60.0
"""The command ends with the name of a node that has not answered after this time. A storage times out in 21 s."""
MARK = "harness-storage"
"""A file that identifies the storage; it is never deleted."""


def shared(setup: WorkerSetup, execution: Execution, digest: str) -> WorkerSetup:
    """Check that every node of a cluster sees the driver's storage, and put the encoder with this digest there if a node lacks it.
    Returns the setup for `checked`. Raises UserError that names the first node that fails, and why."""
    if execution.address == "local":  # one node, and this one
        return setup
    marked = replace(setup, storage_mark=_mark(setup.storage), encoder_digest=digest)
    if not all(seen.encoder for seen in _usable(_answers(marked))):
        for each in marked.by_encoder:
            _upload(each)
    return marked


def checked(setup: WorkerSetup) -> WorkerSetup:
    """The same check when a worker starts, on its node, which may have joined later. Returns the setup with a folder that holds
    the encoder. Raises UserError."""
    setup.storage.trust()
    if not setup.storage_mark:
        return setup
    problem = _unseen(setup)
    if not problem:
        setup.storage.probe()
        first, *others = [each if _has(each.encoder_folder, each) else _fetched(each) for each in setup.by_encoder]
        further = {each.encoder_digest: (each.encoder_folder, each.encoder_config) for each in others}
        return replace(first, further=further)
    raise UserError(f"The node {platform.node()} ({ray.util.get_node_ip_address()}) {problem}")


# ---------------------------------------------------------------- the storage


@dataclass(frozen=True)
class _Seen:
    """A node's answer: why it cannot use the storage ('' if it can), and whether it has the encoder."""

    problem: str
    encoder: bool = True


def _mark(storage: Storage) -> str:
    try:
        return storage.read(MARK).decode()
    except FileNotFoundError:
        storage.write(MARK, uuid.uuid4().hex.encode())
        return storage.read(MARK).decode()


def _unseen(setup: WorkerSetup) -> str:
    """Why this node does not see the driver's storage; '' if it does."""
    storage = setup.storage
    try:
        if storage.read(MARK).decode() == setup.storage_mark:
            return ""
    except FileNotFoundError:
        pass
    except StorageError as error:
        return f"cannot use the storage. {error}"
    return (
        f"sees another place than the driver under the storage {storage.shown}; name one with --storage that all nodes "
        "share: a folder on NFS, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX."
    )


def _look(setup: WorkerSetup, file: str) -> _Seen:
    """Runs on each node: writes `file` into the storage for the driver."""
    problem = _unseen(setup)
    if problem:
        return _Seen(problem)
    try:
        setup.storage.write(file, setup.storage_mark.encode())
    except StorageError as error:
        return _Seen(f"cannot use the storage. {error}")
    return _Seen("", all(_has(each.encoder_folder, each) for each in setup.by_encoder))


_LOOK: Any = ray.remote(num_cpus=0, max_retries=0)(_look)


def _answers(setup: WorkerSetup) -> dict[str, _Seen]:
    """The answers of all nodes that are there, by their ids."""
    nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    files = {identity: f"probe-{uuid.uuid4().hex}" for identity in nodes}
    answers = {
        identity: _LOOK.options(name="harness-look", scheduling_strategy=on_node(identity)).remote(setup, file)
        for identity, file in files.items()
    }
    try:
        ray.wait(list(answers.values()), num_returns=len(answers), timeout=ANSWER_SECONDS)
        found = {identity: _answer(setup.storage, answers[identity], file) for identity, file in files.items()}
    finally:
        for file in files.values():
            setup.storage.delete(file)
    there = {node["NodeID"] for node in ray.nodes() if node["Alive"]}  # a node that left meanwhile is not needed
    return {identity: seen for identity, seen in found.items() if seen and identity in there}


def _usable(answers: Mapping[str, _Seen]) -> list[_Seen]:
    """The answers, where none is a problem. Raises UserError that names the first node that fails, and why."""
    nodes = {node["NodeID"]: node for node in ray.nodes()}
    failed = [identity for identity, seen in answers.items() if seen.problem]
    if failed:
        others = ", ".join(_name(nodes[identity]) for identity in failed[1:])
        more = f" These nodes fail too: {others}." if others else ""
        raise UserError(f"The node {_name(nodes[failed[0]])} {answers[failed[0]].problem}{more}")
    return list(answers.values())


def _answer(storage: Storage, reference: Any, file: str) -> _Seen | None:
    """A node's answer, after the driver looked for its file. None: it died, which the cluster may notice seconds later."""
    again = "fix it or remove it from the cluster, then run the same command again."
    if not ray.wait([reference], timeout=0)[0]:
        ray.cancel(reference, force=True)
        return _Seen(f"did not answer within {ANSWER_SECONDS:g} s whether it sees the storage {storage.shown}; {again}")
    try:
        seen: _Seen = ray.get(reference)
    except NodeDiedError:
        return None
    except RayError as error:
        return _Seen(
            f"could not check the storage {storage.shown} ({first_line(error)}); install the same harness there, or {again}"
        )
    if not seen.problem and not storage.exists(file):
        return _Seen(f"writes into the storage {storage.shown}, and the driver does not see it; {again}")
    return seen


def _name(node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}, {node['NodeID'][:8]})"


# ---------------------------------------------------------------- the encoder


def _has(folder: Path, setup: WorkerSetup) -> bool:
    """Whether the folder holds the encoder; one with random weights needs no files."""
    if setup.encoder_config is not None:
        return True
    try:
        return encoder_digest(folder) == setup.encoder_digest
    except (OSError, UserError):
        return False


def _uploaded(digest: str, name: str) -> str:
    return f"encoders/{digest}/{name}"


def _upload(setup: WorkerSetup) -> None:
    """Put the encoder's files into the storage, once; their list is written last."""
    storage, digest = setup.storage, setup.encoder_digest
    if storage.exists(_uploaded(digest, "files.json")):
        return
    paths = files_of(setup.encoder_folder)
    for path in paths:
        storage.write(_uploaded(digest, path.name), path.read_bytes())
    storage.write(_uploaded(digest, "files.json"), json.dumps([path.name for path in paths]).encode())


def _fetched(setup: WorkerSetup) -> WorkerSetup:
    """With the encoder in a folder of this node's cache. One worker of the node fetches it; the others wait."""
    storage, digest = setup.storage, setup.encoder_digest
    cache = user_cache("encoders")
    folder = cache / digest
    place = f"The node {platform.node()} lacks the encoder {setup.encoder_folder} ({digest[:10]})"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / f"{digest}.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _has(folder, setup):
                return replace(setup, encoder_folder=folder)
            shutil.rmtree(folder, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=cache) as temporary:
                fresh = Path(temporary) / digest
                fresh.mkdir()
                for name in json.loads(storage.read(_uploaded(digest, "files.json"))):
                    (fresh / Path(name).name).write_bytes(storage.read(_uploaded(digest, name)))
                if not _has(fresh, setup):
                    raise UserError(
                        f"{place}, and the files {_uploaded(digest, '*')} of the storage {storage.shown} are not it; delete them "
                        "and run the same command again."
                    )
                fresh.rename(folder)
    except FileNotFoundError:
        raise UserError(f"{place}, and joined after the others got it; run the same command again.") from None
    except UserError:
        raise
    except OSError as error:
        raise UserError(
            f"{place} and cannot keep it in {cache} ({first_line(error)}); set XDG_CACHE_HOME there."
        ) from None
    return replace(setup, encoder_folder=folder)
