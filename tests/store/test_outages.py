"""A transient outage of the database loses nothing and doubles nothing; a longer one is reported in bounded time."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import postgresql
import pytest
import sqlalchemy as sa
from cluster.driver import waited
from store.samples import committed, record, same, stage

from harness import retry
from harness.errors import UserError
from harness.store import LEASE_SECONDS, Owner, Store

KEY = "a" * 32


@pytest.fixture(scope="module")
def server() -> Iterator[postgresql.Own]:
    with postgresql.own() as made:
        yield made


@pytest.fixture
def outage_url(server: postgresql.Own) -> str:
    return next(postgresql.databases(server.url, []))


@pytest.fixture
def talkative(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage is reported soon."""
    monkeypatch.setattr(retry, "REPORT_SECONDS", 0.2)
    monkeypatch.setattr(retry, "INTERVAL_SECONDS", 0.1)


def meanwhile(act: Callable[[], object], said: Callable[[], str], fix: Callable[[], object]) -> object:
    """What `act` returns, if the outage is fixed after it was reported."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(act)
        until = time.monotonic() + 60
        while not said():
            assert time.monotonic() < until
            assert not future.done(), future.result()
            time.sleep(0.02)
        fix()
        return future.result(60)


def test_a_lease_outlives_a_database_in_an_outage() -> None:
    assert LEASE_SECONDS > retry.OUTAGE_SECONDS


@pytest.mark.postgresql
@pytest.mark.usefixtures("talkative")
def test_a_server_that_is_started_again(
    server: postgresql.Own, outage_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    store, of, owner = Store(outage_url), stage(), Owner.current()
    assert store.lease(of.key, owner) == "granted"
    server.stop()
    assert meanwhile(lambda: store.commit(of, record(of), owner), lambda: store.outage_retry.message, server.start)
    assert same(store.records([of.key], predictions=True)[of.key], record(of))
    said = capfd.readouterr().err
    assert f"The store {store.shown} does not answer (" in said
    assert "; trying again until " in said
    assert said.endswith(f"The store {store.shown} answers again.\n")
    assert "***" in store.shown
    assert str(sa.engine.make_url(outage_url).password) not in said


@pytest.mark.postgresql
@pytest.mark.usefixtures("talkative")
def test_a_server_that_is_frozen(
    server: postgresql.Own, outage_url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A frozen server raises no error: the outage is reported, cut off and given up after some time. What the server still
    finishes is not doubled."""
    store, of, owner = Store(outage_url), stage(), Owner.current()
    store.lease(of.key, owner)
    monkeypatch.setattr("harness.store.database.ANSWER_SECONDS", 1.0)
    monkeypatch.setattr("harness.store.database.CONNECT_SECONDS", 2)
    monkeypatch.setattr(retry, "OUTAGE_SECONDS", 2.0)
    server.signal(signal.SIGSTOP)
    try:
        with pytest.raises(UserError, match=r"does not answer .* recorded stages are kept\.$"):
            store.commit(of, record(of), owner)
        assert "does not answer; trying again until" in capfd.readouterr().err
        began = time.monotonic()
        with pytest.raises(UserError, match="does not answer"):
            store.statuses([of.key])
        assert time.monotonic() - began < 30, "the limit is for the database and not for each call"
        monkeypatch.setattr(retry, "OUTAGE_SECONDS", 60.0)
        monkeypatch.setattr(retry, "REPORT_SECONDS", 0.9)
        assert meanwhile(
            lambda: store.commit(of, record(of), owner),
            lambda: store.outage_retry.message,
            lambda: server.signal(signal.SIGCONT),
        )
    finally:
        server.signal(signal.SIGCONT)
    assert store.statuses([of.key]) == {of.key: ("done", 1)}


@pytest.mark.postgresql
@pytest.mark.usefixtures("talkative")
def test_a_fail_over_to_a_standby(tmp_path: Path) -> None:
    """The URL names both servers. The standby answers, and does not write until it takes over."""
    with postgresql.own() as primary:
        standby = primary.standby()
        try:
            first = sa.engine.make_url(primary.url)
            places = {"host": [f"127.0.0.1:{first.port}", f"127.0.0.1:{standby.port}"]}
            url = first._replace(host=None, port=None).set(query=places).render_as_string(hide_password=False)
            store, of, owner = Store(url), stage(), Owner.current()
            assert store.lease(of.key, owner) == "granted"
            committed(store, stage(2))
            replica = first.set(port=standby.port).render_as_string(hide_password=False)
            waited("the standby", lambda: Store(replica, create=False).statuses([stage(2).key]))
            primary.kill()
            said = "is read-only; trying again until "
            assert meanwhile(
                lambda: store.commit(of, record(of), owner),
                lambda: said in store.outage_retry.message,
                standby.promote,
            )
            assert store.statuses([of.key, stage(2).key]) == {of.key: ("done", 1), stage(2).key: ("done", 1)}
            assert same(store.records([of.key], predictions=True)[of.key], record(of))
            assert not store.others_alive(Owner.current())
        finally:
            standby.stop()


class Way:
    """To a server, by `url`; once `cut_at` is set it is cut, one time, when the server has answered to that word and before
    the client hears of it."""

    def __init__(self, url: str) -> None:
        parsed = sa.engine.make_url(url)
        self.cut_at: bytes | None = None
        self._there = (str(parsed.host), parsed.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = parsed.set(port=self._listener.getsockname()[1]).render_as_string(hide_password=False)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(self._there)
            asked = [b""]
            threading.Thread(target=self._back, args=(client, server, asked), daemon=True).start()
            threading.Thread(target=self._forth, args=(client, server, asked), daemon=True).start()

    def _forth(self, client: socket.socket, server: socket.socket, asked: list[bytes]) -> None:
        with client, server, suppress(OSError):  # of either end that went away
            while data := client.recv(65536):
                asked[0] = data
                server.sendall(data)

    def _back(self, client: socket.socket, server: socket.socket, asked: list[bytes]) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if self.cut_at and self.cut_at in asked[0]:
                    self.cut_at = None
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)


