"""Studies with a real Ray: the runs are the bench's, nothing is trained twice, and whatever is killed, the study is the same."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from cluster.conftest import asked
from cluster.driver import ENDED, TRACE, Driver, Kept, finished, kept, numbers, outside, started, waited
from cluster.studies import (
    GRID,
    NOISE,
    POINTS,
    SEARCH,
    best,
    findings,
    keys_of_bench,
    leases,
    roots,
    space_in,
    table,
    weights,
)

pytestmark = pytest.mark.ray

STAGE = re.compile(r"trial \d+: CMLM/movies/n20/subset[01]/seed31 \((warm-up|post-train|fine-tune)\)")
"""What a stage is called in the dashboard."""


def meanwhile(driver: Driver, what: str, found: Callable[[], Any]) -> Any:
    """Wait for something that a running command does."""

    def there() -> Any:
        assert driver.popen.poll() is None, f"ended with {driver.popen.returncode} too early:\n{driver.err}"
        return found()

    return waited(what, there)


def begun(driver: Driver) -> None:
    meanwhile(driver, "a study that is begun", lambda: "Ray dashboard" in driver.err)


def named(driver: Driver) -> set[str]:
    """Wait for names of stages among the tasks that a running command's dashboard knows."""
    begun(driver)

    def names() -> set[str]:
        answer = asked(driver, "/api/v0/tasks?limit=10000")
        tasks = answer["data"]["result"]["result"] if answer else []
        return {task["name"] for task in tasks if STAGE.fullmatch(task["name"])}

    found: set[str] = meanwhile(driver, "a stage in the dashboard", names)
    return found


def process_of(driver: Driver, title: str) -> psutil.Process:
    """Wait for a process of a running command by what Ray calls it."""

    found: psutil.Process = meanwhile(driver, title, lambda: next(iter(driver.titled(title)), None))
    return found


# --------------------------------------------------------------------------------------- two studies on one store at once


@dataclass
class Both:
    """A grid and a racing search that ran at the same time on one store, a slot each, and shared what they could."""

    folder: Path
    grid: Driver
    search: Driver
    records: dict[str, Kept]
    names: set[str]
    listeners: dict[tuple[str, int], str]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, packaged: dict[str, Path]) -> Both:
    folder = space_in(tmp_path_factory.mktemp("both"))
    with started(folder, SEARCH) as search:
        begun(search)
        with started(folder, f"{GRID} --slots 1") as grid:
            names = named(search)
            listeners = search.listeners()
            assert [search.wait(), grid.wait()] == [0, 0], search.err + grid.err
            grid.gone()
    return Both(folder, grid, search, kept(folder), names, listeners)


@pytest.fixture(scope="module")
def grid_keys() -> set[str]:
    """What benches of the grid's points would train."""
    return set().union(*(keys_of_bench(point) for point in POINTS))


def test_a_grid_runs_what_benches_of_its_points_would_run(both: Both, grid_keys: set[str]) -> None:
    assert len(grid_keys) == 1 + len(POINTS) * 2 * 2, (
        "a warm-up; for each point and subset post-training and fine-tuning"
    )
    assert grid_keys <= set(both.records)
    trials = table(both.folder / "grid")["trials"]
    assert sorted((t["point"]["alpha"], t["point"]["p_c"]) for t in trials) == sorted(
        (point["alpha"], point["p_c"]) for point in POINTS
    )
    assert all(t["state"] == "complete" and t["eligible"] and len(t["replicates"]) == 2 for t in trials)
    assert all(0 <= r["values"]["accuracy"] <= 1 for t in trials for r in t["replicates"])


def test_every_listener_is_on_loopback(both: Both) -> None:
    assert len(both.listeners) >= 5, "Ray's processes were not seen"
    assert outside(both.listeners) == {}


def test_two_studies_at_once_train_each_stage_once(both: Both, grid_keys: set[str]) -> None:
    assert {each.attempt for each in both.records.values()} == {1}
    assert {both.records[key].status for key in grid_keys} == {"done"}
    found = [table(both.folder / out)["trials"] for out in ("grid", "search")]
    trained = sum(r["trained"] for trials in found for t in trials for r in t["replicates"])
    assert trained == len(both.records) - 1, "the warm-up belongs to no replicate"


