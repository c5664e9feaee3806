"""One SQL database: its transactions, and its errors as one sentence each.

SQLite by default, PostgreSQL for a team. Writes are serialised transactions: a killed process leaves the database as it was
before or after one. Calls are retried during a transient outage.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast
from urllib.parse import quote, unquote

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine

from harness import retry
from harness.errors import UserError
from harness.store import sentences
from harness.store.published import RECORDS_FILE, UNLABELLED_FILE, is_published, unpacked
from harness.store.tables import META, metadata

SCHEMA_VERSION = 1
DEFAULT_URL = "sqlite:///.harness/harness.db"
LOCK_SECONDS = 5.0
"""How long one call waits for a lock of SQLite; then it is retried (harness/retry.py)."""
CONNECT_SECONDS = 5
ANSWER_SECONDS = 30.0
"""A PostgreSQL that is silent for this long within one transaction is frozen or cut off: its connection is closed."""
CLOCK = sa.select(sa.extract("epoch", sa.func.clock_timestamp()))
"""Seconds since 1970 by PostgreSQL's clock."""
WRITER = 0x6861726E657373
"""PostgreSQL's advisory lock for writers: one at a time, as in SQLite."""

P = ParamSpec("P")
R = TypeVar("R")


def retried(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A method of one transaction, which is retried during an outage of its database."""

    @wraps(method)
    def retrying(self: Any, /, *args: P.args, **options: P.kwargs) -> R:
        result: R = self.outage_retry.call(lambda _: method(self, *args, **options))
        return result

    return retrying


class Database:
    """One open database. Reads and writes raise `UserError` with the place and the fix, never a bare SQL error.

    Without `create` a missing database is not created: `exists` is False, and reads return nothing. A file that exists is never
    taken for a new database, however damaged it is.
    """

    def __init__(self, url: str = DEFAULT_URL, *, create: bool = True) -> None:
        self._published = is_published(url)
        if not self._published and is_published(url, UNLABELLED_FILE):
            raise UserError(
                f"{url}: was published without labels; complete it from its data in a store of yours with 'harness merge {shlex.quote(url)} --data DATA'."
            )
        self._parsed = parsed(sqlite_url(unpacked(Path(url).expanduser() / RECORDS_FILE)) if self._published else url)
        self.shown = url if self._published else shown(self._parsed)
        if create:
            self.check_writable()
        self.outage_retry = retry.OutageRetry(f"The store {self.shown}")
        self.path: Path | None = None
        self.url = self._parsed.render_as_string(hide_password=False)
        """With the password: never show it."""
        if self._parsed.get_backend_name() == "sqlite":
            self.path = Path(self._parsed.database or "")
            # The ledger's process on a cluster has another current folder.
            self.url = str(Path(url).expanduser().resolve()) if self._published else sqlite_url(self.path.resolve())
            self.exists = self._there()
            if not self.exists and not create:
                return
        try:
            self._engine = _engine(self._parsed, "ro" if self._published else "rw")
        except ModuleNotFoundError as error:
            raise UserError(
                f"store '{self.shown}' needs the Python package '{error.name}': pip install 'glue-harness[postgresql]'."
            ) from None
        self.exists = self.outage_retry.call(lambda _: self._prepare(create))

    def _there(self) -> bool:
        """Whether SQLite's file exists. Raises UserError if it is empty."""
        assert self.path is not None
        try:
            empty = self.path.is_file() and not self.path.stat().st_size
            there = self.path.exists()
        except OSError as error:
            raise UserError(f"store '{self.shown}' cannot be read: {error.strerror}.") from None
        if empty:
            raise UserError(
                f"The store {self.shown} is an empty file: its content is lost, or another program made it; restore a copy, or "
                "delete the file to create a new store."
            )
        return there

    def _prepare(self, create: bool) -> bool:
        """Whether the tables exist, after creating them with `create`."""
        if self.path and not self._there():
            self._make_file()
        asked = sa.select(META.c.value).where(META.c.name == "schema_version")
        with self._read() as connection:
            version = connection.execute(asked).scalar() if sa.inspect(connection).has_table(META.name) else None
        if version is None and self.path:
            raise UserError(
                f"The store {self.shown} is not a store of harness, or is damaged: it has no schema version; restore a copy, move "
                "that file away or name another store."
            )
        if version is None and create:
            with self._write() as connection:
                _make_tables(connection)
        elif version is not None and not str(version).isdecimal():
            raise UserError(
                f"The store {self.shown} is damaged: its schema is '{str(version)[:20]}'; put a copy in its place or name another "
                "store."
            )
        elif version is not None and int(version) > SCHEMA_VERSION:
            raise UserError(
                f"The store {self.shown} was written by a newer harness (schema {version}, this one knows "
                f"{SCHEMA_VERSION}); upgrade glue-harness or name another store."
            )
        return create or version is not None

    def _make_file(self) -> None:
        """Create SQLite's file with its tables, atomically; another process may create it first."""
        assert self.path is not None
        path = self.path.resolve()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"The store's folder {path.parent} cannot be made: {error.strerror}.") from None
        temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
        engine = _engine(sa.URL.create("sqlite", database=str(temporary)), mode="rwc")
        try:
            with engine.begin() as connection:
                _make_tables(connection)
            engine.dispose()
            _put(temporary, path)
        except sa.exc.DBAPIError as error:
            raise sentences.sentence(f"The store {self.shown}", error) from None
        except OSError as error:
            raise UserError(f"The store {self.shown} cannot be made: {error.strerror}.") from None
        finally:
            engine.dispose()
            temporary.unlink(missing_ok=True)

    def check_writable(self) -> None:
        """Raises UserError for a published folder."""
        if self._published:
            raise UserError(
                f"{self.shown}: is a published table, which no command writes; take it over into a store of yours with "
                f"'harness merge {self.shown}' and leave this store out."
            )

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with self._transaction(harness_read=True) as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        self.check_writable()
        with self._transaction() as connection:
            if self.path is None:
                # A waiting writer sees what the one before it wrote, and a dead one does not block the others.
                options = sa.func.set_config("idle_in_transaction_session_timeout", f"{ANSWER_SECONDS:.0f}s", True)
                connection.execute(sa.select(options, sa.func.pg_advisory_xact_lock(WRITER)))
            yield connection

    @contextmanager
    def _transaction(self, **options: Any) -> Iterator[Connection]:
        with (
            self._as_user_error(),
            self._engine.connect().execution_options(**options) as connection,
            nullcontext() if self.path else self._watched(connection),
            connection.begin(),
        ):
            yield connection

    def _select(self, query: sa.Select[Any]) -> list[sa.RowMapping]:
        """The rows of a query; none where the store does not exist yet."""
        if not self.exists:
            return []
        with self._read() as connection:
            return [*connection.execute(query).mappings()]

    def integrity(self) -> str:
        """What SQLite says of its file: 'ok' where it is whole. Of a server 'ok'."""
        if not self.exists or not self.path:
            return "ok"
        with self._read() as connection:
            return str(connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar())

    def _now(self, connection: Connection) -> float:
        """Seconds since 1970 by the database's clock, which is one for all hosts. SQLite has none: by this machine's."""
        if self.path:
            return time.time()
        return float(connection.execute(CLOCK).scalar_one())

    def _insert(
        self, connection: Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]], replacing: Sequence[str] = ()
    ) -> None:
        """Insert rows. One whose primary key is there stays, but for the columns in `replacing`, which take the new values."""
        insert: Any = (sqlite if self.path else postgresql).insert(table)
        changes = {name: insert.excluded[name] for name in replacing}
        insert = (
            insert.on_conflict_do_update(index_elements=list(table.primary_key), set_=changes)
            if changes
            else insert.on_conflict_do_nothing()
        )
        if rows:
            connection.execute(insert, list(rows))

    @contextmanager
    def _as_user_error(self) -> Iterator[None]:
        """Raise a database's error as a sentence."""
        try:
            yield
        except sa.exc.DBAPIError as error:
            reason = sentences.sentence(f"The store {self.shown}", error, self.path)
            if isinstance(reason, retry.TransientOutageError) and not self.path:
                self._engine.dispose()  # after a fail-over the other connections lead to the old primary
            raise reason from None

    @contextmanager
    def _watched(self, connection: Connection) -> Iterator[None]:
        """Report a silent server, then close its connection: a frozen one raises no error."""
        line = socket.socket(fileno=os.dup(cast(Any, connection.connection.dbapi_connection).fileno()))
        answered = threading.Event()

        def watch() -> None:
            if not answered.wait(retry.REPORT_SECONDS):
                self.outage_retry.report_slow()
                if not answered.wait(ANSWER_SECONDS - retry.REPORT_SECONDS):
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
    """Parse a store's URL. Raises UserError, which shows no password."""
    if url.startswith("sqlite:"):
        return _parsed_sqlite(url)
    try:
        made = sa.engine.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        raise UserError(
            f"store '{masked(url)}' is not a database URL; write for example sqlite:///results/harness.db or "
            "postgresql+psycopg://user@host/name, or the folder of a published table."
        ) from None
    if made.drivername not in ("postgresql", "postgresql+psycopg"):
        raise UserError(
            f"store '{masked(url)}' names an unknown kind of database; use sqlite:///FILE or "
            "postgresql+psycopg://USER@HOST/NAME (pip install 'glue-harness[postgresql]')."
        )
    if made.host and "@" in made.host:
        raise UserError(f"store '{masked(url)}' has an @ in its password; write %40 for it, or set PGPASSWORD.")
    if made.password is None and "password" not in made.query:
        # A ledger on another node does not have this environment.
        made = made.set(password=os.environ.get("PGPASSWORD"))
    return made.set(drivername="postgresql+psycopg")


