"""Weights that are deleted while a bench runs are made again beside its stages: the count of stages stays that of the plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from store.samples import stage

from harness.bench.work import Item
from harness.cli.progress import StageProgress
from harness.cluster import pool as pool_module
from harness.cluster.pool import Event, Pool
from harness.specs import Execution, WorkerSetup
from harness.storage import Storage, weights_of


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pool:
    """Of the driver's side alone: no ledger answers, no worker is start_worker."""
    monkeypatch.setattr(pool_module, "ledger_of", lambda *_: None)
    monkeypatch.setattr(pool_module, "Gauge", lambda *_: SimpleNamespace(set=lambda *_: None))
    store: Any = None
    tokenised: Any = None
    vocabulary: Any = None
    setup = WorkerSetup(tmp_path, Storage(str(tmp_path / "products")))
    made = Pool(store, setup, vocabulary, tokenised, Execution(), "table")
    monkeypatch.setattr(made, "_discard", lambda _: None)
    return made


@pytest.mark.parametrize("ended", ["done", "failed"])
def test_a_remade_stage_is_none_of_the_plans(pool: Pool, ended: Any, capsys: pytest.CaptureFixture[str]) -> None:
    of = stage()
    parent = of.parent
    assert parent is not None
    siblings = [Item(replace(of, seed=n), f"run {n}", 1.0, (), False, False, 0) for n in range(3)]
    with StageProgress(siblings, 0, "", 1.0) as live:
        events: list[Event] = []
        for child in siblings:
            assert pool._orphaned(child)
            events += pool._made_again(child)
        (remake,) = (entry[2] for entry in pool._schedule.ready)
        assert remake.stage.key == parent.key
        assert remake.remake
        events += pool._finish(Event(ended, remake, "no room" if ended == "failed" else ""))
        pool._setup.storage.write(weights_of(parent.key), b"weights")
        if ended == "done":
            assert {entry[2].name for entry in pool._schedule.ready} >= {child.name for child in siblings}
            for child in siblings:
                assert not pool._orphaned(child)
                events += pool._finish(Event("done", child))
        for event in events:
            live.show(event)
        assert live._ended == len(siblings)
    said = capsys.readouterr().err
    assert f"the weights of stage {parent.key[:10]} (post-train) were deleted from {pool._setup.storage.shown}" in said
    assert f"{len(siblings)}/{len(siblings)} stages" in said
    if ended == "failed":
        assert f"its parent stage {parent.key[:10]} failed: no room" in said
