"""`verify`: what is published agrees with the records, and every kind of tampering is named; nothing of a store is written."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from cli.command import command
from cli.conftest import Benched
from cluster import in_process

import harness as api
from harness.commands.publish import Verified, judged, read_results, rerun, verify
from harness.commands.train import unshown
from harness.errors import UserError
from harness.scores import RESULT_DTYPES
from harness.specs import Record
from harness.store import Store
from harness.store.records import packed


@pytest.fixture(scope="module")
def written(benched: Benched) -> pd.DataFrame:
    """What `harness report` prints of the bench: 14 runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(benched.folder)
        return api.results()


@dataclass
class Scene:
    """A copy of the bench's database, and the results that are published of it. `keys`: of the bench's runs."""

    frame: pd.DataFrame
    keys: dict[tuple[str, int], str]
    database: Path

    @property
    def store(self) -> str:
        return f"sqlite:///{self.database}"

    def execute(self, statement: str, *values: Any) -> None:
        with sqlite3.connect(self.database) as connection:
            connection.execute(statement, values)

    def delete(self, key: str) -> None:
        self.execute("delete from records where key = ?", key)

    def change(self, **values: Any) -> None:
        """Of the third row."""
        for name, value in values.items():
            self.frame.loc[2, name] = value

    @property
    def path(self) -> Path:
        path = self.database.with_suffix(".csv")
        self.frame.to_csv(path, index=False)
        return path

    def verify(self) -> Verified:
        return verify(self.path, self.store)


@pytest.fixture
def scene(benched: Benched, written: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.chdir(benched.folder)
    in_process.patch(monkeypatch)
    database = shutil.copyfile(benched.folder / ".harness" / "harness.db", tmp_path / "copy.db")
    return Scene(written.copy(), benched.keys, database)


def test_each_format_is_confirmed_from_any_folder(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.frame.to_parquet(tmp_path / "results.parquet", index=False)
    monkeypatch.chdir(tmp_path)
    for path in (scene.path, tmp_path / "results.parquet"):
        said = command(capsys, "verify", str(path), "--store", scene.store)
        assert said.status == 0, said.out
        assert said.out.endswith("Confirmed.\n")
        assert "Differences from what plan and records give: 0." in said.out
        assert "Compared with the plan of 14 runs of: harness bench --table few_shot" in said.out


# ----------------------------------------------------------------------------------------------------- tampering


def worst_deleted(scene: Scene) -> None:
    for key in scene.frame.sort_values("test")["key"][:3]:
        scene.delete(key)
        scene.frame = scene.frame[scene.frame["key"] != key]


def parents_deleted(scene: Scene) -> None:
    for seed in (31, 42):
        key = scene.keys["CMLM", seed]
        stage = Store(scene.store, create=False).stages([key])[key]
        assert stage
        assert stage.parent
        scene.delete(stage.parent.key)


def repeated(scene: Scene) -> None:
    scene.frame = pd.concat([scene.frame, *[scene.frame.nlargest(1, "test")] * 30])


def added(scene: Scene) -> None:
    scene.frame = pd.concat([scene.frame, scene.frame[2:3].assign(seed=53, test=0.99)])


def one_seed(scene: Scene) -> None:
    scene.frame = scene.frame[scene.frame["seed"] == 31]


PLACE = "row 3 (SCL, sst2, 20 examples, subset 0, seed 31, "


@pytest.mark.parametrize(
    ("tamper", "kind", "says"),
    [
        (worst_deleted, "unchecked", "runs of the bench, which have no record (never trained, or deleted): 3"),
        (lambda scene: scene.execute("delete from requests"), "unchecked", "rows whose bench cannot be planned here ("),
        (parents_deleted, "problems", "the post-train stage before runs of the file: the store has no record "),
        (repeated, "problems", "repeats an earlier one"),
        (added, "problems", "row 15 (SCL, sst2, 20 examples, subset 0, seed 53, accuracy): the bench has no such run and score"),
        (lambda scene: scene.change(row="SCL (ours)"), "problems", f"{PLACE.replace('SCL', 'SCL (ours)')}accuracy): the bench has no such"),
        (lambda scene: vars(scene).update(frame=scene.frame.drop(3)), "problems", "the file leaves out SCL, sst2, 20 examples, subset 0, seed 42"),
        (one_seed, "unchecked", "scores of the bench, which the file leaves out: 7"),
        (lambda scene: scene.change(test=0.987), "differing", f"{PLACE}accuracy): test is 0.987 in the file and "),
        (lambda scene: scene.change(dev=None), "differing", f"{PLACE}accuracy): dev is missing in the file and "),
        (lambda scene: scene.change(metric="f1"), "problems", f"{PLACE}f1): the bench has no such run and score"),
    ],
)  # fmt: skip
def test_tampering_is_named(tamper: Callable[[Scene], Any], kind: str, says: str, scene: Scene) -> None:
    tamper(scene)
    found = scene.verify()
    said = {"differing": found.differing, "problems": found.problems}
    said["unchecked"] = [f"{what}: {len(places)}" for what, places in found.unchecked.items()]
    assert [each for each in said[kind] if says in each], said
    others = [name for name, told in said.items() if told and name != kind]
    assert not others or kind == "problems", said


def parquet_of(**column: Any) -> bytes:
    row = dict.fromkeys(RESULT_DTYPES, "a") | {"size": 1, "subset": 1, "seed": 1, "test": 0.5} | column
    return pd.DataFrame([row]).to_parquet()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("none.csv", None, "([Errno 2] No such file or directory"),
        ("other.csv", "a,b\n1,2\n", "is not a file of results, as 'harness report --format csv' writes it (missing or unknown columns: a, b, "),
        ("ragged.csv", f"{','.join(RESULT_DTYPES)}\n{','.join(['a'] * 24)}\n", "is not a file of results"),
        ("broken.parquet", b"PAR1", "is not a file of results"),
        ("huge.csv", f"{','.join(RESULT_DTYPES)}\n{','.join(['1'] * 7 + ['1' + '0' * 400] + ['1'] * 14)}\n", "is not a file of results"),
        ("dict.parquet", parquet_of(seed={"a": 1}), "is not a file of results"),
        ("more.parquet", parquet_of(claimed=1.0), "missing or unknown columns: claimed"),
        ("nameless.csv", f"{','.join(RESULT_DTYPES)}\n{','.join([''] * 5 + ['1'] * 3 + [''] * 14)}\n", "is not a file of results"),
    ],
)  # fmt: skip
def test_other_files_are_refused(name: str, content: str | bytes | None, says: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=re.escape(says)):
        read_results(tmp_path / name)


