"""Results of probes, by the digest of what was measured of which weights: a probe is computed once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from harness.store.database import Database, parts, retried

_tables = sa.MetaData()
PROBES = sa.Table(
    "probes",
    _tables,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("checksum", sa.String(64), nullable=False),
)
"""Created with its first row: a database of an older harness lacks it."""


class Probes(Database):
    """Results by digest. The first one is final; a damaged one counts as not computed, and is replaced."""

    @retried
    def probes(self, digests: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The results of those digests that have one."""
        found: dict[str, dict[str, Any]] = {}
        for part in parts(digests):
            for row in self._select(sa.select(PROBES).where(PROBES.c.digest.in_(part)), PROBES):
                if row["checksum"] == _checksum(row["digest"], row["body"]):
                    found[row["digest"]] = json.loads(row["body"])
        return found

    @retried
    def keep_probe(self, digest: str, body: Mapping[str, Any]) -> None:
        """Keep a result; one that is there and not damaged stays."""
        text = json.dumps(dict(body), allow_nan=False)
        with self._write() as connection:
            PROBES.create(connection, checkfirst=True)
            old = connection.execute(sa.select(PROBES).where(PROBES.c.digest == digest)).mappings().first()
            if old and old["checksum"] == _checksum(digest, old["body"]):
                return
            connection.execute(sa.delete(PROBES).where(PROBES.c.digest == digest))
            connection.execute(sa.insert(PROBES).values(digest=digest, body=text, checksum=_checksum(digest, text)))


def _checksum(digest: Any, body: Any) -> str:
    return hashlib.sha256(f"{digest}:{body}".encode()).hexdigest()
