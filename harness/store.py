"""Records, leases and run labels in one SQL database, products (weights of a stage) as files beside it.

Laws: at most one record per key is committed; only the holder of a live lease commits; a `done` record is never
overwritten; a failed one never counts as done. SQLite by default, any SQLAlchemy URL for a team. Every write is one
transaction, so that a killed process leaves the database as it was before or after it, never between.
"""

from __future__ import annotations

import io
import json
import os
import re
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import psutil
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from harness.errors import UserError
from harness.specs import Predictions, Record, Run, Stage, Status

SCHEMA_VERSION = 1
LEASE_SECONDS = 60.0
"""A lease of another host that was not renewed for this long is dead; one of this host dies with its process."""
RENEW_SECONDS = 10.0
DEFAULT_URL = "sqlite:///.harness/harness.db"

Grant = Literal["granted", "held", "settled"]

_metadata = sa.MetaData()
_meta = sa.Table("meta", _metadata, sa.Column("name", sa.String(64), primary_key=True), sa.Column("value", sa.Text))
_records = sa.Table(
    "records",
    _metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("stage", sa.Text, nullable=False),
    sa.Column("record", sa.Text, nullable=False),
    sa.Column("predictions", sa.LargeBinary),
    sa.Column("committed_at", sa.Float, nullable=False),
)
_runs = sa.Table(
    "runs",
    _metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("table", sa.String(128), primary_key=True),
    sa.Column("row", sa.String(128), primary_key=True),
    sa.Column("method", sa.String(64), nullable=False),
    sa.Column("task", sa.String(64), primary_key=True),
    sa.Column("size", sa.Integer, primary_key=True),
    sa.Column("subset", sa.Integer, primary_key=True),
    sa.Column("seed", sa.Integer, primary_key=True),
)
_leases = sa.Table(
    "leases",
    _metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("started", sa.Float, nullable=False),
    sa.Column("renewed_at", sa.Float, nullable=False),
)


@dataclass(frozen=True)
class Owner:
    """Who holds leases: one driver process. It is alive on its own host as long as its process (pid and start) is."""

    token: str
    host: str
    pid: int
    started: float

    @classmethod
    def current(cls) -> Owner:
        pid = os.getpid()
        return cls(uuid.uuid4().hex, _host(), pid, psutil.Process(pid).create_time())


