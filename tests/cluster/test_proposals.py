"""What a study proposes, told as Tune would tell it, without Ray: resuming, repeated points, racing."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import optuna
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optuna.storages import InMemoryStorage
from optuna.trial import TrialState
from ray.tune.search import Searcher
from search.small import outcome, small_space

from harness.cluster.proposals import Proposals
from harness.errors import UserError
from harness.planning.request import Request
from harness.search import study as study_module
from harness.search.points import ReplicateOutcome, Trial, best_trial
from harness.search.request import Point, TuneRequest
from harness.search.space import ResolvedSpace
from harness.search.study import opened, trials_of
from harness.store import Store

REPLICATES = ((0, 31), (1, 31), (2, 31), (0, 42), (1, 42), (2, 42))
Evaluator = Callable[[Point, int], ReplicateOutcome]


def whole(point: Point) -> str:
    return json.dumps(sorted(point.items()))


@dataclass
class FakePoints:
    """What a study asks of `Points`, without a table behind it. `recorded`: the replicates of points that have ended, as a store has them.
    `check`: raises UserError for a point that cannot be run."""

    space: ResolvedSpace
    replicates: tuple[tuple[int, int], ...] = REPLICATES
    check: Callable[[Point], None] = field(default=lambda _: None)
    metric: str = "accuracy"
    recorded: dict[tuple[str, int], ReplicateOutcome] = field(default_factory=dict)

    def runs(self, point: Point) -> tuple[Any, ...]:
        self.check(point)
        return tuple(((whole(point), index),) for index in range(len(self.replicates)))

    def counted(self, runs: Any) -> dict[str, str]:
        return {}

    def outcome(self, runs: Any, records: Any) -> ReplicateOutcome | None:
        return self.recorded.get(runs[0])


def noisy(point: Point, index: int) -> ReplicateOutcome:
    """A score of a point's replicate, with noise that only depends on both."""
    noise = random.Random(f"{whole(point)} {index}").gauss(0, 0.02)
    peak = 0.8 - 0.2 * abs(float(point["alpha"]) - 0.3) - 0.1 * abs(float(point["p_c"]) - 0.5)
    return outcome(min(1.0, max(0.0, peak + noise)))


