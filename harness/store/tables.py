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
KEY, TEXT, NUMBER, TIME = sa.String(64), sa.Text, sa.BigInteger, sa.Float  # names have any length


def _table(name: str, keys: str, /, **columns: Any) -> sa.Table:
    """`keys`: the columns of its primary key."""
    primary = keys.split()
    made = [
        sa.Column(each, kind, primary_key=each in primary, nullable=kind is sa.LargeBinary)
        for each, kind in columns.items()
    ]
    return sa.Table(name, metadata, *made)


META = _table("meta", "name", name=KEY, value=TEXT)
RECORDS = _table(
    *("records", "key"),
    **{"key": KEY, "status": sa.String(16), "attempt": sa.Integer, "stage": TEXT, "record": TEXT},
    **{"predictions": sa.LargeBinary, "committed_at": TIME},
)
RUNS = _table(
    *("runs", "key table row task size subset seed"),
    **{"key": KEY, "table": TEXT, "row": TEXT, "method": TEXT, "task": TEXT},
    **dict.fromkeys(("size", "subset", "seed"), NUMBER),
)
LEASES = _table(
    *("leases", "key"),
    **{"key": KEY, "owner": KEY, "host": sa.String(255), "pid": sa.Integer, "started": TIME, "renewed_at": TIME},
)
TRANSLATIONS = _table("translations", "digest", digest=KEY, text=_AnyText)
REQUESTS = _table("requests", "digest", digest=KEY, table=TEXT, study=TEXT, body=TEXT, asked_at=TIME)
REQUEST_STAGES = _table("request_stages", "key digest", key=KEY, digest=KEY)
SNAPSHOTS = _table("snapshots", "digest", digest=KEY, body=TEXT)
"""What the plan of a request read."""
SEALS = _table("seals", "digest sealed_at", digest=KEY, sealed_at=TIME, table=TEXT, body=TEXT)
"""Plans that were sealed before their first run."""
