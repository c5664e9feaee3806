"""Artifact storage: weights and checkpoints in one place that every worker sees, a folder or a bucket. No torch, no ray, no
database."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from harness.errors import KEPT, UserError, masked
from harness.paths import named_path, replace_file
from harness.retry import TransientError, retried

T = TypeVar("T")

OPTIONS = {"s3": ("endpoint_override", "region", "scheme"), "gs": ("endpoint_override", "scheme")}
"""Options after a '?' in the URI of each kind of bucket."""
CONNECT_SECONDS, SILENT_SECONDS, ATTEMPTS = 5.0, 10.0, 2
"""An unreachable bucket fails after 11 s, a connected one that does not answer after 21 s (measured)."""
CLEAN_UP_SECONDS = 3600.0
"""Files of killed writers are deleted from this age on; a living one writes."""


class StorageError(UserError, OSError):
    """The storage cannot be used: the reason and the fix in one sentence."""


class StorageOutageError(StorageError, TransientError):
    """One that may pass."""


_reached: set[str] = set()
"""The storages that this process has reached."""


@dataclass(frozen=True)
class Storage:
    """Files by name in a folder, file:///FOLDER, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX. Credentials come from the environment,
    or from the URI (s3://KEY:SECRET@BUCKET/...), and are never shown.

    Small and picklable: a worker on another node opens it again. All methods raise StorageError. In a process that reached the storage before, they
    are retried for a minute (`harness.retry`); a bucket is opened again before each retry, with the credentials that are valid by then.
    """

    uri: str

    @classmethod
    def named(cls, text: str) -> Storage:
        """The storage that a user names. A relative path refers to the working folder. Raises UserError for an invalid name."""
        if "://" in text:
            _parts(text)
            return cls(text)
        kind = text.partition(":")[0]
        if kind in OPTIONS:  # the rest may contain a secret
            raise UserError(f"storage {kind}:...: write two slashes, as in s3://BUCKET/PREFIX.")
        return cls(str(named_path(text, "storage").absolute()))

    def __repr__(self) -> str:
        return f"Storage({self.shown!r})"

    @property
    def shown(self) -> str:
        """The URI without credentials, for messages and records."""
        return masked(self.uri)

    @property
    def folder(self) -> Path | None:
        """Its folder; None for a bucket."""
        if "://" not in self.uri:
            return Path(self.uri)
        parts = _parts(self.uri)
        return Path(unquote(parts.path)) if parts.scheme == "file" else None

    def exists(self, name: str) -> bool:
        return self._retried("read", lambda place: place.exists(name))

    def read(self, name: str) -> bytes:
        """The whole file. Raises FileNotFoundError."""
        return self._retried("read", lambda place: place.read(name))

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically: nobody reads half a file, whichever process is killed."""
        self._retried("written", lambda place: place.write(name, content))

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._retried("written", lambda place: place.delete(name))

    def trust(self) -> None:
        """Another process reached the storage: calls of this one are retried from the first on."""
        _reached.add(self.uri)

    def probe(self) -> None:
        """Write a small file, read it and delete it."""
        name, content = f"probe-{uuid.uuid4().hex}", uuid.uuid4().bytes
        self.write(name, content)
        try:
            found = self.read(name)
        except FileNotFoundError:
            found = b""
        finally:
            self.delete(name)
        if found != content:
            raise StorageError(f"The storage {self.shown} does not return what {_here()} wrote; name another storage.")

    def _retried(self, done: str, act: Callable[[_Folder | _Bucket], T]) -> T:
        again = retried(self._once) if self.uri in _reached else self._once
        return again(done, act)

    def _once(self, done: str, act: Callable[[_Folder | _Bucket], T]) -> T:
        try:
            answer = act(_opened(self.uri))
        except FileNotFoundError:  # an answer too
            _reached.add(self.uri)
            raise
        except UserError:
            raise
        except OSError as error:
            _opened.cache_clear()
            text = (error.strerror or str(error) or "no message").splitlines()[0].rpartition("Details: ")[2][:300]
            raise (StorageError if error.errno in _LASTING else StorageOutageError)(
                f"The storage {self.shown} could not be {done} on {_here()}: {text.rstrip('.')}; check that it is there, has room, and "
                "lets this user or these credentials (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS) read, write and delete, or name "
                f"another one: {KEPT}."
            ) from None
        _reached.add(self.uri)
        return answer


def weights_of(key: str, step: str | int = "last") -> str:
    """The name of a stage's weights: its final ones ('last' or 'selected'), or those after update `step`."""
    return f"{key}.safetensors" if isinstance(step, str) else f"{key}.step-{step}.safetensors"


def checkpoint_of(key: str) -> str:
    """The name of the checkpoint from which an interrupted stage resumes."""
    return f"{key}.checkpoint.safetensors"


# ---------------------------------------------------------------- folders and buckets

_LASTING = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR)


