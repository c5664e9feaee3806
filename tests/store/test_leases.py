"""A live lease is exclusive, and who holds it commits, once; a lease ends with its process, on another host after some time."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import sqlalchemy as sa
from store.samples import record, same, stage

from harness.specs import Record
from harness.store import Owner, Store, database
from harness.store.database import Database
from harness.store.records import LEASE_SECONDS
from harness.store.tables import RECORDS

KEY = "a" * 32


@pytest.fixture
def stranger() -> Owner:
    """A driver on another host."""
    return Owner("s" * 32, "another-host", 1, 1e9)


@pytest.mark.parametrize("seed", range(2))
def test_leases_and_commits_are_those_of_a_naive_store(
    store: Store, stranger: Owner, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two drivers of this host, two of others, and one that is dead and whose pid another process has."""
    draw, me = random.Random(seed), Owner.current()
    dead = replace(me, token="d" * 32, started=me.started - 3600)
    owners, stages = (
        [me, Owner.current(), stranger, replace(stranger, token="o" * 32), dead],
        [stage(s) for s in range(3)],
    )
    clock = SimpleNamespace(now=1e9)
    monkeypatch.setattr(Database, "_now", lambda *_: clock.now)
    records: dict[str, tuple[int, Record]] = {}
    leases: dict[str, tuple[Owner, float]] = {}

    def alive(lease: tuple[Owner, float]) -> bool:
        owner, renewed_at = lease
        return owner.started == me.started if owner.host == me.host else clock.now - renewed_at < LEASE_SECONDS

    def lease(key: str, owner: Owner, seen: int, remake: bool) -> str:
        if not remake and key in records and records[key][0] > seen:
            return "settled"
        if key in leases and leases[key][0] != owner and alive(leases[key]):
            return "held"
        leases[key] = owner, clock.now
        return "granted"

    def commit(new: Record, owner: Owner) -> bool:
        if leases.get(new.key, (None, 0))[0] != owner:
            return False
        del leases[new.key]
        attempt, old = records.get(new.key, (0, None))
        if old and old.status == "done":
            return False
        records[new.key] = attempt + 1, new
        return True

    for step in range(250):
        owner, of = draw.choice(owners), draw.choice(stages)
        match draw.choice(["lease", "lease", "lease", "commit", "commit", "release", "renew", "wait"]):
            case "lease":
                seen, remake = draw.randrange(3), draw.random() < 0.2
                answer = store.lease(of.key, owner, seen_attempt=seen, remake=remake)
                assert answer == lease(of.key, owner, seen, remake)
            case "commit":
                new: Any = record(of, draw.choice(["done", "failed", "failed", "diverged"]), step)
                assert store.commit(of, new, owner) == commit(new, owner)
            case "release":
                key = of.key if draw.random() < 0.7 else None
                store.release(owner, key)
                leases = {k: v for k, v in leases.items() if v[0] != owner or key not in (k, None)}
            case "renew":
                store.renew(owner)
                leases = {k: (by, clock.now if by == owner else at) for k, (by, at) in leases.items()}
            case "wait":
                clock.now += draw.uniform(0, LEASE_SECONDS)
        assert store.others_alive(owner) == any(alive(each) for each in leases.values() if each[0] != owner)
        assert store.statuses(each.key for each in stages) == {
            key: (kept.status, attempt) for key, (attempt, kept) in records.items()
        }
    assert records
    found = store.records(records, predictions=True)
    assert all(same(found[key], kept) for key, (_, kept) in records.items())


@pytest.mark.postgresql
@pytest.mark.parametrize("hours", [1, -1])
def test_a_host_whose_clock_is_wrong_takes_no_lease_and_loses_none(
    empty_databases: Iterator[str], stranger: Owner, monkeypatch: pytest.MonkeyPatch, hours: float
) -> None:
    """Leases are judged by the database's clock."""
    store, of, me = Store(next(empty_databases)), stage(), Owner.current()
    assert store.lease(KEY, stranger) == "granted"
    monkeypatch.setattr(database, "time", SimpleNamespace(time=lambda: time.time() + 3600 * hours))
    assert store.lease(KEY, me) == "held"
    assert store.lease(of.key, stranger) == "granted", "with the wrong clock"
    store.renew(stranger)
    monkeypatch.undo()
    assert store.others_alive(me)
    assert store.lease(of.key, me) == "held"
    assert store.commit(of, record(of), stranger)
    committed_at = store._select(sa.select(RECORDS.c.committed_at))[0]["committed_at"]
    assert abs(committed_at - time.time()) < 60


def test_a_clock_that_was_set_ends_no_lease(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux counts a process's start from the boot; a clock that is set moves the boot."""
    owner, boot, created = Owner.current(), psutil.boot_time, psutil.Process.create_time
    assert store.lease(KEY, owner) == "granted"
    monkeypatch.setattr(psutil, "boot_time", lambda: boot() + 3600)
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: created(self) + 3600)
    assert store.lease(KEY, Owner.current()) == "held"
