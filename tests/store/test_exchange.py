"""Stores that meet: the union of their records to the last bit, nothing overwritten, conflicts named; and one table of them, published."""

from __future__ import annotations

import io
import lzma
import sqlite3
import zipfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import sqlalchemy as sa
from store.samples import committed, record, run, same, stage

from harness.errors import UserError
from harness.kinds import Predictions
from harness.specs import Encoder, Record, Stage
from harness.store import Owner, Store, StoredRequest, merge
from harness.store.exchange import publish_records
from harness.store.published import HEADER, RECORDS_FILE
from harness.store.records import predicted_by
from harness.store.studies import begun_study, storage_of
from harness.store.tables import RECORDS


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Store]:
    made = Store(f"sqlite:///{tmp_path / 'other.db'}")
    yield made
    made._engine.dispose()


def rows(store: Store) -> list[tuple[object, ...]]:
    """Every column of every record."""
    with store._read() as connection:
        return [tuple(row) for row in connection.execute(sa.select(RECORDS).order_by(RECORDS.c.key))]


def test_a_merge_is_the_union_and_a_second_one_changes_nothing(store: Store, other: Store) -> None:
    for seed in range(3):
        committed(store, stage(seed))
    for seed in range(2, 6):
        committed(other, stage(seed))
    theirs = rows(other)
    merged = merge(store, other)
    assert (merged.added, merged.replaced, merged.known, merged.agrees) == (3, 0, 1, True)
    assert rows(other) == theirs
    union = rows(store)
    assert {row[0] for row in union} == {stage(seed).key for seed in range(6)}
    assert [row for row in union if row[0] in {stage(seed).key for seed in range(3, 6)}] == [
        row for row in theirs if row[0] != stage(2).key
    ]
    for seed in range(6):
        of = stage(seed)
        assert same(store.records([of.key], predictions=True)[of.key], record(of))
    again = merge(store, other)
    assert (again.added, again.known) == (0, 4)
    assert rows(store) == union


def put(store: Store, of: Stage, kept: Record) -> None:
    """In the place of what is there."""
    owner = Owner.current()
    with store._write() as connection:
        connection.execute(sa.delete(RECORDS).where(RECORDS.c.key == of.key))
    assert store.lease(of.key, owner) == "granted"
    assert store.commit(of, kept, owner)


def test_a_finished_record_stays_and_the_other_is_named(store: Store, other: Store) -> None:
    """Weights that differ without a score that does are counted: the runs after them started from these, and their records stay true of them alone."""
    head, of = stage().chain[1:]
    for where, digest in ((store, "1" * 32), (other, "2" * 32)):
        trained = replace(record(head), weights_digest=digest, predictions={}, selected_step=None, dev_scores={})
        put(where, head, trained)
    committed(store, of)
    committed(other, of, mark=1.0)  # which changes no prediction
    ours = rows(store)
    assert (merged := merge(store, other)).agrees
    assert (merged.known, merged.other_weights) == (2, 1)
    put(other, of, replace(record(of), selected_step=10))
    merged = merge(store, other)
    assert rows(store) == ours
    assert [(ours.key, ours.selected_step, theirs.selected_step) for ours, theirs in merged.conflicts] == [
        (of.key, 20, 10)
    ]
    assert not merged.agrees


def test_a_failed_record_makes_room_and_is_not_taken(store: Store, other: Store) -> None:
    committed(store, stage(0), "failed")
    committed(other, stage(0))
    committed(store, stage(1))
    committed(other, stage(1), "failed")
    merged = merge(store, other)
    assert (merged.added, merged.replaced, merged.known, merged.agrees) == (0, 1, 1, True)
    assert store.statuses([stage(0).key, stage(1).key]) == {stage(seed).key: ("done", 1) for seed in range(2)}


def test_labels_requests_and_translations_come_along(store: Store, other: Store) -> None:
    of = stage()
    committed(other, of)
    other.label("toy", [run(of)])
    request = StoredRequest("toy", {"table": "toy"})
    other.keep_request(request, [of.key])
    other.keep_translations({"a": "theirs", "b": "theirs"})
    store.keep_translations({"a": "ours"})
    own = StoredRequest("own", {"table": "own"})
    store.keep_request(own, [])
    other.keep_request(request, [stage(1).key])
    merge(store, other)
    assert store.requests()[0].values == own.values, "the last bench is still one that was run here"
    assert store.labels([of.key]) == other.labels([of.key])
    assert [r.values for r, _ in store.requests_for([of.key])] == [request.values]
    assert store.translations(["a", "b"]) == {"a": "ours", "b": "theirs"}


