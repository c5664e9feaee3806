"""Benches on a real PostgreSQL, which goes away while they run; what must not be seen of its password is looked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa
from cluster.conftest import asked
from cluster.driver import Driver, kept, started, waited
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


def said_on(driver: Driver) -> str:
    """The line about a store that is away, once it is there."""

    def line() -> str | None:
        assert driver.popen.poll() is None, driver.err
        return next((line for line in driver.err.splitlines() if "trying again until" in line), None)

    return str(waited("a word about the store", line))


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
def test_a_server_that_goes_away_under_two_drivers(
    server: Own, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One says what it waits for and goes on by itself; one gives up early, ends in a sentence, and its command goes on
    later. Every stage is recorded once, and nobody sees the password."""
    url = sa.engine.make_url(server.url)
    password = str(url.password)
    line = f"{BENCH} --store {server.url.replace(f':{password}@', '@')}"
    secret = {"PGPASSWORD": password}
    monkeypatch.setenv("PGPASSWORD", password)  # this process reads the store as well
    with (
        started(tmp_path, line, **secret) as one,
        started(tmp_path, line, HARNESS_OUTAGE_SECONDS="6", **secret) as two,
    ):
        one.recorded(1)
        with one.held():  # the other one's workers are in the same folder, those that are there now
            for driver in (one, two):
                waited("its dashboard", lambda name=driver: "Ray dashboard" in name.err)
            jobs = json.dumps([asked(driver, "/api/jobs/") for driver in (one, two)])
            server.stop()
        said = said_on(one)
        titles = [" ".join(process.cmdline()) for process in one.processes() if process.is_running()]
        logs = ray_files(one)
        assert two.wait() == 2, two.err
        server.start()
        with started(tmp_path, line, **secret) as again:
            assert [driver.wait() for driver in (one, again)] == [0, 0], one.err + again.err
        assert one.table == again.table
        assert recorded_once(tmp_path, server.url)

        shown = f"The store {server.url.replace(password, '***')}"
        assert said.startswith(f"{shown} does not answer"), said
        assert f"{shown} answers again." in one.err
        last = two.err.strip().splitlines()[-1]
        assert last.startswith(f"harness: {shown} does not answer"), two.err
        assert last.endswith("run the same command again: recorded stages are kept."), two.err
        assert "Traceback" not in one.err + two.err + again.err

        assert jobs.count("harness bench --table few_shot") == 2, jobs
        assert len(titles) > 5
        assert len(logs) > 5
        seen = [jobs, *titles, whole_text(server.url)]
        seen += [each for driver in (one, two, again) for each in (driver.out, driver.err)]
        assert not [text for text in seen if password in text]
        assert not any(password.encode() in log for log in logs)