@pytest.mark.postgresql
@pytest.mark.parametrize("word", [b"COMMIT", b"INSERT INTO records"], ids=["after it", "within it"])
def test_a_commit_whose_answer_was_lost_is_neither_doubled_nor_lost(outage_url: str, word: bytes) -> None:
    of, owner = stage(), Owner.current()
    way = Way(outage_url)
    store = Store(way.url)
    assert store.lease(of.key, owner) == "granted"
    way.cut_at = word
    assert store.commit(of, record(of), owner)
    assert way.cut_at is None, "it was cut"
    assert store.statuses([of.key]) == {of.key: ("done", 1)}
    assert same(store.records([of.key], predictions=True)[of.key], record(of))
    assert not store.commit(of, record(of), owner), "only a question asked again knows its own answer"


@pytest.mark.postgresql
def test_another_ones_record_is_not_taken_for_ones_own(outage_url: str) -> None:
    """The connection is cut within a commit, and another process has taken over the lease and recorded the stage."""
    of, owner, other = stage(), Owner.current(), Owner.current()
    way = Way(outage_url)
    store = Store(way.url)
    store.lease(of.key, owner)
    store.release(owner)
    assert Store(outage_url).lease(of.key, other) == "granted"
    assert Store(outage_url).commit(of, record(of, mark=1), other)
    way.cut_at = b"records"
    assert not store.commit(of, record(of), owner)
    assert way.cut_at is None, "it was cut"
    assert same(store.records([of.key], predictions=True)[of.key], record(of, mark=1))


@pytest.mark.postgresql
def test_nothing_is_made_by_whoever_only_reads(outage_url: str) -> None:
    store = Store(outage_url, create=False)
    assert not store.exists
    assert (store.statuses([KEY]), store.translations([KEY]), store.trials("s"), store.speeds()) == ({}, {}, {}, [])
    assert sa.inspect(store._engine).get_table_names() == []
    committed(Store(outage_url), stage())
    assert Store(outage_url, create=False).statuses([stage().key]) == {stage().key: ("done", 1)}


@pytest.mark.postgresql
def test_a_name_without_a_driver_is_ours(outage_url: str) -> None:
    assert Store(outage_url.replace("postgresql+psycopg", "postgresql")).url == outage_url


@pytest.mark.postgresql
def test_the_password_of_the_environment_goes_along(outage_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process on another node has another environment."""
    parsed = sa.engine.make_url(outage_url)
    monkeypatch.setenv("PGPASSWORD", str(parsed.password))
    store = Store(parsed._replace(password=None).render_as_string())
    assert store.url == outage_url
    assert str(parsed.password) not in store.shown


@pytest.mark.postgresql
@pytest.mark.parametrize("change", [{"password": "wrong"}, {"database": "nowhere"}, {"username": "nobody"}])
def test_a_server_that_lets_nobody_in_says_so_at_once(outage_url: str, change: dict[str, str]) -> None:
    url = sa.engine.make_url(outage_url).set(**change).render_as_string(hide_password=False)  # type: ignore[arg-type]
    began = time.monotonic()
    with pytest.raises(UserError, match=r"does not answer \(.*FATAL.*\); check that it runs"):
        Store(url)
    assert time.monotonic() - began < 30


# ---------------------------------------------------------------- a disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """A small disk at tmp_path/small; called with options it is mounted anew with them."""
    place = tmp_path / "small"
    place.mkdir()

    def mount(options: str) -> None:
        words = ["mount", "-t", "tmpfs", "-o", options, "none", str(place)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")

    mount("size=256k")
    yield lambda options: mount(f"remount,{options}")
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.usefixtures("talkative")
def test_a_full_disk_on_which_space_is_made_in_time(tmp_path: Path, disk: Callable[[str], None]) -> None:
    url = f"sqlite:///{tmp_path / 'small' / 'harness.db'}"
    store, of, owner = Store(url), stage(), Owner.current()
    store.lease(of.key, owner)
    filler = tmp_path / "small" / "filler"
    with filler.open("wb", buffering=0) as file:
        file.write(b"x" * 1_000_000)  # as much of it as fits
    assert meanwhile(lambda: store.commit(of, record(of), owner), lambda: store.outage_retry.message, filler.unlink)
    assert same(store.records([of.key], predictions=True)[of.key], record(of))
    store._engine.dispose()


@pytest.mark.usefixtures("impatient")
def test_a_disk_that_becomes_read_only(tmp_path: Path, disk: Callable[[str], None]) -> None:
    url = f"sqlite:///{tmp_path / 'small' / 'harness.db'}"
    store, owner = Store(url), Owner.current()
    committed(store, stage(1))
    store.lease(stage(2).key, owner)
    store._engine.dispose()  # a file that is open for writing prevents the change
    disk("ro")
    with pytest.raises(UserError, match=r"is read-only; make it writable or name another store\.$"):
        store.commit(stage(2), record(stage(2)), owner)
    assert store.statuses([stage(1).key]) == {stage(1).key: ("done", 1)}
    store._engine.dispose()
    disk("rw")
    again = Store(url)
    assert again.commit(stage(2), record(stage(2)), owner)
    again._engine.dispose()
