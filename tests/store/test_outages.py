"""A store that is away for some seconds loses nothing and doubles nothing; and what only PostgreSQL has."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import postgresql
import pytest
import sqlalchemy as sa
from store.samples import record, same, stage

from harness import errors
from harness.errors import TransientError, UserError
from harness.store import Owner, Store
from harness.store.database import LOCK_SECONDS, Database
from harness.store.records import LEASE_SECONDS

OF = stage()


def test_a_lease_outlives_a_store_that_is_away() -> None:
    assert sum(errors.WAITS) + LOCK_SECONDS < LEASE_SECONDS


def test_a_file_that_is_locked_is_waited_for(file_store: Store, file_url: str) -> None:
    owner = Owner.current()
    file_store.lease(OF.key, owner)
    other = sqlite3.connect(file_url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    threading.Timer(0.3, other.close).start()
    assert file_store.commit(OF, record(OF), owner)
    assert same(file_store.records([OF.key], predictions=True)[OF.key], record(OF))


@pytest.fixture
def server() -> Iterator[postgresql.Own]:
    with postgresql.own() as made:
        yield made


@pytest.mark.postgresql
def test_a_server_that_is_started_again_is_waited_for(server: postgresql.Own) -> None:
    store, owner = Store(server.url), Owner.current()
    store.lease(OF.key, owner)
    server.stop()
    timer = threading.Timer(2.0, server.start)
    timer.start()
    assert store.commit(OF, record(OF), owner)
    timer.join()
    assert same(store.records([OF.key], predictions=True)[OF.key], record(OF))


def test_a_commit_whose_answer_was_lost_is_neither_doubled_nor_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "WAITS", (0.05, 0.05))
    write, lost = Database._write, [True]

    @contextmanager
    def losing(self: Database) -> Iterator[Any]:
        with write(self) as connection:
            yield connection
        if lost:
            lost.pop()
            raise TransientError("the connection was cut after the commit")

    owner = Owner.current()
    store.lease(OF.key, owner)
    monkeypatch.setattr(Database, "_write", losing)
    assert store.commit(OF, record(OF), owner)
    assert not lost, "it was cut"
    assert store.statuses([OF.key]) == {OF.key: ("done", 1)}
    assert not store.commit(OF, record(OF, mark=1), owner), "another record is not taken for ours"


def test_what_is_opened_for_the_first_time_is_not_waited_for() -> None:
    began = time.monotonic()
    with pytest.raises(UserError, match="check that it is there"):
        Store("postgresql+psycopg://someone@127.0.0.1:1/name")
    assert time.monotonic() - began < sum(errors.WAITS) / 2


@pytest.mark.postgresql
def test_the_password_of_the_environment_goes_along(
    empty_databases: Iterator[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process on another node has another environment."""
    url = next(empty_databases)
    parsed = sa.engine.make_url(url)
    monkeypatch.setenv("PGPASSWORD", str(parsed.password))
    store = Store(parsed._replace(password=None).render_as_string())
    assert store.url == url
    assert str(parsed.password) not in store.shown
