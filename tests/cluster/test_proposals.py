"""What a study proposes, told as Tune would tell it, without Ray: resuming, repeated points, racing."""

from __future__ import annotations

import itertools
import json
import math
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import optuna
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher
from search.small import SPACE, outcome, small_space

from harness.cluster.proposals import REPEATS, Proposals, scheduler_of, search_of
from harness.cluster.tune import watch
from harness.errors import UserError
from harness.search.racing import projected
from harness.search.space import ResolvedSpace
from harness.search.study import Entry, History, unfinished
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
    most_flops: float = 1.0

    def excess(self, point: Point) -> float:
        """Of what grows with both."""
        return float(point["alpha"]) * float(point["p_c"]) / self.most_flops - 1


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
        scores = [self.evaluator(point, k).values[0] for k in range(done)]
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


def resumed(points: FakePoints, store: Kept, stops: list[int], slots: int, seed: int) -> Tune:
    """A study that was stopped after so many events each time, and then ran to its end."""
    rng = random.Random(seed)
    for events in stops:
        for _, _ in zip(range(events), Tune(points, store).events(slots, rng), strict=False):
            pass
    last = Tune(points, store)
    for _ in last.events(slots, rng):
        pass
    return last


def as_told(history: History) -> list[tuple[Any, ...]]:
    """All that decides what is proposed next, and what is found."""
    return [
        (dict(e.trial.point), e.same_as, e.told, e.after, e.order, e.trial.state, e.trial.values())
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


# ---------------------------------------------------------------------------------------------------------- resuming

several = settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
STOPS = st.lists(st.integers(0, 25), max_size=3)


@pytest.mark.parametrize(
    ("sampler", "racing"), [("tpe", "paired"), ("random", "asha"), ("random", "median"), ("nsga2", "none")]
)
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


def test_points_that_run_at_the_same_time_are_spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten proposals of TPE that nobody answers lie further apart than those of a sampler that does not take running points for bad ones
    (constant liar with a multivariate TPE: optuna#6189, optuna#6505)."""
    points = points_of(tmp_path, sampler="tpe", trials=40)

    def peaked(point: Point, index: int) -> ReplicateOutcome:
        return outcome(1 - abs(math.log(point["alpha"] / 0.3)) / 10 - abs(point["p_c"] - 0.5))

    def spread(seed: int) -> float:
        tune = Tune(points, Kept(), peaked, seed=seed)
        for _ in range(20):
            name = tune.start() or ""
            while not tune.step(name):
                pass
        for _ in range(10):
            tune.start()
        places = [
            (math.log(p["alpha"] / 0.01) / math.log(200), (p["p_c"] - 0.1) / 0.8) for _, p, *_ in tune.running.values()
        ]
        assert len({*places}) == 10
        return sum(math.dist(*pair) for pair in itertools.combinations(places, 2)) / 45

    spreads = [spread(seed) for seed in range(4)]
    monkeypatch.setattr(optuna.samplers, "TPESampler", partial(optuna.samplers.TPESampler, constant_liar=False))
    honest = [spread(seed) for seed in range(4)]
    assert sum(spreads) > 1.1 * sum(honest)


@pytest.mark.parametrize("sampler", ["tpe", "random", "nsga2"])
def test_points_that_cost_too_much_are_never_run_and_cost_no_trial(tmp_path: Path, sampler: str) -> None:
    points = points_of(tmp_path, sampler=sampler, racing="paired", max_flops="1x")
    points.most_flops = points.excess(points.space.defaults) + 1
    free = Tune(points_of(tmp_path, sampler=sampler, racing="paired"), Kept()).all().history
    tune = Tune(points, Kept()).all()
    excluded = [t for t in tune.history.trials if t.state == "excluded"]
    assert excluded
    assert all((points.excess(t.point) > 0) == (t.state == "excluded") for t in tune.history.trials)
    assert all(not t.outcomes and t.reason == "costs more than 0.35 FLOPs a replicate" for t in excluded)
    assert len(tune.history.trials) - len(excluded) == len(free.trials) == points.space.trials
    assert not {t.number for t in excluded} & {*tune.started}
    best = best_trial(tune.history.trials, "maximize")
    assert best is not None
    assert points.excess(best.point) <= 0
    told = tune.search._ot_study.get_trials()
    infeasible = {t.number for t in told if t.constraints["flops"] > 0}
    assert infeasible == {n for n, e in tune.history.entries.items() if e.trial.state == "excluded"}
    assert {t.state for t in told if t.number in infeasible} == {optuna.trial.TrialState.PRUNED}
    store = Kept()
    for events in (2, 9):
        for _, _ in zip(range(events), Tune(points, store).events(), strict=False):
            pass
    assert as_told(Tune(points, store).all().history) == as_told(tune.history)


def test_a_point_that_was_proposed_and_not_excluded_before_a_kill_is_excluded_after_it(tmp_path: Path) -> None:
    points, store = points_of(tmp_path, max_flops="1x"), Kept()
    Tune(points, store).start()
    points.most_flops = 1e-9
    bodies = dict(store.bodies)
    tune = Tune(points, store)
    assert store.bodies == bodies, "to open a study writes nothing: a report may read what another command runs"
    tune.start()
    assert tune.history.entries[0].trial.state == "excluded"
    assert tune.started == []


def test_a_search_ends_where_every_proposal_costs_too_much(tmp_path: Path) -> None:
    points = points_of(tmp_path, max_flops="1x")
    points.most_flops = 1e-9
    tune = Tune(points, Kept()).all()
    assert (tune.started, len(tune.history.entries)) == ([], REPEATS)
    assert tune.proposals.remaining() == 0


def test_a_grid_runs_its_points_that_cost_little_enough(tmp_path: Path) -> None:
    points = points_of(tmp_path, mode="grid", max_flops="1x", trials=None)
    points.most_flops = 0.2
    tune = Tune(points, Kept()).all()
    states = {(t.point["alpha"], t.point["p_c"]): t.state for t in tune.history.trials}
    assert states == {
        (0.5, 0.7): "excluded",
        (0.1, 0.3): "complete",
        (0.1, 0.7): "complete",
        (0.5, 0.3): "complete",
    }
    assert tune.proposals.remaining() == 0


def test_an_interrupted_study_first_hands_out_what_was_unfinished(tmp_path: Path) -> None:
    @several
    @given(st.integers(1, 3), st.sampled_from(["tpe", "random"]), STOPS, st.integers(0, 99))
    def law(slots: int, sampler: str, stops: list[int], seed: int) -> None:
        points, store, rng = points_of(tmp_path, sampler=sampler, racing="paired"), Kept(), random.Random(seed)
        for events in [*stops, 1000]:
            tune = Tune(points, store)
            open_ = [n for n, e in sorted(tune.history.entries.items()) if not e.ended and e.same_as is None]
            assert tune.proposals.remaining() == len(open_) + points.space.trials - len(tune.history.trials)
            for _, _ in zip(range(events), tune.events(slots, rng), strict=False):
                pass
            assert tune.started[: len(open_)] == open_[: len(tune.started)]
            assert len({whole(trial.point) for trial in tune.history.trials}) <= points.space.trials
        assert len(tune.history.trials) == points.space.trials
        assert all(entry.ended for entry in tune.history.entries.values())
        assert Tune(points, store).start() is None, "all is done"
        orders = [entry.order for entry in tune.history.entries.values()]
        assert sorted(orders) == list(range(len(orders)))

    law()


def test_a_longer_study_goes_on_with_the_shorter_ones_points(tmp_path: Path, store: Store) -> None:
    points = points_of(tmp_path)
    short = as_told(Tune(points, store, limit=5).all().history)
    assert len(short) == 5
    longer = as_told(Tune(points, store, limit=8).all().history)
    assert longer[:5] == short
    assert longer == as_told(Tune(points, Kept(), limit=8).all().history)


def test_the_default_point_is_tried_first(tmp_path: Path, store: Store) -> None:
    points = points_of(tmp_path)
    assert Tune(points, store).all().history.entries[0].trial.point == points.space.defaults


def test_a_grid_is_run_in_its_order(tmp_path: Path, store: Store) -> None:
    points = points_of(tmp_path, mode="grid", trials=None)
    done = Tune(points, store).all()
    assert [dict(trial.point) for trial in done.history.trials] == list(points.space.grid_points())
    assert [trial.state for trial in done.history.trials] == ["complete"] * 4


def test_proposals_of_another_optuna_are_refused(tmp_path: Path, store: Store) -> None:
    points = points_of(tmp_path)
    Tune(points, store, limit=3).all()
    entry = History("mine", store, None).entries[1]
    moved = replace(entry, trial=replace(entry.trial, point={**entry.trial.point, "alpha": 0.123}))
    store.keep_trial("mine", 1, moved.to_json())
    with pytest.raises(UserError, match=r"begun by other versions .* proposal 1 would be .* Take another --seed"):
        Tune(points, store)


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


def test_a_replicate_reported_again_after_a_dead_process_is_ignored(tmp_path: Path, store: Store) -> None:
    tune = Tune(points_of(tmp_path, trials=1), store)
    name = tune.start()
    assert name
    tune.step(name)
    tune.step(name)
    number, point, _, stub = tune.running[name]
    tune.running[name] = (number, point, 0, stub)  # Tune starts the trial from its beginning
    while not tune.step(name):
        pass
    assert tune.history.entries[0].trial.values() == tuple(noisy(point, k).values[0] for k in range(len(REPLICATES)))
    assert [kind for kind, _ in tune.watched].count("replicate") == len(REPLICATES)


def test_a_process_that_died_too_often_fails_its_trial_alone(tmp_path: Path, store: Store) -> None:
    points = points_of(tmp_path, trials=3)
    tune = Tune(points, store)
    name = tune.start()
    assert name
    tune.step(name)
    del tune.running[name]
    tune.proposals.on_trial_complete(name, None, error=True)
    assert tune.all().started == [0, 1, 2]
    states = [(trial.state, trial.reason) for trial in tune.history.trials]
    assert states == [("failed", "its process died too often"), ("complete", ""), ("complete", "")]
    assert unfinished(tune.history.entries[0])
    assert Tune(points, store).all().started == [0], "the next command tries again"


def test_what_makes_the_study_impossible_ends_it_and_leaves_its_trial_unfinished(tmp_path: Path, store: Store) -> None:
    points = points_of(tmp_path, trials=3)
    tune = Tune(points, store)
    name = tune.start()
    assert name
    body = {"error": "no worker came", "fatal": True, "score": 0.0, "replicates_done": 0, "done": True}
    tune.proposals.on_trial_complete(name, body)
    assert str(tune.proposals.fatal) == "no worker came"
    assert tune.start() is None
    assert Tune(points, store).all().started == [0, 1, 2]


# ---------------------------------------------------------------------------------------------------- repeated points


def rounded(point: Point) -> tuple[str, ...]:
    """As if only the number of views and the contrast had an effect: six points in all."""
    return (str(point["num_views"]), str(point["contrast"]))


def told_values(tune: Tune) -> list[Any]:
    return [trial.values for trial in tune.search._ot_study.trials]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_repeated_point_costs_no_trial_and_is_told_the_same_value(tmp_path: Path, sampler: str) -> None:
    points = replace(points_of(tmp_path, sampler=sampler, trials=4), identity=rounded)

    @several
    @given(st.integers(1, 3), STOPS, st.integers(0, 99))
    def law(slots: int, stops: list[int], seed: int) -> None:
        store = Kept()
        tune = resumed(points, store, stops, slots, seed)
        history = tune.history
        assert len(history.trials) == len({rounded(trial.point) for trial in history.trials}) <= 4
        assert set(tune.started) <= {trial.number for trial in history.trials}
        assert len(history.repeated) == len(history.entries) - len(history.trials)
        for entry in history.entries.values():
            if entry.same_as is not None:
                first = history.entries[entry.same_as]
                assert first.trial.number < entry.trial.number
                assert rounded(entry.trial.point) == rounded(first.trial.point)
                assert entry.told == first.told
                assert entry.order > first.order
        assert told_values(tune) == [list(e.told or ()) for e in history.entries.values()]
        assert told_values(Tune(points, store)) == told_values(tune), "a resumed sampler knows the same"

    law()
    assert Tune(points, Kept()).all().history.repeated, "else this shows nothing"


def test_a_finite_space_ends_by_itself(tmp_path: Path) -> None:
    points = points_of(tmp_path, mode="grid", sampler="tpe", trials=50)
    tune = Tune(points, Kept()).all()
    assert len(tune.history.trials) == 4
    assert {whole(trial.point) for trial in tune.history.trials} == {whole(p) for p in points.space.grid_points()}
    assert len(tune.history.entries) <= 4 + 2 * REPEATS


def test_a_space_that_came_to_its_end_is_not_asked_again(tmp_path: Path) -> None:
    kept = Kept()
    first = Tune(points_of(tmp_path, mode="grid", sampler="tpe", trials=50), kept).all()
    again = Tune(points_of(tmp_path, mode="grid", sampler="tpe", trials=50), kept)
    assert again.proposals.remaining() == 0
    assert len(again.history.entries) == len(first.history.entries)

    # Values that are one computation: the four points of the grid are two, which only repeats can tell.
    kept = Kept()
    points = FakePoints(
        small_space(tmp_path, mode="grid", sampler="tpe", trials=50, racing="none"), identity=rounded_away
    )
    assert len(Tune(points, kept).all().history.trials) == 2
    assert Tune(points, kept).proposals.remaining() == 0

    listed = FakePoints(small_space(tmp_path, mode="grid", racing="none"), identity=rounded_away)
    history = Tune(listed, Kept()).all().history
    assert (len(history.trials), len(history.repeated)) == (2, 2), "a list ends with its last point"


def rounded_away(point: Point) -> tuple[str, ...]:
    return (str(point["alpha"]),)


@pytest.mark.parametrize("sampler", [None, "tpe", "random"])
def test_a_default_beside_the_grid_is_tried_first(tmp_path: Path, sampler: str | None) -> None:
    beside = SPACE.replace("alpha: [0.1, 0.5]", "alpha: [0.1, 0.3]")
    trials = None if sampler is None else 4
    points = FakePoints(small_space(tmp_path, beside, mode="grid", sampler=sampler, trials=trials, racing="none"))
    done = [dict(trial.point) for trial in Tune(points, Kept()).all().history.trials]
    assert done[0] == points.space.defaults == {"alpha": 0.5, "p_c": 0.7}
    assert len(done) == (5 if sampler is None else 4)


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


@pytest.mark.parametrize("sampler", ["tpe", "random", "nsga2"])
@pytest.mark.parametrize("ended", [0, 12, 20])
def test_ten_points_that_run_at_once_spread(sampler: str, ended: int, tmp_path: Path) -> None:
    """Ten asks without a value told between them, as on ten slots: no point comes twice, and they do not crowd around the best one."""
    tune = Tune(points_of(tmp_path, sampler=sampler, trials=60), Kept())
    for _ in range(ended):
        name = tune.start()
        assert name
        while not tune.step(name):
            pass
    assert all(tune.start() for _ in range(10))
    proposed = [point for _, point, _, _ in tune.running.values()]
    alphas = sorted(float(point["alpha"]) for point in proposed)
    assert len({whole(point) for point in proposed}) == 10
    assert alphas[-1] > 10 * alphas[0], "a factor of 200 is searched"
    assert len({point["p_c"] for point in proposed}) >= 4


# ------------------------------------------------------------------------------------------------------------- racing


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
        assert told == pytest.approx((projected(trial.values(), [trials[0].values()]),))
        assert told != (trial.mean(),), "the subsets that it saw are not the mean of all"
    assert told_values(tune) == [list(e.told or ()) for e in tune.history.entries.values()]


def test_a_race_drops_a_point_at_its_first_broken_replicate(tmp_path: Path, store: Store) -> None:
    points = points_of(tmp_path, racing="paired", sampler="random")

    def breaking(point: Point, index: int) -> ReplicateOutcome:
        broken = point != points.space.defaults and index == 1
        return outcome(0.0, status="diverged", reason="the loss is not finite") if broken else steady(point, index)

    tune = Tune(points, store, breaking).all()
    default, *others = tune.history.trials
    assert (default.state, default.eligible) == ("complete", True)
    assert {(trial.state, len(trial.outcomes)) for trial in others} == {("dropped", 2)}
    assert {trial.reason for trial in others} == {"subset 1, seed 31 diverged: such a point cannot be the best"}
    assert best_trial(tune.history.trials, "maximize") == default


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
        best = best_trial(tune.history.trials, "maximize")
        assert best
        assert ranks[order[whole(best.point)]] == 5

    law()


@pytest.mark.parametrize("racing", ["asha", "median"])
def test_a_resumed_scheduler_decides_as_one_that_saw_the_trials_itself(tmp_path: Path, racing: str) -> None:
    points = points_of(tmp_path, racing=racing, sampler="random", trials=12)
    whole_study = as_told(Tune(points, Kept()).all().history)
    assert "dropped" in {entry[5] for entry in whole_study}, "else this shows nothing"
    for before in (1, 3, 6, 11):
        store = Kept()
        Tune(points, store, limit=before).all()
        assert as_told(Tune(points, store).all().history) == whole_study


@pytest.mark.parametrize("racing", ["asha", "median"])
def test_a_scheduler_is_resumed_after_several_slots(tmp_path: Path, racing: str) -> None:
    """Trials ended in another order than their numbers say: what is past is not judged again."""
    points = points_of(tmp_path, racing=racing, sampler="random", trials=12)

    @several
    @given(st.integers(2, 3), STOPS, st.integers(0, 99))
    def law(slots: int, stops: list[int], seed: int) -> None:
        tune = resumed(points, Kept(), stops, slots, seed)
        assert {trial.state for trial in tune.history.trials} <= {"complete", "dropped"}
        assert len(tune.history.trials) == 12

    law()


def test_no_rule_where_there_is_nothing_to_save(tmp_path: Path, store: Store) -> None:
    one = replace(points_of(tmp_path, racing="paired"), replicates=REPLICATES[:1])
    assert Tune(one, store).scheduler is None
    assert Tune(points_of(tmp_path), store).scheduler is None


# ---------------------------------------------------------------------------------------------------- several metrics


@pytest.mark.parametrize("sampler", ["tpe", "nsga2"])
def test_all_values_of_several_metrics_are_told(tmp_path: Path, store: Store, sampler: str) -> None:
    points = points_of(tmp_path, sampler=sampler, metrics=("accuracy", "flops"))
    assert points.space.racing == "none"

    def evaluator(point: Point, index: int) -> ReplicateOutcome:
        return outcome(noisy(point, index).values[0], 1e12 * float(point["num_views"]))

    tune = Tune(points, store, evaluator).all()
    for trial in tune.history.trials:
        assert tune.history.entries[trial.number].told == (trial.mean(0), trial.mean(1))
    assert told_values(tune) == [list(e.told or ()) for e in tune.history.entries.values()]
    assert [d.name for d in tune.search._ot_study.directions] == ["MAXIMIZE", "MINIMIZE"]
    interrupted = Kept()
    for _, _ in zip(range(20), Tune(points, interrupted, evaluator).events(), strict=False):
        pass
    assert as_told(Tune(points, interrupted, evaluator).all().history) == as_told(tune.history)


def test_an_entry_that_ended_is_finished_unless_it_failed() -> None:
    from harness.search.trials import Trial

    def entry(state: Any, *outcomes: ReplicateOutcome) -> Entry:
        return Entry(Trial(0, {}, outcomes, state), told=(0.5,), after=1, order=0)

    good, diverged, failed = outcome(0.5), outcome(0.0, status="diverged"), outcome(0.0, status="failed")
    assert not unfinished(entry("complete", good, diverged))
    assert not unfinished(entry("dropped", good))
    assert not unfinished(entry("failed")), "a point that cannot be run"
    assert unfinished(entry("complete", good, failed))
    assert unfinished(entry("failed", good)), "its process died"
    assert unfinished(Entry(Trial(0, {})))


def test_a_ledger_that_ended_does_not_end_the_watcher_with_a_traceback() -> None:
    class Lost:
        over = ""

        def look(self) -> list[str]:
            raise UserError("The ledger's process ended.")

    watch(cast(Any, Lost()), cast(Any, None), threading.Event())
