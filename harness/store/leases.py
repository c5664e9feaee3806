"""Leases: who trains a stage now. A live lease is exclusive. It ends with its process, on another host after LEASE_SECONDS."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import psutil
import sqlalchemy as sa

from harness.processes import started_at
from harness.retry import TransientError, retried
from harness.store.database import Database
from harness.store.tables import LEASES, RECORDS

LEASE_SECONDS = 180.0
"""A lease of another host that was not renewed for this long is dead; one of this host dies with its process. It is longer than a
call is retried (`harness.retry`), while no process can renew its leases."""
RENEW_SECONDS = 10.0

Grant = Literal["granted", "held", "settled"]

# Made once: SQLAlchemy takes as long to make and look up a statement as SQLite to execute it.
OF_KEY: sa.BindParameter[str] = sa.bindparam("of_key")
HELD = sa.select(LEASES).where(LEASES.c.key == OF_KEY)
END = sa.delete(LEASES).where(LEASES.c.key == OF_KEY)
BEGIN = sa.insert(LEASES)
ONE = sa.select(RECORDS.c.status, RECORDS.c.attempt, RECORDS.c.record).where(RECORDS.c.key == OF_KEY)


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


class Leases(Database):
    """Leases by key."""

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