def _host() -> str:
    """Name and boot id: two containers may share a name, not the name and the process table."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return f"{socket.gethostname()}{namespace}"


@dataclass(frozen=True)
class Speed:
    """How fast one recorded stage was: where, from which encoder (digest), its FLOPs and its seconds."""

    host: str
    encoder: str
    flops: float
    seconds: float


class Store:
    """One open database. Reads and writes raise `UserError` with the place and the mend, never a bare SQL error."""

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

    @property
    def products(self) -> Path:
        """The folder of stage weights."""
        return (self.path.parent if self.path else Path(".harness")) / "products"

    def product(self, key: str) -> Path:
        return self.products / f"{key}.safetensors"

    # ---------------------------------------------------------------- records

    def statuses(self, keys: Iterable[str]) -> dict[str, tuple[Status, int]]:
        """Status and attempt number of every key that has a record."""
        if not self.exists:
            return {}
        with self._read() as connection:
            found: dict[str, tuple[Status, int]] = {}
            for part in _parts(keys):
                query = sa.select(_records.c.key, _records.c.status, _records.c.attempt).where(_records.c.key.in_(part))
                found.update({k: (cast(Status, s), a) for k, s, a in connection.execute(query)})
            return found

    def records(self, keys: Iterable[str], *, predictions: bool = False) -> dict[str, Record]:
        """Records by key, with their predictions when asked."""
        if not self.exists:
            return {}
        columns = [_records.c.key, _records.c.record, *([_records.c.predictions] if predictions else [])]
        with self._read() as connection:
            found = {}
            for part in _parts(keys):
                for row in connection.execute(sa.select(*columns).where(_records.c.key.in_(part))):
                    record = Record(**json.loads(row[1]))
                    if predictions and row[2]:
                        record.predictions = _unpack(row[2])
                    found[row[0]] = record
            return found

    def stage(self, key: str) -> Stage | None:
        if not self.exists:
            return None
        with self._read() as connection:
            body = connection.execute(sa.select(_records.c.stage).where(_records.c.key == key)).scalar()
        return Stage.from_json(json.loads(body)) if body else None

    def keys_like(self, prefix: str) -> list[str]:
        """Recorded keys that start with `prefix`, at most 20."""
        if not self.exists:
            return []
        with self._read() as connection:
            query = sa.select(_records.c.key).where(_records.c.key.startswith(prefix, autoescape=True)).limit(20)
            return sorted(connection.execute(query).scalars())

    def speeds(self) -> list[Speed]:
        """The newest 200 finished stages: what a plan is calibrated on."""
        if not self.exists:
            return []
        with self._read() as connection:
            query = sa.select(_records.c.record).where(_records.c.status == "done")
            rows = connection.execute(query.order_by(_records.c.committed_at.desc()).limit(200)).scalars()
            bodies = [json.loads(row) for row in rows]
        return [
            Speed(b["provenance"].get("host", ""), b["provenance"].get("encoder", ""), b["flops"], b["seconds"])
            for b in bodies
        ]

    # ---------------------------------------------------------------- runs (labels)

    def label(self, table: str, runs: Iterable[Run]) -> None:
        """Keep the labels of runs beside their keys; a label that is there already stays."""
        rows = [
            {"key": r.stage.key, "table": table, "row": r.row, "method": r.method, "task": r.task}
            | {"size": r.size, "subset": r.subset, "seed": r.seed}
            for r in runs
        ]
        with self._write() as connection:
            known = {tuple(row) for row in connection.execute(sa.select(_runs).where(_runs.c.table == table))}
            order = [column.name for column in _runs.columns]
            new = [row for row in rows if tuple(row[name] for name in order) not in known]
            if new:
                connection.execute(sa.insert(_runs), new)

    def labels(self, key: str) -> list[dict[str, Any]]:
        if not self.exists:
            return []
        with self._read() as connection:
            return [dict(row) for row in connection.execute(sa.select(_runs).where(_runs.c.key == key)).mappings()]

    # ---------------------------------------------------------------- leases

    def lease(self, key: str, owner: Owner, *, seen_attempt: int = 0, remake: bool = False) -> Grant:
        """Ask to train a stage: 'granted', 'held' by another live owner, or 'settled' by a record newer than seen.

        `remake` asks for the weights of a recorded stage again, which leaves its record alone.
        """
        now = time.time()
        with self._write() as connection:
            row = connection.execute(sa.select(_records.c.attempt).where(_records.c.key == key)).scalar()
            if not remake and row is not None and row > seen_attempt:
                return "settled"
            held = (
                connection.execute(sa.select(_leases).where(_leases.c.key == key).with_for_update()).mappings().first()
            )
            if held and held["owner"] != owner.token and _alive(held, now):
                return "held"
            connection.execute(sa.delete(_leases).where(_leases.c.key == key))
            connection.execute(
                sa.insert(_leases).values(
                    key=key, owner=owner.token, host=owner.host, pid=owner.pid, started=owner.started, renewed_at=now
                )
            )
            return "granted"

    def renew(self, owner: Owner) -> None:
        with self._write() as connection:
            connection.execute(sa.update(_leases).where(_leases.c.owner == owner.token).values(renewed_at=time.time()))

    def release(self, owner: Owner, key: str | None = None) -> None:
        """Give back one lease, or all of an owner's."""
        condition = _leases.c.owner == owner.token
        with self._write() as connection:
            connection.execute(
                sa.delete(_leases).where(condition if key is None else condition & (_leases.c.key == key))
            )

    def others_alive(self, owner: Owner) -> bool:
        """Whether another live owner holds a lease, so that products may be in use."""
        now = time.time()
        with self._read() as connection:
            rows = connection.execute(sa.select(_leases).where(_leases.c.owner != owner.token)).mappings()
            return any(_alive(row, now) for row in rows)

    def commit(self, stage: Stage, record: Record, owner: Owner) -> bool:
        """Write a record if `owner` still holds the lease of its key; gives the lease back. False: not ours any more."""
        packed = _pack(record.predictions) if record.predictions else None
        body = json.dumps(asdict(replace(record, predictions={})))
        with self._write() as connection:
            held = connection.execute(
                sa.select(_leases.c.owner).where(_leases.c.key == record.key).with_for_update()
            ).scalar()
            if held != owner.token:
                return False
            old = connection.execute(
                sa.select(_records.c.status, _records.c.attempt).where(_records.c.key == record.key)
            ).first()
            connection.execute(sa.delete(_leases).where(_leases.c.key == record.key))
            if old and old[0] == "done":
                return False
            connection.execute(sa.delete(_records).where(_records.c.key == record.key))
            connection.execute(
                sa.insert(_records).values(
                    key=record.key,
                    status=record.status,
                    attempt=(old[1] if old else 0) + 1,
                    stage=json.dumps(stage.to_json()),
                    record=body,
                    predictions=packed,
                    committed_at=time.time(),
                )
            )
            return True

    # ---------------------------------------------------------------- plumbing

    def _prepare(self) -> None:
        with self._engine.connect().execution_options(harness_read=True) as connection:
            fresh = not sa.inspect(connection).has_table("meta")
            version = (
                None
                if fresh
                else connection.execute(sa.select(_meta.c.value).where(_meta.c.name == "schema_version")).scalar()
            )
        if fresh or version is None:
            with self._engine.begin() as connection:
                _metadata.create_all(connection)
                if not connection.execute(sa.select(_meta.c.value).where(_meta.c.name == "schema_version")).scalar():
                    connection.execute(sa.insert(_meta).values(name="schema_version", value=str(SCHEMA_VERSION)))
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


def _alive(lease: Mapping[Any, Any], now: float) -> bool:
    if lease["host"] == _host():
        try:
            process = psutil.Process(lease["pid"])
            same = abs(process.create_time() - lease["started"]) < 1.0
            # A killed process stays in the table as a zombie until its parent asks for its exit status.
            return bool(same and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return False
    return bool(now - lease["renewed_at"] < LEASE_SECONDS)


def _parts(keys: Iterable[str], size: int = 500) -> Iterator[list[str]]:
    every = list(dict.fromkeys(keys))
    for start in range(0, len(every), size):
        yield every[start : start + size]


def _pack(predictions: Mapping[str, Predictions]) -> bytes:
    arrays = {}
    for digest, each in predictions.items():
        arrays[f"{digest}/logits"] = np.asarray(each.logits, dtype=np.float32)
        arrays[f"{digest}/gold"] = np.asarray(each.gold)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **cast(Any, arrays))
    return buffer.getvalue()


def _unpack(blob: bytes) -> dict[str, Predictions]:
    with np.load(io.BytesIO(blob), allow_pickle=False) as arrays:
        digests = {name.rsplit("/", 1)[0] for name in arrays.files}
        return {d: Predictions(arrays[f"{d}/logits"], arrays[f"{d}/gold"]) for d in sorted(digests)}
