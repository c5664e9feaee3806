"""A damaged record, store or file is named with the fix; it counts as not recorded, and nothing else is lost."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from store.samples import committed, record, same, stage
from store.test_mistakes import error_of

from harness.cli import doctor
from harness.errors import UserError
from harness.kinds import Predictions
from harness.specs import Record, Stage
from harness.store import Owner, Store
from harness.store.integrity import checksum, packed
from harness.store.tables import RECORDS

COUNT = 12
STAGES = [stage(seed) for seed in range(COUNT)]
KEYS = [of.key for of in STAGES]
VICTIM, OTHER = STAGES[3], STAGES[7]


def sql(path: Path, text: str, *values: object) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(text, values)
    connection.close()


def finite(of: Stage) -> Record:
    """As `record`, with logits that a finished stage can have."""
    made = record(of)
    for each in made.predictions.values():
        each.logits[:] = np.nan_to_num(each.logits, posinf=1.0, neginf=-1.0)
    return made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A store with COUNT records, as a file."""
    made = tmp_path_factory.mktemp("whole") / "harness.db"
    store, owner = Store(f"sqlite:///{made}"), Owner.current()
    for of in STAGES:
        store.lease(of.key, owner)
        store.commit(of, finite(of), owner)
    store._engine.dispose()
    return made.read_bytes()


@pytest.fixture
def path(tmp_path: Path, whole: bytes) -> Path:
    made = tmp_path / "harness.db"
    made.write_bytes(whole)
    return made