def _here() -> str:
    return platform.node() or "this machine"


def _parts(uri: str) -> SplitResult:
    """Parse the URI of a storage. Raises UserError."""
    shown = f"storage {masked(uri)}"
    parts = urlsplit(uri, allow_fragments=False)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise UserError(f"{shown}: write file:///FOLDER with three slashes; it names this machine's folder.")
        return parts
    if parts.scheme not in OPTIONS:
        raise UserError(
            f"{shown}: unknown kind of storage '{parts.scheme}'; write a folder, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX."
        )
    bucket = parts.netloc.rpartition("@")[2]
    if not bucket or ":" in bucket or "@" in parts.path:
        raise UserError(
            f"{shown}: write {parts.scheme}://BUCKET/PREFIX; in s3://KEY:SECRET@BUCKET/PREFIX a '/' of the secret is %2F, a "
            "'+' is %2B."
        )
    strange = sorted({key for key, _ in parse_qsl(parts.query, keep_blank_values=True)} - set(OPTIONS[parts.scheme]))
    if strange:
        raise UserError(f"{shown}: unknown option '{strange[0]}' after '?'. Known: {', '.join(OPTIONS[parts.scheme])}.")
    return parts


@lru_cache(maxsize=8)
def _opened(uri: str) -> _Folder | _Bucket:
    folder = Storage(uri).folder
    if folder:
        return _Folder(folder)
    parts = _parts(uri)
    credentials, _, bucket = parts.netloc.rpartition("@")
    options = dict(parse_qsl(parts.query))
    system = _s3(credentials, bucket, options) if parts.scheme == "s3" else _gs(credentials, options)
    return _Bucket(system, "/".join(filter(None, (bucket, unquote(parts.path).strip("/")))))


def _s3(credentials: str, bucket: str, options: dict[str, str]) -> Any:
    from pyarrow import fs

    endpoint = options.get("endpoint_override") or ""
    if not endpoint:  # which Arrow does not read
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    scheme, _, address = endpoint.rpartition("://")
    region = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        region = "us-east-1" if address else fs.resolve_s3_region(bucket)
    key, _, secret = credentials.partition(":")
    return fs.S3FileSystem(
        access_key=unquote(key) or None,
        secret_key=unquote(secret) or None,
        region=region,
        scheme=options.get("scheme") or scheme or None,
        endpoint_override=address or None,
        connect_timeout=CONNECT_SECONDS,
        request_timeout=SILENT_SECONDS,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
        allow_delayed_open=False,  # otherwise closing a failed upload creates an empty file
    )


def _gs(credentials: str, options: dict[str, str]) -> Any:
    from pyarrow import fs

    limit = timedelta(seconds=SILENT_SECONDS)
    return fs.GcsFileSystem(anonymous=credentials == "anonymous", retry_time_limit=limit, **options)


@dataclass(frozen=True)
class _Bucket:
    """A bucket through Arrow: a file exists when its upload is complete. `root`: BUCKET/PREFIX."""

    system: Any
    root: str

    def exists(self, name: str) -> bool:
        return bool(self.system.get_file_info(f"{self.root}/{name}").is_file)

    def read(self, name: str) -> bytes:
        with self.system.open_input_file(f"{self.root}/{name}") as file:
            content: bytes = file.read()
        return content

    def write(self, name: str, content: bytes) -> None:
        try:
            with self.system.open_output_stream(f"{self.root}/{name}") as file:
                file.write(content)
        except FileNotFoundError as error:  # which would say that the file is missing
            raise OSError(str(error)) from None

    def delete(self, name: str) -> None:
        self.system.delete_file(f"{self.root}/{name}")


@dataclass(frozen=True)
class _Folder:
    root: Path

    def exists(self, name: str) -> bool:
        return (self.root / name).exists()

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        path = self.root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:
            raise OSError(str(error)) from None
        self._clean_up(path)
        replace_file(path, content)

    def delete(self, name: str) -> None:
        self._clean_up(self.root / name)
        (self.root / name).unlink()

    @staticmethod
    def _clean_up(path: Path) -> None:
        """Delete what killed writers left."""
        for left in path.parent.glob(f".{path.name}.*.part*"):
            with contextlib.suppress(OSError):  # deleted meanwhile
                if time.time() - left.stat().st_mtime > CLEAN_UP_SECONDS:
                    left.unlink()
