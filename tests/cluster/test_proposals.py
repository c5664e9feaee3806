"""What a study proposes, told as Tune would tell it, without Ray: resuming, repeated points, racing."""

from __future__ import annotations

import json
import logging
import os
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import optuna
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher
from search.small import outcome, small_space

from harness.cluster import tune
from harness.cluster.proposals import Proposals, scheduler_of, search_of
from harness.errors import UserError
from harness.search.racing import projected
from harness.search.space import ResolvedSpace
from harness.search.study import History
from harness.search.trials import Point, ReplicateOutcome, best_trial
from harness.store import Store

REPLICATES = ((0, 31), (1, 31), (2, 31), (0, 42), (1, 42), (2, 42))
Evaluator = Callable[[Point, int], ReplicateOutcome]


def whole(point: Point) -> tuple[str, ...]:
    return (json.dumps(sorted(point.items())),)


@dataclass
class FakePoints:
    """What proposals ask of `Points`, without a table behind it."""

    space: ResolvedSpace
    replicates: tuple[tuple[int, int], ...] = REPLICATES
    identity: Callable[[Point], tuple[str, ...]] = field(default=whole)


def noisy(point: Point, index: int) -> ReplicateOutcome:
    """A score of a point's replicate, with noise that only depends on both."""
    noise = random.Random(f"{whole(point)} {index}").gauss(0, 0.02)
    peak = 0.8 - 0.2 * abs(float(point["alpha"]) - 0.3) - 0.1 * abs(float(point["p_c"]) - 0.5)
    return outcome(min(1.0, max(0.0, peak + noise)))


class Waiting:
    status = TuneTrial.PENDING


class Controller:
    """Other trials always wait, so that a rule that would pause one for them does."""

    def get_live_trials(self) -> list[Any]:
        return [Waiting()]


class Tune:
    """Calls searcher and scheduler as Tune's controller does, with an evaluator in place of training."""

    def __init__(
        self,
        points: FakePoints,
        store: Store | Kept,
        evaluator: Evaluator = noisy,
        limit: int | None = None,
        retry: bool = False,
        seed: int = 7,
    ) -> None:
        self.points, self.evaluator = points, evaluator
        self.history = History("mine", store, None)  # type: ignore[arg-type]
        self.search = search_of(points, seed)  # type: ignore[arg-type]
        self.watched: list[tuple[str, int]] = []
        self.proposals = Proposals(
            points,  # type: ignore[arg-type]
            self.history,
            self.search,
            limit or points.space.trials,
            lambda kind, trial: self.watched.append((kind, trial.number)),
            retry,
        )
        self.scheduler = scheduler_of(self.proposals)
        self.running: dict[str, tuple[int, dict[str, Any], int, TuneTrial]] = {}
        self.started: list[int] = []

    def start(self) -> str | None:
        name = f"t{len(self.started)}"
        config = self.proposals.suggest(name)
        if config == Searcher.FINISHED:
            return None
        stub = TuneTrial("stub", stub=True, config=config, trial_id=name)
        if self.scheduler:
            self.scheduler.on_trial_add(Controller(), stub)
        self.started.append(config["number"])
        self.running[name] = (config["number"], config["point"], 0, stub)
        return name

    def step(self, name: str) -> bool:
        """The next replicate of a trial; True when it was its last."""
        number, point, done, stub = self.running[name]
        found, done = self.evaluator(point, done), done + 1
        self.running[name] = (number, point, done, stub)
        scores = [self.evaluator(point, k).value for k in range(done)]
        result = {
            "score": sum(scores) / done,
            "replicates_done": done,
            "training_iteration": done,
            "outcome": json.dumps(asdict(found)),
            "done": done == len(self.points.replicates),
        }
        decision = TrialScheduler.STOP if result["done"] else TrialScheduler.CONTINUE
        if self.scheduler and not result["done"]:
            decision = self.scheduler.on_trial_result(Controller(), stub, result)
        assert decision in (TrialScheduler.STOP, TrialScheduler.CONTINUE), "a paused trial would have to be saved"
        if decision == TrialScheduler.CONTINUE:
            self.proposals.on_trial_result(name, result)
            return False
        del self.running[name]
        if self.scheduler:
            self.scheduler.on_trial_complete(Controller(), stub, result)
        self.proposals.on_trial_complete(name, result)
        return True

    def events(self, slots: int = 1, rng: random.Random | None = None) -> Iterator[None]:
        """One event after another until the study ends: a trial starts, or one that runs reports a replicate."""
        rng, finished = rng or random.Random(0), False
        while self.running or not finished:
            if not finished and len(self.running) < slots:
                finished = self.start() is None
            elif self.running:
                self.step(rng.choice(sorted(self.running)))
            yield

    def all(self) -> Tune:
        for _ in self.events():
            pass
        return self


