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

from harness.cluster import ledger as ledger_module
from harness.cluster import tune as tune_module
from harness.cluster.tune import ChainRunner, HarnessTrial
from harness.cluster.worker import WorkerResult
from harness.execution import WorkerSetup
from harness.planning.lifecycle import WORKER_DEATHS
from harness.planning.work import Item
from harness.search.trials import ReplicateOutcome
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
    users: dict[str, set[str]] = field(default_factory=dict)

    def lease(self, key: str, seen: int, remake: bool, owner: Owner) -> Any:
        return self.store.lease(key, owner, seen_attempt=seen, remake=remake)

    def commit(self, of: Stage, found: Record, owner: Owner) -> bool:
        self.tried.add(of.key)
        return self.store.commit(of, found, owner)

    def release(self, key: str, owner: Owner) -> None:
        self.store.release(owner, key)

    def status(self, key: str) -> Any:
        return self.store.statuses([key]).get(key)

    def look(self, key: str, retry: bool) -> Any:
        status, attempt = self.store.statuses([key]).get(key, (None, 0))
        return attempt, None if status == "failed" and key not in self.tried else status

    def records(self, metrics: dict[str, str]) -> dict[str, Record]:
        return self.store.records(metrics)

    def hold(self, key: str, user: str) -> None:
        self.users.setdefault(key, set()).add(user)

    def let_go(self, key: str, user: str) -> None:
        self.users.get(key, set()).discard(user)
        if not self.users.get(key):
            self.storage.delete(weights_of(key))


@dataclass
class Trial:
    """A chain runner whose training takes no time: `act` says how a stage ends, or raises what its worker's death raises."""

    ledger: FakeLedger
    act: Act = lambda _: "done"
    trained: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        setup = WorkerSetup(Path(), self.ledger.storage)
        self.runner = ChainRunner(self.ledger, Owner.current(), setup, self._train, retry=False)

    def _train(self, item: Item, owner: Owner) -> WorkerResult:
        self.trained.append(item.stage.phase)
        status = self.act(item)
        if status == "done" and item.keep_weights:
            self.ledger.storage.write(weights_of(item.stage.key), b"weights")
        if item.remake:
            self.ledger.release(item.stage.key, owner)
            return WorkerResult(status, "", True)
        found = record(item.stage, status)
        return WorkerResult(status, found.reason, self.ledger.commit(item.stage, found, owner))

    def run(self, run: Run = RUNS[0]) -> dict[str, Record]:
        return self.runner.run(run, ("accuracy",), "trial 0")


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeLedger:
    def ask(to: FakeLedger, what: str, *arguments: Any) -> Any:
        return getattr(to, what)(*arguments)

    monkeypatch.setattr(tune_module, "ask", ask)
    monkeypatch.setattr(ledger_module, "ask", ask)
    return FakeLedger(Store(f"sqlite:///{tmp_path / 'harness.db'}"), Storage(str(tmp_path / "weights")))


def test_a_chain_is_trained_once_and_then_read(ledger: FakeLedger) -> None:
    first, second = Trial(ledger), Trial(ledger)
    assert (first.run(), second.run()) == ({}, {})
    assert first.trained == ["mlm-head", "post-train", "fine-tune"]
    assert second.trained == []
    assert ledger.storage.exists(weights_of(HEAD.key)), "other runs start from them"
    assert not ledger.storage.exists(weights_of(POST.key)), "nobody starts from them any more"


def test_weights_stay_as_long_as_another_run_needs_them(ledger: FakeLedger) -> None:
    ledger.hold(POST.key, "another run")
    Trial(ledger).run()
    assert ledger.storage.exists(weights_of(POST.key))


