"""One SQL database: its transactions, and its errors as one sentence each.

SQLite by default, PostgreSQL for a team. Writes are serialised transactions: a killed process leaves the database as it was
before or after one.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partialmethod
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine

from harness.errors import KEPT, TransientError, UserError, first_line, masked, retried
from harness.paths import user_cache
from harness.store.published import UNLABELLED_FILE, check_schema, connected, opened, records_of
from harness.store.tables import META, metadata

SCHEMA_VERSION = 1
DEFAULT_URL = "sqlite:///.harness/harness.db"
LOCK_SECONDS = 60.0
"""How long a call waits for a lock of SQLite."""
CONNECT_SECONDS, SILENT_SECONDS = 10, 30
"""PostgreSQL: for a connection, and until one is closed whose other end went away."""
WRITER = 0x6861726E657373
"""PostgreSQL's advisory lock for writers: one at a time, as in SQLite."""


class Database:
    """One open database. Reads and writes raise `UserError` with the place and the fix, never a bare SQL error.

    Without `create` a missing database is not created: `exists` is False, and reads return nothing. What opening it meets is not
    retried, since its name may be wrong.
    """

    def __init__(self, url: str = DEFAULT_URL, *, create: bool = True) -> None:
        records, self._written = records_of(url), False
        if records != url and records.endswith(UNLABELLED_FILE):
            raise UserError(
                f"{url}: was published without labels; complete it from its data in a store of yours with 'harness merge {shlex.quote(url)} --data DATA'."
            )
        self._published, self.exists, self.url, self.shown = bool(records), True, url, masked(url)
        self.path: Path | None = user_cache("published") / "records.db"
        """SQLite's file; beside it lies what is made from the records, for a published table in the user's cache."""
        if records:
            if create:
                self.check_writable()
            self._engine = sa.create_engine("sqlite://", creator=lambda: opened(records), poolclass=sa.StaticPool)
        else:
            self._open(parsed(url), create)
        if self.exists:
            self.exists = self._prepared(create)

    def _open(self, place: sa.engine.URL, create: bool) -> None:
        """A database that is no published one; with `create` a file that is not there is made."""
        self.path, self.shown = None, masked(str(place))
        self.url = place.render_as_string(hide_password=False)
        """With the password: never show it."""
        if place.get_backend_name() == "sqlite":
            self.path = Path(place.database or "")
            self.shown = sqlite_url(self.path)
            self.url = sqlite_url(self.path.resolve())  # the ledger's process on a cluster has another current folder
            try:
                self.exists = self.path.exists()
                if create and not self.exists:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    self.path.touch()
                    self.exists = True
            except OSError as error:
                raise UserError(f"The store {self.shown} cannot be opened or made: {error.strerror}.") from None
        try:
            self._engine = _engine(place)
        except ModuleNotFoundError as error:
            raise UserError(
                f"store '{self.shown}' needs the Python package '{error.name}': pip install 'glue-harness[postgresql]'."
            ) from None

    def _prepared(self, create: bool) -> bool:
        """Whether the tables exist, after creating them with `create`. Raises UserError for another program's file and another schema."""
        with self._read() as connection:
            if self.path:
                check_schema(connection.exec_driver_sql, self.shown)
            tables = sa.inspect(connection).get_table_names()
            asked = sa.select(META.c.value).where(META.c.name == "schema_version")
            version = connection.execute(asked).scalar() if META.name in tables else None
        if version is None and tables and self.path:
            raise UserError(
                f"The store {self.shown} is not a store of harness: it has tables of something else; name another file."
            )
        if version is None and create:
            with self._write() as connection:  # another process may have created them meanwhile
                metadata.create_all(connection)
                version = str(SCHEMA_VERSION)
                self._insert(connection, META, [{"name": "schema_version", "value": version}])
        if version not in (None, str(SCHEMA_VERSION)):
            raise UserError(
                f"The store {self.shown} was written by another harness (schema {version[:20]}, this one knows {SCHEMA_VERSION}); "
                "upgrade glue-harness or name another store."
            )
        return version is not None

    def check_writable(self) -> None:
        """Raises UserError for a published folder."""
        if self._published:
            raise UserError(
                f"{self.shown}: is a published table, which no command writes; take it over into a store of yours with "
                f"'harness merge {self.shown}' and leave this store out."
            )

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        self.check_writable()
        with self._transaction() as connection:
            if self.path is None:
                # A waiting writer sees what the one before it wrote, and a dead one does not block the others.
                limit = sa.func.set_config("idle_in_transaction_session_timeout", f"{SILENT_SECONDS}s", True)
                connection.execute(sa.select(limit, sa.func.pg_advisory_xact_lock(WRITER)))
            yield connection
        self._written = True

    @contextmanager
    def _transaction(self, **options: Any) -> Iterator[Connection]:
        with (
            self.as_user_error(),
            self._engine.connect().execution_options(**options) as connection,
            connection.begin(),
        ):
            yield connection

    _read = partialmethod(_transaction, harness_read=True)

    @retried
    def _select(
        self, query: sa.Select[Any], column: sa.Column[str] | None = None, keys: Iterable[str] = ()
    ) -> list[sa.RowMapping]:
        """The rows of a query, with `column` those that have one of these keys there; none where the store does not exist yet."""
        if not self.exists:
            return []
        queries = [query] if column is None else [query.where(column.in_(part)) for part in parts(keys)]
        with self._read() as connection:
            return [row for each in queries for row in connection.execute(each).mappings()]

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
        return float(connection.execute(sa.select(sa.extract("epoch", sa.func.clock_timestamp()))).scalar_one())

    def _insert(self, connection: Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows; one whose primary key is there stays as it is."""
        if rows:
            insert = (sqlite if self.path else postgresql).insert(table)
            connection.execute(insert.on_conflict_do_nothing(), list(rows))

    @contextmanager
    def as_user_error(self) -> Iterator[None]:
        """Raise a database's error as a sentence; as TransientError one that may pass: of a server, or of a file that this process has written."""
        try:
            yield
        except (sa.exc.DBAPIError, UnicodeDecodeError) as error:
            orig = getattr(error, "orig", error)
            name = getattr(orig, "sqlite_errorname", "")
            if name.startswith("SQLITE_READONLY"):  # a connection stays what it was opened as
                self._engine.dispose()
            cut = isinstance(error, sa.exc.OperationalError) or getattr(error, "connection_invalidated", False)
            raise (TransientError if cut and (self._written or not self.path) else UserError)(
                f"The store {self.shown} failed ({first_line(orig or error).rstrip('.')}); check that it is there, may be written "
                f"and has room, or name another store: {KEPT}."
            ) from None


def parsed(url: str) -> sa.engine.URL:
    """Parse a store's URL. Raises UserError, which shows no password."""
    with suppress(sa.exc.ArgumentError, ValueError):
        made, driver = sa.engine.make_url(url), "postgresql+psycopg"
        path = made.database or ""
        if (
            made.drivername == "sqlite"
            and path not in ("", ":memory:")
            and not ("\0" in path or made.host or made.query)
        ):
            return made
        if made.drivername in ("postgresql", driver) and "@" not in (made.host or ""):
            if made.password is None and "password" not in made.query:
                # A ledger on another node does not have this environment.
                made = made.set(password=os.environ.get("PGPASSWORD"))
            return made.set(drivername=driver)
    raise UserError(
        f"store '{url if ':/' in url else url.rpartition('@')[2]}' is not a store's URL; write sqlite:///FILE, in its path %3F for a question mark and "
        "%25 for a percent sign, or postgresql+psycopg://USER@HOST/NAME (pip install 'glue-harness[postgresql]'), in its password %40 for an @, or the "
        "folder of a published table."
    )


def sqlite_url(path: Path) -> str:
    """The URL of a file, as `parsed` reads it."""
    return "sqlite:///" + str(path).replace("%", "%25").replace("?", "%3F")


def _engine(url: sa.engine.URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        limits = {"connect_timeout": CONNECT_SECONDS, "tcp_user_timeout": 1000 * SILENT_SECONDS}
        url = url.update_query_dict({**{name: str(limit) for name, limit in limits.items()}, **url.query})
        # A writer must see what the last one wrote: not a snapshot that is older than its lock.
        return sa.create_engine(url, isolation_level="READ COMMITTED", pool_pre_ping=True)
    engine = sa.create_engine(url, creator=lambda: connected(url.database or "", "rw", LOCK_SECONDS))

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A writer takes its lock at once: a deferred one, which reads first and then writes, can fail under two drivers.
        reading = connection.get_execution_options().get("harness_read")
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    return engine


def parts(keys: Iterable[str], most: int = 500) -> Iterator[list[str]]:
    """The distinct keys in lists of what one query takes."""
    every = list(dict.fromkeys(keys))
    for start in range(0, len(every), most):
        yield every[start : start + most]