def begun(store: Store, name: str, values: list[float]) -> None:
    study = optuna.create_study(study_name=name, storage=storage_of(store), direction="maximize")
    for value in values:
        trial = study.ask({"alpha": optuna.distributions.FloatDistribution(0.0, 1.0)})
        trial.set_user_attr("harness", {"state": "complete"})
        study.tell(trial, value)
        study.enqueue_trial({"alpha": value})


def trials_of(store: Store, name: str) -> list[tuple[object, ...]]:
    study = begun_study(store, name)
    return [(t.number, t.params, t.state, t.values, t.user_attrs) for t in study.trials] if study else []


def test_a_study_is_taken_whole_or_not_at_all(store: Store, other: Store) -> None:
    """Trials of two courses of one study would be none that its sampler proposed."""
    for name in ("new", "longer", "another"):
        begun(other, name, [0.1, 0.2, 0.3])
    optuna.copy_study(from_study_name="longer", from_storage=storage_of(other), to_storage=storage_of(store))
    begun(other, "mine", [])
    begun(store, "mine", [0.1])
    begun(store, "another", [0.7])
    study = begun_study(other, "longer")
    assert study is not None
    study.tell(study.ask(), 0.5)
    kept = trials_of(store, "mine"), trials_of(store, "another")
    merged = merge(store, other)
    assert merged.studies == ["another"]
    assert (trials_of(store, "mine"), trials_of(store, "another")) == kept
    assert all(trials_of(store, name) == trials_of(other, name) for name in ("new", "longer"))
    before = [trials_of(store, name) for name in store.studies()]
    assert merge(store, other).studies == ["another"]
    assert [trials_of(store, name) for name in store.studies()] == before


# ---------------------------------------------------------------- published


def published(store: Store, folder: Path) -> Store:
    """Stages 0 and 1 of a store, as the table 'toy'."""
    keys = [of.key for seed in range(2) for of in (stage(seed),)]
    folder.mkdir(exist_ok=True)
    request = StoredRequest("toy", {"table": "toy", "folder": "."})
    assert publish_records(store, request, keys, folder, {"rows": 3}) == 2
    return Store(str(folder), create=False)


@pytest.fixture
def several(store: Store) -> Store:
    for seed in range(3):
        committed(store, stage(seed))
        store.label("toy", [run(stage(seed))])
        store.label("elsewhere", [run(stage(seed))])
    store.keep_translations({"a": "a text"})
    return store


def test_a_published_table_is_a_store_of_its_records_alone(several: Store, tmp_path: Path) -> None:
    made = published(several, tmp_path / "results")
    assert [row[0] for row in rows(made)] == sorted(stage(seed).key for seed in range(2))
    assert rows(made) == [row for row in rows(several) if row[0] != stage(2).key]
    assert {label["table"] for label in made.labels([stage(0).key])} == {"toy"}
    assert [(r.table, r.values) for r, _ in made.requests_for([stage(0).key])] == [
        ("toy", {"table": "toy", "folder": "."})
    ]
    assert [made.snapshot_of(request) for request in made.requests()] == [{"rows": 3}]
    assert made.translations(["a"]) == {}


def test_what_leaves_a_store_names_no_machine_and_no_folder(store: Store, other: Store, tmp_path: Path) -> None:
    of = replace(stage(), init=Encoder("e" * 32, "new:tiny@bpe:99:/home/alice/c.txt"))
    named, said = record(of), "at step 5: The storage {} could not be written{}: No space left on device"
    named.provenance |= {
        "host": "alices-laptop",
        "checkpoint_failed": said.format("/home/alice/x", " on alices-laptop"),
    }
    put(store, of, named)
    publish_records(store, StoredRequest("toy", {"table": "toy"}), [of.key], tmp_path)
    merge(other, store)
    left = record(of)
    left.provenance["checkpoint_failed"] = said.format("x", "")
    for taken in (Store(str(tmp_path), create=False), other):
        assert same(taken.records([of.key], predictions=True)[of.key], left)
        assert taken.stages([of.key])[of.key].encoder.name == "new:tiny@bpe:99:c.txt"


