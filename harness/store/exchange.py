"""Records that travel: taken over from another store, where nothing is overwritten but the record of a failure; and those of one table, published."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.engine import Connection

from harness.kinds import Predictions
from harness.specs import Record
from harness.store.database import parts, sqlite_url
from harness.store.published import RECORDS_FILE, UNLABELLED_FILE, unpacked, write_packed
from harness.store.records import Store, StoredRequest, anonymous, named_alone, packed, record_of
from harness.store.studies import take_studies
from harness.store.tables import RECORDS, REQUEST_STAGES, REQUESTS, RUNS, SEALS, SNAPSHOTS, TRANSLATIONS

Labels = Callable[[str], NDArray[Any]]
"""The gold labels [n] of a row set, in its canonical order, by its digest."""


@dataclass
class Merged:
    """Records of the other store: `added`, those that took the place of a failed one (`replaced`), those that were here with the same
    outcome (`known`; of these with `other_weights` for the stages after it) or with another (`conflicts`: ours, theirs). `studies`: those whose
    trials differ; they stay as they are here."""

    added: int = 0
    replaced: int = 0
    known: int = 0
    other_weights: int = 0
    conflicts: list[tuple[Record, Record]] = field(default_factory=list)
    studies: list[str] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        return not (self.conflicts or self.studies)

    def take(self, connection: Connection, row: Mapping[Any, Any]) -> None:
        """A record of the other store, where none or a failed one is here."""
        of_key = RECORDS.c.key == row["key"]
        old = connection.execute(sa.select(RECORDS).where(of_key)).mappings().first()
        if old and (old["status"] == "done" or row["status"] != "done"):
            here, there = record_of(old), record_of(row)
            if old["status"] == "done" == row["status"] and not same_outcome(here, there):
                self.conflicts.append((here, there))
            else:
                self.known += 1
                self.other_weights += row["status"] == "done" and here.weights_digest != there.weights_digest
            return
        self.added += old is None
        self.replaced += old is not None
        connection.execute(sa.delete(RECORDS).where(of_key))
        connection.execute(sa.insert(RECORDS).values(**row))


def merge(target: Store, source: Store, gold: Labels | None = None) -> Merged:
    """Take over every record, label, request, seal, back-translation and study of `source` that `target` lacks. Merging again changes nothing.
    `gold`: for records that have none."""
    merged = take_records(target, source, sorted(source.keys()), gold)
    requests = [dict(row) for row in source._select(sa.select(REQUESTS))]
    if here := target.requests():  # the last bench of a store is one that was run on it
        before = math.nextafter(here[0].asked_at, 0.0)
        requests = [row | {"asked_at": min(row["asked_at"], before)} for row in requests]
    others = {
        table: source._select(sa.select(table)) for table in (RUNS, REQUEST_STAGES, SNAPSHOTS, TRANSLATIONS, SEALS)
    }
    _take_rows(target, {REQUESTS: requests, **others})
    merged.studies = take_studies(target, source)
    return merged


def take_records(target: Store, source: Store, keys: Collection[str], gold: Labels | None = None) -> Merged:
    """Take over the records of these keys, in their order. Both outcomes of a key that has two finished records are compared: the
    selected update, the scores on dev, and what is predicted. Weights and times may differ, as they do between machines. `gold`:
    what takes the place of their gold labels."""
    merged = Merged()
    for part in parts(keys, 100):  # of one transaction
        rows = [*map(anonymous, source._select(sa.select(RECORDS).order_by(RECORDS.c.key), RECORDS.c.key, part))]
        for row in rows:
            if gold and row["predictions"]:
                kept = unpacked(row["predictions"])
                row["predictions"] = packed({name: Predictions(each.arrays, gold(name)) for name, each in kept.items()})
        with target._write() as connection:
            for row in rows:
                merged.take(connection, row)
    return merged


def same_outcome(one: Record, other: Record) -> bool:
    """Whether two finished records of a stage say the same of it."""
    if (one.selected_step, one.dev_scores) != (other.selected_step, other.dev_scores):
        return False
    return one.predictions.keys() == other.predictions.keys() and all(
        np.array_equal(predicted.decoded, other.predictions[digest].decoded)
        for digest, predicted in one.predictions.items()
    )


def _take_rows(target: Store, rows: Mapping[sa.Table, Iterable[Mapping[Any, Any]]]) -> None:
    """Insert those rows of tables whose primary key is not there."""
    with target._write() as connection:
        for table, of_table in rows.items():
            target._insert(connection, table, [*map(dict, of_table)])


def publish_records(
    store: Store, request: StoredRequest, keys: Collection[str], folder: Path, snapshot: Any = None, gold: bool = True
) -> int:
    """Write the records of one bench with the labels of its runs, its request and all seals of its table, with the `gold` labels of the examples or in a file without
    them; one of the other kind goes. Equal records give an equal file.

    `request`: of the bench; `keys`: of all its stages; `snapshot`: what its plan read. Returns the number of records.
    """
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "records.db"
        made = Store(sqlite_url(path))
        count = take_records(made, store, sorted(keys), None if gold else lambda _: np.empty(0, np.int64)).added
        labels = [label for label in store.labels(sorted(keys)) if label["table"] == request.table]
        last = made._select(sa.select(sa.func.max(RECORDS.c.committed_at).label("at")))[0]["at"]
        request = replace(request, asked_at=last or 0.0)
        rows: dict[sa.Table, Iterable[Mapping[Any, Any]]] = {
            RUNS: sorted(labels, key=lambda label: [str(value) for value in label.values()]),
            REQUESTS: [request.row],
            REQUEST_STAGES: [{"key": key, "digest": request.digest} for key in sorted(keys)],
            SNAPSHOTS: [{"digest": request.digest, "body": named_alone(json.dumps(snapshot))}] if snapshot else [],
            SEALS: store._select(sa.select(SEALS).where(SEALS.c.table == request.table).order_by(*SEALS.primary_key)),
        }
        _take_rows(made, rows)
        name, other = (RECORDS_FILE, UNLABELLED_FILE) if gold else (UNLABELLED_FILE, RECORDS_FILE)
        write_packed(path, folder / name)
        (folder / other).unlink(missing_ok=True)
    return count
