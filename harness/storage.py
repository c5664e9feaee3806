"""Artifact storage: weights and checkpoints in one place that every worker sees, a folder or a bucket; and what a worker is set up with. No torch,
no ray, no database."""

from __future__ import annotations

import contextlib
import errno
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from harness.errors import KEPT, TransientError, UserError, first_line, masked, retried
from harness.paths import named_path, replace_file

KINDS = ("s3", "gs", "file")
"""Of URIs, as pyarrow reads them."""
_LASTING = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR)
_reached: set[str] = set()
"""The storages that this process has reached."""
T = TypeVar("T")


class StorageError(UserError, OSError):
    """The storage cannot be used: the reason and the fix in one sentence."""


class StorageOutageError(StorageError, TransientError):
    """The same for a reason that may pass."""


@dataclass(frozen=True)
class Storage:
    """Files by name in a folder, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX. Credentials come from the environment,
    or from the URI (s3://KEY:SECRET@BUCKET/...), and are never shown.

    Small and picklable: a worker on another node opens it again. All methods raise StorageError. In a process that reached the storage before, those
    that may pass are retried for a minute (`harness.errors.retried`); a bucket is opened again before each retry, with the credentials that are valid by then.
    """

    uri: str

    @classmethod
    def named(cls, text: str) -> Storage:
        """The storage that a user names. A relative path refers to the working folder. Raises UserError for an invalid name."""
        kind, root = text.partition(":")[0], ""
        if "://" not in text and kind not in KINDS[:2]:
            return cls(str(named_path(text).absolute()))
        try:
            if kind not in KINDS:
                raise ValueError(f"unknown kind of storage '{kind}'")
            with contextlib.suppress(OSError):  # the network's, of which the first use tells
                root = _opened(text)[1]
        except ValueError as error:
            raise UserError(
                f"storage {masked(text)}: {first_line(error).rstrip('.')}; write a folder, file:///FOLDER, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX, and in "
                "s3://KEY:SECRET@BUCKET/PREFIX %2F for a '/' of the secret and %2B for a '+'."
            ) from None
        return cls(root if kind == "file" else text)

    def __repr__(self) -> str:
        return f"Storage({self.shown!r})"

    @property
    def shown(self) -> str:
        """The URI without credentials, for messages and records."""
        return masked(self.uri)

    @property
    def folder(self) -> Path | None:
        """Its folder; None for a bucket."""
        return None if "://" in self.uri else Path(self.uri)

    def exists(self, name: str) -> bool:
        return self._call("read", lambda system, root: bool(system.get_file_info(f"{root}/{name}").is_file))

    def sizes(self) -> dict[str, int]:
        """The files at its top, with their bytes."""
        from pyarrow.fs import FileSelector

        select = partial(FileSelector, allow_not_found=True)
        found = self._call("read", lambda system, root: system.get_file_info(select(root)))
        return {each.base_name: each.size for each in found if each.is_file}

    def read(self, name: str) -> bytes:
        """The whole file. Raises FileNotFoundError."""

        def read(system: Any, root: str) -> bytes:
            with system.open_input_file(f"{root}/{name}") as file:
                return bytes(file.read())

        return self._call("read", read)

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically: nobody reads half a file, whichever process is killed."""

        def write(system: Any, root: str) -> None:
            try:
                if self.folder:
                    (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                    replace_file(self.folder / name, content)
                else:  # where a file exists when its upload is complete
                    with system.open_output_stream(f"{root}/{name}") as file:
                        file.write(content)
            except FileNotFoundError as error:  # what is missing is a place, not the file
                raise OSError(str(error)) from None

        self._call("written", write)

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._call("written", lambda system, root: system.delete_file(f"{root}/{name}"))

    def trust(self) -> None:
        """Another process reached the storage: calls of this one are retried from the first on."""
        _reached.add(self.uri)

    def probe(self) -> None:
        """Write a small file, read it and delete it."""
        name = f"probe-{uuid.uuid4().hex}"
        self.write(name, b"probe")
        self.read(name)
        self.delete(name)

    def _call(self, done: str, act: Callable[[Any, str], T]) -> T:
        def once() -> T:
            try:
                answer = act(*_opened(self.uri))
            except FileNotFoundError:  # an answer too
                self.trust()
                raise
            except OSError as error:
                _opened.cache_clear()
                text = re.split(r"Details?: (?:\[errno \d+\] )?", error.strerror or first_line(error))[-1]
                raise (StorageError if error.errno in _LASTING else StorageOutageError)(
                    f"The storage {self.shown} could not be {done}: {text.rstrip('.')}; check that it is there, has room, and "
                    "lets this user or these credentials (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS) read, write and delete, or name "
                    f"another one: {KEPT}."
                ) from None
            self.trust()
            return answer

        return retried(once)() if self.uri in _reached else once()


@dataclass(frozen=True)
class WorkerSetup:
    """Where a worker runs stages: encoders, the storage of weights, and the device. Nothing in here changes a number or a key.

    `encoders`: by digest the folder and, of one that begins with random weights, its configuration; the folder then holds its tokenizer only.
    `micro_batch`: sequences that go through the encoder at once (0: a worker's whole share of the batch).
    `checkpoint_seconds`: a stage keeps what it would go on from this often (0: never).
    `storage_mark`, `code`: what a node of a cluster must find in the storage, and as its harness. `files`: references to the files of encoders, by
    digest, for a node without them.
    """

    encoders: Mapping[str, tuple[Path, dict[str, Any] | None]]
    storage: Storage
    device: str = "cpu"
    micro_batch: int = 0
    checkpoint_seconds: float = 0.0
    storage_mark: str = ""
    code: str = ""
    files: Mapping[str, Any] = field(default_factory=dict)


def weights_of(key: str, step: str | int = "last") -> str:
    """The name of a stage's weights: its final ones ('last' or 'selected'), or those after update `step`."""
    return f"{key}.safetensors" if isinstance(step, str) else f"{key}.step-{step}.safetensors"


def checkpoint_of(key: str) -> str:
    """The name of the checkpoint from which an interrupted stage resumes."""
    return f"{key}.checkpoint.pt"


@lru_cache(maxsize=8)
def _opened(uri: str) -> tuple[Any, str]:
    """A file system, and of it the folder or BUCKET/PREFIX. Raises ValueError for what is no URI of a storage, and OSError."""
    from pyarrow.fs import FileSystem, LocalFileSystem

    if uri.startswith("/"):
        return LocalFileSystem(), uri
    if uri.startswith("gs:") and "retry_limit_seconds=" not in uri:  # its own limit is a quarter of an hour
        uri += f"{'&' if '?' in uri else '?'}retry_limit_seconds=10"
    system, root = FileSystem.from_uri(uri)
    if not root:
        raise ValueError("it names no bucket")
    return system, root
