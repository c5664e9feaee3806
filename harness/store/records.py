"""The store: records and run labels, guarded by leases, and the default folder of artifacts (weights and checkpoints).

Laws: at most one record per key is committed; only the holder of a live lease commits; a `done` record is never overwritten; a failed one never
counts as done. A live lease is exclusive. It ends with its process, on another host after LEASE_SECONDS.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import psutil
import sqlalchemy as sa

from harness.processes import started_at
from harness.retry import TransientError, retried
from harness.specs import Record, Run, Stage, Status
from harness.store.database import parts
from harness.store.kept import Kept
from harness.store.rows import packed, record_of, stage_of, written
from harness.store.tables import LEASES, RECORDS, REQUEST_STAGES, RUNS

LEASE_SECONDS = 180.0
"""A lease of another host that was not renewed for this long is dead; one of this host dies with its process. It is longer than a
call is retried (`harness.retry`), while no process can renew its leases."""
RENEW_SECONDS = 10.0

Grant = Literal["granted", "held", "settled"]

C = RECORDS.c
# Made once: SQLAlchemy takes as long to make and look up a statement as SQLite to execute it.
PLAIN = sa.select(C.key, C.record)
WHOLE = PLAIN.add_columns(C.predictions)
KEPT = sa.insert(RECORDS)
OF_KEY: sa.BindParameter[str] = sa.bindparam("of_key")
HELD = sa.select(LEASES).where(LEASES.c.key == OF_KEY)
END = sa.delete(LEASES).where(LEASES.c.key == OF_KEY)
BEGIN = sa.insert(LEASES)
ONE = sa.select(C.status, C.attempt, C.record).where(C.key == OF_KEY)


@dataclass(frozen=True)
class Owner:
    """The holder of leases: a driver process. On its own host it is alive as long as its process (`pid`, and `started` as
    `started_at`)."""

    token: str
    host: str
    pid: int
    started: float

    @classmethod
    def current(cls) -> Owner:
        pid = os.getpid()
        return cls(uuid.uuid4().hex, _host(), pid, started_at(psutil.Process(pid)))

    def here(self) -> Owner:
        """An owner for this process, which works for a driver: its leases end with this process, or with the driver's."""
        return replace(Owner.current(), token=f"{self.token}/{uuid.uuid4().hex[:8]}")


