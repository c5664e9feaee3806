"""A run's chain as a trial trains it. No Ray: the ledger is a store in this process, and training writes what it would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError
from store.samples import record, stage

from harness.cluster import tune as tune_module
from harness.cluster.tune import HarnessTrial, SharedWeights
from harness.cluster.worker import WorkerResult
from harness.execution import WorkerSetup
from harness.planning.lifecycle import WORKER_DEATHS
from harness.planning.work import Item
from harness.search.points import ReplicateOutcome
from harness.search.points import Trial as StudyTrial
from harness.specs import Parent, Record, Run, Stage, Status
from harness.storage import Storage, weights_of
from harness.store import Owner, Store

HEAD, POST, LEAF = (
    replace(each, phase=phase)
    for each, phase in zip(stage().chain, ("mlm-head", "post-train", "fine-tune"), strict=True)
)
POST = replace(POST, init=Parent(HEAD))
LEAVES = [replace(LEAF, seed=seed, init=Parent(POST)) for seed in range(2)]
RUNS = [Run(leaf, "CMLM", "cmlm", "toy", 20, 0, leaf.seed) for leaf in LEAVES]
Act = Callable[[Item], Status]


@dataclass
class FakeLedger:
    """As harness.cluster.ledger.Ledger, in this process."""

    store: Store
    storage: Storage
    tried: set[str] = field(default_factory=set)

    def lease(self, key: str, seen: int, remake: bool, owner: Owner) -> Any:
        return self.store.lease(key, owner, seen_attempt=seen, remake=remake)

    def commit(self, of: Stage, found: Record, owner: Owner) -> bool:
        self.tried.add(of.key)
        return self.store.commit(of, found, owner)

    def release(self, key: str, owner: Owner) -> None:
        self.store.release(owner, key)

    def look(self, key: str, retry: bool) -> Any:
        status, attempt = self.store.statuses([key]).get(key, (None, 0))
        return attempt, None if status == "failed" and key not in self.tried else status

    def records(self, metrics: dict[str, str]) -> dict[str, Record]:
        return self.store.records(metrics)


class Trial(HarnessTrial):
    """A trial whose training takes no time: `act` says how a stage ends, or raises what its worker's death raises."""

    def __init__(self, ledger: FakeLedger, act: Act = lambda _: "done") -> None:
        self._ledger, self._owner, self._act = ledger, Owner.current(), act
        self._setup, self._retry, self._number = WorkerSetup(Path(), ledger.storage), False, 0
        self._points = SimpleNamespace(scored=lambda run: ("accuracy",))  # type: ignore[assignment]
        self.trained: list[str] = []

    def _train(self, item: Item) -> WorkerResult:
        self.trained.append(item.stage.phase)
        status, ledger = self._act(item), self._ledger
        if status == "done" and item.keep_weights:
            ledger.storage.write(weights_of(item.stage.key), b"weights")
        if item.remake:
            ledger.release(item.stage.key, self._owner)
            return WorkerResult(status, "", True)
        found = record(item.stage, status)
        return WorkerResult(status, found.reason, ledger.commit(item.stage, found, self._owner))

    def run(self, run: Run = RUNS[0]) -> Record | None:
        return self._finish(run)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeLedger:
    def ask(to: FakeLedger, what: str, *arguments: Any) -> Any:
        return getattr(to, what)(*arguments)

    monkeypatch.setattr(tune_module, "ask", ask)
    return FakeLedger(Store(f"sqlite:///{tmp_path / 'harness.db'}"), Storage(str(tmp_path / "weights")))


def test_a_chain_is_trained_once_and_then_read(ledger: FakeLedger) -> None:
    first, second = Trial(ledger), Trial(ledger)
    assert (first.run(), second.run()) == (None, None)
    assert first.trained == ["mlm-head", "post-train", "fine-tune"]
    assert second.trained == []


def test_weights_stay_until_the_last_run_that_starts_from_them() -> None:
    """Of a trial that ends and of one that is dropped; a head stays, and what the default point starts from until the study ends."""
    deleted: list[str] = []
    points: Any = SimpleNamespace(runs=lambda point: tuple((run,) for run in RUNS))
    of_trial = StudyTrial(0, {})
    weights = SharedWeights(points, deleted.append)
    weights("started", of_trial)
    weights("replicate", replace(of_trial, outcomes=(ReplicateOutcome(0.5),)))
    assert deleted == []
    weights("replicate", replace(of_trial, outcomes=(ReplicateOutcome(0.5),) * 2))
    assert deleted == [POST.key]
    weights("started", of_trial)
    weights("ended", of_trial)
    assert {*deleted[1:]} == {POST.key}
    deleted.clear()
    weights.hold(RUNS, "the study")
    weights("ended", of_trial)
    assert deleted == []
    weights.end()
    assert deleted == [POST.key]


def test_deleted_weights_are_made_again(ledger: FakeLedger) -> None:
    Trial(ledger).run()
    ledger.storage.delete(weights_of(POST.key))
    other = Trial(ledger)
    assert other.run(RUNS[1]) is None
    assert other.trained == ["post-train", "fine-tune"]
    assert {
        attempt for _, attempt in ledger.store.statuses([HEAD.key, POST.key, *(s.key for s in LEAVES)]).values()
    } == {1}


def test_a_chain_ends_with_the_stage_that_diverged(ledger: FakeLedger) -> None:
    trial = Trial(ledger, lambda item: "diverged" if item.stage.phase == "post-train" else "done")
    assert trial.run() is trial.run() is None, "a divergence is final"
    assert trial.trained == ["mlm-head", "post-train"]
    assert ledger.store.statuses([POST.key, LEAVES[0].key]) == {POST.key: ("diverged", 1)}


def test_deaths_are_retried_and_then_recorded(ledger: FakeLedger) -> None:
    deaths: list[str] = []

    def dies(item: Item) -> Status:
        if item.stage.phase == "fine-tune":
            deaths.append(item.name)
            raise ActorDiedError()
        return "done"

    assert Trial(ledger, dies).run() is None
    assert len(deaths) == WORKER_DEATHS
    (leaf,) = ledger.store.records([LEAVES[0].key]).values()
    assert (leaf.status, leaf.reason) == ("failed", f"its worker process died {WORKER_DEATHS} times (ActorDiedError)")
    assert ledger.store.statuses([LEAVES[0].key]) == {LEAVES[0].key: ("failed", 1)}


def test_a_remake_that_fails_leaves_the_record_alone(ledger: FakeLedger) -> None:
    Trial(ledger).run()
    ledger.storage.delete(weights_of(POST.key))

    def dies(item: Item) -> Status:
        raise ActorDiedError()

    leaf = Trial(ledger, dies).run(RUNS[1])
    assert leaf
    assert (leaf.key, leaf.status) == (LEAVES[1].key, "failed")
    assert leaf.reason.startswith(f"its parent stage {POST.key[:10]} failed: its worker process died")
    assert ledger.store.statuses([POST.key, LEAVES[1].key]) == {POST.key: ("done", 1)}
    assert Trial(ledger).run(RUNS[1]) is None, "its lease was given back"
