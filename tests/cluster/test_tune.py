"""A study with a real Ray: its runs are the bench's, and nothing is trained twice where a trial's process dies."""

from __future__ import annotations

import json
import os
import re
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli.command import command
from cluster.driver import TRACE, Driver, Kept, kept, outside, started, table_of
from cluster.studies import GRID, NOISE, POINTS, best, keys_of_bench, leases, roots, space_in, table, weights

pytestmark = pytest.mark.ray

STAGE = re.compile(r"trial \d+: (\S+ of )?CMLM/movies/n20/subset[01]/seed31.*")
"""What a stage is called in the dashboard."""


def begun(driver: Driver) -> None:
    driver.waited("a study that is begun", lambda: "Ray dashboard" in driver.err)


def asked(driver: Driver, path: str) -> Any:
    """An answer of the session's dashboard; None while it does not answer."""
    address = re.search(r"Ray dashboard: (http://127\.0\.0\.1:\d+)", driver.err)
    assert address, driver.err
    token = os.environ.get("RAY_AUTH_TOKEN") or (Path.home() / ".ray" / "auth_token").read_text().strip()
    request = urllib.request.Request(address[1] + path, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)
    except OSError:
        return None


def named(driver: Driver) -> set[str]:
    """Wait for names of stages among the tasks that a running command's dashboard knows."""
    begun(driver)

    def names() -> set[str]:
        answer = asked(driver, "/api/v0/tasks?limit=10000")
        tasks = answer["data"]["result"]["result"] if answer else []
        return {task["name"] for task in tasks if STAGE.fullmatch(task["name"])}

    found: set[str] = driver.waited("a stage in the dashboard", names)
    return found


@dataclass
class Study:
    """A grid on two slots, of which the process of a trial was killed."""

    folder: Path
    ended: Driver
    records: dict[str, Kept]
    names: set[str]
    listeners: dict[tuple[str, int], str]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, packaged: dict[str, Path]) -> Study:
    folder = space_in(tmp_path_factory.mktemp("study"))
    with started(folder, GRID) as running:
        names = named(running)
        listeners = running.listeners()
        running.recorded(2)
        running.waited("a trial's process", lambda: running.titled("ray::ResourceTrainable"))[0].kill()
        assert running.wait() == 0, running.err
        running.gone()
    return Study(folder, running, kept(folder), names, listeners)


@pytest.fixture(scope="module")
def grid_keys() -> set[str]:
    """What benches of the grid's points would train."""
    return set().union(*(keys_of_bench(point) for point in POINTS))


def test_a_grid_runs_what_benches_of_its_points_would_run(study: Study, grid_keys: set[str]) -> None:
    assert len(grid_keys) == 1 + len(POINTS) * 2 * 2, (
        "a warm-up; for each point and subset post-training and fine-tuning"
    )
    assert grid_keys == set(study.records)
    trials = table(study.folder / "grid")["trials"]
    assert len(trials) == 2 * len(POINTS)
    assert {(each["alpha"], each["p_c"]) for each in trials} == {(point["alpha"], point["p_c"]) for point in POINTS}
    assert all(each["state"] == "complete" and each["status"] == "done" and 0 <= each["value"] <= 1 for each in trials)


def test_nothing_recorded_is_trained_again(study: Study) -> None:
    assert {(each.status, each.attempt) for each in study.records.values()} == {("done", 1)}


def test_every_listener_is_on_loopback(study: Study) -> None:
    assert len(study.listeners) >= 5, "Ray's processes were not seen"
    assert outside(study.listeners) == {}


def test_what_is_said_and_what_is_left(study: Study) -> None:
    assert not TRACE.search(study.ended.err)
    assert leases(study.folder) == 0
    assert [noise for noise in NOISE if noise in study.ended.out] == []
    assert study.names, "asked until the dashboard had one"
    assert weights(study.folder) == roots(study.folder)


def test_the_same_study_again_and_a_bench_with_its_best_point_train_nothing(
    study: Study, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(study.folder)
    monkeypatch.setattr("harness.cluster.session.session", lambda *_: 1 / 0)
    before = table(study.folder / "grid")
    again = command(capsys, GRID)
    assert "To do: nothing." in again.err
    assert again.out == study.ended.out
    assert table(study.folder / "grid") == before
    assert best(study.folder / "grid") in POINTS
    bench = command(capsys, "bench --with grid/best.yaml --format json")
    assert "Stages done: 5, failed: 0, diverged: 0, to train: 0." in bench.err
    assert "To do: nothing." in bench.err
    (cell,) = (cell for cell in table_of(bench.out)["cells"] if cell["column"] == "movies")
    assert (cell["done"], cell["expected"]) == (2, 2)
    assert kept(study.folder) == study.records
