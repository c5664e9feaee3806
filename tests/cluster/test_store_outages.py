"""A bench on a real PostgreSQL, which is started again while it runs; what must not be seen of its password is looked for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa
from cluster.driver import Driver, kept, started
from postgresql import Own, own

pytestmark = [pytest.mark.ray, pytest.mark.postgresql, pytest.mark.usefixtures("packaged")]

BENCH = (
    "bench --table few_shot --tasks movies --sizes 20 --subsets 0 --seeds 31,42 --methods ft,scl --format json --slots 1 "
    "--set mlm_head.steps=3 --set fine_tune.steps=12"
)
STAGES = 4
"""For each of two seeds FT and SCL."""


@pytest.fixture
def server() -> Iterator[Own]:
    with own() as made:
        yield made


def recorded_once(folder: Path, url: str) -> bool:
    return sorted((each.status, each.attempt) for each in kept(folder, url).values()) == [("done", 1)] * STAGES


def whole_text(url: str) -> str:
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        names = sa.inspect(connection).get_table_names()
        rows = [str(row) for name in names for row in connection.exec_driver_sql(f'SELECT * FROM "{name}"')]
    engine.dispose()
    assert len(rows) > STAGES
    return "\n".join(rows)


def ray_files(driver: Driver) -> list[bytes]:
    """Logs of the session that the processes of a driver belong to, which removes them at its end."""
    found = set()
    for process in driver.processes():
        try:
            found |= {Path(file.path).parent for file in process.open_files() if "/session_" in file.path}
        except psutil.Error:
            continue
    return [path.read_bytes() for folder in found for path in folder.rglob("*") if path.is_file()]


@pytest.mark.slow
def test_a_server_that_is_started_again_under_a_bench(
    server: Own, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bench goes on by itself, every stage is recorded once, and nobody sees the password."""
    password = str(sa.engine.make_url(server.url).password)
    monkeypatch.setenv("PGPASSWORD", password)  # this process reads the store as well
    line = f"{BENCH} --store {server.url.replace(f':{password}@', '@')}"
    with started(tmp_path, line, PGPASSWORD=password) as driver:
        driver.recorded(1)
        titles = [" ".join(process.cmdline()) for process in driver.processes() if process.is_running()]
        server.stop()
        logs = ray_files(driver)
        time.sleep(3.0)
        server.start()
        assert driver.wait() == 0, driver.err
        assert recorded_once(tmp_path, server.url)
        assert len(titles) > 5
        assert len(logs) > 5
        seen = [*titles, whole_text(server.url), driver.out, driver.err]
        assert not [text for text in seen if password in text]
        assert not any(password.encode() in log for log in logs)