def _host() -> str:
    """Host name, PID namespace and boot: two containers may share the first, two machines the first two."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        namespace = boot = ""
    return f"{socket.gethostname()}{namespace}{boot}"


@dataclass(frozen=True)
class Speed:
    """How fast one recorded stage was: the name of its device, from which encoder (digest), its FLOPs and its
    seconds."""

    device: str
    encoder: str
    flops: float
    seconds: float


class Store(Kept):
    """One open store. Its errors are those of `Database`."""

    @property
    def artifacts(self) -> Path:
        """The default folder of weights and checkpoints, beside the database."""
        return (self.path.parent if self.path else Path(".harness")) / "products"

    @retried
    def statuses(self, keys: Iterable[str]) -> dict[str, tuple[Status, int]]:
        """Status and attempt number of every key that has a record."""
        rows = self._select(sa.select(C.key, C.status, C.attempt), C.key, keys)
        return {row["key"]: (row["status"], row["attempt"]) for row in rows}

    @retried
    def keys(self) -> set[str]:
        """All recorded keys."""
        return {str(row["key"]) for row in self._select(sa.select(RECORDS.c.key))}

    @retried
    def settled(self) -> set[str]:
        """The keys of stages that ended and belong to no request with a stage left to train."""
        joined = sa.select(REQUEST_STAGES.c.digest).outerjoin(RECORDS, C.key == REQUEST_STAGES.c.key)
        left = joined.where(sa.func.coalesce(C.status, "failed") == "failed")
        needed = sa.select(REQUEST_STAGES.c.key).where(REQUEST_STAGES.c.digest.in_(left))
        query = sa.select(C.key).where(C.status != "failed", C.key.not_in(needed))
        return {str(row["key"]) for row in self._select(query)}

    @retried
    def records(self, keys: Iterable[str], *, predictions: bool = False) -> dict[str, Record]:
        """Records by key."""
        return {row["key"]: record_of(row) for row in self._select(WHOLE if predictions else PLAIN, C.key, keys)}

    def each(self, keys: Iterable[str], *, predictions: bool = False) -> Iterator[tuple[str, Record]]:
        """Keys with their records, of which 100 are held in memory at a time."""
        for part in parts(keys, 100):
            yield from self.records(part, predictions=predictions).items()

    @retried
    def stage(self, key: str) -> Stage | None:
        """The stage of a record."""
        found = self._select(sa.select(C.key, C.stage).where(C.key == key))
        return stage_of(found[0]) if found else None

    @retried
    def keys_like(self, prefix: str) -> list[str]:
        """Recorded keys that start with `prefix`, at most 20."""
        query = sa.select(RECORDS.c.key).where(RECORDS.c.key.startswith(prefix, autoescape=True)).limit(20)
        return sorted(str(row["key"]) for row in self._select(query))

    @retried
    def committed_at(self, keys: Iterable[str]) -> dict[str, float]:
        """When the records of these keys were committed (Unix time)."""
        return {row["key"]: row["committed_at"] for row in self._select(sa.select(C.key, C.committed_at), C.key, keys)}

    @retried
    def speeds(self) -> list[Speed]:
        """The newest 200 finished stages, which calibrate a plan's estimate."""
        newest = PLAIN.where(C.status == "done").order_by(C.committed_at.desc()).limit(200)
        recorded = [(each, each.provenance) for each in map(record_of, self._select(newest))]
        return [Speed(p.get("device", ""), p.get("encoder", ""), r.flops, r.seconds) for r, p in recorded]

    def commit(self, stage: Stage, record: Record, owner: Owner) -> bool:
        """Write a record if `owner` holds the lease of its key, and release that. False: another process has the stage now."""
        if stage.key != record.key:
            raise ValueError(f"a record of {record.key} under the stage {stage.key}")
        row = {
            "key": record.key,
            "status": record.status,
            "stage": json.dumps(stage.to_json()),
            "record": written(record),
            "predictions": packed(record.predictions) if record.predictions else None,
        }
        return self._commit(row, owner)

    @retried
    def _commit(self, row: dict[str, Any], owner: Owner) -> bool:
        key, attempt = row["key"], 1
        with self._write() as connection:
            held = connection.execute(HELD, {"of_key": key}).mappings().first()
            old = connection.execute(ONE, {"of_key": key}).first()
            if not held or held["owner"] != owner.token:
                # Equal with all its times: an earlier try of ours succeeded, and only the answer was lost.
                return bool(old and old.record == row["record"])
            connection.execute(END, {"of_key": key})
            if old and old.status == "done":
                return False
            if old:
                connection.execute(sa.delete(RECORDS).where(C.key == key))
                attempt = old.attempt + 1
            connection.execute(KEPT, row | {"attempt": attempt, "committed_at": self._now(connection)})
            return True

    # ---------------------------------------------------------------- leases, by key

    @retried
    def lease(self, key: str, owner: Owner, *, seen_attempt: int = 0, remake: bool = False) -> Grant:
        """Ask to train a stage: 'granted', 'held' by another live owner, or 'settled' by a record newer than `seen_attempt`.

        `remake`: to make only the weights of a recorded stage again.
        """
        with self._write() as connection:
            now = self._now(connection)
            recorded = connection.execute(ONE, {"of_key": key}).first()
            if not remake and recorded and recorded.attempt > seen_attempt:
                return "settled"
            held = connection.execute(HELD, {"of_key": key}).mappings().first()
            if held and held["owner"] != owner.token and _alive(held, now):
                return "held"
            if held:
                connection.execute(END, {"of_key": key})
            lease = {"key": key, "owner": owner.token, "host": owner.host, "pid": owner.pid, "started": owner.started}
            connection.execute(BEGIN, lease | {"renewed_at": now})
            return "granted"

    @retried
    def renew(self, owner: Owner) -> None:
        with self._write() as connection:
            connection.execute(
                sa.update(LEASES).where(LEASES.c.owner == owner.token).values(renewed_at=self._now(connection))
            )

    def release(self, owner: Owner, key: str | None = None) -> None:
        """Release one lease, or all of an owner and of the processes that work for it. Not retried: they expire at the owner's end anyway."""
        every = LEASES.c.owner.startswith(owner.token)
        lease = every if key is None else (LEASES.c.owner == owner.token) & (LEASES.c.key == key)
        with suppress(TransientError), self._write() as connection:
            connection.execute(sa.delete(LEASES).where(lease))

    @retried
    def others_alive(self, owner: Owner) -> bool:
        """Whether another live driver holds a lease: weights may be in use."""
        with self._read() as connection:
            now = self._now(connection)
            rows = connection.execute(sa.select(LEASES).where(~LEASES.c.owner.startswith(owner.token))).mappings()
            return any(_alive(row, now) for row in rows)

    # ---------------------------------------------------------------- runs (labels)

    @retried
    def label(self, table: str, runs: Iterable[Run]) -> None:
        """Keep the labels of runs with their keys; existing labels stay."""
        rows = [
            {"key": r.stage.key, "table": table, "row": r.row, "method": r.method, "task": r.task}
            | {"size": r.size, "subset": r.subset, "seed": r.seed}
            for r in runs
        ]
        with self._write() as connection:
            self._insert(connection, RUNS, rows)

    def labels(self, key: str) -> list[dict[str, Any]]:
        return self.labels_of([key])

    @retried
    def labels_of(self, keys: Iterable[str]) -> list[dict[str, Any]]:
        """The labels of the runs with any of these keys."""
        return [dict(row) for row in self._select(sa.select(RUNS), RUNS.c.key, keys)]

    @retried
    def recorded_runs(self) -> list[dict[str, Any]]:
        """The label of every run whose last stage is recorded, with `committed_at` (Unix time); the newest first."""
        when = RECORDS.c.committed_at
        query = sa.select(RUNS, when).join(RECORDS, RUNS.c.key == RECORDS.c.key)
        order = (when.desc(), RUNS.c.table, RUNS.c.row, RUNS.c.task, RUNS.c.size, RUNS.c.subset, RUNS.c.seed)
        return [dict(row) for row in self._select(query.order_by(*order))]


def _alive(lease: Mapping[Any, Any], now: float) -> bool:
    if lease["host"] == _host():
        try:
            process = psutil.Process(
                lease["pid"]
            )  # pids are reused, and a killed process is a zombie until its parent reads its exit status
            same = abs(started_at(process) - lease["started"]) < 1.0
            return same and bool(process.status() != psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return False
    return bool(now - lease["renewed_at"] < LEASE_SECONDS)
