"""Requests of benches and studies with the stages that they need: `report` and `show` print from them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from harness.specs import digest_of
from harness.store.database import Database, parts, retried

_tables = sa.MetaData()
REQUESTS = sa.Table(
    "requests",
    _tables,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("table", sa.Text, nullable=False),
    sa.Column("study", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("asked_at", sa.Float, nullable=False),
)
REQUEST_STAGES = sa.Table(
    "request_stages",
    _tables,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("digest", sa.String(64), primary_key=True),
)
"""Both are created with the first request: a database of an older harness lacks them."""


@dataclass(frozen=True)
class StoredRequest:
    """`table`: the table's own name; `study`: '' for a bench; `values`: by the flag's name, JSON; `asked_at`: Unix time."""

    table: str
    values: Mapping[str, Any]
    study: str = ""
    asked_at: float = 0.0


class Requests(Database):
    """Requests by the digest of their content, when each was last made, and the stages that it needs."""

    @retried
    def keep_request(self, request: StoredRequest, keys: Iterable[str]) -> None:
        """Keep a request with the keys of its stages; a known one gets the time and its new stages. If it is the last request and
        has no new stages, nothing is written."""
        digest, keys = _digest(request), tuple(keys)
        if self._is_last(digest, keys):
            return
        row = {"table": request.table, "study": request.study, "body": json.dumps(dict(request.values))}
        with self._write() as connection:
            _tables.create_all(connection)
            here = REQUESTS.c.digest == digest
            if not connection.execute(sa.update(REQUESTS).where(here).values(asked_at=time.time())).rowcount:
                connection.execute(sa.insert(REQUESTS).values(digest=digest, asked_at=time.time(), **row))
            for part in parts(keys):
                mine = (REQUEST_STAGES.c.digest == digest) & REQUEST_STAGES.c.key.in_(part)
                known = set(connection.execute(sa.select(REQUEST_STAGES.c.key).where(mine)).scalars())
                new = [{"key": key, "digest": digest} for key in part if key not in known]
                if new:
                    connection.execute(sa.insert(REQUEST_STAGES), new)

    def _is_last(self, digest: str, keys: tuple[str, ...]) -> bool:
        """Whether this is the last request that was kept, with all these stages."""
        last = self._select(sa.select(REQUESTS.c.digest).order_by(REQUESTS.c.asked_at.desc()).limit(1), REQUESTS)
        if [row["digest"] for row in last] != [digest]:
            return False
        mine = self._select(sa.select(REQUEST_STAGES.c.key).where(REQUEST_STAGES.c.digest == digest), REQUEST_STAGES)
        return set(keys) <= {row["key"] for row in mine}

    @retried
    def requests(self, key: str | None = None) -> list[StoredRequest]:
        """All requests, or those that need the stage `key`; the last one first. Damaged rows are skipped."""
        query = sa.select(REQUESTS).order_by(REQUESTS.c.asked_at.desc(), REQUESTS.c.digest)
        if key is not None:
            query = query.join(REQUEST_STAGES, REQUESTS.c.digest == REQUEST_STAGES.c.digest)
            query = query.where(REQUEST_STAGES.c.key == key)
        return [request for row in self._select(query, REQUESTS) if (request := _request(row))]

    @retried
    def requests_for(self, keys: Iterable[str]) -> list[tuple[StoredRequest, frozenset[str], int]]:
        """The requests that need any of these stages, the last one first: each with those that it needs and with the number of all its stages."""
        needed: dict[str, set[str]] = {}
        c = REQUEST_STAGES.c
        for part in parts(keys):
            for row in self._select(sa.select(c.key, c.digest).where(c.key.in_(part)), REQUEST_STAGES):
                needed.setdefault(row["digest"], set()).add(row["key"])
        count = sa.select(c.digest, sa.func.count().label("count")).group_by(c.digest)
        counts = {row["digest"]: int(row["count"]) for row in self._select(count, REQUEST_STAGES)}
        return [
            (request, frozenset(needed[digest]), counts[digest])
            for request in self.requests()
            if (digest := _digest(request)) in needed
        ]

    @retried
    def stages_of(self, request: StoredRequest) -> list[str]:
        """The keys of the stages that a kept request needs."""
        query = sa.select(REQUEST_STAGES.c.key).where(REQUEST_STAGES.c.digest == _digest(request))
        return [str(row["key"]) for row in self._select(query, REQUEST_STAGES)]


def _digest(request: StoredRequest) -> str:
    return digest_of([request.table, request.study, dict(request.values)])


def _request(row: Mapping[Any, Any]) -> StoredRequest | None:
    """The request of a row; None if its content does not match its digest."""
    try:
        request = StoredRequest(row["table"], dict(json.loads(row["body"])), row["study"], float(row["asked_at"]))
        return request if _digest(request) == row["digest"] else None
    except (ValueError, TypeError):
        return None
