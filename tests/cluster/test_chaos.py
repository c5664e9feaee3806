"""Killed at random moments on a cluster of three nodes, a bench ends with every stage recorded once and the undisturbed table."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cluster.conftest import Undisturbed
from cluster.driver import BENCH, STAGES

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def chaos() -> ModuleType:
    return importlib.import_module("scripts.measure.chaos")


def as_expected(chaos: ModuleType, undisturbed: Undisturbed) -> Any:
    return chaos.Undisturbed(chaos.outcome(undisturbed.folder, undisturbed.driver.out), undisturbed.records)


@pytest.mark.slow
def test_a_kill_of_each_kind(chaos: ModuleType, undisturbed: Undisturbed, tmp_path: Path) -> None:
    expected = {"bench": as_expected(chaos, undisturbed)}
    kinds = [
        "worker",
        "node",
        "drain",
        "driver",
        "stopped",
        "ledger",
        "raylet",
        "gcs",
    ]  # signals: test_killed.py, test_tune.py
    tally = chaos.chaos(tmp_path, {"bench": BENCH}, kills=8, seed=36, expected=expected, kinds=kinds)
    told = "\n".join(tally.log)
    assert tally.kills == dict.fromkeys(chaos.KINDS, 0) | dict.fromkeys(kinds, 1), told
    assert (tally.lost, tally.doubled, tally.differing, tally.left.total()) == (0, 0, 0, 0), told
    assert (tally.failed, tally.gave_up) == (0, 0), told
    assert tally.stages == tally.tables * STAGES, told
    assert not chaos.inside(tmp_path)
