"""A study as it is stored: the store returns proposals and outcomes, and Optuna's own tables agree."""

from __future__ import annotations

import json
import shutil
import sqlite3
import warnings
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from search.small import SPACE, outcome, small_space

from harness.errors import UserError
from harness.planning.request import parse_override
from harness.search.space import ResolvedSpace
from harness.search.study import History, OptunaMirror, sampler_of, study_name
from harness.store import Store

POINTS: tuple[dict[str, Any], ...] = (
    {"alpha": 0.5, "p_c": 0.7, "num_views": 1, "contrast": "simsiam"},
    {"alpha": 0.1, "p_c": 0.3, "num_views": 2, "contrast": "simclr", "temperature": 0.07},
    {"alpha": 1 / 3, "p_c": 0.1, "num_views": 3, "contrast": "simclr", "temperature": 0.5},
    {"alpha": 2.0, "p_c": 0.9, "num_views": 1, "contrast": "simsiam"},
    {"alpha": 0.011, "p_c": 0.2, "num_views": 1, "contrast": "simsiam"},
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with our tables and Optuna's, which takes a second to make."""
    path = tmp_path_factory.mktemp("prepared") / "harness.db"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optuna.storages.RDBStorage(Store(f"sqlite:///{path}").url)
    return path


@pytest.fixture
def store(tmp_path: Path, prepared: Path) -> Store:
    path = tmp_path / "kept" / "harness.db"
    path.parent.mkdir()
    shutil.copy(prepared, path)
    return Store(f"sqlite:///{path}")


@pytest.fixture
def fresh(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path / 'fresh.db'}")


@pytest.fixture
def space(tmp_path: Path) -> ResolvedSpace:
    return small_space(tmp_path, mode="search")


def mirrored(store: Store, space: ResolvedSpace, name: str = "mine") -> tuple[History, OptunaMirror]:
    """As a command opens a study."""
    mirror = OptunaMirror(space, name, store, space.metric or "accuracy")
    history = History(name, store, mirror)
    mirror.sync(history.entries)
    return history, mirror


def worked(history: History) -> None:
    """A study with a trial of each kind: complete, dropped, failed, one with a divergence, repeated, running."""
    for number, values in ((0, (0.5, 0.7, 0.6)), (1, (0.4, 1 / 3))):
        assert history.propose(POINTS[number]) == number
        for done, value in enumerate(values, 1):
            assert history.add_outcome(number, done, outcome(value))
    history.finish(0, "complete", "", 0.6)
    history.finish(1, "dropped", "paired t -9.0 over 3 subsets", 0.35)
    assert history.propose(POINTS[2]) == 2
    history.finish(2, "failed", "no such thing", None)
    assert history.propose({**POINTS[0], "alpha": 0.50001}, same_as=0) == 3
    history.finish(3, "complete", "", 0.6)
    assert history.propose(POINTS[3]) == 4
    history.add_outcome(4, 1, outcome(0.0, status="diverged", reason="the loss is not finite"))
    history.finish(4, "complete", "", 0.0)
    assert history.propose(POINTS[4]) == 5
    history.add_outcome(5, 1, outcome(0.9))


def seen(store: Store, name: str = "mine") -> list[optuna.trial.FrozenTrial]:
    """The trials as Optuna's own tools read them, in a fresh connection."""
    return optuna.load_study(study_name=name, storage=store.url).get_trials()


def told(store: Store, name: str = "mine") -> list[tuple[Any, ...]]:
    return [(t.number, t.params, t.state, t.values, t.intermediate_values) for t in seen(store, name)]


# ------------------------------------------------------------------------------------------------------------ history


def test_a_reloaded_history_is_the_same(store: Store) -> None:
    history = History("mine", store, None)
    worked(history)
    again = History("mine", Store(store.url), None)
    assert list(again.entries) == [0, 1, 2, 3, 4, 5]
    assert {n: e for n, e in again.entries.items() if n != 5} == {n: e for n, e in history.entries.items() if n != 5}
    assert again.entries[5].trial.outcomes == (), "of a running trial the ledger has the replicates"
    assert [e.trial.point for e in again.entries.values()] == [e.trial.point for e in history.entries.values()]
    assert [t.number for t in again.trials] == [0, 1, 2, 4, 5]
    types = [[type(v) for v in e.trial.point.values()] for e in again.entries.values()]
    assert types == [[type(v) for v in e.trial.point.values()] for e in history.entries.values()], "1 is not 1.0"
    assert History("other", store, None).entries == {}


def test_a_trial_that_is_run_again_keeps_what_the_sampler_was_told(store: Store) -> None:
    history = History("mine", store, None)
    history.propose(POINTS[0])
    history.add_outcome(0, 1, outcome(0.0, status="failed", reason="killed"))
    history.finish(0, "complete", "", 0.0)
    before = history.entries[0]
    history.restart(0)
    assert (history.entries[0].trial.outcomes, history.entries[0].trial.state) == ((), "running")
    assert History("mine", store, None).entries[0] == before, "killed now, the next command runs it again"
    history.add_outcome(0, 1, outcome(0.8))
    history.finish(0, "complete", "", 0.8)
    after = History("mine", store, None).entries[0]
    assert after.trial.values == (0.8,)
    assert (after.told, after.order, after.after) == (before.told, before.order, before.after)


def test_a_trial_of_an_older_store_is_read(store: Store) -> None:
    """Outcomes and tells were lists with a value a metric, and a point could be left out for its cost."""
    shared = {"reason": "", "flops": 1e9, "seconds": 1.0, "trained": 1, "stages": 1}
    outcomes = [{"values": [0.75, 2e12], "status": "done", **shared}]
    ended = {"number": 0, "point": {"alpha": 0.5}, "outcomes": outcomes, "state": "complete", "reason": ""}
    dear = {**ended, "number": 1, "outcomes": [], "state": "excluded", "reason": "costs too much"}
    for number, (trial, told) in enumerate(((ended, [0.75, 2e12]), (dear, None))):
        body = {"trial": trial, "same_as": None, "told": told, "after": number + 1, "order": number}
        store.keep_trial("mine", number, body)
    first, second = History("mine", store, None).entries.values()
    assert (first.trial.values, first.told) == ((0.75,), 0.75)
    assert (second.trial.state, second.told) == ("failed", None)


@pytest.mark.parametrize(
    ("trial", "why"),
    [
        ({}, "trial.number: Field required"),
        ({"number": 0, "point": [], "outcomes": []}, "trial.point: "),
        ({"number": 0, "point": {}, "outcomes": [{"values": []}]}, "trial.outcomes.0.values: "),
        ({"number": 0, "point": {}, "state": "lost"}, "trial.state: "),
    ],
)
def test_a_trial_of_another_shape_is_refused(store: Store, trial: dict[str, Any], why: str) -> None:
    store.keep_trial("mine", 0, {"trial": trial, "same_as": None, "told": None, "after": 0, "order": 0})
    with pytest.raises(UserError, match=rf"has a damaged trial 0 of the study mine \({why}.*take another sampler seed"):
        History("mine", store, None)


# ------------------------------------------------------------------------------------------------------------- mirror


def test_optuna_sees_the_same_study(store: Store, space: ResolvedSpace) -> None:
    history, _ = mirrored(store, space)
    worked(history)
    trials = seen(store)
    assert [t.number for t in trials] == [0, 1, 2, 3, 4, 5]
    assert [t.params for t in trials] == [e.trial.point for e in history.entries.values()]
    complete, pruned, failed, running = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING
    assert [t.state for t in trials] == [complete, pruned, failed, complete, complete, running]
    assert [t.values for t in trials] == [[pytest.approx(0.6)], [0.35], None, [0.6], [0.0], None]
    assert trials[0].intermediate_values == pytest.approx({1: 0.5, 2: 0.6, 3: 0.6})
    assert trials[1].intermediate_values == pytest.approx({1: 0.4, 2: (0.4 + 1 / 3) / 2})
    assert trials[5].intermediate_values == {1: 0.9}
    study = optuna.load_study(study_name="mine", storage=store.url)
    assert study.best_trial.number == 0
    assert (study.directions[0].name, study.metric_names) == ("MAXIMIZE", ["accuracy"])
    notes = [t.user_attrs["harness"] for t in trials]
    assert notes[1]["reason"] == "paired t -9.0 over 3 subsets"
    assert notes[3]["same as"] == 0
    assert notes[4]["not done"] == ["the loss is not finite"]


def test_going_on_is_idempotent(store: Store, space: ResolvedSpace) -> None:
    history, mirror = mirrored(store, space)
    worked(history)
    before, trial_ids = told(store), [t._trial_id for t in seen(store)]
    mirror.sync(history.entries)
    again, _ = mirrored(Store(store.url), space)
    assert told(store) == before
    assert [t._trial_id for t in seen(store)] == trial_ids, "written anew though nothing differed"
    again.add_outcome(5, 1, outcome(0.9))
    again.finish(5, "dropped", "", 0.9)
    assert seen(store)[5].state == TrialState.PRUNED


def test_a_trial_that_ended_anew_is_written_anew(store: Store, space: ResolvedSpace) -> None:
    history, mirror = mirrored(store, space)
    history.propose(POINTS[0])
    history.add_outcome(0, 1, outcome(0.0, status="failed", reason="killed"))
    history.finish(0, "complete", "", 0.0)
    history.propose(POINTS[1])
    history.finish(1, "failed", "no", None)
    history.restart(0)
    history.add_outcome(0, 1, outcome(0.8))
    history.finish(0, "complete", "", 0.8)
    mirror.sync(history.entries)
    assert [(t.number, t.values, t.state) for t in seen(store)] == [
        (0, [0.8], TrialState.COMPLETE),
        (1, None, TrialState.FAIL),
    ]
    assert seen(store)[0].intermediate_values == {1: 0.8}
    assert "not done" not in seen(store)[0].user_attrs["harness"]
    assert [s.study_name for s in optuna.get_all_study_summaries(store.url)] == ["mine"]


# -------------------------------------------------------------------------------------------------- one database file


def test_a_folder_may_have_braces_in_its_name(tmp_path: Path, space: ResolvedSpace) -> None:
    store = Store(f"sqlite:///{tmp_path}/a{{b}}/harness.db")
    worked(mirrored(store, space)[0])
    assert len(History("mine", store, None).entries) == 6
    tables = sqlite3.connect(tmp_path / "a{b}" / "harness.db").execute("SELECT count(*) FROM trials").fetchone()
    assert tables == (6,)


def test_a_database_that_is_not_optunas_is_a_sentence(fresh: Store, space: ResolvedSpace) -> None:
    with sqlite3.connect(fresh.path or "") as connection:
        connection.execute("CREATE TABLE studies (something TEXT)")
    with pytest.raises(UserError, match=r"^The store sqlite:///\S+ failed \(table studies has no column"):
        mirrored(fresh, space)


# ------------------------------------------------------------------------------------------------ names and samplers


def test_a_studys_name_says_what_decides_its_points(tmp_path: Path) -> None:
    def name(seed: int = 0, runs: tuple[str, ...] = ("a", "b"), **wishes: Any) -> str:
        return study_name(small_space(tmp_path, **{"mode": "search", **wishes}), seed, runs)

    base = name()
    assert base.startswith("mine-search-quick-")
    assert name() == base
    assert name(trials=3) == name(trials=99) == base, "a study can be made longer"
    others = [
        name(seed=1),
        name(sampler="random"),
        name(racing="none"),
        name(racing="asha"),
        name(mode="grid"),
        name(runs=("a", "c")),
        name(metric="f1"),
        name(mode="grid", sampler="tpe"),
    ]
    assert len({base, *others}) == 1 + len(others)


def test_what_is_set_for_all_points_is_in_a_studys_name(tmp_path: Path) -> None:
    """It may have no effect at the default point, whose runs are then the same, and one at others."""
    space = small_space(tmp_path, mode="search")
    texts = [(), ("cmlm.temperature=0.1",), ("cmlm.temperature=0.5",), ("cmlm.temperature=0.5", "cmlm.num_views=2")]
    names = [study_name(space, 0, (), [parse_override(text, "--set") for text in some]) for some in texts]
    assert len({*names}) == len(texts)
    assert names[0] == study_name(space, 0, ())
    assert study_name(space, 0, (), [parse_override(text, "--set") for text in reversed(texts[3])]) == names[3]


@pytest.mark.parametrize("text", ["../up/with space", ".hidden/ä:b"])
def test_a_folder_can_have_a_studys_name(tmp_path: Path, text: str) -> None:
    space = small_space(tmp_path, SPACE.replace("name: mine", f"name: {json.dumps(text)}"), mode="search")
    name = study_name(space, 0, ())
    assert not name.startswith(".")
    (tmp_path / "studies" / name).mkdir(parents=True)
    assert [path.name for path in (tmp_path / "studies").iterdir()] == [name]


@pytest.mark.parametrize("sampler", ["tpe", "gp", "random"])
def test_a_sampler_of_one_seed_proposes_the_same_points(tmp_path: Path, sampler: str) -> None:
    def proposals(seed: int) -> list[dict[str, Any]]:
        space = small_space(tmp_path, mode="search", sampler=sampler)
        study = optuna.create_study(direction="maximize", sampler=sampler_of(space, seed))
        points = []
        for number in range(12):
            trial = study.ask()
            points.append(space.define(trial))
            study.tell(trial, float(number % 5))
        return points

    assert proposals(3) == proposals(3) != proposals(4)
