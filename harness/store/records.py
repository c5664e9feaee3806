"""The store: records and run labels, guarded by leases, and the default folder of artifacts (weights and checkpoints).

Laws: at most one record per key is committed; only the holder of a live lease commits; a `done` record is never
overwritten; a failed one never counts as done; a damaged one counts as not recorded (integrity.py), and is moved aside when its
stage is recorded again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from harness.errors import UserError
from harness.specs import Record, Run, Stage, Status
from harness.store import sentences
from harness.store.database import parts, retried
from harness.store.integrity import Row, checksum, packed, report_damage, sha256_of, written
from harness.store.kept import Kept
from harness.store.leases import END, HELD, OF_KEY, Leases, Owner
from harness.store.tables import DAMAGED, RECORDS, RUNS


def _rows_with(predictions: sa.ColumnElement[Any]) -> sa.Select[Any]:
    c = RECORDS.c
    # A damaged file may give any type, which the column's own type cannot read.
    last: sa.ColumnElement[Any] = sa.type_coerce(predictions, sa.types.NullType())
    return sa.select(c.key, c.status, c.attempt, c.stage, c.record, c.checksum, last)


WHOLE = _rows_with(RECORDS.c.predictions)
DIGESTS = _rows_with(sa.func.sha256(RECORDS.c.predictions))
"""Without predictions the database computes only their digest, which is less to transfer."""
ONE = DIGESTS.where(RECORDS.c.key == OF_KEY)
KEPT = sa.insert(RECORDS)


@dataclass(frozen=True)
class Speed:
    """How fast one recorded stage was: the name of its device, from which encoder (digest), its FLOPs and its seconds; what its devices do
    at most, in FLOP/s (0: not known)."""

    device: str
    encoder: str
    flops: float
    seconds: float
    peak: float = 0.0


@dataclass(frozen=True)
class Damage:
    """A damaged record: its row in the table, its key as far as it is readable, and what is wrong."""

    place: Any
    key: str
    why: str


class Store(Leases, Kept):
    """One open store. Its errors are those of `Database`.

    A damaged record is skipped, and reported on standard error once.
    """

    @property
    def artifacts(self) -> Path:
        """The default folder of weights and checkpoints, beside the database."""
        return (self.path.parent if self.path else Path(".harness")) / "products"

    @retried
    def statuses(self, keys: Iterable[str]) -> dict[str, tuple[Status, int]]:
        """Status and attempt number of every key that has a record."""
        if not self.exists:
            return {}
        with self._read() as connection:
            return {row.key: (cast(Status, row.status), row.attempt) for row in self._intact(connection, keys)}

    @retried
    def keys(self) -> set[str]:
        """All recorded keys."""
        return {str(row["key"]) for row in self._select(sa.select(RECORDS.c.key))}

    @retried
    def records(self, keys: Iterable[str], *, predictions: bool = False) -> dict[str, Record]:
        """Records by key."""
        if not self.exists:
            return {}
        with self._read() as connection:
            rows = self._intact(connection, keys, predictions)
            return {row.key: row.read(predictions=predictions) for row in rows}

    def each(self, keys: Iterable[str], *, predictions: bool = False) -> Iterator[tuple[str, Record]]:
        """Keys with their records, of which 100 are held in memory at a time."""
        every, size = [*keys], 100
        for start in range(0, len(every), size):
            yield from self.records(every[start : start + size], predictions=predictions).items()

    @retried
    def stage(self, key: str) -> Stage | None:
        """The stage of a record. Raises UserError if the record is damaged."""
        if not self.exists:
            return None
        with self._read() as connection:
            for row in self._rows(connection, RECORDS.c.key == key):
                if why := row.damage():
                    raise UserError(
                        f"The record {key} is damaged ({why}): the command that made it trains it again; 'harness doctor --store "
                        f"{self.shown} --quarantine' moves it away."
                    )
                return row.read_stage()
        return None

    @retried
    def keys_like(self, prefix: str) -> list[str]:
        """Recorded keys that start with `prefix`, at most 20."""
        query = sa.select(RECORDS.c.key).where(RECORDS.c.key.startswith(prefix, autoescape=True)).limit(20)
        return sorted(str(row["key"]) for row in self._select(query))

    @retried
    def committed_at(self, keys: Iterable[str]) -> dict[str, float]:
        """When the records of these keys were committed (Unix time)."""
        c = RECORDS.c
        queries = [sa.select(c.key, c.committed_at).where(c.key.in_(part)) for part in parts(keys)]
        return {str(row["key"]): float(row["committed_at"]) for q in queries for row in self._select(q)}

    @retried
    def speeds(self) -> list[Speed]:
        """The newest 200 finished stages, which calibrate a plan's estimate."""
        if not self.exists:
            return []
        newest = sa.select(RECORDS.c.key).where(RECORDS.c.status == "done")
        with self._read() as connection:
            keys = connection.execute(newest.order_by(RECORDS.c.committed_at.desc()).limit(200)).scalars().all()
            records = {row.key: row.read(predictions=False) for row in self._intact(connection, keys)}
        recorded = [records[key] for key in keys if key in records]
        return [
            Speed(
                r.provenance.get("device", ""),
                r.provenance.get("encoder", ""),
                r.flops,
                r.seconds,
                r.provenance.get("peak_flops_per_second", 0.0),
            )
            for r in recorded
        ]

    def _attempts(self, connection: Connection, key: str) -> int:
        for row in self._rows_of(connection, key):
            if why := row.damage():
                report_damage(self.shown, row.key, why)
            else:
                return int(row.attempt)
        return 0

    def _rows_of(self, connection: Connection, key: str) -> list[Row]:
        """The rows of a key as they are stored, without predictions: in a damaged file of SQLite two may have one key."""
        return [Row(*values) for values in connection.execute(ONE, {"of_key": key})]

    def _intact(self, connection: Connection, keys: Iterable[str], predictions: bool = False) -> Iterator[Row]:
        """The rows of these keys, without the damaged ones."""
        for part in parts(keys):
            for row in self._rows(connection, RECORDS.c.key.in_(part), predictions):
                if why := row.damage():
                    report_damage(self.shown, row.key, why)
                else:
                    yield row

    def _rows(
        self, connection: Connection, condition: sa.ColumnElement[bool], predictions: bool = False
    ) -> Iterator[Row]:
        """Rows as they are stored."""
        query = WHOLE if predictions else DIGESTS
        for values in connection.execute(query.where(condition)):
            row = Row(*values)
            yield replace(row, digest=sha256_of(row.digest), predictions=row.digest) if predictions else row

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
        return self.outage_retry.call(lambda again: self._commit(row, owner, again))

    def _commit(self, row: dict[str, Any], owner: Owner, again: bool) -> bool:
        key, attempt = row["key"], 1
        with self._write() as connection:
            held = connection.execute(HELD, {"of_key": key}).mappings().first()
            old = next(iter(self._rows_of(connection, key)), None)
            why = old.damage() if old else ""
            if not held or held["owner"] != owner.token:
                # Equal with all its times: our commit succeeded before, and only the answer was lost.
                return bool(again and old and not why and old.record == row["record"])
            connection.execute(END, {"of_key": key})
            if old and why:
                self._set_aside(connection, RECORDS.c.key == key, why)
            elif old and old.status == "done":
                return False
            elif old:
                connection.execute(sa.delete(RECORDS).where(RECORDS.c.key == key))
                attempt = old.attempt + 1
            digest = sha256_of(row["predictions"])
            whole = checksum(key, row["status"], attempt, row["stage"], row["record"], digest)
            connection.execute(
                KEPT, row | {"attempt": attempt, "committed_at": self._now(connection), "checksum": whole}
            )
            return True

    # ---------------------------------------------------------------- damaged records

    @retried
    def damages(self) -> tuple[int, list[Damage]]:
        """Check every record: how many there are, and the damaged ones. Raises UserError if SQLite's file itself is damaged."""
        count, damages = 0, []
        with self._read() as connection:
            if self.path and (answer := connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()) != "ok":
                raise sentences.damaged(f"The store {self.shown}", str(answer), self.path)
            places = connection.execute(sa.select(self._place).select_from(RECORDS)).scalars().all()
            for place in places:
                for row in self._rows(connection, self._place == place, predictions=True):
                    count += 1
                    if why := row.damage():
                        damages.append(Damage(place, str(row.key), why))
        return count, damages

    @retried
    def quarantine(self, damages: Iterable[Damage]) -> None:
        """Move records into the table of damaged ones, which nothing reads."""
        moved = list(damages)
        if not moved:
            return
        with self._write() as connection:
            for damage in moved:
                self._set_aside(connection, self._place == damage.place, damage.why)

    @property
    def _place(self) -> sa.ColumnElement[Any]:
        """What identifies a row: in a damaged file of SQLite two may have one key."""
        return sa.literal_column("records.rowid") if self.path else RECORDS.c.key

    def _set_aside(self, connection: Connection, condition: sa.ColumnElement[bool], why: str) -> None:
        rows = sa.select(*RECORDS.columns, sa.literal(why)).where(condition)
        connection.execute(sa.insert(DAMAGED).from_select([*RECORDS.columns.keys(), "reason"], rows))
        connection.execute(sa.delete(RECORDS).where(condition))

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

    @retried
    def labels(self, key: str) -> list[dict[str, Any]]:
        return self.labels_of([key])

    @retried
    def labels_of(self, keys: Iterable[str]) -> list[dict[str, Any]]:
        """The labels of the runs with any of these keys."""
        queries = [sa.select(RUNS).where(RUNS.c.key.in_(part)) for part in parts(keys)]
        return [dict(row) for query in queries for row in self._select(query)]

    @retried
    def recorded_runs(self) -> list[dict[str, Any]]:
        """The label of every run whose last stage is recorded, with `committed_at` (Unix time); the newest first."""
        when = RECORDS.c.committed_at
        query = sa.select(RUNS, when).join(RECORDS, RUNS.c.key == RECORDS.c.key)
        order = (when.desc(), RUNS.c.table, RUNS.c.row, RUNS.c.task, RUNS.c.size, RUNS.c.subset, RUNS.c.seed)
        return [dict(row) for row in self._select(query.order_by(*order))]
