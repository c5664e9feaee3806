"""Artifact storage: weights and checkpoints in one place that every worker sees, a folder or a bucket. No torch, no ray, no
database."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from harness.errors import UserError, first_line
from harness.paths import named_path
from harness.retry import OutageRetry, TransientOutageError

T = TypeVar("T")

OPTIONS = {"s3": ("endpoint_override", "region", "scheme"), "gs": ("endpoint_override", "scheme")}
"""Options after a '?' in the URI of each kind of bucket."""
CONNECT_SECONDS, SILENT_SECONDS, ATTEMPTS = 5.0, 10.0, 2
"""An unreachable bucket fails after 11 s, a connected one that does not answer after 21 s (measured)."""
CLEAN_UP_SECONDS = 60.0
"""Temporary files of killed writers are deleted from this age on."""


class StorageError(UserError, OSError):
    """The storage cannot be used: the reason and the fix in one sentence."""


@dataclass(frozen=True)
class Storage:
    """Files by name in a folder, file:///FOLDER, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX. Credentials come from the environment,
    or from the URI (s3://KEY:SECRET@BUCKET/...), and are never shown.

    Small and picklable: a worker on another node opens it again. All methods raise StorageError. In a process that reached the storage before, they
    are retried during an outage; a bucket that refuses the credentials is opened again, with those that are valid by then.
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
        return _masked(self.uri)

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

        def write(place: _Folder | _Bucket) -> None:
            try:
                place.write(name, content)
            except FileNotFoundError as error:  # a folder that cannot be created
                raise OSError(first_line(error)) from None

        self._retried("written", write)

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._retried("written", lambda place: place.delete(name))

    def trust(self) -> None:
        """Another process reached the storage: calls of this one are retried from the first on."""
        _retry(self.uri).reached = True

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
        def once(_: bool) -> tuple[T | None, FileNotFoundError | None]:
            with self._as_storage_error(done):
                try:
                    return act(_opened(self.uri)), None
                except FileNotFoundError as error:  # an answer too
                    return None, error

        try:
            answer, missing = _retry(self.uri).call(once)
        except UserError as error:
            raise StorageError(str(error)) from None
        if missing:
            raise missing
        return cast(T, answer)

    @contextlib.contextmanager
    def _as_storage_error(self, done: str) -> Iterator[None]:
        """Raise an error of a file system or a bucket as a sentence."""
        try:
            yield
        except UserError:
            raise
        except OSError as error:
            place = f"The storage {self.shown}"
            text = (error.strerror or str(error) or "no message").splitlines()[0].rstrip(".")
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                sentence = f"{place} may not be {done} by this user on {_here()} ({text}); change that, or name another storage."
            elif error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
                sentence = f"{place} is not a folder on {_here()} ({text}); name another storage."
            elif any(sign in text for sign in _NO_BUCKET):
                sentence = f"{place} names a bucket that does not exist; create it, or name another storage."
            else:
                raise self._outage(place, done, error.errno, text) from None
            raise StorageError(sentence) from None

    def _outage(self, place: str, done: str, number: int | None, text: str) -> UserError:
        """An error that may pass, by its number or its text; of another one StorageError."""
        again = "then run the same command again: recorded stages are kept"
        if number in (errno.ENOSPC, errno.EDQUOT):
            return TransientOutageError(place, f"is on a full disk ({_here()})", f"free some space, {again}")
        if any(sign in text for sign in _SKEWED):
            fix = f"set the clock, for instance by NTP, {again}"
            return TransientOutageError(place, f"refuses {_here()} for its clock, which is wrong", fix)
        if any(sign in text for sign in _REFUSED):
            _opened.cache_clear()  # the next try reads the credentials again
            fix = (
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY there (for gs:// GOOGLE_APPLICATION_CREDENTIALS), with permission to read, "
                "write and delete"
            )
            return TransientOutageError(place, f"refuses the credentials of {_here()}", fix)
        if any(sign in text for sign in _SILENT):
            state, fix = f"does not answer {_here()} ({_reason(text)})", f"check its address and the network, {again}"
            return TransientOutageError(place, state, fix)
        state, fix = f"could not be {done} on {_here()}: {text[:300]}", f"fix that, {again}"
        if number in (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH):
            return TransientOutageError(place, state, fix)
        return StorageError(f"{place} {state}; {fix}.")


def weights_of(key: str, step: str | int = "last") -> str:
    """The name of a stage's weights: its final ones ('last' or 'selected'), or those after update `step`."""
    return f"{key}.safetensors" if isinstance(step, str) else f"{key}.step-{step}.safetensors"


def checkpoint_of(key: str) -> str:
    """The name of the checkpoint from which an interrupted stage resumes."""
    return f"{key}.checkpoint.safetensors"


# ---------------------------------------------------------------- folders and buckets

_NO_BUCKET = ("NO_SUCH_BUCKET", "bucket does not exist")
_REFUSED = (
    "ACCESS_DENIED",
    "INVALID_ACCESS_KEY_ID",
    "SIGNATURE_DOES_NOT_MATCH",
    "INVALID_SIGNATURE",
    "EXPIRED_TOKEN",
    "MISSING_AUTHENTICATION_TOKEN",
    "UNRECOGNIZED_CLIENT",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "OAuth2",
)
_SILENT = (
    "NETWORK_CONNECTION",
    "REQUEST_TIMEOUT",
    "SERVICE_UNAVAILABLE",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "SLOW_DOWN",
    "THROTTLING",
    "INTERNAL_FAILURE",
)
_SKEWED = ("REQUEST_TIME_TOO_SKEWED", "RequestTimeTooSkewed")


def _here() -> str:
    return platform.node() or "this machine"


def _reason(text: str) -> str:
    """The end of a library's long message, which has the reason."""
    return text.rpartition("Details: ")[2][:160]


def _masked(uri: str) -> str:
    """A URI without anything that may be a secret: all before an '@', a bucket with a colon, unknown options."""
    if "://" not in uri or uri.startswith("file:"):
        return uri
    scheme, _, rest = uri.partition("://")
    rest, _, query = rest.partition("?")
    _, at, rest = rest.rpartition("@")
    bucket, slash, prefix = rest.partition("/")
    known = "&".join(o for o in query.split("&") if o.partition("=")[0] in OPTIONS.get(scheme, ()) and "@" not in o)
    return f"{scheme}://{'***@' if at else ''}{'***' if ':' in bucket else bucket}{slash}{prefix}{'?' if known else ''}{known}"


def _parts(uri: str) -> SplitResult:
    """Parse the URI of a storage. Raises UserError."""
    shown = f"storage {_masked(uri)}"
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


@cache
def _retry(uri: str) -> OutageRetry:
    return OutageRetry(f"The storage {_masked(uri)}")


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
        except FileNotFoundError:
            raise OSError("NO_SUCH_BUCKET") from None

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
        path.parent.mkdir(parents=True, exist_ok=True)
        self._clean_up(path)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            with temporary.open("xb") as held:
                with contextlib.suppress(OSError):  # a file system without locks: then nothing is cleaned up either
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                temporary.write_bytes(content)
                temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def delete(self, name: str) -> None:
        self._clean_up(self.root / name)
        (self.root / name).unlink()

    @staticmethod
    def _clean_up(path: Path) -> None:
        """Delete temporary files of killed writers: a lock ends with the process that holds it, on any machine."""
        for left in path.parent.glob(f".{path.name}.*.tmp"):
            with contextlib.suppress(OSError):  # being written, or deleted meanwhile
                if time.time() - left.stat().st_mtime > CLEAN_UP_SECONDS:
                    with left.open("rb") as held:
                        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        left.unlink()
