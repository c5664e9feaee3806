"""A study's name, its sampler, and its place in a database."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import optuna
import pytest
from search.small import SPACE, small_space

from harness.errors import UserError
from harness.planning.request import parse_override
from harness.search.study import sampler_of, study_name
from harness.store import Store
from harness.store.studies import begun_study, storage_of


def test_a_folder_may_have_braces_in_its_name(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/a{{b}}/harness.db")
    optuna.create_study(study_name="mine", storage=storage_of(store))
    assert store.studies() == ["mine"]
    tables = sqlite3.connect(tmp_path / "a{b}" / "harness.db").execute("SELECT count(*) FROM studies").fetchone()
    assert tables == (1,)


def test_a_database_that_is_not_optunas_is_a_sentence(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'harness.db'}")
    with sqlite3.connect(store.path or "") as connection:
        connection.execute("CREATE TABLE studies (study_name TEXT)")
        connection.execute("INSERT INTO studies VALUES ('mine')")
    with pytest.raises(UserError, match=r"^The store sqlite:///\S+ failed \("):
        begun_study(store, "mine")


# ------------------------------------------------------------------------------------------------ names and samplers


def test_a_studys_name_says_what_decides_its_points(tmp_path: Path) -> None:
    def name(seed: int = 0, runs: tuple[str, ...] = ("a", "b"), old: str = "", new: str = "", **wishes: Any) -> str:
        return study_name(small_space(tmp_path, SPACE.replace(old, new, 1), **{"mode": "search", **wishes}), seed, runs)

    base = name()
    assert base.startswith("mine-search-quick-")
    assert name(trials=3) == name(trials=99) == base, "a study can be made longer"
    assert name(old="\n", new="\nsizes: [20]\nnotes: [so]\n") == base
    others: list[dict[str, Any]] = [{"seed": 1}, {"runs": ("a", "c")}, {"mode": "grid"}]
    others += [{"mode": "grid", "sampler": "tpe"}]
    others += [{"sampler": "random"}, {"racing": "none"}, {"metric": "f1"}]
    changes = {"p_c: 0.7": "p_c: 0.3", "high: 2.0": "high: 3.0", "high: 2.0, log: true": "high: 2.0"}
    changes["when: {contrast: simclr}"] = "when: {contrast: [simclr, simsiam]}"
    others += [{"old": old, "new": new} for old, new in changes.items()]
    assert len({base, *(name(**each) for each in others)}) == 1 + len(others)


def test_what_is_set_for_all_points_is_in_a_studys_name(tmp_path: Path) -> None:
    """It may have no effect at the default point, whose runs are then the same, and one at others."""
    space = small_space(tmp_path, mode="search")
    texts = [(), ("cmlm.temperature=0.1",), ("cmlm.temperature=0.5",), ("cmlm.temperature=0.5", "cmlm.num_views=2")]
    names = [study_name(space, 0, (), [parse_override(text) for text in some]) for some in texts]
    assert len({*names}) == len(texts)
    assert study_name(space, 0, (), [parse_override(text) for text in reversed(texts[3])]) == names[3]


@pytest.mark.parametrize("text", ["../up/with space", ".hidden/ä:b"])
def test_a_folder_can_have_a_studys_name(tmp_path: Path, text: str) -> None:
    space = small_space(tmp_path, SPACE.replace("name: mine", f"name: {json.dumps(text)}"), mode="search")
    name = study_name(space, 0, ())
    assert not name.startswith(".")
    (tmp_path / "studies" / name).mkdir(parents=True)
    assert [path.name for path in (tmp_path / "studies").iterdir()] == [name]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_sampler_of_one_seed_proposes_the_same_points(tmp_path: Path, sampler: str) -> None:
    def proposals(seed: int) -> list[dict[str, Any]]:
        space = small_space(tmp_path, mode="search", sampler=sampler)
        study = optuna.create_study(direction="maximize", sampler=sampler_of(space, seed))
        points = []
        for number in range(6):
            trial = study.ask()
            points.append(space.define(trial))
            study.tell(trial, float(number % 5))
        return points

    assert proposals(3) == proposals(3) != proposals(4)
