"""The store: records and run labels, guarded by leases; requests, sealed plans and back-translations; and the default folder of artifacts.

Laws: at most one record per key is committed; only the holder of a live lease commits; a `done` record is never overwritten; a failed one never
counts as done. A live lease is exclusive. It ends with its process, on another host after LEASE_SECONDS.
"""

from __future__ import annotations

import io
import json
import os
import re
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import psutil
import sqlalchemy as sa

from harness.errors import TransientError, UserError, retried
from harness.kinds import Predictions
from harness.machine import started_at
from harness.paths import without_folders
from harness.specs import Record, Run, Stage, Status, digest_of
from harness.store.database import Database, parts
from harness.store.published import unpacked
from harness.store.tables import LEASES, RECORDS, REQUEST_STAGES, REQUESTS, RUNS, SEALS, SNAPSHOTS, TRANSLATIONS

LEASE_SECONDS = 180.0
"""A lease of another host that was not renewed for this long is dead; one of this host dies with its process. It is longer than a
call is retried (`harness.errors.retried`), while no process can renew its leases."""
RENEW_SECONDS = 10.0

STORED_AS = {"weights_digest": "product"}
"""Fields of a record that have another name in the store."""
_ON_HOST = re.compile(r"(could not be (?:read|written)) on [^:]+(?=: )")
"""In a sentence of an older harness, with the name of a machine."""
UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, RecursionError)

Grant = Literal["granted", "held", "settled"]

C, S = RECORDS.c, REQUEST_STAGES.c
# Made once: SQLAlchemy takes as long to make and look up a statement as SQLite to execute it.
OF_KEY: sa.BindParameter[str] = sa.bindparam("of_key")
HELD = sa.select(LEASES).where(LEASES.c.key == OF_KEY)
END = sa.delete(LEASES).where(LEASES.c.key == OF_KEY)
ONE = sa.select(C.status, C.attempt, C.record).where(C.key == OF_KEY)


@dataclass(frozen=True)
class Owner:
    """The holder of leases: a driver process. On its own host it is alive as long as its process (`pid`, and `started` as
    `started_at`)."""

    token: str
    host: str
    pid: int
    started: float

    @classmethod
    def current(cls) -> Owner:
        pid = os.getpid()
        return cls(uuid.uuid4().hex, _host(), pid, started_at(psutil.Process(pid)))


