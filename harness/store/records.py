"""The store: records and run labels, which leases guard, and products (weights of a stage) as files beside the database.

Laws: at most one record per key is committed; only the holder of a live lease commits; a `done` record is never
overwritten; a failed one never counts as done.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import sqlalchemy as sa

from harness.specs import Predictions, Record, Run, Stage, Status
from harness.store.database import parts, patient
from harness.store.leases import Leases, Owner
from harness.store.requests import Requests
from harness.store.tables import LEASES, RECORDS, RUNS
from harness.store.translations import Translations
from harness.store.trials import Trials


@dataclass(frozen=True)
class Speed:
    """How fast one recorded stage was: where, from which encoder (digest), its FLOPs and its seconds."""

    host: str
    encoder: str
    flops: float
    seconds: float


class Store(Leases, Translations, Trials, Requests):
    """One open store: a database and the folder of products beside it. Its errors are those of `Database`."""

    @property
    def products(self) -> Path:
        """The folder of stage weights."""
        return (self.path.parent if self.path else Path(".harness")) / "products"

    @patient
    def statuses(self, keys: Iterable[str]) -> dict[str, tuple[Status, int]]:
        """Status and attempt number of every key that has a record."""
        if not self.exists:
            return {}
        with self._read() as connection:
            found: dict[str, tuple[Status, int]] = {}
            for part in parts(keys):
                query = sa.select(RECORDS.c.key, RECORDS.c.status, RECORDS.c.attempt).where(RECORDS.c.key.in_(part))
                found.update({k: (cast(Status, s), a) for k, s, a in connection.execute(query)})
            return found

    @patient
    def records(self, keys: Iterable[str], *, predictions: bool = False) -> dict[str, Record]:
        """Records by key, with their predictions when asked."""
        if not self.exists:
            return {}
        columns = [RECORDS.c.key, RECORDS.c.record, *([RECORDS.c.predictions] if predictions else [])]
        with self._read() as connection:
            found = {}
            for part in parts(keys):
                for row in connection.execute(sa.select(*columns).where(RECORDS.c.key.in_(part))):
                    record = Record(**json.loads(row[1]))
                    if predictions and row[2]:
                        record.predictions = _unpack(row[2])
                    found[row[0]] = record
            return found

    @patient
    def stage(self, key: str) -> Stage | None:
        if not self.exists:
            return None
        with self._read() as connection:
            body = connection.execute(sa.select(RECORDS.c.stage).where(RECORDS.c.key == key)).scalar()
        return Stage.from_json(json.loads(body)) if body else None

    @patient
    def keys_like(self, prefix: str) -> list[str]:
        """Recorded keys that start with `prefix`, at most 20."""
        if not self.exists:
            return []
        with self._read() as connection:
            query = sa.select(RECORDS.c.key).where(RECORDS.c.key.startswith(prefix, autoescape=True)).limit(20)
            return sorted(connection.execute(query).scalars())

    @patient
    def speeds(self) -> list[Speed]:
        """The newest 200 finished stages: what a plan is calibrated on."""
        if not self.exists:
            return []
        with self._read() as connection:
            query = sa.select(RECORDS.c.record).where(RECORDS.c.status == "done")
            rows = connection.execute(query.order_by(RECORDS.c.committed_at.desc()).limit(200)).scalars()
            bodies = [json.loads(row) for row in rows]
        return [
            Speed(b["provenance"].get("host", ""), b["provenance"].get("encoder", ""), b["flops"], b["seconds"])
            for b in bodies
        ]

    def commit(self, stage: Stage, record: Record, owner: Owner) -> bool:
        """Write a record if `owner` still holds the lease of its key; gives the lease back. False: not ours any more."""
        row = {
            "key": record.key,
            "status": record.status,
            "stage": json.dumps(stage.to_json()),
            "record": json.dumps(asdict(replace(record, predictions={}))),
            "predictions": _pack(record.predictions) if record.predictions else None,
        }
        return self.patience.asked(lambda again: self._commit(row, owner, again))

    def _commit(self, row: dict[str, Any], owner: Owner, again: bool) -> bool:
        key = row["key"]
        with self._write() as connection:
            held = connection.execute(sa.select(LEASES.c.owner).where(LEASES.c.key == key)).scalar()
            kept = sa.select(RECORDS.c.status, RECORDS.c.attempt, RECORDS.c.record).where(RECORDS.c.key == key)
            old = connection.execute(kept).first()
            if held != owner.token:
                # Word for word ours, its moments included: it was written before, and only the answer was lost.
                return bool(again and old and old.record == row["record"])
            connection.execute(sa.delete(LEASES).where(LEASES.c.key == key))
            if old and old.status == "done":
                return False
            connection.execute(sa.delete(RECORDS).where(RECORDS.c.key == key))
            attempt = (old.attempt if old else 0) + 1
            connection.execute(sa.insert(RECORDS).values(**row, attempt=attempt, committed_at=time.time()))
            return True

    # ---------------------------------------------------------------- runs (labels)

    @patient
    def label(self, table: str, runs: Iterable[Run]) -> None:
        """Keep the labels of runs beside their keys; a label that is there already stays."""
        rows = [
            {"key": r.stage.key, "table": table, "row": r.row, "method": r.method, "task": r.task}
            | {"size": r.size, "subset": r.subset, "seed": r.seed}
            for r in runs
        ]
        with self._write() as connection:
            known = {tuple(row) for row in connection.execute(sa.select(RUNS).where(RUNS.c.table == table))}
            order = [column.name for column in RUNS.columns]
            new = [row for row in rows if tuple(row[name] for name in order) not in known]
            if new:
                connection.execute(sa.insert(RUNS), new)

    @patient
    def labels(self, key: str) -> list[dict[str, Any]]:
        if not self.exists:
            return []
        with self._read() as connection:
            return [dict(row) for row in connection.execute(sa.select(RUNS).where(RUNS.c.key == key)).mappings()]


def _pack(predictions: Mapping[str, Predictions]) -> bytes:
    arrays = {}
    for digest, each in predictions.items():
        arrays[f"{digest}/logits"] = np.asarray(each.logits, dtype=np.float32)
        arrays[f"{digest}/gold"] = np.asarray(each.gold)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **cast(Any, arrays))
    return buffer.getvalue()


def _unpack(blob: bytes) -> dict[str, Predictions]:
    with np.load(io.BytesIO(blob), allow_pickle=False) as arrays:
        digests = {name.rsplit("/", 1)[0] for name in arrays.files}
        return {d: Predictions(arrays[f"{d}/logits"], arrays[f"{d}/gold"]) for d in sorted(digests)}
