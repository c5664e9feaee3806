"""The bench with a real Ray: what it prints, what it keeps, what it leaves behind; killed at any moment, nothing recorded is trained again, nothing is
lost, and no number differs."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
from cluster.conftest import Undisturbed
from cluster.driver import BENCH, STAGES, Driver, Kept, kept, numbers, outside, started, table_of
from cluster.studies import NOISE, leases, roots
from store.samples import hold
from store.test_processes import OWN, process, received

from harness.cli import main

pytestmark = pytest.mark.ray
IN_ONE_PROCESS = """
import sys
from harness.cli import main
status = main(sys.argv[1:])
heavy = {"torch", "ray", "transformers"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else status)
"""


@dataclass
class Shared:
    """A bench on a store that another command used, too: that one was killed while it held a stage, and of this one a worker."""

    folder: Path
    driver: Driver
    records: dict[str, Kept]
    before: dict[str, Kept]
    """Records as the kills found them."""
    listeners: dict[tuple[str, int], str]
    left: list[str]
    """Temporary files, and those in Ray's folder, after its end."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, undisturbed: Undisturbed) -> Shared:
    folder = tmp_path_factory.mktemp("shared")
    url = f"sqlite:///{folder / '.harness' / 'harness.db'}"
    with (
        tempfile.TemporaryDirectory(prefix="ray") as short,  # a socket's path has 107 bytes
        process(OWN, hold, url, next(iter(roots(undisturbed.folder)))) as (holder, pipe),
        started(folder, f"{BENCH} --slots 2", RAY_TMPDIR=short, TMPDIR=short) as driver,
    ):
        assert received(pipe) == "granted"
        driver.recorded(1)
        before, listeners = kept(folder), driver.listeners()
        holder.kill()
        driver.waited("a worker that trains", driver.training)[0].kill()
        assert driver.wait() == 0, driver.err
        driver.gone()
        left = sorted(str(path.relative_to(short)) for path in Path(short).rglob("*"))
        return Shared(folder, driver, kept(folder), before, listeners, left)


def test_the_numbers_of_a_disturbed_bench_are_those_of_an_undisturbed_one(
    shared: Shared, undisturbed: Undisturbed
) -> None:
    """To the last bit, whatever the slots and the order."""
    assert shared.driver.table == undisturbed.table
    assert numbers(shared.records) == numbers(undisturbed.records or {})
    assert {(each.status, each.attempt) for each in shared.records.values()} == {("done", 1)}
    assert {key: shared.records[key] for key in shared.before} == shared.before
    assert len(shared.records) == STAGES


def test_a_bench_fills_its_table(undisturbed: Undisturbed) -> None:
    table = undisturbed.table
    for cell in table["cells"]:
        assert (cell["done"], cell["expected"]) == (2, 2), cell["row"]
        assert 0 <= cell["value"] <= 1
    assert {(r["row"], r["seed"]) for r in table["results"]} == {*product(("FT", "SCL", "TAPT"), (31, 42))}
    assert len({r["key"] for r in table["results"]} & set(undisturbed.records or {})) == 6


def test_what_was_said_while_it_ran(shared: Shared) -> None:
    said = shared.driver.err
    assert "to train: " in said
    assert "(its token: ray get-auth-token)" in said
    assert "stages in " in said
    assert not [line for line in said.splitlines() if line.startswith("failed")]
    kept_away = {*NOISE} - {"(raylet)"}  # which says that the worker was killed; without kills: test_tune.py
    assert [noise for noise in kept_away if noise in said] == []


def test_nothing_is_left_behind(shared: Shared) -> None:
    """No logs, sockets or spilled objects of Ray, and no temporary file of any process."""
    assert shared.left == []
    assert leases(shared.folder) == 0


def test_every_listener_is_on_loopback(shared: Shared) -> None:
    assert len(shared.listeners) >= 5, "Ray's processes were not seen"
    assert outside(shared.listeners) == {}


def test_the_same_command_again_trains_nothing_and_imports_neither_torch_nor_ray(
    undisturbed: Undisturbed, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", IN_ONE_PROCESS, *BENCH.split()]
    before = kept(copied)
    monkeypatch.chdir(copied)
    assert main(BENCH.split()) == 0  # the copy's folder is remembered with the bench
    bytes_before = (copied / ".harness" / "harness.db").read_bytes()
    done = subprocess.run(command, capture_output=True, text=True, cwd=copied, check=False)
    assert done.returncode == 0, done.stderr
    assert "To do: nothing." in done.stderr
    assert table_of(done.stdout) == undisturbed.table
    assert kept(copied) == before
    assert (copied / ".harness" / "harness.db").read_bytes() == bytes_before