def test_a_published_table_is_taken_over_and_never_written(several: Store, other: Store, tmp_path: Path) -> None:
    """And equal records are published as equal files."""
    made = published(several, tmp_path / "results")
    published(several, tmp_path / "again")
    before, again = ((tmp_path / name / RECORDS_FILE).read_bytes() for name in ("results", "again"))
    assert before == again
    assert merge(other, made).added == 2
    assert rows(other) == rows(made)
    for writes in (
        lambda: Store(str(tmp_path / "results")),
        lambda: made.lease("0" * 32, Owner.current()),
        lambda: Store(made.url, create=False).keep_translations({"b": "text"}),
    ):
        with pytest.raises(UserError, match="is a published table, which no command writes; take it over"):
            writes()
    assert (tmp_path / "results" / RECORDS_FILE).read_bytes() == before
    assert rows(Store(str(tmp_path / "results"), create=False)) == rows(other)


@pytest.mark.parametrize(
    "content",
    [lzma.compress(HEADER + bytes(80_000_000)), lzma.compress(bytes(4096)), lzma.compress(HEADER)[:-40], b"no archive"],
    ids=["too large", "another file", "ends early", "no archive"],
)
def test_a_damaged_published_file_is_one_sentence(content: bytes, tmp_path: Path) -> None:
    (tmp_path / RECORDS_FILE).write_bytes(content)
    with pytest.raises(UserError, match=r"records\.db\.xz: is damaged, or unpacks to more than 67,108,864 bytes"):
        Store(str(tmp_path), create=False)


@pytest.mark.parametrize(
    "definition",
    [
        "VIEW records AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT old.* FROM old, n WHERE i < 0",
        "TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM old; END",
        "VIRTUAL TABLE records USING fts4(record)",
        "TABLE records (status TEXT, key TEXT AS (hex(zeroblob(100000000))))",
    ],
)
def test_what_computes_as_it_is_read_is_refused_before_any_query(
    definition: str, file_store: Store, file_url: str, tmp_path: Path
) -> None:
    """As a file, and as a published folder."""
    path = Path(file_url.removeprefix("sqlite:///"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE records RENAME TO old")
        connection.execute(f"CREATE {definition}")
    (tmp_path / RECORDS_FILE).write_bytes(lzma.compress(path.read_bytes()))
    for url in (file_url, str(tmp_path)):
        with pytest.raises(
            UserError, match=r"defines '\w+' by 'CREATE .* a store holds plain tables and indexes alone"
        ):
            Store(url, create=False)


def zipped(**arrays: Any) -> bytes:
    sink = io.BytesIO()
    np.savez_compressed(sink, **arrays)
    return sink.getvalue()


def told(shape: tuple[int, ...]) -> bytes:
    """An array that is not there, by its header."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive, archive.open("x/gold.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": shape})
    return sink.getvalue()


@pytest.mark.parametrize(
    "blob",
    [zipped(**{"x/logits": np.zeros((4_000_000, 2), np.float32), "x/gold": np.zeros(4, np.int64)}), told((1 << 40,)),
     zipped(**{"x/gold": np.array(["text"])}), zipped(**{"x/gold": np.array([1], dtype=object)}), zipped(logits=np.zeros((1, 2))), b"PK"],
    ids=["more than their bytes hold", "header", "text", "objects", "no row set", "no archive"],
)  # fmt: skip
def test_arrays_of_another_form_are_refused_before_they_are_made(blob: bytes, several: Store) -> None:
    with several._write() as connection:
        connection.execute(sa.update(RECORDS).values(predictions=blob))
    with pytest.raises(UserError, match="has fields that this harness does not know, or is damaged"):
        several.records([stage().key], predictions=True)


def test_predictions_without_labels_or_of_other_examples_have_no_score() -> None:
    of, logits = stage(), np.zeros((4, 2), np.float32)
    for predictions in ({}, {"x": Predictions({"logits": logits}, np.zeros(0, np.int64))}, {"x": Predictions({"logits": logits}, np.full(4, 2))},
                        {"x": Predictions({"logits": logits[0, 0]}, np.zeros(4, np.int64))}):  # fmt: skip
        with pytest.raises(UserError, match="has no score: its predictions of the rows x"):
            predicted_by(replace(record(of), predictions=predictions), "x")
