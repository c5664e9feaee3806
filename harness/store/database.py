"""One SQL database: its transactions, and its errors as one sentence each.

SQLite by default, PostgreSQL for a team. Every write is one transaction that no other runs beside, so that a killed process
leaves the database as it was before or after it, never between. A database that is away for a moment is asked again.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from harness.errors import UserError
from harness.store import faults
from harness.store.tables import META, metadata

SCHEMA_VERSION = 1
DEFAULT_URL = "sqlite:///.harness/harness.db"
LOCK_SECONDS = 5.0
"""A lock of SQLite is waited for so long at once, and then again (faults.py)."""
CONNECT_SECONDS = 5
ANSWER_SECONDS = 30.0
"""A PostgreSQL that is silent for so long within one transaction is frozen or cut off: its connection is given up."""
WRITER = 0x6861726E657373
"""The advisory lock of PostgreSQL under which there is one writer at a time, as there is in SQLite."""

P = ParamSpec("P")
R = TypeVar("R")


def patient(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A method of one transaction, which is asked again while its database is away."""

    @wraps(method)
    def asked(self: Any, /, *args: P.args, **options: P.kwargs) -> R:
        result: R = self.patience.asked(lambda _: method(self, *args, **options))
        return result

    return asked


class Database:
    """One open database. Reads and writes raise `UserError` with the place and the mend, never a bare SQL error.

    Without `create` nothing is made: of a database that is not there `exists` is False and there is nothing to be read.
    """

    def __init__(self, url: str = DEFAULT_URL, *, create: bool = True) -> None:
        self._parsed = parsed(url)
        self.url = self._parsed.render_as_string(hide_password=False)
        """With the password: not to be shown."""
        self.shown = masked(self._parsed.render_as_string(hide_password=True))
        self.patience = faults.Patience(f"The store {self.shown}")
        self.path: Path | None = None
        if self._parsed.get_backend_name() == "sqlite":
            self.path = Path(self._parsed.database or "")
            # The ledger's process on a cluster has another current folder.
            self.url = self._parsed.set(database=str(self.path.resolve())).render_as_string(hide_password=False)
            self.exists = self.path.exists()
            if not self.exists and not create:
                return
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"The store's folder {self.path.parent} cannot be made: {error.strerror}.") from None
        try:
            self._engine = _engine(self._parsed)
        except ModuleNotFoundError as error:
            raise UserError(
                f"--store '{self.shown}' needs the Python package '{error.name}': pip install "
                "'glue-harness[postgresql]'."
            ) from None
        self.exists = self.patience.asked(lambda _: self._prepare(create))

    def _prepare(self, create: bool) -> bool:
        """Whether the tables are there, which are made where `create` asks for it."""
        asked = sa.select(META.c.value).where(META.c.name == "schema_version")
        with self._read() as connection:
            version = connection.execute(asked).scalar() if sa.inspect(connection).has_table(META.name) else None
        if version is None and create:
            with self._write() as connection:
                metadata.create_all(connection)
                if connection.execute(asked).scalar() is None:
                    connection.execute(sa.insert(META).values(name="schema_version", value=str(SCHEMA_VERSION)))
        elif version is not None and int(version) > SCHEMA_VERSION:
            raise UserError(
                f"The store {self.shown} was written by a newer harness (schema {version}, this one knows "
                f"{SCHEMA_VERSION}); upgrade glue-harness or name another --store."
            )
        return create or version is not None

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with self._transaction(harness_read=True) as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with self._transaction() as connection:
            if self.path is None:
                # Whoever waits sees what the one before it wrote, and one that vanished in the middle does not stop the others.
                options = sa.func.set_config("idle_in_transaction_session_timeout", f"{ANSWER_SECONDS:.0f}s", True)
                connection.execute(sa.select(options, sa.func.pg_advisory_xact_lock(WRITER)))
            yield connection

    @contextmanager
    def _transaction(self, **options: Any) -> Iterator[Connection]:
        try:
            with (
                self._engine.connect().execution_options(**options) as connection,
                nullcontext() if self.path else self._watched(connection),
                connection.begin(),
            ):
                yield connection
        except sa.exc.DBAPIError as error:
            raise faults.sentence(f"The store {self.shown}", error) from None

    @contextmanager
    def _watched(self, connection: Connection) -> Iterator[None]:
        """A server that is silent is spoken of, then cut off: no error comes from one that is frozen."""
        line = socket.socket(fileno=os.dup(cast(Any, connection.connection.dbapi_connection).fileno()))
        answered = threading.Event()

        def watch() -> None:
            if not answered.wait(faults.SPEAK_SECONDS):
                self.patience.late()
                if not answered.wait(ANSWER_SECONDS - faults.SPEAK_SECONDS):
                    line.shutdown(socket.SHUT_RDWR)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            answered.set()
            watcher.join()
            line.close()


def parsed(url: str) -> sa.engine.URL:
    """A store's URL. Raises UserError, which shows no password."""
    try:
        found = sa.engine.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        raise UserError(
            f"--store '{masked(url)}' is not a database URL; write for example sqlite:///results/harness.db or "
            "postgresql+psycopg://user@host/name."
        ) from None
    if found.drivername == "sqlite":
        if not found.database or found.database == ":memory:":
            raise UserError(f"--store '{url}' names no file; write for example sqlite:///results/harness.db.")
        return found
    if found.drivername not in ("postgresql", "postgresql+psycopg"):
        raise UserError(
            f"--store '{masked(url)}' asks for a database that is not known; use sqlite:///FILE or "
            "postgresql+psycopg://USER@HOST/NAME (pip install 'glue-harness[postgresql]')."
        )
    if found.host and "@" in found.host:
        raise UserError(f"--store '{masked(url)}' has an @ in its password; write %40 for it, or set PGPASSWORD.")
    if found.password is None and "password" not in found.query:
        # A ledger on another node does not have this environment.
        found = found.set(password=os.environ.get("PGPASSWORD"))
    return found.set(drivername="postgresql+psycopg")


def _engine(url: sa.engine.URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        url = url.update_query_dict({"connect_timeout": str(CONNECT_SECONDS), **url.query})
        # One writer at a time sees what the last one wrote: not with a snapshot that is older than its lock.
        return sa.create_engine(url, isolation_level="READ COMMITTED")
    engine = sa.create_engine(url, connect_args={"timeout": LOCK_SECONDS})

    @sa.event.listens_for(engine, "connect")
    def _manual(connection: Any, _: Any) -> None:
        connection.isolation_level = None

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A writer takes its lock at once: a deferred one that reads first and then writes can fail under two drivers.
        reading = connection.get_execution_options().get("harness_read")
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    return engine


def masked(url: str) -> str:
    """A URL, or what was meant as one, without its password: between ':' and the last '@', or in the query."""
    return re.sub(r"(?i)((?:password|passwd|pwd)=)[^&]*", r"\1***", re.sub(r":(?!/).*@", ":***@", url))


def parts(keys: Iterable[str], size: int = 500) -> Iterator[list[str]]:
    """The distinct keys in lists that one query takes."""
    every = list(dict.fromkeys(keys))
    for start in range(0, len(every), size):
        yield every[start : start + size]
