"""A study as it is stored: the store returns proposals and outcomes, and Optuna's own tables agree."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from search.small import SPACE, outcome, small_space
from sqlalchemy.exc import OperationalError

from harness.errors import UserError
from harness.planning.request import parse_override
from harness.search.space import ResolvedSpace
from harness.search.study import Entry, History, OptunaMirror, sampler_of, study_name
from harness.search.trials import ReplicateOutcome
from harness.store import Owner, Store

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
    metrics = space.metrics or ("accuracy",)
    mirror = OptunaMirror(space, name, store, metrics)
    history = History(name, store, mirror)
    mirror.sync(history.entries)
    return history, mirror


def worked(history: History) -> None:
    """A study with a trial of each kind: complete, dropped, failed, one with a divergence, repeated, running."""
    for number, values in ((0, (0.5, 0.7, 0.6)), (1, (0.4, 1 / 3))):
        assert history.propose(POINTS[number]) == number
        for done, value in enumerate(values, 1):
            assert history.add_outcome(number, done, outcome(value))
    history.finish(0, "complete", "", (0.6,))
    history.finish(1, "dropped", "paired t -9.0 over 3 subsets", (0.35,))
    assert history.propose(POINTS[2]) == 2
    history.finish(2, "failed", "no such thing", None)
    assert history.propose({**POINTS[0], "alpha": 0.50001}, same_as=0) == 3
    history.finish(3, "complete", "", (0.6,))
    assert history.propose(POINTS[3]) == 4
    history.add_outcome(4, 1, outcome(0.0, status="diverged", reason="the loss is not finite"))
    history.finish(4, "complete", "", (0.0,))
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


def test_an_entry_is_its_json(store: Store) -> None:
    history = History("mine", store, None)
    worked(history)
    for entry in history.entries.values():
        assert Entry.from_json(json.loads(json.dumps(entry.to_json(), allow_nan=False))) == entry


def test_when_a_sampler_was_told_what(store: Store) -> None:
    history = History("mine", store, None)
    worked(history)
    entries = history.entries.values()
    assert [(e.order, e.after, e.told) for e in entries] == [
        (0, 2, (0.6,)),
        (1, 2, (0.35,)),
        (2, 3, None),
        (3, 4, (0.6,)),
        (4, 5, (0.0,)),
        (-1, -1, None),
    ]
    assert [e.ended for e in entries] == [True] * 5 + [False]


def test_a_repeated_point_shows_what_the_earlier_one_found(store: Store) -> None:
    history = History("mine", store, None)
    worked(history)
    (again,) = history.repeated
    assert (again.number, again.point["alpha"]) == (3, 0.50001)
    assert (again.outcomes, again.state) == (history.entries[0].trial.outcomes, "complete")


def test_a_replicate_that_is_reported_again_is_not_counted_again(store: Store) -> None:
    history = History("mine", store, None)
    history.propose(POINTS[0])
    assert history.add_outcome(0, 1, outcome(0.5))
    assert not history.add_outcome(0, 1, outcome(0.9))
    assert history.add_outcome(0, 2, outcome(0.7))
    assert not history.add_outcome(0, 1, outcome(0.9))
    assert history.entries[0].trial.values() == (0.5, 0.7)


def test_a_trial_that_is_run_again_keeps_what_the_sampler_was_told(store: Store) -> None:
    history = History("mine", store, None)
    history.propose(POINTS[0])
    history.add_outcome(0, 1, outcome(0.0, status="failed", reason="killed"))
    history.finish(0, "complete", "", (0.0,))
    before = history.entries[0]
    history.restart(0)
    assert (history.entries[0].trial.outcomes, history.entries[0].trial.state) == ((), "running")
    assert History("mine", store, None).entries[0] == before, "killed now, the next command runs it again"
    history.add_outcome(0, 1, outcome(0.8))
    history.finish(0, "complete", "", (0.8,))
    after = History("mine", store, None).entries[0]
    assert after.trial.values() == (0.8,)
    assert (after.told, after.order, after.after) == (before.told, before.order, before.after)


def test_a_gap_in_the_numbers_is_refused(store: Store) -> None:
    history = History("mine", store, None)
    for point in POINTS[:3]:
        history.propose(point)
    with sqlite3.connect(store.path or "") as connection:
        connection.execute("DELETE FROM tune_trials WHERE number = 1")
    with pytest.raises(UserError, match=r"^The study mine misses trials in the store; take another sampler seed"):
        History("mine", store, None)


@pytest.mark.parametrize(
    ("trial", "why"),
    [
        ({}, "trial.number: Field required"),
        ({"number": 0, "point": [], "outcomes": []}, "trial.point: "),
        ({"number": 0, "point": {}, "outcomes": [{"values": []}]}, "trial.outcomes.0: Value error, the values of"),
        ({"number": 0, "point": {}, "state": "lost"}, "trial.state: "),
    ],
)
def test_a_trial_of_another_shape_is_refused(store: Store, trial: dict[str, Any], why: str) -> None:
    store.keep_trial("mine", 0, {"trial": trial, "same_as": None, "told": None, "after": 0, "order": 0})
    with pytest.raises(UserError, match=rf"has a damaged trial 0 of the study mine \({why}.*take another sampler seed"):
        History("mine", store, None)


def test_a_store_that_never_held_a_study_has_none(tmp_path: Path, store: Store) -> None:
    assert store.trials("mine") == {}
    assert Store(f"sqlite:///{tmp_path / 'nowhere.db'}", create=False).trials("mine") == {}
    assert not (tmp_path / "nowhere.db").exists()
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.keep_trial("mine", 0, {"told": [float("nan")]})


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


def test_params_are_drawn_from_the_spaces_distributions(store: Store, space: ResolvedSpace) -> None:
    """Otherwise importances and slices would be of another space."""
    history, _ = mirrored(store, space)
    history.propose(POINTS[0])
    history.propose(POINTS[1])
    drawn = optuna.create_study()
    trial = drawn.ask()
    space.define(trial)
    mine = seen(store)[0 if trial.params["contrast"] == "simsiam" else 1]
    assert mine.distributions == trial.distributions


def test_going_on_is_idempotent(store: Store, space: ResolvedSpace) -> None:
    history, mirror = mirrored(store, space)
    worked(history)
    before, trial_ids = told(store), [t._trial_id for t in seen(store)]
    mirror.sync(history.entries)
    again, _ = mirrored(Store(store.url), space)
    assert told(store) == before
    assert [t._trial_id for t in seen(store)] == trial_ids, "written anew though nothing differed"
    again.add_outcome(5, 1, outcome(0.9))
    again.finish(5, "dropped", "", (0.9,))
    assert seen(store)[5].state == TrialState.PRUNED


def test_what_is_missing_is_added(store: Store, space: ResolvedSpace) -> None:
    """Killed between the two writes of one proposal, or begun before there was a mirror."""
    worked(History("mine", store, None))
    mirrored(store, space)
    without = told(store)
    optuna.delete_study(study_name="mine", storage=store.url)
    with sqlite3.connect(store.path or "") as connection:
        connection.execute("DELETE FROM tune_trials")
    worked(mirrored(store, space)[0])
    assert without[:5] == told(store)[:5]
    assert without[5][:3] == told(store)[5][:3]


def test_a_trial_that_ended_anew_is_written_anew(store: Store, space: ResolvedSpace) -> None:
    history, mirror = mirrored(store, space)
    history.propose(POINTS[0])
    history.add_outcome(0, 1, outcome(0.0, status="failed", reason="killed"))
    history.finish(0, "complete", "", (0.0,))
    history.propose(POINTS[1])
    history.finish(1, "failed", "no", None)
    history.restart(0)
    history.add_outcome(0, 1, outcome(0.8))
    history.finish(0, "complete", "", (0.8,))
    mirror.sync(history.entries)
    assert [(t.number, t.values, t.state) for t in seen(store)] == [
        (0, [0.8], TrialState.COMPLETE),
        (1, None, TrialState.FAIL),
    ]
    assert seen(store)[0].intermediate_values == {1: 0.8}
    assert "not done" not in seen(store)[0].user_attrs["harness"]
    assert [s.study_name for s in optuna.get_all_study_summaries(store.url)] == ["mine"]


def test_what_someone_else_wrote_into_the_mirror_is_mended(store: Store, space: ResolvedSpace) -> None:
    history, _ = mirrored(store, space)
    worked(history)
    before = told(store)
    study = optuna.load_study(study_name="mine", storage=store.url)
    study.add_trial(optuna.trial.create_trial(value=1.0))
    mirrored(store, space)
    assert told(store)[:5] == before[:5]
    assert len(seen(store)) == len(before)


def test_a_repeated_point_ends_though_the_earlier_one_is_run_again(store: Store, space: ResolvedSpace) -> None:
    history, mirror = mirrored(store, space)
    history.propose(POINTS[0])
    history.add_outcome(0, 1, outcome(0.0, status="failed", reason="killed"))
    history.finish(0, "complete", "", (0.0,))
    history.restart(0)
    history.propose(POINTS[0], same_as=0)
    history.finish(1, history.entries[0].trial.state, "", history.entries[0].told)
    mirror.sync({1: history.entries[1]} | history.entries)
    assert (seen(store)[1].state, seen(store)[1].values) == (TrialState.COMPLETE, [0.0])


def test_several_metrics_have_all_their_values(store: Store, tmp_path: Path) -> None:
    space = small_space(tmp_path, mode="search", metrics=("accuracy", "flops"))
    history, _ = mirrored(store, space)
    history.propose(POINTS[0])
    for done, values in enumerate(((0.5, 3e12), (0.7, 1e12)), 1):
        history.add_outcome(0, done, outcome(*values))
    history.finish(0, "complete", "", (0.6, 2e12))
    (trial,) = seen(store)
    assert trial.values == pytest.approx([0.6, 2e12])
    study = optuna.load_study(study_name="mine", storage=store.url)
    assert ([d.name for d in study.directions], study.metric_names) == (
        ["MAXIMIZE", "MINIMIZE"],
        ["accuracy", "flops"],
    )
    assert [t.number for t in study.best_trials] == [0]


def test_two_studies_in_one_database(store: Store, space: ResolvedSpace, tmp_path: Path) -> None:
    worked(mirrored(store, space, "first")[0])
    first = told(store, "first")
    other = small_space(tmp_path, mode="search", metrics=("accuracy", "flops"))
    second, _ = mirrored(store, other, "second")
    second.propose(POINTS[1])
    mirrored(store, space, "first")
    assert told(store, "first") == first
    assert [t.params for t in seen(store, "second")] == [POINTS[1]]
    assert len(History("first", store, None).entries) == 6


def test_nothing_of_a_test_set_stands_in_optunas_tables(store: Store, space: ResolvedSpace) -> None:
    history, _ = mirrored(store, space)
    worked(history)

    def keys(node: Any) -> set[str]:
        if isinstance(node, Mapping):
            return {str(key) for key in node} | {key for value in node.values() for key in keys(value)}
        return {key for value in node for key in keys(value)} if isinstance(node, list) else set()

    known = {"state", "reason", "replicates", "same as", "not done"}
    for trial in seen(store):
        assert trial.user_attrs.keys() == {"harness"}
        assert keys(trial.user_attrs["harness"]) <= known
        assert not [key for key in trial.system_attrs if "test" in key]
    fields = set(ReplicateOutcome.__dataclass_fields__)
    assert not [name for name in fields if "test" in name], "an outcome that knew the test set could be told"


# -------------------------------------------------------------------------------------------------- one database file


def test_our_tables_and_optunas_live_in_one_file(fresh: Store, space: ResolvedSpace) -> None:
    history, _ = mirrored(fresh, space)
    worked(history)
    owner = Owner.current()
    assert fresh.lease("a stage", owner) == "granted"
    again = Store(fresh.url)
    assert again.lease("a stage", Owner.current()) == "held"
    again.release(owner)
    assert again.statuses(["a stage"]) == {}
    again.keep_translations({"key": "Text"})
    assert again.translations(["key"]) == {"key": "Text"}
    assert len(again.trials("mine")) == 6
    with sqlite3.connect(fresh.path or "") as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {"records", "runs", "leases", "meta", "tune_trials", "studies", "trials", "trial_values"} <= tables
    mirrored(again, space)
    assert len(seen(again)) == 6


def test_a_database_that_is_not_optunas_is_a_sentence(fresh: Store, space: ResolvedSpace) -> None:
    with sqlite3.connect(fresh.path or "") as connection:
        connection.execute("CREATE TABLE studies (something TEXT)")
    with pytest.raises(UserError, match=r"^The store sqlite:///\S+ failed \(table studies has no column"):
        mirrored(fresh, space)


def test_a_full_disk_is_a_sentence(fresh: Store, space: ResolvedSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Optuna wraps the errors of a session, but not those of creating its tables."""

    def full(*_: Any, **__: Any) -> None:
        raise OperationalError("CREATE", {}, sqlite3.OperationalError("database or disk is full"))

    monkeypatch.setattr(optuna.storages._rdb.models.BaseModel.metadata, "create_all", full)
    with pytest.raises(UserError, match=r"failed \(database or disk is full\); .* recorded stages are kept"):
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
        name(metrics=("accuracy", "flops")),
        name(mode="grid", sampler="tpe"),
    ]
    assert len({base, *others}) == 1 + len(others)


@pytest.mark.parametrize(
    ("old", "new"), [("high: 2.0", "high: 1.0"), ("num_views: 1}", "num_views: 2}"), ("step: 0.1", "step: 0.2")]
)
def test_parameters_and_defaults_are_in_a_studys_name(tmp_path: Path, old: str, new: str) -> None:
    changed = small_space(tmp_path, SPACE.replace(old, new), mode="search")
    assert study_name(changed, 0, ()) != study_name(small_space(tmp_path, mode="search"), 0, ())


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


@pytest.mark.parametrize("sampler", ["tpe", "gp", "random", "nsga2"])
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


def test_several_commands_may_open_a_new_database_at_once(fresh: Store, space: ResolvedSpace) -> None:
    together = threading.Barrier(4)

    def opened(name: str) -> str:
        together.wait()
        return str(OptunaMirror(space, name, Store(fresh.url), ("accuracy",)).study.study_name)

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(opened, "abcd")) == list("abcd")
    assert {summary.study_name for summary in optuna.get_all_study_summaries(fresh.url)} == set("abcd")