class Tune:
    """A command: it opens a study and calls searcher and stopper as Tune's controller does, with an evaluator in place of training."""

    def __init__(
        self, points: FakePoints, store: Store, evaluator: Evaluator = noisy, retry: bool = False, seed: int = 7
    ) -> None:
        self.points, self.evaluator, self.store = points, evaluator, store
        self.study = opened(store, "mine", points.metric)
        self.watched: list[tuple[str, int]] = []
        watch = lambda kind, trial: self.watched.append((kind, trial.number))  # noqa: E731
        self.stops = SimpleNamespace(over="", look=lambda: [])
        request = TuneRequest("cmlm", Request(retry=retry), seed=seed)
        self.proposals = Proposals(self.study, points, store, watch, request, self.stops)  # type: ignore[arg-type]
        self.running: dict[str, tuple[dict[str, Any], list[ReplicateOutcome]]] = {}
        self.started: list[int] = []

    @property
    def trials(self) -> tuple[Trial, ...]:
        return trials_of(self.study, self.points, self.store)  # type: ignore[arg-type]

    @property
    def told(self) -> dict[int, float | None]:
        return {trial.number: trial.value for trial in self.study.trials}

    def start(self) -> str | None:
        name = f"t{len(self.started)}"
        config = self.proposals.suggest(name)
        if config == Searcher.FINISHED:
            return None
        self.started.append(config["number"])
        self.running[name] = (config["point"], [])
        return name

    def step(self, name: str) -> bool:
        """The next replicate of a trial; True when it was its last."""
        point, outcomes = self.running[name]
        outcomes.append(self.evaluator(point, len(outcomes)))
        self.points.recorded[whole(point), len(outcomes) - 1] = outcomes[-1]
        ended = self.proposals(name, {"ended": len(outcomes), "failed": {}})
        if ended:
            del self.running[name]
            self.proposals.on_trial_complete(name)
        return ended

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


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Forgets all studies. They are in memory: hundreds are begun here, and a database would take a minute."""
    kept = [InMemoryStorage()]
    monkeypatch.setattr(study_module, "storage_of", lambda _: kept[-1])
    return lambda: kept.append(InMemoryStorage())


def points_of(folder: Path, **wishes: Any) -> FakePoints:
    return FakePoints(small_space(folder, **{"mode": "search", "trials": 8, "racing": "none", **wishes}))


several = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
STOPS = st.lists(st.integers(0, 25), max_size=3)


@pytest.mark.parametrize(("sampler", "racing"), [("tpe", "paired"), ("random", "none")])
def test_an_interrupted_study_goes_on(
    tmp_path: Path, store: Store, forget: Callable[[], None], sampler: str, racing: str
) -> None:
    """Killed after any events, on any slots: as many distinct points as an undisturbed one, none of them lost, and nothing that is known proposed anew."""
    points = points_of(tmp_path, sampler=sampler, racing=racing)

    @several
    @given(STOPS, st.integers(1, 3))
    def law(stops: list[int], slots: int) -> None:
        forget()
        of_study = replace(points, recorded={})
        for events in stops:
            for _, _ in zip(range(events), Tune(of_study, store).events(slots), strict=False):
                pass
        last = Tune(of_study, store)
        before = {trial.number: trial for trial in last.trials}
        for _ in last.events(slots):
            pass
        trials = {trial.number: trial for trial in last.trials}
        assert len({whole(trial.point) for trial in trials.values()}) == len(trials) == points.space.trials
        assert {trial.state for trial in trials.values()} <= {"complete", "dropped"}
        assert all(trials[number].point == trial.point for number, trial in before.items())
        ended = {number for number, trial in before.items() if trial.state != "running"}
        assert ended.isdisjoint(last.started)
        assert Tune(of_study, store).start() is None

    law()


def test_the_default_point_is_tried_first_and_a_grid_is_run_in_its_order(
    tmp_path: Path, store: Store, forget: Callable[[], None]
) -> None:
    points = points_of(tmp_path, mode="grid", trials=None)
    done = Tune(points, store).all()
    assert [dict(trial.point) for trial in done.trials] == list(points.space.first_points)
    assert [trial.state for trial in done.trials] == ["complete"] * 4
    search = points_of(tmp_path, trials=1)
    forget()
    Tune(search, store).study.ask()  # killed, and it drew no parameter
    assert [trial.point for trial in Tune(search, store).all().trials] == [search.space.defaults]


def test_a_trial_whose_replicate_failed_is_run_again_and_a_diverged_one_is_not(tmp_path: Path, store: Store) -> None:
    points = points_of(tmp_path, trials=3)

    def breaking(point: Point, index: int) -> ReplicateOutcome:
        """The default point diverges; later ones lose a replicate to a machine."""
        bad = "diverged" if point == points.space.defaults else "failed"
        return outcome(0.0, status=bad, reason="so") if index == 2 else noisy(point, index)

    first = Tune(points, store, breaking).all()
    assert [trial.eligible for trial in first.trials] == [False] * 3
    assert Tune(points, store).trials == first.trials, "until they start again, as they ended"
    second = Tune(points, store).all()
    assert second.started == [1, 2]
    assert [trial.eligible for trial in second.trials] == [False, True, True]
    assert second.told.items() >= first.told.items(), "the sampler's past does not change"
    assert Tune(points, store).all().started == []
    retried = Tune(points, store, retry=True).all()
    assert retried.started == [0], "a divergence is final, unless --retry"
    assert [trial.eligible for trial in retried.trials] == [True] * 3


def test_a_study_of_an_older_harness_is_read_and_goes_on(tmp_path: Path, store: Store) -> None:
    """It named the trial that another one repeats, or runs again, and a grid's place."""
    points = points_of(tmp_path, mode="grid", trials=None)
    first, second, third, fourth = points.space.first_points
    notes: list[tuple[Point, dict[str, Any], float | None]] = [
        (first, {"place": 0, "state": "complete"}, 0.5),
        (second, {"place": 1, "same as": 0}, 0.5),
        (third, {"place": 2, "state": "failed", "reason": study_module.DIED}, None),
        (third, {"same as": 2, "again": True, "state": "complete"}, 0.7),
    ]
    study = optuna.create_study(study_name="mine", storage=study_module.storage_of(store), direction="maximize")
    for point, attribute, value in notes:
        study.enqueue_trial(dict(point), user_attrs={"harness": attribute})
        points.space.define(trial := study.ask())
        study.tell(trial, value, state=TrialState.FAIL if value is None else None)
        for index in range(len(REPLICATES) if value else 0):
            points.recorded[whole(point), index] = outcome(value or 0.0)
    study.enqueue_trial(dict(fourth), user_attrs={"harness": {"place": 3}})
    trials = trials_of(study, points, store)  # type: ignore[arg-type]
    assert [(trial.number, trial.state) for trial in trials] == [(number, "complete") for number in range(3)]
    assert [trial.point for trial in Tune(points, store).all().trials] == [first, second, third, fourth]


