"""A live lease is exclusive; it ends with its process, on another host after some time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
import sqlalchemy as sa
from store.samples import committed, record, stage

from harness.store import LEASE_SECONDS, Owner, Store, database
from harness.store.database import Database
from harness.store.tables import RECORDS

KEY = "a" * 32


class Clock(SimpleNamespace):
    now: float


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The store's time, set by hand."""
    made = Clock(now=1e9)
    monkeypatch.setattr(Database, "_now", lambda *_: made.now)
    return made


@pytest.fixture
def stranger() -> Owner:
    """A driver on another host."""
    return Owner("s" * 32, "another-host", 1, 1e9)


def test_granted_once_then_held_until_released(store: Store) -> None:
    owner, other = Owner.current(), Owner.current()
    assert store.lease(KEY, owner) == "granted"
    assert store.lease(KEY, owner) == "granted", "an owner may ask for its own again"
    assert store.lease(KEY, other) == "held"
    assert store.lease("b" * 32, other) == "granted"
    store.release(other, KEY)
    assert store.lease(KEY, other) == "held", "another's lease is not released"
    store.release(owner, KEY)
    assert store.lease(KEY, other) == "granted"


def test_release_without_a_key_gives_back_all_of_an_owners(store: Store) -> None:
    owner, other = Owner.current(), Owner.current()
    for key in ("1", "2"):
        store.lease(key, owner)
    store.lease("3", other)
    store.release(owner)
    assert [store.lease(key, other) for key in ("1", "2")] == ["granted", "granted"]
    assert store.lease("3", owner) == "held"


def test_a_record_newer_than_seen_settles_the_question(store: Store) -> None:
    of, owner = stage(), Owner.current()
    committed(store, of, "failed")
    assert store.lease(of.key, owner) == "settled"
    assert store.lease(of.key, owner, seen_attempt=1) == "granted", "a failed record that the plan saw is tried again"
    store.release(owner)
    committed(store, of, "done", seen=1)
    assert store.lease(of.key, owner, seen_attempt=1) == "settled"
    assert store.lease(of.key, owner, seen_attempt=1, remake=True) == "granted"
    assert store.lease(of.key, Owner.current(), remake=True) == "held"


def test_the_lease_of_a_process_whose_pid_another_one_has_is_free(store: Store) -> None:
    me = Owner.current()
    assert store.lease(KEY, replace(me, token="d" * 32, started=me.started - 3600)) == "granted"
    assert not store.others_alive(me)
    assert store.lease(KEY, me) == "granted"


def test_a_live_process_of_this_host_needs_no_renewal(store: Store, clock: Clock) -> None:
    owner = Owner.current()
    store.lease(KEY, owner)
    clock.now += 10 * LEASE_SECONDS
    assert store.lease(KEY, Owner.current()) == "held"


def test_the_lease_of_another_host_lives_until_it_was_not_renewed_for_long(
    store: Store, clock: Clock, stranger: Owner
) -> None:
    me = Owner.current()
    store.lease(KEY, stranger)
    clock.now += LEASE_SECONDS - 1
    assert store.lease(KEY, me) == "held"
    store.renew(stranger)
    clock.now += LEASE_SECONDS - 1
    assert store.lease(KEY, me) == "held"
    assert store.others_alive(me)
    clock.now += 2
    assert not store.others_alive(me)
    assert store.lease(KEY, me) == "granted"
    assert store.lease(KEY, stranger) == "held", "who lost its lease does not get it back from a live owner"


def test_who_lost_its_lease_does_not_commit(store: Store, clock: Clock, stranger: Owner) -> None:
    of, me = stage(), Owner.current()
    store.lease(of.key, stranger)
    clock.now += LEASE_SECONDS + 1
    assert store.lease(of.key, me) == "granted"
    assert not store.commit(of, record(of), stranger)
    assert store.commit(of, record(of), me)


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
