"""What the store keeps besides records: requests, sealed plans and back-translations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from harness.errors import UserError
from harness.retry import retried
from harness.specs import digest_of
from harness.store.database import Database, parts
from harness.store.tables import (
    RECORDS,
    REQUEST_STAGES,
    REQUESTS,
    SEALS,
    SNAPSHOTS,
    STUDIES,
    TRANSLATIONS,
)


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
        body = json.dumps(dict(self.values))
        return {
            "digest": self.digest,
            "table": self.table,
            "study": self.study,
            "body": body,
            "asked_at": self.asked_at,
        }


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


class Kept(Database):
    """Small things by key. The first translation is final; the last request comes first."""

    # ---------------------------------------------------------------- requests of benches and studies, with their stages

    @retried
    def keep_request(self, request: StoredRequest, keys: Iterable[str], snapshot: Any = None) -> None:
        """Keep a request with the keys of its stages and, as JSON, what its plan read; a known one gets the time, its new stages and that. If it is
        the last request and has nothing new, nothing is written."""
        digest, keys = request.digest, tuple(keys)
        last = self._select(sa.select(REQUESTS.c.digest).order_by(REQUESTS.c.asked_at.desc()).limit(1))
        read = [] if snapshot is None else [{"digest": digest, "body": json.dumps(snapshot)}]
        known = [row["digest"] for row in last] == [digest] and set(keys) <= set(self.stages_of(request))
        query = sa.select(SNAPSHOTS).where(SNAPSHOTS.c.digest == digest)
        if known and (not read or [*map(dict, self._select(query))] == read):
            return
        with self._write() as connection:
            row = request.row | {"asked_at": self._now(connection)}
            self._insert(connection, REQUESTS, [row], replacing=["asked_at"])
            self._insert(connection, REQUEST_STAGES, [{"key": key, "digest": digest} for key in keys])
            self._insert(connection, SNAPSHOTS, read, replacing=["body"])

    @retried
    def requests(self, key: str | None = None) -> list[StoredRequest]:
        """All requests, or those that need the stage `key`; the last one first."""
        query = sa.select(REQUESTS).order_by(REQUESTS.c.asked_at.desc(), REQUESTS.c.digest)
        if key is not None:
            query = query.join(REQUEST_STAGES, REQUESTS.c.digest == REQUEST_STAGES.c.digest)
            query = query.where(REQUEST_STAGES.c.key == key)
        return [
            StoredRequest(row["table"], self._object(row["body"], "a request"), row["study"], row["asked_at"])
            for row in self._select(query)
        ]

    @retried
    def requests_for(self, keys: Iterable[str]) -> list[tuple[StoredRequest, frozenset[str], int]]:
        """The requests that need any of these stages, the last one first: each with those that it needs and with the number of all
        its stages."""
        needed: dict[str, set[str]] = {}
        c = REQUEST_STAGES.c
        for row in self._select(sa.select(REQUEST_STAGES), c.key, keys):
            needed.setdefault(row["digest"], set()).add(row["key"])
        count = sa.select(c.digest, sa.func.count().label("count")).group_by(c.digest)
        counts = {row["digest"]: row["count"] for row in self._select(count)}
        known = ((request, request.digest) for request in self.requests())
        return [(request, frozenset(needed[digest]), counts[digest]) for request, digest in known if digest in needed]

    @retried
    def stages_of(self, request: StoredRequest) -> list[str]:
        """The keys of the stages that a kept request needs."""
        query = sa.select(REQUEST_STAGES.c.key).where(REQUEST_STAGES.c.digest == request.digest)
        return [str(row["key"]) for row in self._select(query)]

    @retried
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
            asked = [sa.select(RECORDS.c.key).where(RECORDS.c.key.in_(part)) for part in parts(keys)]
            recorded = [str(key) for query in asked for key in connection.execute(query).scalars()]
            self._insert(connection, SEALS, [] if recorded else [row])
        return recorded

    @retried
    def seals(self, table: str) -> list[StoredSeal]:
        """The sealed plans of a table, the first one first, each plan once; a damaged one is not `intact`."""
        query = sa.select(SEALS).where(SEALS.c.table == table).order_by(SEALS.c.sealed_at, SEALS.c.digest)
        found: dict[str, StoredSeal] = {}
        for row in self._select(query):
            try:
                plan = dict(json.loads(row["body"]))
            except (ValueError, TypeError):
                plan = {}
            found.setdefault(row["digest"], StoredSeal(row["digest"], plan, float(row["sealed_at"])))
        return [*found.values()]

    # ---------------------------------------------------------------- back-translations, by the digest of text and translator

    @retried
    def translations(self, keys: Sequence[str]) -> dict[str, str]:
        """The texts of those keys that have one."""
        rows = self._select(sa.select(TRANSLATIONS), TRANSLATIONS.c.digest, keys)
        return {row["digest"]: row["text"] for row in rows}

    @retried
    def keep_translations(self, texts: Mapping[str, str]) -> None:
        """Keep texts by key, all or none; a key that has a text keeps it."""
        if texts:
            with self._write() as connection:
                self._insert(connection, TRANSLATIONS, [{"digest": key, "text": text} for key, text in texts.items()])

    # ---------------------------------------------------------------- studies, which are Optuna's

    @retried
    def studies(self) -> list[str]:
        """The names of Optuna's studies, in its own table."""
        if not self.exists:
            return []
        with self._read() as connection:
            there = sa.inspect(connection).has_table(STUDIES.name)
        return [row["study_name"] for row in self._select(sa.select(STUDIES.c.study_name))] if there else []
