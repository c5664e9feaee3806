"""The store: records and run labels, guarded by leases, and the default folder of artifacts (weights and checkpoints).

Laws: at most one record per key is committed; only the holder of a live lease commits; a `done` record is never
overwritten; a failed one never counts as done.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from harness.retry import retried
from harness.specs import Record, Run, Stage, Status
from harness.store.kept import Kept
from harness.store.leases import END, HELD, ONE, Leases, Owner
from harness.store.rows import packed, record_of, stage_of, written
from harness.store.tables import RECORDS, REQUEST_STAGES, RUNS

C = RECORDS.c
PLAIN = sa.select(C.key, C.record)
WHOLE = PLAIN.add_columns(C.predictions)
KEPT = sa.insert(RECORDS)


@dataclass(frozen=True)
class Speed:
    """How fast one recorded stage was: the name of its device, from which encoder (digest), its FLOPs and its
    seconds."""

    device: str
    encoder: str
    flops: float
    seconds: float


class Store(Leases, Kept):
    """One open store. Its errors are those of `Database`."""

    @property
    def artifacts(self) -> Path:
        """The default folder of weights and checkpoints, beside the database."""
        return (self.path.parent if self.path else Path(".harness")) / "products"

    @retried
    def statuses(self, keys: Iterable[str]) -> dict[str, tuple[Status, int]]:
        """Status and attempt number of every key that has a record."""
        rows = self._select(sa.select(C.key, C.status, C.attempt), C.key, keys)
        return {row["key"]: (row["status"], row["attempt"]) for row in rows}

    @retried
    def keys(self) -> set[str]:
        """All recorded keys."""
        return {str(row["key"]) for row in self._select(sa.select(RECORDS.c.key))}

    @retried
    def settled(self) -> set[str]:
        """The keys of stages that ended and belong to no request with a stage left to train."""
        joined = sa.select(REQUEST_STAGES.c.digest).outerjoin(RECORDS, C.key == REQUEST_STAGES.c.key)
        left = joined.where(sa.func.coalesce(C.status, "failed") == "failed")
        needed = sa.select(REQUEST_STAGES.c.key).where(REQUEST_STAGES.c.digest.in_(left))
        query = sa.select(C.key).where(C.status != "failed", C.key.not_in(needed))
        return {str(row["key"]) for row in self._select(query)}

    @retried
    def records(self, keys: Iterable[str], *, predictions: bool = False) -> dict[str, Record]:
        """Records by key."""
        return {row["key"]: record_of(row) for row in self._select(WHOLE if predictions else PLAIN, C.key, keys)}

    def each(self, keys: Iterable[str], *, predictions: bool = False) -> Iterator[tuple[str, Record]]:
        """Keys with their records, of which 100 are held in memory at a time."""
        every, size = [*keys], 100
        for start in range(0, len(every), size):
            yield from self.records(every[start : start + size], predictions=predictions).items()

    @retried
    def stage(self, key: str) -> Stage | None:
        """The stage of a record."""
        found = self._select(sa.select(C.key, C.stage).where(C.key == key))
        return stage_of(found[0]) if found else None

    @retried
    def keys_like(self, prefix: str) -> list[str]:
        """Recorded keys that start with `prefix`, at most 20."""
        query = sa.select(RECORDS.c.key).where(RECORDS.c.key.startswith(prefix, autoescape=True)).limit(20)
        return sorted(str(row["key"]) for row in self._select(query))

    @retried
    def committed_at(self, keys: Iterable[str]) -> dict[str, float]:
        """When the records of these keys were committed (Unix time)."""
        return {row["key"]: row["committed_at"] for row in self._select(sa.select(C.key, C.committed_at), C.key, keys)}

    @retried
    def speeds(self) -> list[Speed]:
        """The newest 200 finished stages, which calibrate a plan's estimate."""
        newest = PLAIN.where(C.status == "done").order_by(C.committed_at.desc()).limit(200)
        recorded = [(each, each.provenance) for each in map(record_of, self._select(newest))]
        return [Speed(p.get("device", ""), p.get("encoder", ""), r.flops, r.seconds) for r, p in recorded]

    def commit(self, stage: Stage, record: Record, owner: Owner) -> bool:
        """Write a record if `owner` holds the lease of its key, and release that. False: another process has the stage now."""
        if stage.key != record.key:
            raise ValueError(f"a record of {record.key} under the stage {stage.key}")
        row = {
            "key": record.key,
            "status": record.status,
            "stage": json.dumps(stage.to_json()),
            "record": written(record),
            "predictions": packed(record.predictions) if record.predictions else None,
        }
        return self._commit(row, owner)

    @retried
    def _commit(self, row: dict[str, Any], owner: Owner) -> bool:
        key, attempt = row["key"], 1
        with self._write() as connection:
            held = connection.execute(HELD, {"of_key": key}).mappings().first()
            old = connection.execute(ONE, {"of_key": key}).first()
            if not held or held["owner"] != owner.token:
                # Equal with all its times: an earlier try of ours succeeded, and only the answer was lost.
                return bool(old and old.record == row["record"])
            connection.execute(END, {"of_key": key})
            if old and old.status == "done":
                return False
            if old:
                connection.execute(sa.delete(RECORDS).where(C.key == key))
                attempt = old.attempt + 1
            connection.execute(KEPT, row | {"attempt": attempt, "committed_at": self._now(connection)})
            return True

    # ---------------------------------------------------------------- runs (labels)

    @retried
    def label(self, table: str, runs: Iterable[Run]) -> None:
        """Keep the labels of runs with their keys; existing labels stay."""
        rows = [
            {"key": r.stage.key, "table": table, "row": r.row, "method": r.method, "task": r.task}
            | {"size": r.size, "subset": r.subset, "seed": r.seed}
            for r in runs
        ]
        with self._write() as connection:
            self._insert(connection, RUNS, rows)

    def labels(self, key: str) -> list[dict[str, Any]]:
        return self.labels_of([key])

    @retried
    def labels_of(self, keys: Iterable[str]) -> list[dict[str, Any]]:
        """The labels of the runs with any of these keys."""
        return [dict(row) for row in self._select(sa.select(RUNS), RUNS.c.key, keys)]

    @retried
    def recorded_runs(self) -> list[dict[str, Any]]:
        """The label of every run whose last stage is recorded, with `committed_at` (Unix time); the newest first."""
        when = RECORDS.c.committed_at
        query = sa.select(RUNS, when).join(RECORDS, RUNS.c.key == RECORDS.c.key)
        order = (when.desc(), RUNS.c.table, RUNS.c.row, RUNS.c.task, RUNS.c.size, RUNS.c.subset, RUNS.c.seed)
        return [dict(row) for row in self._select(query.order_by(*order))]
