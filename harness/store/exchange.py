"""Records that travel: taken over from another store, where nothing is overwritten but the record of a failure; and those of one table, published."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.engine import Connection

from harness.kinds import Predictions
from harness.paths import named_alone
from harness.specs import Record
from harness.store.database import parts, sqlite_url
from harness.store.kept import StoredRequest
from harness.store.published import RECORDS_FILE, UNLABELLED_FILE, write_packed
from harness.store.records import Store
from harness.store.rows import anonymous, packed, record_of, unpacked
from harness.store.studies import take_studies
from harness.store.tables import (
    RECORDS,
    REQUEST_STAGES,
    REQUESTS,
    RUNS,
    SEALS,
    SNAPSHOTS,
    TRANSLATIONS,
)

CHUNK = 100
"""Records, with their predictions, of one transaction."""

Columns = Mapping[Any, Any]
"""A row of `records`, by the names of its columns."""
Labels = Callable[[str], NDArray[Any]]
"""The gold labels [n] of a row set, in its canonical order, by its digest."""


@dataclass(frozen=True)
class Conflict:
    """One key with two outcomes."""

    key: str
    ours: Record
    theirs: Record


@dataclass
class Merged:
    """Records of the other store: `added`, those that took the place of a failed one (`replaced`), those that were here with the same
    outcome (`known`; of these with `other_weights` for the stages after it) or with another (`conflicts`). `studies`: those whose
    trials differ; they stay as they are here."""

    added: int = 0
    replaced: int = 0
    known: int = 0
    other_weights: int = 0
    conflicts: list[Conflict] = field(default_factory=list)
    studies: list[str] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        return not (self.conflicts or self.studies)


def merge(target: Store, source: Store, gold: Labels | None = None) -> Merged:
    """Take over every record, label, request, seal, back-translation and study of `source` that `target` lacks. Merging again changes nothing.
    `gold`: for records that have none."""
    merged = take_records(target, source, sorted(source.keys()), gold)
    requests = [dict(row) for row in source._select(sa.select(REQUESTS))]
    if here := target.requests():  # the last bench of a store is one that was run on it
        before = math.nextafter(here[0].asked_at, 0.0)
        requests = [row | {"asked_at": min(row["asked_at"], before)} for row in requests]
    take_rows(target, REQUESTS, requests)
    for table in (RUNS, REQUEST_STAGES, SNAPSHOTS, TRANSLATIONS, SEALS):
        take_rows(target, table, source._select(sa.select(table)))
    merged.studies = take_studies(target, source)
    return merged


def take_records(target: Store, source: Store, keys: Collection[str], gold: Labels | None = None) -> Merged:
    """Take over the records of these keys, in their order. Both outcomes of a key that has two finished records are compared: the
    selected update, the scores on dev, and what is predicted. Weights and times may differ, as they do between machines. `gold`:
    what takes the place of their gold labels."""
    merged = Merged()
    for part in parts(keys, CHUNK):
        rows = source._select(sa.select(RECORDS).order_by(RECORDS.c.key), RECORDS.c.key, part)
        with target._write() as connection:
            for row in rows:
                taken = anonymous(row)
                _take_record(connection, _labelled(taken, gold) if gold else taken, merged)
    return merged


def _labelled(row: Columns, gold: Labels) -> Columns:
    """A row whose predictions have these labels."""
    if not row["predictions"]:
        return row
    kept = unpacked(row["predictions"])
    blob = packed({digest: Predictions(predicted.arrays, gold(digest)) for digest, predicted in kept.items()})
    return {**row, "predictions": blob}


def _take_record(connection: Connection, row: Columns, merged: Merged) -> None:
    of_key = RECORDS.c.key == row["key"]
    old = connection.execute(sa.select(RECORDS).where(of_key)).mappings().first()
    if old and (old["status"] == "done" or row["status"] != "done"):
        here, there = record_of(old), record_of(row)
        if old["status"] == "done" == row["status"] and not same_outcome(here, there):
            merged.conflicts.append(Conflict(row["key"], here, there))
        else:
            merged.known += 1
            merged.other_weights += row["status"] == "done" and here.weights_digest != there.weights_digest
        return
    if old:
        connection.execute(sa.delete(RECORDS).where(of_key))
    merged.added += old is None
    merged.replaced += old is not None
    connection.execute(sa.insert(RECORDS).values(**row))


def same_outcome(one: Record, other: Record) -> bool:
    """Whether two finished records of a stage say the same of it."""
    if (one.selected_step, one.dev_scores) != (other.selected_step, other.dev_scores):
        return False
    return one.predictions.keys() == other.predictions.keys() and all(
        np.array_equal(predicted.decoded, other.predictions[digest].decoded)
        for digest, predicted in one.predictions.items()
    )


def take_rows(target: Store, table: sa.Table, rows: Iterable[Mapping[Any, Any]]) -> None:
    """Insert those rows whose primary key is not there."""
    with target._write() as connection:
        target._insert(connection, table, [*map(dict, rows)])


# ---------------------------------------------------------------- one table, published


def publish_records(
    store: Store,
    table: str,
    keys: Collection[str],
    values: Mapping[str, Any],
    folder: Path,
    snapshot: Any = None,
    gold: bool = True,
) -> int:
    """Write the records of one bench with the labels of its runs, its request and all seals of its table, with the `gold` labels of the examples or in a file without
    them; one of the other kind goes. Equal records give an equal file.

    `table`: the table's own name; `keys`: of all stages of the bench; `values`: of its request; `snapshot`: what its plan read. Returns the number of
    records.
    """
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "records.db"
        made = Store(sqlite_url(path))
        count = take_records(made, store, sorted(keys), None if gold else _no_labels).added
        labels = [label for label in store.labels_of(sorted(keys)) if label["table"] == table]
        take_rows(made, RUNS, sorted(labels, key=lambda label: [str(value) for value in label.values()]))
        last = made._select(sa.select(sa.func.max(RECORDS.c.committed_at).label("at")))[0]["at"]
        request = StoredRequest(table, values, asked_at=last or 0.0)
        take_rows(made, REQUESTS, [request.row])
        take_rows(made, REQUEST_STAGES, [{"key": key, "digest": request.digest} for key in sorted(keys)])
        body = named_alone(json.dumps(snapshot))
        take_rows(made, SNAPSHOTS, [{"digest": request.digest, "body": body}] if snapshot else [])
        seals = sa.select(SEALS).where(SEALS.c.table == table).order_by(*SEALS.primary_key)
        take_rows(made, SEALS, store._select(seals))
        name, other = (RECORDS_FILE, UNLABELLED_FILE) if gold else (UNLABELLED_FILE, RECORDS_FILE)
        write_packed(path, folder / name)
        (folder / other).unlink(missing_ok=True)
    return count


def _no_labels(_: str) -> NDArray[Any]:
    return np.empty(0, np.int64)