def _host() -> str:
    """Host name, PID namespace and boot: two containers may share the first, two machines the first two."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        namespace = boot = ""
    return f"{socket.gethostname()}{namespace}{boot}"


@dataclass(frozen=True)
class StoredRequest:
    """`table`: the table's own name; `study`: '' for a bench; `values`: by the flag's name, JSON; `asked_at`: Unix time."""

    table: str
    values: Mapping[str, Any]
    study: str = ""
    asked_at: float = 0.0

    @property
    def digest(self) -> str:
        return digest_of([self.table, self.study, dict(self.values)])

    @property
    def row(self) -> dict[str, Any]:
        """As the store keeps it."""
        own = {"digest": self.digest, "table": self.table, "study": self.study}
        return own | {"body": json.dumps(dict(self.values)), "asked_at": self.asked_at}


@dataclass(frozen=True)
class StoredSeal:
    """A plan that was sealed. `digest`: of the plan alone, so that whoever has the data gets the same from the same command; `plan`: JSON; `sealed_at`:
    Unix time, by the clock of the machine that sealed it."""

    digest: str
    plan: Mapping[str, Any]
    sealed_at: float

    @property
    def intact(self) -> bool:
        return digest_of(dict(self.plan)) == self.digest


class Store(Database):
    """One open store. Its errors are those of `Database`."""

    @property
    def artifacts(self) -> Path:
        """The default folder of weights and checkpoints, beside the database."""
        return (self.path.parent if self.path else Path(".harness")) / "products"

    # ---------------------------------------------------------------- records, by key

    def statuses(self, keys: Iterable[str]) -> dict[str, tuple[Status, int]]:
        """Status and attempt number of every key that has a record."""
        rows = self._select(sa.select(C.key, C.status, C.attempt), C.key, keys)
        return {row["key"]: (row["status"], row["attempt"]) for row in rows}

    def keys(self) -> set[str]:
        """All recorded keys."""
        return {row["key"] for row in self._select(sa.select(C.key))}

    def settled(self) -> set[str]:
        """The keys of stages that ended and belong to no request with a stage left to train."""
        joined = sa.select(S.digest).outerjoin(RECORDS, C.key == S.key)
        left = joined.where(sa.func.coalesce(C.status, "failed") == "failed")
        needed = sa.select(S.key).where(S.digest.in_(left))
        return {row["key"] for row in self._select(sa.select(C.key).where(C.status != "failed", C.key.not_in(needed)))}

    def records(self, keys: Iterable[str], *, predictions: bool = False) -> dict[str, Record]:
        """Records by key."""
        query = sa.select(C.key, C.record, *([C.predictions] if predictions else []))
        return {row["key"]: record_of(row) for row in self._select(query, C.key, keys)}

    def each(self, keys: Iterable[str], *, predictions: bool = False) -> Iterator[tuple[str, Record]]:
        """Keys with their records, of which 100 are held in memory at a time."""
        for part in parts(keys, 100):
            yield from self.records(part, predictions=predictions).items()

    def newest(self, count: int) -> list[Record]:
        """The finished stages that were recorded last, the newest first."""
        query = sa.select(C.key, C.record).where(C.status == "done").order_by(C.committed_at.desc()).limit(count)
        return [record_of(row) for row in self._select(query)]

    def stages(self, keys: Iterable[str]) -> dict[str, Stage]:
        """The stages of records by key."""
        return {row["key"]: stage_of(row) for row in self._select(sa.select(C.key, C.stage), C.key, keys)}

    def keys_like(self, prefix: str) -> list[str]:
        """Recorded keys that start with `prefix`, at most 20."""
        query = sa.select(C.key).where(C.key.startswith(str(prefix), autoescape=True)).limit(20)
        return sorted(row["key"] for row in self._select(query))

    def began(self, keys: Iterable[str]) -> dict[str, float]:
        """When recorded stages began (Unix time), by the clocks of the machines that recorded them."""
        rows = self._select(sa.select(C.key, C.record, C.committed_at), C.key, keys)
        return {row["key"]: row["committed_at"] - record_of(row).seconds for row in rows}

    @retried
    def commit(self, stage: Stage, record: Record, owner: Owner) -> bool:
        """Write a record if `owner` holds the lease of its key, and release that. False: another process has the stage now."""
        key, attempt = record.key, 1
        row: dict[str, Any] = {"key": key, "status": record.status, "record": written(record)}
        row["stage"] = json.dumps(stage.to_json())
        row["predictions"] = packed(record.predictions) if record.predictions else None
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
            connection.execute(sa.insert(RECORDS), row | {"attempt": attempt, "committed_at": self._now(connection)})
            return True

    # ---------------------------------------------------------------- leases, by key

    @retried
    def lease(self, key: str, owner: Owner, *, seen_attempt: int = 0, remake: bool = False) -> Grant:
        """Ask to train a stage: 'granted', 'held' by another live owner, or 'settled' by a record newer than `seen_attempt`.

        `remake`: to make only the weights of a recorded stage again.
        """
        with self._write() as connection:
            now = self._now(connection)
            recorded = connection.execute(ONE, {"of_key": key}).first()
            if not remake and recorded and recorded.attempt > seen_attempt:
                return "settled"
            held = connection.execute(HELD, {"of_key": key}).mappings().first()
            if held and held["owner"] != owner.token and _alive(held, now):
                return "held"
            if held:
                connection.execute(END, {"of_key": key})
            lease = {"key": key, "owner": owner.token, "host": owner.host, "pid": owner.pid, "started": owner.started}
            connection.execute(sa.insert(LEASES), lease | {"renewed_at": now})
            return "granted"

    @retried
    def renew(self, owner: Owner) -> None:
        with self._write() as connection:
            mine = sa.update(LEASES).where(LEASES.c.owner == owner.token)
            connection.execute(mine.values(renewed_at=self._now(connection)))

    def release(self, owner: Owner, key: str | None = None) -> None:
        """Release one lease, or all of an owner. Not retried: they expire at the owner's end anyway."""
        lease = (LEASES.c.owner == owner.token) & (LEASES.c.key == key if key else sa.true())
        with suppress(TransientError), self._write() as connection:
            connection.execute(sa.delete(LEASES).where(lease))

    @retried
    def others_alive(self, owner: Owner) -> bool:
        """Whether another live driver holds a lease: weights may be in use."""
        with self._read() as connection:
            now = self._now(connection)
            rows = connection.execute(sa.select(LEASES).where(LEASES.c.owner != owner.token)).mappings()
            return any(_alive(row, now) for row in rows)

    # ---------------------------------------------------------------- runs (labels)

    @retried
    def label(self, table: str, runs: Iterable[Run]) -> None:
        """Keep the labels of runs with their keys; existing labels stay."""
        rows = [
            {"key": run.stage.key, "table": table}
            | {name: getattr(run, name) for name in ("row", "method", "task", "size", "subset", "seed")}
            for run in runs
        ]
        with self._write() as connection:
            self._insert(connection, RUNS, rows)

    def labels(self, keys: Iterable[str]) -> list[dict[str, Any]]:
        """The labels of the runs with any of these keys."""
        return [dict(row) for row in self._select(sa.select(RUNS), RUNS.c.key, keys)]

    def recorded_runs(self) -> list[dict[str, Any]]:
        """The label of every run whose last stage is recorded, with `committed_at` (Unix time); the newest first."""
        order = (C.committed_at.desc(), *(RUNS.c[name] for name in ("table", "row", "task", "size", "subset", "seed")))
        query = sa.select(RUNS, C.committed_at).join(RECORDS, RUNS.c.key == C.key).order_by(*order)
        return [dict(row) for row in self._select(query)]

    # ---------------------------------------------------------------- requests of benches and studies, with their stages

    @retried
    def keep_request(self, request: StoredRequest, keys: Iterable[str], snapshot: Any = None) -> None:
        """Keep a request with the keys of its stages and, as JSON, what its plan read; a known one gets the time, its new stages and that. If it is
        the last request and has nothing new, nothing is written."""
        digest, keys, body = request.digest, {*keys}, snapshot and json.dumps(snapshot)
        last = self._select(sa.select(REQUESTS.c.digest).order_by(REQUESTS.c.asked_at.desc()).limit(1))
        if [row["digest"] for row in last] == [digest] and keys <= {*self.stages_of(request)}:
            read = self._select(
                sa.select(SNAPSHOTS.c.body).where(SNAPSHOTS.c.digest == digest, SNAPSHOTS.c.body == body)
            )
            if read or body is None:
                return
        with self._write() as connection:
            rows = {REQUESTS: request.row | {"asked_at": self._now(connection)}}
            if body is not None:
                rows[SNAPSHOTS] = {"digest": digest, "body": body}
            for table, row in rows.items():
                connection.execute(sa.delete(table).where(table.c.digest == digest))
                connection.execute(sa.insert(table), row)
            self._insert(connection, REQUEST_STAGES, [{"key": key, "digest": digest} for key in keys])

    def requests(self) -> list[StoredRequest]:
        """All requests, the last one first."""
        query = sa.select(REQUESTS).order_by(REQUESTS.c.asked_at.desc(), REQUESTS.c.digest)
        return [
            StoredRequest(row["table"], self._object(row["body"], "a request"), row["study"], row["asked_at"])
            for row in self._select(query)
        ]

    def requests_for(self, keys: Iterable[str]) -> list[tuple[StoredRequest, frozenset[str]]]:
        """The requests that need any of these stages, the last one first, each with those that it needs."""
        needed: dict[str, set[str]] = {}
        for row in self._select(sa.select(REQUEST_STAGES), S.key, keys):
            needed.setdefault(row["digest"], set()).add(row["key"])
        known = {request.digest: request for request in self.requests()}
        return [(request, frozenset(needed[digest])) for digest, request in known.items() if digest in needed]

    def stages_of(self, request: StoredRequest) -> list[str]:
        """The keys of the stages that a kept request needs."""
        return [row["key"] for row in self._select(sa.select(S.key).where(S.digest == request.digest))]

    def sizes(self) -> dict[str, int]:
        """The bytes of the records that each request needs, by its digest."""
        bytes_of = sa.func.length(C.record) + sa.func.coalesce(sa.func.length(C.predictions), 0)
        query = sa.select(S.digest, sa.func.sum(bytes_of).label("bytes")).join(RECORDS, S.key == C.key)
        return {row["digest"]: int(row["bytes"]) for row in self._select(query.group_by(S.digest))}

    def needed_alone(self, digests: Sequence[str]) -> set[str]:
        """The keys of the stages that these requests need and no other does."""
        others = sa.select(S.key).where(S.digest.not_in(digests))
        return {row["key"] for row in self._select(sa.select(S.key).where(S.digest.in_(digests), S.key.not_in(others)))}

    @retried
    def forget(self, digests: Sequence[str]) -> None:
        """Delete requests, and the records and labels that they need and no other does."""
        own, others = sa.select(S.key).where(S.digest.in_(digests)), sa.select(S.key).where(S.digest.not_in(digests))
        with self._write() as connection:
            for column in (RUNS.c.key, C.key):
                connection.execute(sa.delete(column.table).where(column.in_(own), column.not_in(others)))
            for column in (S.digest, SNAPSHOTS.c.digest, REQUESTS.c.digest):
                connection.execute(sa.delete(column.table).where(column.in_(digests)))

    def snapshot_of(self, request: StoredRequest) -> Any:
        """What the plan of a kept request read, as `keep_request` got it; None where that is not known."""
        rows = self._select(sa.select(SNAPSHOTS.c.body).where(SNAPSHOTS.c.digest == request.digest))
        return self._object(rows[0]["body"], "a snapshot") if rows else None

    def _object(self, text: str, what: str) -> dict[str, Any]:
        """An object in JSON. Raises UserError for anything else."""
        with suppress(ValueError, TypeError, RecursionError):
            found = json.loads(text)
            digest_of(found)  # which takes what JSON knows alone
            if isinstance(found, dict):
                return found
        raise UserError(
            f"The store {self.shown} holds {what} that is no object in JSON; restore a copy of it, or name another store."
        )

    # ---------------------------------------------------------------- sealed plans, by their digest

    @retried
    def keep_seal(self, table: str, plan: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
        """Keep a plan with the time; one that is sealed already stays as it is. Where any of its `keys` has a record nothing is kept: these are
        returned. Both in one transaction, so that in this store no record of a sealed plan is older than its seal, whatever the clock says."""
        digest = digest_of(dict(plan))
        row: dict[str, Any] = {"digest": digest, "table": table, "body": json.dumps(dict(plan))}
        with self._write() as connection:
            row["sealed_at"] = self._now(connection)
            if connection.execute(sa.select(SEALS.c.digest).where(SEALS.c.digest == digest)).first():
                return []
            asked = [sa.select(C.key).where(C.key.in_(part)) for part in parts(keys)]
            recorded = [str(key) for query in asked for key in connection.execute(query).scalars()]
            self._insert(connection, SEALS, [] if recorded else [row])
        return recorded

    def seals(self, table: str) -> list[StoredSeal]:
        """The sealed plans of a table, the first one first, each plan once; a damaged one is not `intact`."""
        query = sa.select(SEALS).where(SEALS.c.table == table).order_by(SEALS.c.sealed_at, SEALS.c.digest)
        found: dict[str, StoredSeal] = {}
        for row in self._select(query):
            plan: dict[str, Any] = {}
            with suppress(ValueError, TypeError):
                plan = dict(json.loads(row["body"]))
            found.setdefault(row["digest"], StoredSeal(row["digest"], plan, row["sealed_at"]))
        return [*found.values()]

    # ---------------------------------------------------------------- back-translations and studies

    def translations(self, keys: Sequence[str]) -> dict[str, str]:
        """The back-translated texts, by the digest of text and translator, of those keys that have one."""
        rows = self._select(sa.select(TRANSLATIONS), TRANSLATIONS.c.digest, keys)
        return {row["digest"]: row["text"] for row in rows}

    @retried
    def keep_translations(self, texts: Mapping[str, str]) -> None:
        """Keep texts by key, all or none; a key that has a text keeps it."""
        if texts:
            with self._write() as connection:
                self._insert(connection, TRANSLATIONS, [{"digest": key, "text": text} for key, text in texts.items()])

    @retried
    def studies(self) -> list[str]:
        """The names of Optuna's studies, in its own table."""
        if not self.exists:
            return []
        table = sa.table("studies", sa.column("study_name"))
        with self._read() as connection:
            there = sa.inspect(connection).has_table(table.name)
            return [*connection.execute(sa.select(table.c.study_name)).scalars()] if there else []


def _alive(lease: Mapping[Any, Any], now: float) -> bool:
    if lease["host"] == _host():
        try:  # pids are reused, and a killed process is a zombie until its parent reads its exit status
            process = psutil.Process(lease["pid"])
            same = abs(started_at(process) - lease["started"]) < 1.0
            return same and bool(process.status() != psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return False
    return bool(now - lease["renewed_at"] < LEASE_SECONDS)


# ---------------------------------------------------------------- a record as the row of a table


def record_of(row: Mapping[Any, Any]) -> Record:
    """The record of a row, with predictions where the row has them. Raises UserError for one that is damaged, or that only a newer
    harness can read."""
    try:
        fields = json.loads(row["record"])
        record = Record(**{field: fields.pop(name) for field, name in STORED_AS.items()}, **fields)
        if blob := row.get("predictions"):
            record.predictions = unpacked(blob)
    except UNREADABLE:
        raise _unreadable(row) from None
    return record


def predicted_by(record: Record, digest: str) -> Predictions:
    """What a record predicts of a row set, with the labels. Raises UserError where its store has lost or damaged them, or was published without."""
    found = record.predictions.get(digest)
    try:
        wrong = found.problem if found else "are missing"
    except (LookupError, TypeError) as error:  # arrays of another form
        wrong = f"cannot be read ({type(error).__name__})"
    if found is None or wrong:
        raise UserError(
            f"The record {record.key[:12]} has no score: its predictions of the rows {digest[:10]} {wrong}; restore a copy of its store, or take it over "
            "with 'harness merge STORE --data DATA'."
        )
    return found


def stage_of(row: Mapping[Any, Any]) -> Stage:
    """The stage of a row. Raises UserError as `record_of`."""
    try:
        return Stage.from_json(json.loads(row["stage"]))
    except UNREADABLE:
        raise _unreadable(row) from None


def _unreadable(row: Mapping[Any, Any]) -> UserError:
    return UserError(
        f"The record {row['key'][:10]} has fields that this harness does not know, or is damaged; upgrade glue-harness, restore a copy "
        "of the store or name another one."
    )


def written(record: Record) -> str:
    """A record without its predictions, as JSON."""
    body = asdict(replace(record, predictions={}))
    return json.dumps({STORED_AS.get(name, name): value for name, value in body.items()})


def named_alone(text: str) -> str:
    """JSON, in which encoders of an older harness may name the file of their tokenizer: without its folder."""
    return re.sub(r'"new:[^"]*@bpe[^"]*"', lambda found: without_folders(found[0]), text)


def anonymous(row: Mapping[Any, Any]) -> dict[Any, Any]:
    """A row whose record and stage name no machine, folder or user, as provenance, reasons and encoders may. Raises UserError as `record_of`."""
    try:
        body = json.loads(row["record"])
        origin = body.get("provenance", {})
        origin.pop("host", None)  # of an older harness
        for fields, name in ((body, "reason"), (origin, "checkpoint_failed")):
            if fields.get(name):
                fields[name] = _ON_HOST.sub(r"\1", without_folders(fields[name]))
        return {**row, "record": json.dumps(body), "stage": named_alone(row["stage"])}
    except UNREADABLE:
        raise _unreadable(row) from None


def packed(predictions: Mapping[str, Predictions]) -> bytes:
    arrays = {}
    for digest, predicted in predictions.items():
        for name, array in {**predicted.arrays, "gold": predicted.gold}.items():
            arrays[f"{digest}/{name}"] = np.asarray(array)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **cast(Any, arrays))
    return buffer.getvalue()
