"""What can be wrong with a store is one sentence with the place and the fix, and nothing is lost."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from store.samples import committed, record, run, same, stage

from harness import retry
from harness.cli import doctor
from harness.errors import UserError
from harness.store import Owner, Store


def error_of(act: Callable[[], object]) -> str:
    """The one sentence."""
    with pytest.raises(UserError) as caught:
        act()
    text = str(caught.value)
    assert text.endswith(".")
    assert "\n" not in text
    assert "Traceback" not in text
    return text


@contextmanager
def nobody() -> Iterator[None]:
    """As a user who may not write everywhere, where the tests run as root."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that another user can reach; pytest's own is closed to them."""
    closed = [p for p in (tmp_path, *tmp_path.parents) if not p.stat().st_mode & 0o001]
    modes = [p.stat().st_mode for p in closed]
    for path in closed:
        path.chmod(0o755)
    yield tmp_path
    for path, mode in zip(closed, modes, strict=True):
        path.chmod(mode)


@pytest.mark.parametrize("text", ["harness.db", "results/harness.db", "://", "c:\\x.db"])
def test_not_a_url(text: str) -> None:
    found = error_of(lambda: Store(text))
    assert f"store '{text}' is not a database URL" in found
    assert "sqlite:///results/harness.db" in found


@pytest.mark.parametrize(
    "text", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///x.db?mode=ro", "sqlite://host/x.db"]
)
def test_no_file(text: str) -> None:
    assert f"store '{text}' names no file" in error_of(lambda: Store(text))


def test_unknown_backend() -> None:
    assert "names an unknown kind of database" in error_of(lambda: Store("mysql+nodriver://host/name"))


@pytest.mark.parametrize(
    "text",
    [
        "postgresql+psycopg://someone:hush@127.0.0.1:1/name",
        "someone:hu@hush@host:5432/name",
        "postgresql://someone:hush@host:port/name",
    ],
)
def test_a_password_is_never_said(text: str) -> None:
    found = error_of(lambda: Store(text))
    assert "hush" not in found
    assert "host" in found or "127.0.0.1" in found


@pytest.mark.parametrize("content", [b"this is a letter and no database" * 40, b"SQLite format 4\x00" + b"x" * 4000])
def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "letter.txt"
    path.write_bytes(content)
    found = error_of(lambda: Store(f"sqlite:///{path}"))
    assert f"{path} failed (file is not a database); check that it is there" in found
    assert path.read_bytes() == content


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "letters.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE letters (text)")
    connection.close()
    before = path.read_bytes()
    assert "is not a store of harness" in error_of(lambda: Store(f"sqlite:///{path}"))
    assert path.read_bytes() == before