def as_told(history: History) -> list[tuple[Any, ...]]:
    """All that decides what is proposed next, and what is found."""
    return [
        (dict(e.trial.point), e.same_as, e.told, e.after, e.order, e.trial.state, e.trial.values)
        for _, e in sorted(history.entries.items())
    ]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path / 'harness.db'}")


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


class Kept:
    """What a history asks of a store, in memory: hundreds of studies are begun here. `tests/search` has the real one."""

    def __init__(self) -> None:
        self.bodies: dict[int, str] = {}

    def trials(self, study: str) -> dict[int, dict[str, Any]]:
        return {number: json.loads(body) for number, body in sorted(self.bodies.items())}

    def keep_trial(self, study: str, number: int, body: dict[str, Any]) -> None:
        self.bodies[number] = json.dumps(body, allow_nan=False)


def points_of(folder: Path, **wishes: Any) -> FakePoints:
    return FakePoints(small_space(folder, **{"mode": "search", "trials": 8, "racing": "none", **wishes}))


several = settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
STOPS = st.lists(st.integers(0, 25), max_size=3)


@pytest.mark.parametrize(("sampler", "racing"), [("tpe", "paired"), ("random", "asha"), ("random", "median")])
def test_an_interrupted_study_proposes_what_an_undisturbed_one_does(tmp_path: Path, sampler: str, racing: str) -> None:
    """One slot, killed after any events: the same points in the same order, told and dropped alike."""
    points = points_of(tmp_path, sampler=sampler, racing=racing)
    undisturbed = as_told(Tune(points, Kept()).all().history)

    @several
    @given(STOPS)
    def law(stops: list[int]) -> None:
        store = Kept()
        for events in stops:
            for _, _ in zip(range(events), Tune(points, store).events(), strict=False):
                pass
        assert as_told(Tune(points, store).all().history) == undisturbed

    law()


def test_the_default_point_is_tried_first_and_a_grid_is_run_in_its_order(tmp_path: Path, store: Store) -> None:
    points = points_of(tmp_path, mode="grid", trials=None)
    done = Tune(points, store).all()
    assert [dict(trial.point) for trial in done.history.trials] == list(points.space.grid_points())
    assert [trial.state for trial in done.history.trials] == ["complete"] * 4
    search = points_of(tmp_path, trials=1)
    assert Tune(search, Kept()).all().history.entries[0].trial.point == search.space.defaults


def test_a_trial_whose_replicate_failed_is_run_again_and_a_diverged_one_is_not(tmp_path: Path, store: Store) -> None:
    points = points_of(tmp_path, trials=3)

    def breaking(point: Point, index: int) -> ReplicateOutcome:
        """The default point diverges; later ones lose a replicate to a machine."""
        bad = "diverged" if point == points.space.defaults else "failed"
        return outcome(0.0, status=bad, reason="so") if index == 2 else noisy(point, index)

    first = Tune(points, store, breaking).all()
    assert [trial.eligible for trial in first.history.trials] == [False] * 3
    told = [entry.told for entry in first.history.entries.values()]
    second = Tune(points, store)
    assert second.history.trials == first.history.trials, (
        "until they start again, as they ended: whoever only reads sees that"
    )
    assert second.all().started == [1, 2]
    assert [trial.eligible for trial in second.history.trials] == [False, True, True]
    assert [entry.told for entry in second.history.entries.values()] == told, "the sampler's past does not change"
    assert Tune(points, store).all().started == []
    retried = Tune(points, store, retry=True).all()
    assert retried.started == [0], "a divergence is final, unless --retry"
    assert [trial.eligible for trial in retried.history.trials] == [True] * 3


def told_values(tune: Tune) -> list[Any]:
    return [trial.values for trial in tune.search._ot_study.trials]


