"""One SQL database: its tables, its transactions, and its errors as one sentence each.

SQLite by default, any SQLAlchemy URL for a team. Every write is one transaction, so that a killed process leaves the
database as it was before or after it, never between.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from harness.errors import UserError

SCHEMA_VERSION = 1
DEFAULT_URL = "sqlite:///.harness/harness.db"

metadata = sa.MetaData()
META = sa.Table("meta", metadata, sa.Column("name", sa.String(64), primary_key=True), sa.Column("value", sa.Text))
RECORDS = sa.Table(
    "records",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("stage", sa.Text, nullable=False),
    sa.Column("record", sa.Text, nullable=False),
    sa.Column("predictions", sa.LargeBinary),
    sa.Column("committed_at", sa.Float, nullable=False),
)
RUNS = sa.Table(
    "runs",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("table", sa.String(128), primary_key=True),
    sa.Column("row", sa.String(128), primary_key=True),
    sa.Column("method", sa.String(64), nullable=False),
    sa.Column("task", sa.String(64), primary_key=True),
    sa.Column("size", sa.Integer, primary_key=True),
    sa.Column("subset", sa.Integer, primary_key=True),
    sa.Column("seed", sa.Integer, primary_key=True),
)
LEASES = sa.Table(
    "leases",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("started", sa.Float, nullable=False),
    sa.Column("renewed_at", sa.Float, nullable=False),
)
TRANSLATIONS = sa.Table(
    "translations",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("text", sa.Text, nullable=False),
)
TUNE_TRIALS = sa.Table(
    "tune_trials",  # 'trials' is Optuna's, in the same database
    metadata,
    sa.Column("study", sa.String(128), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("body", sa.Text, nullable=False),
)
"""These two are younger than the others: a database of an older harness gets them with the first row that is kept."""


class Database:
    """One open database. Reads and writes raise `UserError` with the place and the mend, never a bare SQL error.

    Without `create` a missing SQLite file is not made: `exists` is False and there is nothing to be read.
    """

    def __init__(self, url: str = DEFAULT_URL, *, create: bool = True) -> None:
        self.url = url
        try:
            self._parsed = sa.engine.make_url(url)
        except (sa.exc.ArgumentError, ValueError):
            raise UserError(
                f"--store '{_masked(url)}' is not a database URL; write for example sqlite:///results/harness.db or "
                "postgresql+psycopg://user@host/name."
            ) from None
        self.shown = _masked(self._parsed.render_as_string(hide_password=True))
        self.exists = True
        if self._parsed.get_backend_name() == "sqlite":
            database = self._parsed.database
            if not database or database == ":memory:":
                raise UserError(f"--store '{url}' names no file; write for example sqlite:///results/harness.db.")
            self.path: Path | None = Path(database)
            self.exists = self.path.exists()
            if not self.exists and not create:
                return
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"The store's folder {self.path.parent} cannot be made: {error.strerror}.") from None
        else:
            self.path = None
        with self._spoken():
            self._engine = _engine(self._parsed)
            self._prepare()
        self.exists = True

    def _prepare(self) -> None:
        with self._engine.connect().execution_options(harness_read=True) as connection:
            fresh = not sa.inspect(connection).has_table("meta")
            version = (
                None
                if fresh
                else connection.execute(sa.select(META.c.value).where(META.c.name == "schema_version")).scalar()
            )
        if fresh or version is None:
            with self._engine.begin() as connection:
                metadata.create_all(connection)
                if not connection.execute(sa.select(META.c.value).where(META.c.name == "schema_version")).scalar():
                    connection.execute(sa.insert(META).values(name="schema_version", value=str(SCHEMA_VERSION)))
        elif int(version) > SCHEMA_VERSION:
            raise UserError(
                f"The store {self.shown} was written by a newer harness (schema {version}, this one knows "
                f"{SCHEMA_VERSION}); upgrade glue-harness or name another --store."
            )

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with self._spoken(), self._engine.connect().execution_options(harness_read=True) as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with self._spoken(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _spoken(self) -> Iterator[None]:
        """Database errors as one sentence each."""
        try:
            yield
        except sa.exc.NoSuchModuleError:
            raise UserError(
                f"--store '{self.shown}' asks for a database that is not known; use sqlite:///FILE or "
                "postgresql+psycopg://USER@HOST/NAME (pip install 'glue-harness[postgresql]')."
            ) from None
        except ModuleNotFoundError as error:
            raise UserError(
                f"--store '{self.shown}' needs the Python package '{error.name}': pip install "
                "'glue-harness[postgresql]'."
            ) from None
        except sa.exc.DBAPIError as error:
            text = str(error.orig)
            place = f"The store {self.shown}"
            mends = {
                "locked": f"{place} stayed locked by another program for 30 s; close it and run the same command again.",
                "readonly": f"{place} is read-only; make it writable or name another --store.",
                "disk is full": f"{place} is on a full disk; free some space and run the same command again: what was "
                "recorded is kept.",
                "not a database": f"{place} is not a database; move that file away or name another --store.",
                "unable to open": f"{place} cannot be opened; check that its folder exists and is writable.",
                "disk I/O": f"{place} could not be read or written ({text}); check the disk and run the command again.",
            }
            for sign, sentence in mends.items():
                if sign in text:
                    raise UserError(sentence) from None
            first = text.strip().splitlines()[0] if text.strip() else type(error).__name__
            raise UserError(f"{place} answered: {first}.") from None


def _engine(url: sa.engine.URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        return sa.create_engine(url, pool_pre_ping=True)
    engine = sa.create_engine(url, connect_args={"timeout": 30.0})

    @sa.event.listens_for(engine, "connect")
    def _manual(connection: Any, _: Any) -> None:
        connection.isolation_level = None

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A writer takes its lock at once: a deferred one that reads first and then writes can fail under two drivers.
        reading = connection.get_execution_options().get("harness_read")
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    return engine


def _masked(url: str) -> str:
    """A URL, or what was meant as one, without its password: between ':' and the last '@', or in the query."""
    return re.sub(r"(?i)((?:password|passwd|pwd)=)[^&]*", r"\1***", re.sub(r":(?!/).*@", ":***@", url))


def parts(keys: Iterable[str], size: int = 500) -> Iterator[list[str]]:
    """The distinct keys in lists that one query takes."""
    every = list(dict.fromkeys(keys))
    for start in range(0, len(every), size):
        yield every[start : start + size]
