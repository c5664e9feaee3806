"""The bench with a real Ray: what it prints, what it keeps, what it leaves behind, and that nothing is trained twice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from cluster.conftest import Undisturbed
from cluster.driver import BENCH, STAGES, Driver, kept, outside, started, table_of
from cluster.studies import leases

from harness.cli import main

pytestmark = pytest.mark.ray

IN_ONE_PROCESS = """
import sys
from harness.cli import main
status = main(sys.argv[1:])
heavy = {"torch", "ray", "transformers"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else status)
"""


def test_a_bench_fills_its_table(undisturbed: Undisturbed) -> None:
    table = undisturbed.driver.table
    for cell in table["cells"]:
        assert (cell["done"], cell["expected"]) == (2, 2), cell["row"]
        assert 0 <= cell["value"] <= 1
    assert {(r["row"], r["seed"]) for r in table["results"]} == {*product(("FT", "SCL", "TAPT"), (31, 42))}
    assert len(undisturbed.records) == STAGES
    assert {(each.status, each.attempt) for each in undisturbed.records.values()} == {("done", 1)}
    assert len({r["key"] for r in table["results"]} & set(undisturbed.records)) == 6


def test_what_was_said_while_it_ran(undisturbed: Undisturbed) -> None:
    said = undisturbed.driver.err
    assert f"to train: {STAGES}." in said
    assert "(its token: ray get-auth-token)" in said
    assert f"{STAGES}/{STAGES} stages in " in said
    assert undisturbed.driver.counts["done"] == STAGES
    for noise in ("Traceback", "WARNING", "Warning", "INFO", "(raylet)", "pid="):
        assert noise not in said, "Ray's own noise is kept away"


def test_nothing_is_left_behind(undisturbed: Undisturbed) -> None:
    """No logs, sockets or spilled objects of Ray, and no temporary file of any process."""
    assert undisturbed.left == []
    assert leases(undisturbed.folder) == 0


def test_every_listener_is_on_loopback(undisturbed: Undisturbed) -> None:
    assert len(undisturbed.listeners) >= 5, "Ray's processes were not seen"
    assert outside(undisturbed.listeners) == {}


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
    assert table_of(done.stdout) == undisturbed.driver.table
    assert kept(copied) == before
    assert (copied / ".harness" / "harness.db").read_bytes() == bytes_before


def test_two_drivers_at_once_share_the_work(tmp_path: Path, same_table: Callable[[Driver], None]) -> None:
    with started(tmp_path, f"{BENCH} --slots 1") as first, started(tmp_path, f"{BENCH} --slots 1") as second:
        statuses = [first.wait(), second.wait()]
    assert statuses == [0, 0], first.err + second.err
    assert first.out == second.out
    same_table(first)
    for driver in (first, second):
        if "stages in" in driver.err:  # the other may have done all before this one planned
            assert driver.counts["done"] + driver.counts.get("elsewhere", 0) <= STAGES
            assert "failed" not in driver.counts
