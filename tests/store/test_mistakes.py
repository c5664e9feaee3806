"""What can be wrong with a store is one sentence with the place and the fix, and nothing is lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from store.samples import committed, stage

from harness.cli import doctor
from harness.errors import TransientError, UserError
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


@pytest.mark.parametrize(
    "text",
    [
        *("harness.db", "results/harness.db", "://", "c:\\x.db", "mysql+nodriver://host/name"),
        *("sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://host/x.db", "sqlite:///x.db?mode=ro"),
        *("someone:hu@hush@host:5432/name", "postgresql://someone:hush@host:port/name"),
        *("postgresql://someone:hu@hush@host/name", "postgresql+psycopg://someone:hush@127.0.0.1:1/name"),
    ],
)
def test_what_is_no_store_is_told_without_its_password(text: str) -> None:
    found = error_of(lambda: Store(text))
    assert "is not a store's URL; write sqlite:///FILE" in found or "127.0.0.1" in found
    assert "hush" not in found
    assert text in found or "host" in found or "127.0.0.1" in found


def test_another_programs_file_is_left_alone(tmp_path: Path) -> None:
    letter, database = tmp_path / "letter.txt", tmp_path / "letters.db"
    letter.write_bytes(b"this is a letter and no database" * 40)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE letters (text)")
    for path, said in (
        (letter, "failed (file is not a database); check that"),
        (database, "is not a store of harness"),
    ):
        before = path.read_bytes()
        assert f"{path} {said}" in error_of(lambda url=f"sqlite:///{path}": Store(url))
        assert path.read_bytes() == before


def test_doctor_names_a_file_that_is_not_whole(file_store: Store, file_url: str) -> None:
    for seed in range(8):
        committed(file_store, stage(seed))
    assert "8 records" in str(doctor.store_check(file_url))
    path = Path(file_url.removeprefix("sqlite:///"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    path.write_bytes(content)
    check = doctor.checked(lambda: doctor.store_check(file_url))
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


def test_a_place_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = error_of(lambda: Store(f"sqlite:///{tmp_path}/file/harness.db"))
    assert "cannot be opened or made: Not a directory" in found or "cannot be opened or made: File exists" in found


@pytest.mark.parametrize(
    ("name", "written", "passes"),
    [("SQLITE_READONLY", False, False), ("SQLITE_READONLY", True, True), ("SQLITE_FULL", True, True)],
)
def test_an_error_of_the_database_is_a_sentence_and_may_pass(
    file_store: Store, name: str, written: bool, passes: bool
) -> None:
    """Where this process has written to the store before."""
    of, owner = stage(), Owner.current()
    store = Store(file_store.url)
    if written:
        assert store.lease(of.key, owner) == "granted"
    error = sqlite3.OperationalError("it broke")
    error.sqlite_errorname = name
    with (
        pytest.raises(UserError, match=r"failed \(it broke\); check that it is there, may be written") as caught,
        store.as_user_error(),
    ):
        raise sa.exc.OperationalError("", {}, error)
    assert "recorded stages are kept, and the same command resumes" in str(caught.value)
    assert isinstance(caught.value, TransientError) == passes
    assert store.lease(of.key, owner) == "granted", "it goes on"


@pytest.mark.parametrize("name", ["a%20b?", "a#b ä日", "a:b@c&b=c;d"])
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
