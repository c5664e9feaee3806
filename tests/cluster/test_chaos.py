"""Killed at random moments on a cluster of three nodes, a bench ends with every stage recorded once and the undisturbed table."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster.conftest import Undisturbed
from cluster.driver import BENCH, STAGES


@pytest.mark.ray
@pytest.mark.slow
def test_a_kill_of_each_kind(undisturbed: Undisturbed, tmp_path: Path) -> None:
    from scripts.measure import chaos

    expected = chaos.Undisturbed(chaos.outcome(undisturbed.folder, undisturbed.out), undisturbed.records or {})
    kinds = ["worker", "node", "drain", "driver", "stopped", "ledger", "raylet", "gcs"]
    tally = chaos.chaos(tmp_path, {"bench": BENCH}, kills=8, seed=36, expected={"bench": expected}, kinds=kinds)
    told = "\n".join(tally.log)
    assert tally.kills == dict.fromkeys(chaos.KINDS, 0) | dict.fromkeys(kinds, 1), told
    assert (tally.lost, tally.doubled, tally.differing, tally.left.total()) == (0, 0, 0, 0), told
    assert (tally.failed, tally.gave_up) == (0, 0), told
    assert tally.stages == tally.tables * STAGES, told
    assert not chaos.inside(tmp_path)
