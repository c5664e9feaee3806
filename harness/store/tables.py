"""The tables of the database."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa


class _AnyText(sa.types.TypeDecorator[str]):
    """Text with any characters. PostgreSQL's own type refuses NUL, so there it is stored as UTF-8 bytes."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(sa.LargeBinary() if dialect.name == "postgresql" else sa.Text())

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> Any:
        return value.encode() if value is not None and dialect.name == "postgresql" else value

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> str | None:
        return bytes(value).decode() if value is not None and dialect.name == "postgresql" else value


metadata = sa.MetaData()
META = sa.Table("meta", metadata, sa.Column("name", sa.String(64), primary_key=True), sa.Column("value", sa.Text))
RECORDS = sa.Table(
    "records",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("stage", sa.Text, nullable=False),
    sa.Column("record", sa.Text, nullable=False),
    sa.Column("predictions", sa.LargeBinary),
    sa.Column("committed_at", sa.Float, nullable=False),
)
RUNS = sa.Table(
    "runs",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("table", sa.Text, primary_key=True),  # names have any length
    sa.Column("row", sa.Text, primary_key=True),
    sa.Column("method", sa.Text, nullable=False),
    sa.Column("task", sa.Text, primary_key=True),
    sa.Column("size", sa.BigInteger, primary_key=True),
    sa.Column("subset", sa.BigInteger, primary_key=True),
    sa.Column("seed", sa.BigInteger, primary_key=True),
)
LEASES = sa.Table(
    "leases",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("started", sa.Float, nullable=False),
    sa.Column("renewed_at", sa.Float, nullable=False),
)
TRANSLATIONS = sa.Table(
    "translations",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("text", _AnyText, nullable=False),
)
REQUESTS = sa.Table(
    "requests",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("table", sa.Text, nullable=False),
    sa.Column("study", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("asked_at", sa.Float, nullable=False),
)
REQUEST_STAGES = sa.Table(
    "request_stages",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("digest", sa.String(64), primary_key=True),
)
SNAPSHOTS = sa.Table(
    "snapshots",  # what the plan of a request read
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("body", sa.Text, nullable=False),
)
SEALS = sa.Table(
    "seals",  # plans that were sealed before their first run
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("sealed_at", sa.Float, primary_key=True),
    sa.Column("table", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)
STUDIES = sa.table("studies", sa.column("study_name"))
"""Optuna's, in the same database."""
