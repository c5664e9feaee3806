"""Weights that are deleted while a bench runs are made again beside its stages: the count of stages stays that of the plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from store.samples import stage

from harness.cli.progress import StageProgress
from harness.cluster import ledger as ledger_module
from harness.cluster.ledger import LeasedStages
from harness.cluster.worker import WorkerResult
from harness.planning.lifecycle import Event, Lifecycle
from harness.planning.work import Item
from harness.storage import Storage, weights_of


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """Of the driver's side alone: every lease is granted, and no worker starts."""
    monkeypatch.setattr(ledger_module, "ask", lambda _, what, *__: {"lease": "granted"}.get(what))
    return Storage(str(tmp_path / "weights"))


@pytest.mark.parametrize("ended", ["done", "failed"])
def test_a_remade_stage_is_none_of_the_plans(storage: Storage, ended: Any, capsys: pytest.CaptureFixture[str]) -> None:
    of = stage()
    parent, head = of.parent, of.chain[0]
    assert parent is not None
    storage.write(weights_of(head.key), b"weights")
    siblings = [Item(replace(of, seed=n), f"run {n}", 1.0, (), False, False, 0) for n in range(3)]
    stages = LeasedStages(Lifecycle(siblings), None, storage, None, lambda _: None)
    started: list[Item] = []
    events: list[Event] = []
    with StageProgress(siblings, 0, "", 1.0) as progress:
        while stages.life.unfinished:
            item = stages.life.next_item()
            assert item is not None
            events += stages.lease(item)
            if stages.life.state(item.stage.key) == "running":
                started.append(item)
                if item.remake and ended == "done":
                    storage.write(weights_of(parent.key), b"weights")
                events += stages.trained(item, WorkerResult(ended, "" if ended == "done" else "no room", True))
        for event in events:
            progress(event)
        assert progress.ended == len(siblings)
    assert [item.stage.key for item in started if item.remake] == [parent.key], "once for all of them"
    said = capsys.readouterr().err
    assert f"the weights of stage {parent.key[:10]} (post-train) were deleted from {storage.shown}" in said
    assert f"{len(siblings)}/{len(siblings)} stages" in said
    if ended == "failed":
        assert f"its parent stage {parent.key[:10]} failed: no room" in said
    else:
        assert len(started) == 1 + len(siblings)