def _parsed_sqlite(url: str) -> sa.engine.URL:
    """The URL of a file: its path follows the third slash, with %25 for a percent sign and %3F for a question mark."""
    text = url.removeprefix("sqlite:///")
    path = unquote(text, errors="surrogateescape")
    if not path or path == ":memory:" or "\0" in path or text == url:
        raise UserError(f"store '{url}' names no file; write for example sqlite:///results/harness.db.")
    if "?" in text:
        raise UserError(
            f"store '{url}' has a question mark, after which a URL has options, and a file has none; write %3F for one in a "
            "path."
        )
    literal = Path(text)
    decoded = Path(path)
    if any(
        os.path.lexists(a) and not os.path.lexists(b) for a, b in ((literal, decoded), (literal.parent, decoded.parent))
    ):
        raise UserError(
            f"store '{url}' names {path}, since %{text.partition('%')[2][:2]} stands for another character in a URL; write %25 "
            f"for the percent sign of {literal}."
        )
    return sa.URL.create("sqlite", database=path)


def sqlite_url(path: Path) -> str:
    """The URL of a file, as `parsed` reads it."""
    return "sqlite:///" + str(path).replace("%", "%25").replace("?", "%3F")


def shown(url: sa.engine.URL) -> str:
    """A parsed URL for people, without its password."""
    if url.get_backend_name() == "sqlite":
        return sqlite_url(Path(url.database or ""))
    return masked(url.render_as_string(hide_password=True))