def test_a_point_that_cannot_be_run_is_failed_with_its_reason_and_does_not_stop(tmp_path: Path, store: Store) -> None:
    def choosy(point: Point) -> tuple[str, ...]:
        if point["contrast"] == "simclr":
            raise UserError("simclr needs two texts a batch.")
        return whole(point)

    points = replace(points_of(tmp_path, sampler="random"), identity=choosy)
    tune = Tune(points, store).all()
    failed = [trial for trial in tune.history.trials if trial.point["contrast"] == "simclr"]
    assert failed
    assert len(tune.history.trials) == 8
    assert {(trial.state, trial.reason) for trial in failed} == {("failed", "simclr needs two texts a batch.")}
    assert {trial.state for trial in tune.history.trials if trial not in failed} == {"complete"}
    assert set(tune.started).isdisjoint(trial.number for trial in failed)
    ended = [number for kind, number in tune.watched if kind == "ended"]
    assert {trial.number for trial in failed} <= set(ended), "it is said"
    states = [trial.state for trial in tune.search._ot_study.trials]
    assert [s == optuna.trial.TrialState.FAIL for s in states] == [t in failed for t in tune.history.trials]
    again = Tune(points, store)
    assert again.start() is None, "nor is it tried again"
    assert as_told(again.history) == as_told(tune.history)


def steady(point: Point, index: int) -> ReplicateOutcome:
    """The default point is far better than every other, on each subset; subsets differ among themselves."""
    hard = (0.0, 0.1, -0.05)[index % 3]
    noise = random.Random(f"{whole(point)} {index}").gauss(0, 0.002)
    return outcome((0.8 if point["alpha"] == 0.5 and point["p_c"] == 0.7 else 0.4) + hard + noise)


def test_a_race_drops_what_is_worse_and_never_the_best(tmp_path: Path, store: Store) -> None:
    points = points_of(tmp_path, racing="paired", sampler="random")
    tune = Tune(points, store, steady).all()
    trials = tune.history.trials
    assert [trial.state for trial in trials] == ["complete"] + ["dropped"] * 7
    assert {len(trial.outcomes) for trial in trials[1:]} == {3}, "the first look is after the third subset"
    assert all("paired t" in trial.reason and "against trial 0" in trial.reason for trial in trials[1:])
    for trial in trials[1:]:
        told = tune.history.entries[trial.number].told
        assert told == pytest.approx(projected(trial.values, [trials[0].values]))
        assert told != trial.mean(), "the subsets that it saw are not the mean of all"
    assert told_values(tune) == [[e.told] for e in tune.history.entries.values()]


def test_a_race_keeps_the_best_whatever_comes(tmp_path: Path) -> None:
    """With gaps between points far above the noise, the best of all is complete, whenever it comes and on any slots."""
    points = points_of(tmp_path, racing="paired", sampler="random", trials=6)

    @several
    @given(st.permutations(range(6)), st.integers(1, 3), st.integers(0, 99))
    def law(ranks: list[int], slots: int, seed: int) -> None:
        tune = Tune(points, Kept())
        order: dict[tuple[str, ...], int] = {}

        def evaluator(point: Point, index: int) -> ReplicateOutcome:
            rank = ranks[order.setdefault(whole(point), len(order))]
            noise = random.Random(f"{whole(point)} {index}").gauss(0, 0.001)
            return outcome(0.3 + 0.1 * rank + (0.0, 0.1, -0.05)[index % 3] + noise)

        tune.evaluator = evaluator
        for _ in tune.events(slots, random.Random(seed)):
            pass
        best = best_trial(tune.history.trials)
        assert best
        assert ranks[order[whole(best.point)]] == 5

    law()


# ---------------------------------------------------------------------------------------------------- several metrics


def test_a_study_leaves_its_process_as_it_was(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment, levels of logs and filters of warnings, also where it ends with an error."""

    def seen() -> tuple[Any, ...]:
        loggers = [logging.getLogger(name).level for name in ("ray.tune", "ray.train", "ray._private")]
        return dict(os.environ), loggers, list(warnings.filters)

    during = []

    def fit(*_: Any, **__: Any) -> None:
        during.append(seen())
        raise RuntimeError("so")

    monkeypatch.setattr(tune, "tune", MagicMock(Tuner=fit))
    monkeypatch.setenv("TUNE_WARN_THRESHOLD_S", "7")
    before, proposals = seen(), Tune(points_of(tmp_path), store).proposals
    with pytest.raises(RuntimeError, match="so"):
        tune.explore(
            proposals,
            MagicMock(),
            study="mine",
            folder=tmp_path / "tune",
            execution=MagicMock(num_workers=1),
            concurrent=1,
            stop_requests=MagicMock(over=""),
        )
    assert seen() == before
    assert all(other != mine for other, mine in zip(during[0], before, strict=True))