def test_a_point_that_repeats_one_costs_nothing(tmp_path: Path, store: Store) -> None:
    """As a sampler draws it from a few values."""
    text = "name: mine\nmethod: cmlm\ntable: few_shot\ndefaults: {alpha: 0.5, p_c: 0.7}\nsearch:\n"
    text += "  alpha: {choice: [0.1, 0.3, 0.5]}\n  p_c: {choice: [0.7]}\n"
    points = FakePoints(small_space(tmp_path, text, mode="search", sampler="random", trials=9, racing="none"))
    tune = Tune(points, store)
    for _ in tune.events(slots=2):
        pass
    assert tune.started == [trial.number for trial in tune.trials]
    assert sorted(trial.point["alpha"] for trial in tune.trials) == [0.1, 0.3, 0.5]


def test_a_point_that_cannot_be_run_is_failed_with_its_reason_and_does_not_stop(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choosy(point: Point) -> None:
        if point["contrast"] == "simclr":
            raise UserError("simclr needs two texts a batch.")

    points = replace(points_of(tmp_path, sampler="random"), check=choosy)
    tune = Tune(points, store).all()
    failed = [trial for trial in tune.trials if trial.point["contrast"] == "simclr"]
    assert failed
    assert len(tune.trials) == 8
    assert {(trial.state, trial.reason) for trial in failed} == {("failed", "simclr needs two texts a batch.")}
    assert {trial.state for trial in tune.trials if trial not in failed} == {"complete"}
    assert set(tune.started).isdisjoint(trial.number for trial in failed)
    ended = [number for kind, number in tune.watched if kind == "ended"]
    assert {trial.number for trial in failed} <= set(ended), "it is said"
    assert {trial.number for trial in tune.study.trials if trial.state == TrialState.FAIL} == {t.number for t in failed}
    assert Tune(points, store).start() is None, "nor is it tried again"
    monkeypatch.setattr(Store, "records", Mock(side_effect=UserError("The store failed.")))
    with pytest.raises(UserError, match="The store failed"):  # which is no point that cannot be run
        _ = tune.trials


def steady(point: Point, index: int) -> ReplicateOutcome:
    """The default point is far better than every other, on each subset; subsets differ among themselves."""
    hard = (0.0, 0.1, -0.05)[index % 3]
    noise = random.Random(f"{whole(point)} {index}").gauss(0, 0.002)
    return outcome((0.8 if point["alpha"] == 0.5 and point["p_c"] == 0.7 else 0.4) + hard + noise)


def test_a_study_ends_a_while_after_its_time_and_at_once_with_its_ledger(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running trials have the time to stop with a checkpoint."""
    tune, died, ended = Tune(points_of(tmp_path), store), Tune(points_of(tmp_path), store), list[bool]()

    def ask() -> None:
        raise UserError("The ledger's process ended")

    tune.stops.look = lambda: setattr(tune.stops, "over", "its time is over" if time.monotonic() >= 104 else "")
    for now in (100.0, 102.0, 104.0, 111.4, 111.5):
        monkeypatch.setattr("time.monotonic", lambda now=now: now)
        ended.append(tune.proposals.stop_all())
    assert ended == [False, False, False, False, True]
    assert tune.start() is None
    died.stops.look = ask
    assert died.proposals.stop_all()
    assert str(died.proposals.fatal) == "The ledger's process ended"


def test_a_race_drops_what_is_worse_and_never_the_best(tmp_path: Path, store: Store) -> None:
    points = points_of(tmp_path, racing="paired", sampler="random")
    tune = Tune(points, store, steady).all()
    trials = tune.trials
    assert [trial.state for trial in trials] == ["complete"] + ["dropped"] * 7
    assert {len(trial.outcomes) for trial in trials[1:]} == {3}, "the first look is after the third subset"
    assert all("paired t" in trial.reason and "against trial 0" in trial.reason for trial in trials[1:])
    assert [trial.state for trial in tune.study.trials] == [TrialState.COMPLETE, *[TrialState.PRUNED] * 7]
    assert tune.told[0] == trials[0].mean()


def test_a_race_keeps_the_best_whatever_comes(tmp_path: Path, store: Store, forget: Callable[[], None]) -> None:
    """With gaps between points far above the noise, the best of all is complete, whenever it comes and on any slots."""
    points = points_of(tmp_path, racing="paired", sampler="random", trials=6)

    @several
    @given(st.permutations(range(6)), st.integers(1, 3), st.integers(0, 99))
    def law(ranks: list[int], slots: int, seed: int) -> None:
        forget()
        tune = Tune(replace(points, recorded={}), store)
        order: dict[str, int] = {}

        def evaluator(point: Point, index: int) -> ReplicateOutcome:
            rank = ranks[order.setdefault(whole(point), len(order))]
            noise = random.Random(f"{whole(point)} {index}").gauss(0, 0.001)
            return outcome(0.3 + 0.1 * rank + (0.0, 0.1, -0.05)[index % 3] + noise)

        tune.evaluator = evaluator
        for _ in tune.events(slots, random.Random(seed)):
            pass
        best = best_trial(tune.trials)
        assert best
        assert ranks[order[whole(best.point)]] == 5

    law()