def test_stages_trained_again_are_bit_identical_and_the_store_is_only_read(
    scene: Scene, benched: Benched, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twelve of the stages: leaves, and stages without labels, whose weights are compared."""
    before = {path: path.read_bytes() for path in (benched.folder / ".harness").rglob("*") if path.is_file()}
    said = command(capsys, "verify", str(scene.path), *["--rerun", "12"])
    assert said.status == 0, said.out
    assert "Stages trained again: 12, of which 12 agree with their records." in said.out
    assert said.out.count("bit-identical") == 12
    assert " predictions and weights (" in said.out, "a stage without labels is among them"
    assert {path: path.read_bytes() for path in (benched.folder / ".harness").rglob("*") if path.is_file()} == before


def test_predictions_that_training_does_not_give_are_found(scene: Scene) -> None:
    """Test predictions changed and published: only training finds that out."""
    keys = [scene.keys[row, 31] for row in ("FT", "SCL")]
    scene.frame = scene.frame[scene.frame["key"].isin(keys)]
    for key, record in Store(scene.store, create=False).records(keys, predictions=True).items():
        for each in record.predictions.values():
            each.logits[:2] += 1e-4
        scene.execute("update records set predictions = ? where key = ?", packed(record.predictions), key)
    found = scene.verify()
    assert found.differing == found.problems == []
    for agrees, said in rerun(found, 99, unshown):
        assert (agrees, "DIFFERS from its record in its predictions (logits by up to 0.0001)" in said) == (False, True)


# ----------------------------------------------------------------------------------------------- other hardware


def test_on_other_hardware_first_losses_are_compared(benched: Benched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(benched.folder)
    store = Store("sqlite:///.harness/harness.db", create=False)
    key = benched.keys["FT", 31]
    stage, record = store.stages([key])[key], store.records([key], predictions=True)[key]
    assert stage is not None
    moved = replace(record, provenance=record.provenance | {"device": "abacus"})
    agrees, said = judged(stage, record, moved)
    assert agrees
    assert "first losses differ by 0.0e+00 of their value, tolerance 1e-03; dev accuracy " in said
    assert "(other hardware: device abacus instead of" in said
    history = [entry | {"loss": 9.0, "curve": {}} for entry in record.history]
    assert not judged(stage, record, replace(moved, history=history))[0]
    fitted, here = (replace(each, history=[]) for each in (record, moved))  # as by scikit-learn
    assert judged(stage, fitted, here)[0]
    assert not judged(stage, fitted, replace(here, dev_scores={"accuracy": 0.0}))[0]
    assert not judged(stage, record, Record(key, "failed", "no memory"))[0]
