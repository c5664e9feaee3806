"""A real PostgreSQL for tests: the one that HARNESS_POSTGRESQL names, or one of their own by scripts/postgresql."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "postgresql"
GIVEN = os.environ.get("HARNESS_POSTGRESQL", "")
HOW = "set HARNESS_POSTGRESQL to a URL whose user may create databases, or apt-get install postgresql"


def ready(url: str) -> str:
    """The URL, once its server answers."""
    engine = sa.create_engine(url)
    for tries in range(100):
        try:
            engine.connect().close()
            break
        except sa.exc.OperationalError:
            if tries == 99:
                raise
            time.sleep(0.1)
    engine.dispose()
    return url


def do(url: str, text: str) -> None:
    """One statement, outside of a transaction."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql(text)


def databases(url: str, made: list[str]) -> Iterator[str]:
    """URLs of new, empty databases on the server of `url`; their names are added to `made`."""
    while True:
        made.append(f"harness_{uuid.uuid4().hex}")
        do(url, f"CREATE DATABASE {made[-1]}")
        yield sa.engine.make_url(url).set(database=made[-1]).render_as_string(hide_password=False)


class Own:
    """A server of one's own, which can be stopped and started again."""

    def __init__(self) -> None:
        self.folder = Path(
            tempfile.mkdtemp(prefix="harness-postgresql-")
        )  # PostgreSQL's own user cannot reach pytest's
        self.url = ready(self.start())

    def start(self) -> str:
        return self._script("start")

    def stop(self) -> None:
        self._script("stop")

    def _script(self, word: str) -> str:
        done = subprocess.run([str(SCRIPT), word, str(self.folder)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def close(self) -> None:
        try:
            if (self.folder / "data" / "postmaster.pid").exists():
                self.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def own() -> Iterator[Own]:
    """Skips where PostgreSQL is not installed."""
    pytest.importorskip("psycopg", reason="no psycopg (pip install 'glue-harness[postgresql]')")
    if not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        pytest.skip(f"no PostgreSQL on this machine: {HOW}")
    server = Own()
    try:
        yield server
    finally:
        server.close()


@contextmanager
def empty_databases() -> Iterator[Iterator[str]]:
    """URLs of new databases on the given server or one of our own; skips where there is neither."""
    made: list[str] = []
    if GIVEN:
        yield databases(GIVEN, made)
        for name in made:
            do(GIVEN, f"DROP DATABASE {name} WITH (FORCE)")
    else:
        with own() as server:
            yield databases(server.url, made)
