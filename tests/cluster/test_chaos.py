"""Killed at random moments on a cluster of three nodes, a bench ends with every stage recorded once and the undisturbed table."""

from __future__ import annotations

import importlib
import sqlite3
from contextlib import closing
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
    tally = chaos.chaos(tmp_path, {"bench": BENCH}, kills=8, seed=1008, expected=expected, kinds=kinds)
    told = "\n".join(tally.log)
    assert tally.kills == dict.fromkeys(chaos.KINDS, 0) | dict.fromkeys(kinds, 1), told
    assert (tally.lost, tally.doubled, tally.differing, tally.left.total()) == (0, 0, 0, 0), told
    assert (tally.failed, tally.gave_up) == (0, 0), told
    assert tally.stages == tally.tables * STAGES, told
    assert not chaos.inside(tmp_path)


@pytest.mark.parametrize(
    ("harm", "lost", "doubled", "differing"),
    [
        pytest.param("", 0, 0, 0, id="none"),
        pytest.param("DELETE FROM records WHERE key = :key", 1, 0, 0, id="a record vanished"),
        pytest.param("UPDATE records SET committed_at = committed_at + 1 WHERE key = :key", 1, 0, 0, id="it changed"),
        pytest.param(
            "UPDATE records SET record = replace(record, '\"tied\": ', '\"tied\": 1') WHERE key = :key",
            1,
            0,
            1,
            id="other numbers",
        ),
        pytest.param(
            "INSERT OR REPLACE INTO records SELECT * FROM records; INSERT OR REPLACE INTO records SELECT * FROM records",
            0,
            STAGES,
            0,
            id="committed again",
        ),
    ],
)
def test_harm_is_counted(
    chaos: ModuleType, undisturbed: Undisturbed, copied: Path, harm: str, lost: int, doubled: int, differing: int
) -> None:
    chaos.audited(copied)
    key = sorted(undisturbed.records)[0]
    with closing(sqlite3.connect(chaos.database(copied))) as connection:
        for statement in filter(None, harm.split(";")):
            connection.execute(statement, {"key": key} if ":key" in statement else {})
        connection.commit()
    tally = chaos.Tally()
    tally.judge(copied, undisturbed.driver.out, as_expected(chaos, undisturbed))
    assert (tally.lost, tally.doubled, tally.differing) == (lost, doubled, differing), tally.log
    assert tally.harmed == bool(harm)