def test_doctor_names_a_file_that_is_not_whole(file_store: Store, file_url: str) -> None:
    for seed in range(8):
        committed(file_store, stage(seed))
    assert "8 records" in doctor._store(file_url).found
    path = Path(file_url.removeprefix("sqlite:///"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    path.write_bytes(content)
    check = doctor._store(file_url)
    assert check.ok is False
    assert f"{path}" in check.found
    assert ".recover" in check.fix


def test_a_newer_schema_is_not_touched(file_store: Store, file_url: str) -> None:
    of = stage()
    committed(file_store, of)
    with file_store._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE meta SET value = '999' WHERE name = 'schema_version'")
    before = Path(file_url.removeprefix("sqlite:///")).read_bytes()
    found = error_of(lambda: Store(file_url))
    assert "another harness (schema 999, this one knows" in found
    assert "upgrade glue-harness or name another store" in found
    assert Path(file_url.removeprefix("sqlite:///")).read_bytes() == before


def test_read_only(open_folder: Path) -> None:
    """A file that may be read: reading goes on, each write is refused in a sentence."""
    of, path = stage(), open_folder / "harness.db"
    committed(Store(f"sqlite:///{path}"), of)
    for mode, folder_mode in ((0o444, 0o555), (0o666, 0o555)):
        path.chmod(mode)
        open_folder.chmod(folder_mode)
        try:
            with nobody():
                store = Store(f"sqlite:///{path}")
                assert store.statuses([of.key]) == {of.key: ("done", 1)}
                for act in (partial(store.lease, "a" * 32, Owner.current()), partial(store.label, "t", [run(of)])):
                    assert "may be written" in error_of(act)
        finally:
            open_folder.chmod(0o755)
    assert same(Store(f"sqlite:///{path}").records([of.key], predictions=True)[of.key], record(of))


def test_a_folder_that_may_not_be_written(open_folder: Path) -> None:
    open_folder.chmod(0o555)
    try:
        with nobody():
            for name in ("harness.db", "new/harness.db"):
                found = error_of(lambda: Store(f"sqlite:///{open_folder / name}"))  # noqa: B023
                assert "cannot be opened or made: Permission denied" in found
    finally:
        open_folder.chmod(0o755)


@pytest.mark.usefixtures("impatient")
def test_locked_by_another_program(file_store: Store, file_url: str) -> None:
    of, owner = stage(), Owner.current()
    file_store.lease(of.key, owner)
    other = sqlite3.connect(file_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    for act in (
        lambda: Store(file_url),
        lambda: file_store.statuses([of.key]),
        lambda: file_store.commit(of, record(of), owner),
        lambda: file_store.lease("b" * 32, owner),
    ):
        found = error_of(act)
        assert "database is locked" in found
        assert "the same command resumes" in found
    other.execute("ROLLBACK")
    other.close()
    assert file_store.commit(of, record(of), owner), "nothing is lost once it is free again"


def fill_until_full(store: Store) -> tuple[int, str]:
    """Commit until the disk is full: how many were committed, and what was said."""
    for seed in range(1, 1000):
        owner = Owner.current()
        try:
            store.lease(stage(seed).key, owner)
            assert store.commit(stage(seed), record(stage(seed)), owner)
        except UserError as error:
            return seed - 1, str(error)
    raise AssertionError("the disk was never full")


@pytest.mark.usefixtures("impatient")
def test_full_disk_by_a_database_that_may_not_grow(file_store: Store, file_url: str) -> None:
    file_store._engine.dispose()
    pages = os.path.getsize(file_url.removeprefix("sqlite:///")) // 4096 + 20
    sa.event.listen(file_store._engine, "connect", lambda c, _: c.execute(f"PRAGMA max_page_count = {pages}"))
    count, said = fill_until_full(file_store)
    assert count > 1
    assert "database or disk is full" in said
    assert "recorded stages are kept" in said
    assert len(Store(file_url).statuses([stage(seed).key for seed in range(1, 1000)])) == count
    assert Store(file_url).integrity() == "ok"


ODD = ["a%20b", "a?b", "50%", "a#b", "a b", "ä日", "a:b@c", "a&b=c;d"]


@pytest.mark.parametrize("name", ODD)
def test_a_store_lies_where_the_folder_is(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default path in any folder, and the same store by its own URL, as the ledger and Optuna open it."""
    place = tmp_path / name
    place.mkdir()
    monkeypatch.chdir(place)
    store = Store()
    committed(store, stage())
    assert (place / ".harness" / "harness.db").is_file()
    monkeypatch.chdir(tmp_path)
    assert Store(store.url, create=False).statuses([stage().key])
    assert sa.inspect(sa.create_engine(store.url)).has_table("records")
    assert {each.name for each in tmp_path.iterdir()} == {name}


def test_a_file_that_is_closed_to_writers_in_the_middle_is_waited_for(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that this process could never write is refused at once."""
    path, owner, waited = open_folder / "harness.db", Owner.current(), list[float]()

    def set_modes(folder: int, file: int) -> None:
        path.chmod(file)
        open_folder.chmod(folder)

    def reopen(seconds: float) -> None:
        waited.append(seconds)
        mine = os.geteuid()
        os.seteuid(os.getuid())  # of the folder
        set_modes(0o777, 0o666)
        os.seteuid(mine)

    monkeypatch.setattr(
        retry, "time", SimpleNamespace(sleep=reopen, monotonic=time.monotonic)
    )  # not that of other threads
    open_folder.chmod(0o777)
    with nobody():
        store, other = (Store(f"sqlite:///{path}") for _ in range(2))
        assert store.lease(stage().key, owner) == "granted"
    for each in (store, other):
        each._engine.dispose()
    set_modes(0o555, 0o444)
    with nobody():
        assert "may be written" in error_of(partial(other.lease, "b" * 32, owner))
        assert waited == []
        assert store.commit(stage(), record(stage()), owner)
    assert waited == [retry.WAITS[0]]