def test_the_same_study_again_starts_no_ray(both: Both) -> None:
    before = {out: table(both.folder / out) for out in ("grid", "search")}
    with started(both.folder, f"{GRID} --slots 1") as grid, started(both.folder, SEARCH) as search:
        assert [grid.wait(), search.wait()] == [0, 0], grid.err + search.err
    assert "To do: nothing." in grid.err
    for again, first in ((grid, both.grid), (search, both.search)):
        assert again.out == first.out
        assert "Ray" not in again.err
    assert {out: table(both.folder / out) for out in before} == before
    assert kept(both.folder) == both.records


def test_a_bench_with_the_best_point_trains_nothing(both: Both) -> None:
    assert best(both.folder / "grid") in POINTS
    bench = finished(both.folder, "bench --with grid/best.yaml --format json")
    assert "Stages done: 5, failed: 0, diverged: 0, to train: 0." in bench.err
    assert "To do: nothing." in bench.err
    (cell,) = (cell for cell in bench.table["cells"] if cell["column"] == "movies")
    assert (cell["done"], cell["expected"]) == (2, 2)
    assert kept(both.folder) == both.records


def test_a_diverged_point_is_dropped_at_once_and_does_not_stop_the_study(both: Both) -> None:
    body = table(both.folder / "search")
    trials = {trial["number"]: trial for trial in body["trials"]}
    broken = {n for n, trial in trials.items() if trial["point"]["contrast"] == "simclr"}
    assert broken, "choose a seed that proposes one"
    assert len(trials) - len(broken) > 1, "and another point besides the default"
    for number in broken:
        trial = trials[number]
        assert (trial["state"], trial["eligible"], trial["best"]) == ("dropped", False, False)
        assert "diverged: such a point cannot be the best" in trial["reason"]
        (replicate,) = trial["replicates"]
        assert replicate["status"] == "diverged"
        assert "is not finite at step" in replicate["reason"]
        assert replicate["values"] == {"accuracy": 0.0}, "the metric's worst value"
        assert f"diverged: trial {number}: CMLM/movies/n20/subset0/seed31" in both.search.err
    assert all(trials[number]["state"] == "complete" for number in set(trials) - broken)
    assert best(both.folder / "search")["contrast"] == "simsiam"
    assert any("is not finite at step" in note for note in body["footnotes"])
    assert sum(each.status == "diverged" for each in both.records.values()) == len(broken)


def test_what_is_said_and_what_is_left(both: Both) -> None:
    for driver in (both.grid, both.search):
        assert "Ray dashboard: http://127.0.0.1:" in driver.err
        assert [noise for noise in NOISE if noise in driver.err + driver.out] == []
    assert not list((both.folder / ".harness").rglob("tune/*"))
    assert leases(both.folder) == 0


def test_trials_and_runs_are_seen_in_the_dashboard(both: Both) -> None:
    assert both.names, "asked until there was one"


# --------------------------------------------------------------------------------------------------- the search, disturbed


@dataclass
class Disturbed:
    """The same search in a store of its own: ended by a signal, and gone on with while its processes were killed."""

    folder: Path
    by: signal.Signals
    second: Driver
    ended: Driver
    last: Driver
    before: dict[str, Kept]
    """Records as the first command left them."""
    leases: int


@pytest.fixture(
    scope="module",
    params=[signal.SIGINT, *(pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGTERM, signal.SIGKILL))],
)
def disturbed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, packaged: dict[str, Path]
) -> Disturbed:
    folder = space_in(tmp_path_factory.mktemp("disturbed"))
    with started(folder, SEARCH) as ended:
        begun(ended)
        second = Driver(folder, SEARCH)  # `finished` would end the other one too: it cleans the folder
        assert second.wait() == 2, second.err
        ended.recorded(3)
        ended.signal(request.param, group=request.param == signal.SIGINT)  # a Ctrl-C reaches all its processes
        status = ended.wait()
        if request.param in ENDED:
            assert status == ENDED[request.param][0], ended.err
            ended.gone()
        before, open_leases = kept(folder), leases(folder)
        # The workers of a killed one may still be there: the next command takes over at once all the same.
        with started(folder, SEARCH) as last:
            process_of(last, f"ray::{STAGE.pattern}").kill()
            last.recorded(len(before) + 1)
            process_of(last, "ray::ResourceTrainable").kill()
            assert last.wait() == 0, last.err
            last.gone()
    return Disturbed(folder, request.param, second, ended, last, before, open_leases)