def body(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    """A change of the victim's record as JSON."""

    def act(path: Path) -> None:
        made = {name: value for name, value in vars(finite(VICTIM)).items() if name != "predictions"}
        changed = made | {"predictions": {}}
        change(changed)
        sql(path, "UPDATE records SET record = ? WHERE key = ?", json.dumps(changed), VICTIM.key)

    return act


def field(name: str, value: object) -> Callable[[Path], None]:
    return lambda path: sql(path, f"UPDATE records SET {name} = ? WHERE key = ?", value, VICTIM.key)


def swapped(*names: str) -> Callable[[Path], None]:
    """Fields of two rows are exchanged."""

    def act(path: Path) -> None:
        connection = sqlite3.connect(path)
        select = f"SELECT {', '.join(names)} FROM records WHERE key = ?"
        both = [connection.execute(select, (of.key,)).fetchone() for of in (VICTIM, OTHER)]
        for of, values in zip((VICTIM, OTHER), reversed(both), strict=True):
            settings = ", ".join(f"{name} = ?" for name in names)
            connection.execute(f"UPDATE records SET {settings} WHERE key = ?", (*values, of.key))
        connection.commit()
        connection.close()

    return act


BLOB = packed(finite(VICTIM).predictions)
DAMAGES: dict[str, Callable[[Path], None]] = {
    "null": field("record", "null"),
    "a list": field("record", "[1, 2]"),
    "a number": field("record", "7"),
    "no JSON": field("record", '{"key": '),
    "empty": field("record", ""),
    "nested deep": field("record", "[" * 100_000),
    "bytes": field("record", b"\xff\xfe\x00"),
    "an integer": field("record", 2**62),
    "no UTF-8": lambda p: sql(p, "UPDATE records SET record = CAST(X'7BFF22' AS TEXT) WHERE key = ?", VICTIM.key),
    "a field is missing": body(lambda b: b.pop("status")),
    "an unknown field": body(lambda b: b.update(speed=1)),
    "another key": body(lambda b: b.update(key=OTHER.key)),
    "another status": body(lambda b: b.update(status="failed")),
    "a score that is no number": body(lambda b: b.update(dev_scores={"accuracy": float("nan")})),
    "a score that is a text": body(lambda b: b.update(dev_scores={"accuracy": "0.9"})),
    "scores that are a list": body(lambda b: b.update(dev_scores=[0.9])),
    "history that is a text": body(lambda b: b.update(history="long")),
    "a curve of one number a point": body(lambda b: b.update(history=[{"step": 1, "curve": {"loss": [[1]]}}])),
    "a curve that is a list": body(lambda b: b.update(history=[{"step": 1, "curve": [[1, 0.5]]}])),
    "history without steps": body(lambda b: b.update(history=[{"loss": 1.0}])),
    "provenance that is none": body(lambda b: b.update(provenance=None)),
    "a status that is none": field("status", "odd"),
    "a status that is bytes": field("status", b"done"),
    "an attempt that is a text": field("attempt", "first"),
    "a stage that is null": field("stage", "null"),
    "a stage that is no JSON": field("stage", "{"),
    "another seed in the stage": field("stage", json.dumps(VICTIM.to_json() | {"seed": 99})),
    "another stage": field("stage", json.dumps(OTHER.to_json())),
    "no predictions": field("predictions", None),
    "empty predictions": field("predictions", b""),
    "truncated predictions": field("predictions", BLOB[: len(BLOB) // 2]),
    "predictions that are a text": field("predictions", "many"),
    "predictions of other rows": field(
        "predictions", packed({"x" * 32: Predictions({"logits": np.ones((1, 2))}, np.ones(1))})
    ),  # type: ignore[arg-type]
    "a checksum that is a text": field("checksum", "x"),
    "a checksum that is bytes": field("checksum", b"x"),
    "no checksum": field("checksum", None),
    "records swapped": swapped("record"),
    "stages swapped": swapped("stage"),
    "rows swapped": swapped("status", "attempt", "stage", "record", "predictions"),
    "predictions and record swapped": swapped("record", "predictions"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_record_counts_as_not_recorded_and_is_trained_again(
    path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGES[kind](path)
    store = Store(f"sqlite:///{path}")
    lost = {VICTIM.key, OTHER.key} if "swapped" in kind else {VICTIM.key}
    left = set(KEYS) - lost
    for _ in range(2):
        assert set(store.statuses(KEYS)) == set(store.records(KEYS)) == left
        assert set(store.records(KEYS, predictions=True)) == left
    assert len(store.speeds()) == len(left)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == len(lost), "each is named once"
    for key in lost:
        (line,) = [each for each in said if key[:10] in each]
        assert "counts as not recorded" in line
        assert line.endswith(f"'harness doctor --store {store.shown} --quarantine' moves it away.")
    if kind != "a status that is bytes":
        assert f"record {VICTIM.key} is damaged (" in error_of(lambda: store.stage(VICTIM.key))
    assert all(
        same(store.records([key], predictions=True)[key], finite(of))
        for of, key in zip(STAGES, KEYS, strict=True)
        if key in left
    )
    for of in (VICTIM, OTHER):
        if of.key in lost:
            assert committed(store, of, mark=5), "lease and commit take it as never recorded"
            assert same(store.records([of.key], predictions=True)[of.key], record(of, mark=5))
    assert set(store.statuses(KEYS)) == set(KEYS)
    assert not store.damages()[1]
    with store._read() as connection:  # the damaged record is kept in a table of its own
        assert connection.execute(sa.text("SELECT count(*) FROM damaged_records")).scalar() == len(lost)


def test_a_record_with_fields_of_another_version_is_refused(path: Path) -> None:
    store = Store(f"sqlite:///{path}")
    with store._read() as connection:
        (row,) = store._rows(connection, RECORDS.c.key == VICTIM.key)
    text = json.dumps(json.loads(row.record) | {"speed": 1})
    whole = checksum(row.key, row.status, row.attempt, row.stage, text, row.digest)
    sql(path, "UPDATE records SET record = ?, checksum = ? WHERE key = ?", text, whole, VICTIM.key)
    assert "was written by another version of harness" in error_of(lambda: store.records([VICTIM.key]))


def test_doctor_finds_and_moves_damaged_records(path: Path) -> None:
    url = f"sqlite:///{path}"
    assert doctor._store(url).ok
    DAMAGES["null"](path)
    sql(path, "UPDATE records SET key = ? WHERE key = ?", b"\x00\xff", OTHER.key)
    check = doctor._store(url)
    assert check.ok is False
    assert f"2 of {COUNT} records are damaged" in check.found
    assert VICTIM.key[:10] in check.found
    assert f"harness doctor --store {url} --quarantine" in check.fix
    assert doctor.quarantine(url).startswith("2 damaged records were moved")
    assert doctor._store(url).ok
    assert doctor.quarantine(url).startswith("0 damaged records")
    assert set(Store(url).statuses(KEYS)) == set(KEYS) - {VICTIM.key, OTHER.key}
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM damaged_records WHERE record = 'null'").fetchone() == (1,)
    connection.close()


# ---------------------------------------------------------------- the file


def everything(path: Path) -> dict[str, Record]:
    """What a plan, a report, `show`, `doctor` and a training command read of a store; the records that count."""
    store = Store(f"sqlite:///{path}")
    try:
        found = store.records(KEYS, predictions=True)
        assert set(store.statuses(KEYS)) == set(found)
        store.speeds()
        store.trials("study")
        store.translations(["a"])
        for key in store.keys_like("")[:3]:
            store.labels(key)
        owner = Owner.current()
        store.others_alive(owner)
        for of in STAGES[:3]:
            if store.lease(of.key, owner) == "granted":
                store.commit(of, finite(of), owner)
        return found
    finally:
        store._engine.dispose()


def asked(path: Path) -> dict[str, Record]:
    """As `everything`; nothing where it is refused with a sentence."""
    doctor._store(f"sqlite:///{path}")
    try:
        return everything(path)
    except UserError as error:
        said = str(error)
    assert said.endswith("."), said
    assert "\n" not in said
    return {}


def believed_are_right(found: dict[str, Record]) -> int:
    for key, each in found.items():
        assert same(each, finite(STAGES[KEYS.index(key)])), key
    return len(found)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("part", range(4))
def test_flipped_bits_end_in_no_traceback_and_are_not_believed(path: Path, part: int) -> None:
    """100 flips, two thirds over the whole file and the rest in its first bytes, where it says what it is."""
    whole, chosen, right = path.read_bytes(), random.Random(part), 0
    for turn in range(25):
        place = chosen.randrange(len(whole) if turn % 3 else 200)
        flipped = bytearray(whole)
        flipped[place] ^= 1 << chosen.randrange(8)
        path.write_bytes(flipped)
        for journal in path.parent.glob(f"{path.name}-*"):
            journal.unlink()
        right += believed_are_right(asked(path))
    assert right > 10 * COUNT, "most of a store outlives a flip"


@pytest.mark.usefixtures("impatient")
def test_a_truncated_store_is_said_to_be_and_is_no_new_one(path: Path) -> None:
    whole = path.read_bytes()
    chosen = random.Random(3)
    lengths = [0, 1, 15, 16, 99, 100, 511, 512, 4095, 4096, 8192, len(whole) - 4096, len(whole) // 2]
    lengths += [chosen.randrange(len(whole)) for _ in range(20)]
    for length in lengths:
        path.write_bytes(whole[:length])
        for create in (True, False):
            said, found = "", {}
            try:
                found = Store(f"sqlite:///{path}", create=create).records(KEYS, predictions=True)
            except UserError as error:
                said = str(error)
            if length <= len(whole) - 4096:  # a cut within the last page leaves the others
                assert "damaged" in said or "empty file" in said or "not a database" in said
            believed_are_right(found)
        assert path.read_bytes() == whole[:length], "nothing is written to it"


def test_an_empty_file_is_no_new_store(tmp_path: Path) -> None:
    path = tmp_path / "harness.db"
    path.touch()
    for create in (True, False):
        found = error_of(lambda: Store(f"sqlite:///{path}", create=create))  # noqa: B023
        assert f"{path} is an empty file" in found
        assert "delete the file to create a new store" in found
    assert not path.stat().st_size
    assert doctor._store(f"sqlite:///{path}").ok is False
    path.unlink()
    Store(f"sqlite:///{path}")
    assert [each.name for each in tmp_path.iterdir()] == ["harness.db"]


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "letters.db"
    sql(path, "CREATE TABLE letters (text)")
    before = path.read_bytes()
    assert "is not a store of harness, or is damaged" in error_of(lambda: Store(f"sqlite:///{path}"))
    assert path.read_bytes() == before


# ---------------------------------------------------------------- what becomes of the file while it is open


def gone(path: Path) -> None:
    path.unlink()


def replaced(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    Store(f"sqlite:///{path}")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def whole_folder(path: Path) -> None:
    path.unlink()
    path.parent.rmdir()


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (gone, "was deleted or moved away while it was open"),
        (replaced, "was replaced by another file while it was open"),
        (folder, "it is a folder"),
        (whole_folder, "while it was open"),
    ],
)
@pytest.mark.parametrize("anew", [False, True], ids=["same connection", "new connection"])
def test_a_store_that_vanishes(tmp_path: Path, act: Callable[[Path], None], words: str, anew: bool) -> None:
    path = tmp_path / "deep" / "harness.db"
    store, owner = Store(f"sqlite:///{path}"), Owner.current()
    assert store.lease(VICTIM.key, owner) == "granted"
    if anew:
        store._engine.dispose()
    act(path)
    if not (anew and act is replaced):
        found = error_of(lambda: store.commit(VICTIM, record(VICTIM), owner))
        assert words in found
        assert "read-only" not in found
        assert f"{path}" in found
    if act is gone:
        assert not path.exists(), "no new one is made in its place"


# ---------------------------------------------------------------- paths


ODD = ["a%20b", "a?b", "a%3Fb", "50%", "a#b", "a b", "ä日", "a:b@c", "%25", "a&b=c;d"]


@pytest.mark.parametrize("name", ODD)
def test_a_store_lies_where_the_folder_is(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default path in any folder, and the same store by its own URL, as the ledger opens it."""
    place = tmp_path / name
    place.mkdir()
    monkeypatch.chdir(place)
    store = Store()
    committed(store, VICTIM)
    assert (place / ".harness" / "harness.db").is_file()
    monkeypatch.chdir(tmp_path)
    assert VICTIM.key in Store(store.url, create=False).statuses(KEYS)
    assert {each.name for each in tmp_path.iterdir()} == {name}


def test_a_url_is_decoded_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b").mkdir()
    Store("sqlite:///a%20b/x.db")
    assert (tmp_path / "a b" / "x.db").is_file()
    for name in ("?", "x.db?mode=ro"):
        assert "write %3F for one in a path" in error_of(lambda: Store(f"sqlite:///{name}"))  # noqa: B023
    (tmp_path / "c%20d").mkdir()
    assert "write %25 for the percent sign" in error_of(lambda: Store("sqlite:///c%20d/x.db"))
    Store("sqlite:///c%2520d/x.db")
    assert (tmp_path / "c%20d" / "x.db").is_file()
    assert "names no file" in error_of(lambda: Store("sqlite:///a%00b"))
    assert "names no file" in error_of(lambda: Store("sqlite://host/x.db"))
