"""Killed or interrupted at any moment, the same command resumes: nothing recorded is trained again, no number differs.

The slow ones are single kinds of what test_chaos.py does by turns.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from cluster.conftest import Bench, Undisturbed
from cluster.driver import BENCH, ENDED, STAGES, TRACE, Driver, Kept, finished, kept, numbers, started
from cluster.studies import leases

pytestmark = pytest.mark.ray

SameTable = Callable[[Driver], None]


def went_on(folder: Path, before: dict[str, Kept]) -> None:
    """Records that were there before the end stayed as they were."""
    assert 0 < len(before) < STAGES
    after = kept(folder)
    assert {key: after[key] for key in before} == before
    assert len(after) == STAGES


@pytest.mark.slow
def test_kill_9_on_the_driver(tmp_path: Path, same_table: SameTable) -> None:
    with started(tmp_path, f"{BENCH} --slots 2") as driver:
        driver.recorded(2)
        driver.signal(signal.SIGKILL)
        assert driver.wait() == -signal.SIGKILL
        before = kept(tmp_path)
        # Its workers may still be there: the new driver takes over at once all the same.
        again = finished(tmp_path, f"{BENCH} --slots 2")
    went_on(tmp_path, before)
    # A worker that had finished as its driver died may still have recorded that stage, after `before` was read.
    assert 0 < again.counts["done"] <= STAGES - len(before)
    same_table(again)


@pytest.mark.slow
def test_kill_9_on_a_worker(tmp_path: Path, same_table: SameTable) -> None:
    with started(tmp_path, f"{BENCH} --slots 2") as driver:
        driver.recorded(1)
        victim: psutil.Process = driver.waited("a worker that trains", driver.training)[0]
        before = kept(tmp_path)
        victim.kill()
        assert driver.wait() == 0, driver.err
    assert "retried: " in driver.err
    assert "its worker process died (" in driver.err
    went_on(tmp_path, before)
    same_table(driver)


@pytest.mark.parametrize(
    "signals", [[signal.SIGHUP], pytest.param([signal.SIGINT, signal.SIGHUP], marks=pytest.mark.slow)]
)
def test_interrupted_then_on_one_slot(
    signals: list[signal.Signals], tmp_path: Path, bench: Bench, undisturbed: Undisturbed
) -> None:
    """By Ctrl-C, by closing the terminal: both reach all processes of the command at once, Ray's too. On one slot, or without Ray,
    the numbers are those of two. (Ctrl-C on a study: test_tune.py.)"""
    before: dict[str, Kept] = {}
    for number in signals:
        with started(tmp_path, f"{BENCH} --slots 1") as driver:
            driver.recorded(len(before) + 1)
            driver.signal(number, group=True)
            assert (driver.wait(), driver.err.splitlines()[-1]) == ENDED[number], driver.err
            assert not TRACE.search(driver.err)
            driver.gone()
        assert leases(tmp_path) == 0
        before = kept(tmp_path)
    again = bench(tmp_path, f"{BENCH} --slots 1")
    went_on(tmp_path, before)
    assert again.table == undisturbed.driver.table
    assert numbers(kept(tmp_path)) == numbers(undisturbed.records)