def _engine(url: sa.engine.URL, mode: str = "rw") -> Engine:
    """`mode` of a file: 'rw' does not create it, 'ro' does not write it."""
    if url.get_backend_name() != "sqlite":
        url = url.update_query_dict({"connect_timeout": str(CONNECT_SECONDS), **url.query})
        # A writer must see what the last one wrote: not a snapshot that is older than its lock.
        return sa.create_engine(url, isolation_level="READ COMMITTED")
    place = f"file:{quote(os.fsencode(url.database or ''))}?mode={mode}"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(place, uri=True, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False)

    engine = sa.create_engine(url, creator=connect)

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A writer takes its lock at once: a deferred one, which reads first and then writes, can fail under two drivers.
        reading = connection.get_execution_options().get("harness_read")
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    return engine


def _make_tables(connection: Connection) -> None:
    metadata.create_all(connection)
    asked = sa.select(META.c.value).where(META.c.name == "schema_version")
    if connection.execute(asked).scalar() is None:
        connection.execute(sa.insert(META).values(name="schema_version", value=str(SCHEMA_VERSION)))


def _put(temporary: Path, path: Path) -> None:
    """Give a file its name, unless a file of that name exists."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return
    except OSError:  # a file system without links
        if not os.path.lexists(path):
            temporary.rename(path)


_PASSWORD = re.compile(r"://[^@]*:.*@|[?&][^=&]*(?:password|passwd|pwd|secret|token|access_key)[^=&]*=", re.IGNORECASE)


def has_password(text: str) -> bool:
    """Whether a text is a URL with a password, before its host or in its query."""
    return _PASSWORD.search(text) is not None


def masked(url: str) -> str:
    """A URL, or what was meant as one, without its password: between ':' and the last '@', or in the query."""
    return re.sub(r"(?i)((?:password|passwd|pwd)=)[^&]*", r"\1***", re.sub(r":(?!/).*@", ":***@", url))


def parts(keys: Iterable[str]) -> Iterator[list[str]]:
    """The distinct keys in lists that one query takes."""
    every = list(dict.fromkeys(keys))
    for start in range(0, len(every), 500):
        yield every[start : start + 500]
