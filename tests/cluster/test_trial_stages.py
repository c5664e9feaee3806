"""A run's chain as a trial trains it. No Ray: the ledger is a store in this process, and training writes what it would."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster.in_process import LedgerHere, ask
from cluster.test_stages import LEAVES, POST
from store.samples import record

from harness.cluster import tune as tune_module
from harness.cluster.tune import HarnessTrial
from harness.planning.runs import Plan
from harness.planning.work import Ended, Item
from harness.specs import Run
from harness.storage import Storage, WorkerSetup, weights_of
from harness.store import Owner, Store

RUNS = [Run(leaf, "CMLM", "cmlm", "toy", 20, 0, leaf.seed) for leaf in LEAVES[:2]]
Act = Callable[[Item], Any]


class Trial(HarnessTrial):
    """A trial whose training takes no time: `act` says how a stage ends."""

    def __init__(self, ledger: Any, storage: Storage, act: Act = lambda _: "done", number: int = 0) -> None:
        self._ledger, self._act, self._number = ledger, act, number
        self._setup, self._retry = WorkerSetup({}, storage), False
        data = SimpleNamespace(tasks={"toy": SimpleNamespace(task=SimpleNamespace(metrics=["accuracy"]))})
        base = SimpleNamespace(subsets=(0,), seeds=(0, 1))
        self._points = SimpleNamespace(base=base, table_data=data)  # type: ignore[assignment]
        self._failed = dict[str, str]()
        self.trained: list[str] = []

    def _train(self, item: Item) -> Ended:
        self.trained.append(item.stage.phase)
        status = self._act(item)
        if status == "done" and item.keep_weights:
            self._setup.storage.write(weights_of(item.stage.key), b"weights")
        if item.remake:
            self._ledger.release(item.stage.key)
        elif status != "died":
            assert self._ledger.commit(item.stage, record(item.stage, status))
        return Ended(status, "it died" if status == "died" else "")

    def run(self, run: Run = RUNS[0]) -> dict[str, str]:
        """Why stages failed, by key."""
        self._replicate([run])
        return self._failed


@pytest.fixture
def begin(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Trial]:
    """Begins trials of one study."""
    monkeypatch.setattr(tune_module, "ask", ask)
    monkeypatch.setattr(Plan, "stage_flops", lambda *_: 1.0)
    ledger, storage = LedgerHere(store.url, Owner.current()), Storage(str(tmp_path / "weights"))
    return partial(Trial, ledger, storage)


def test_of_two_trials_one_trains_a_stage(begin: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch) -> None:
    """The other waits; one that starts again, as its process died, goes on."""
    lost = begin(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        lost.run()
    monkeypatch.setattr(tune_module.time, "sleep", lambda _: 1 / 0)
    other, again = begin(number=1), begin()
    with pytest.raises(ZeroDivisionError):
        other.run()
    assert other.trained == []
    assert again.run() == other.run() == {}
    assert (again.trained, other.trained) == (["mlm-head", "post-train", "fine-tune"], [])


def test_a_chain_ends_with_the_stage_that_diverged(begin: Callable[..., Trial], store: Store) -> None:
    trial = begin(lambda item: "diverged" if item.stage.phase == "post-train" else "done")
    trial.run()
    trial.run()
    assert trial.trained == ["mlm-head", "post-train"], "a divergence is final"
    assert store.statuses([POST.key, LEAVES[0].key]) == {POST.key: ("diverged", 1)}


def test_a_remake_that_fails_leaves_the_record_alone(begin: Callable[..., Trial], store: Store) -> None:
    trial = begin()
    trial.run()
    trial._setup.storage.delete(weights_of(POST.key))
    reason = begin(lambda _: "died").run(RUNS[1])[LEAVES[1].key]
    assert reason.startswith(f"its parent stage {POST.key[:10]} failed: it died")
    assert store.statuses([POST.key, LEAVES[1].key]) == {POST.key: ("done", 1)}
    assert begin().run(RUNS[1]) == {}, "its lease was given back"