def test_runs_to_come_share_what_they_start_from(ledger: FakeLedger) -> None:
    trial = Trial(ledger)
    for run in RUNS:
        trial.runner.hold(run)
    for run in RUNS:
        assert ledger.storage.exists(weights_of(POST.key)) == (run != RUNS[0])
        trial.run(run)
    assert trial.trained == ["mlm-head", "post-train", "fine-tune", "fine-tune"]
    assert not ledger.storage.exists(weights_of(POST.key)), "nobody starts from them any more"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[[Trial], HarnessTrial]:
    """Tune's trial of two replicates with a run each; another point has a replicate without one."""

    def make(trial: Trial) -> HarnessTrial:
        points: Any = SimpleNamespace(
            replicates=((0, 0), (0, 1)),
            runs=lambda point: tuple((run,) for run in RUNS) if point else ((),),
            scored=lambda run: ("accuracy",),
            counted=lambda runs: {},
            outcome=lambda runs, records: ReplicateOutcome(0.5),
        )
        nothing: Any = None
        made = HarnessTrial.__new__(HarnessTrial)
        config = {"number": 0, "point": {"lr": 1}}
        made.setup(config, points, trial.runner.setup, nothing, {}, trial.ledger, Owner.current(), nothing, retry=False)
        made._chain_runner = trial.runner
        return made

    monkeypatch.setattr(tune_module, "end_with_parent", lambda: None)
    return make


def test_the_replicates_of_a_trial_share_what_they_start_from(ledger: FakeLedger, started: Any) -> None:
    trial = Trial(ledger)
    of_tune = started(trial)
    assert [of_tune.step()["done"] for _ in range(2)] == [False, True]
    assert trial.trained == ["mlm-head", "post-train", "fine-tune", "fine-tune"]
    assert not ledger.storage.exists(weights_of(POST.key))


def test_a_trial_that_was_dropped_leaves_no_weights(ledger: FakeLedger, started: Any) -> None:
    of_tune = started(Trial(ledger))
    of_tune.step()
    assert ledger.storage.exists(weights_of(POST.key)), "for the replicates that follow"
    of_tune.reset_config({"number": 1, "point": {}})
    of_tune.step()
    assert not ledger.storage.exists(weights_of(POST.key))


def test_deleted_weights_are_made_again(ledger: FakeLedger) -> None:
    Trial(ledger).run()
    other = Trial(ledger)
    assert other.run(RUNS[1]) == {}
    assert other.trained == ["post-train", "fine-tune"]
    assert {
        attempt for _, attempt in ledger.store.statuses([HEAD.key, POST.key, *(s.key for s in LEAVES)]).values()
    } == {1}


def test_a_chain_ends_with_the_stage_that_diverged(ledger: FakeLedger) -> None:
    trial = Trial(ledger, lambda item: "diverged" if item.stage.phase == "post-train" else "done")
    assert trial.run()[POST.key].status == "diverged"
    assert trial.run() == {}, "a divergence is final"
    assert trial.trained == ["mlm-head", "post-train"]


def test_deaths_are_retried_and_then_recorded(ledger: FakeLedger) -> None:
    deaths: list[str] = []

    def dies(item: Item) -> Status:
        if item.stage.phase == "fine-tune":
            deaths.append(item.name)
            raise ActorDiedError()
        return "done"

    (leaf,) = Trial(ledger, dies).run().values()
    assert len(deaths) == WORKER_DEATHS
    assert (leaf.status, leaf.reason) == ("failed", f"its worker process died {WORKER_DEATHS} times (ActorDiedError)")
    assert ledger.store.statuses([LEAVES[0].key]) == {LEAVES[0].key: ("failed", 1)}


def test_a_remake_that_fails_leaves_the_record_alone(ledger: FakeLedger) -> None:
    Trial(ledger).run()

    def dies(item: Item) -> Status:
        raise ActorDiedError()

    leaf = Trial(ledger, dies).run(RUNS[1])[LEAVES[1].key]
    assert leaf.status == "failed"
    assert leaf.reason.startswith(f"its parent stage {POST.key[:10]} failed: its worker process died")
    assert ledger.store.statuses([POST.key, LEAVES[1].key]) == {POST.key: ("done", 1)}
    assert Trial(ledger).run(RUNS[1]) == {}, "its lease was given back"