def test_a_second_command_on_a_study_is_refused(disturbed: Disturbed) -> None:
    (sentence,) = (line for line in disturbed.second.err.splitlines() if line.startswith("harness: "))
    assert "is run by another command now" in sentence
    assert disturbed.second.out == ""


def test_an_interrupted_study_says_so(disturbed: Disturbed) -> None:
    """By Ctrl-C, or by SIGTERM, as a scheduler sends it."""
    if disturbed.by in ENDED:
        assert disturbed.ended.err.splitlines()[-1] == ENDED[disturbed.by][1]
        assert not TRACE.search(disturbed.ended.err)
        assert disturbed.leases == 0
        assert [noise for noise in NOISE if noise in disturbed.ended.err + disturbed.ended.out] == []
    assert [noise for noise in NOISE if noise in disturbed.last.err + disturbed.last.out] == []


def test_nothing_recorded_is_trained_again(disturbed: Disturbed) -> None:
    before, after = disturbed.before, kept(disturbed.folder)
    assert 0 < len(before) < len(after)
    assert {key: after[key] for key in before} == before
    assert {each.attempt for each in after.values()} == {1}


def test_a_disturbed_study_is_the_undisturbed_one(disturbed: Disturbed, both: Both, grid_keys: set[str]) -> None:
    assert findings(disturbed.folder, "search") == findings(both.folder, "search")
    assert best(disturbed.folder / "search") == best(both.folder / "search")
    after = kept(disturbed.folder)
    assert set(after) | grid_keys == set(both.records)
    assert numbers(after) == {key: both.records[key].numbers for key in after}


def test_the_weights_of_roots_alone_are_left(disturbed: Disturbed) -> None:
    assert weights(disturbed.folder) == roots(disturbed.folder)
    assert not list((disturbed.folder / ".harness").rglob("tune/*"))


# ----------------------------------------------------------------------------------------------------------- worker groups


@pytest.mark.slow
@pytest.mark.usefixtures("packaged")
def test_two_workers_train_each_stage_of_a_study_together(grid_keys: set[str], tmp_path: Path) -> None:
    """On one slot: the trial takes nothing of what the group needs."""
    with started(space_in(tmp_path), f"{GRID} --slots 1 --num-workers 2") as driver:
        names = named(driver)
        assert driver.wait() == 0, driver.err
        driver.gone()
    assert names, "asked until there was one"
    found = kept(tmp_path)
    assert set(found) == grid_keys
    assert {(each.status, each.attempt) for each in found.values()} == {("done", 1)}
    trials = table(tmp_path / "grid")["trials"]
    assert sorted((t["point"]["alpha"], t["point"]["p_c"]) for t in trials) == sorted(
        (point["alpha"], point["p_c"]) for point in POINTS
    )
    assert all(t["state"] == "complete" and t["eligible"] for t in trials)
    trained = sum(r["trained"] for t in trials for r in t["replicates"])
    assert trained == len(grid_keys) - 1, "the warm-up belongs to no replicate"
    assert [noise for noise in NOISE if noise in driver.err + driver.out] == []
    assert weights(tmp_path) == roots(tmp_path)
    assert not list((tmp_path / ".harness").rglob("tune/*"))


CROWDED = """
import sys
from contextlib import contextmanager
import harness.cluster.session as place
from harness.cli import main
session = place.session

@contextmanager
def crowded(*arguments):
    with session(*arguments) as joined:
        import ray
        class Guest:
            def there(self):
                return True
        guest = ray.remote(num_cpus=1)(Guest).remote()
        ray.get(guest.there.remote())
        yield joined

place.session = crowded
sys.exit(main(sys.argv[1:]))
"""
"""The command on two cores, one of which is somebody else's."""


@pytest.mark.slow
def test_a_worker_group_that_does_not_start_is_one_sentence(tmp_path: Path) -> None:
    with started(
        space_in(tmp_path),
        f"{GRID} --slots 1 --num-workers 2",
        ("-c", CROWDED),
        RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S="4",
    ) as driver:
        assert driver.wait() == 2, driver.err
        driver.gone()
    (sentence,) = (line for line in driver.err.splitlines() if line.startswith("harness: "))
    assert "worker group of 2 workers (1 CPUs each)" in sentence
    assert "did not start in 4 s" in sentence
    assert "2 CPUs (1 free)" in sentence
    assert [noise for noise in NOISE if noise in driver.err] == []
    assert driver.out == ""
    assert kept(tmp_path) == {}
    assert leases(tmp_path) == 0
