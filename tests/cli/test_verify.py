"""`verify`: what is published agrees with the records, and every kind of tampering is named; nothing of a store is written."""

from __future__ import annotations

import csv
import re
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import trained
from cli.command import Said, command
from cli.conftest import Benched

from harness.commands import rerun
from harness.commands.verify import read_results
from harness.errors import UserError
from harness.kinds import Predictions
from harness.scores import RESULT_DTYPES
from harness.specs import Record
from harness.store import Store
from harness.store.rows import packed, unpacked

Harness = Callable[..., Said]


@pytest.fixture(autouse=True)
def _trained_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.commands.rerun.train", trained.train_here)


@pytest.fixture
def harness(benched: Benched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Harness:
    """The command in the folder of that bench."""
    monkeypatch.chdir(benched.folder)
    return lambda *words: command(capsys, *words)


@dataclass
class Scene:
    """A copy of the bench's database, and files printed from it. `run`: the command, `keys`: of the bench's runs."""

    run: Harness
    keys: dict[tuple[str, int], str]
    database: Path

    @property
    def store(self) -> str:
        return f"sqlite:///{self.database}"

    def delete(self, key: str) -> None:
        with sqlite3.connect(self.database) as connection:
            connection.execute("delete from records where key = ?", [key])

    def printed(self, change: Callable[[list[dict[str, Any]]], Any] = lambda rows: None) -> Path:
        """The results as CSV, with changed rows."""
        path = self.database.with_suffix(".csv")
        rows = list(csv.DictReader(self.run("report", "--format", "csv", "--store", self.store).out.splitlines()))
        names = [*rows[0]]
        change(rows)
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
        return path

    def verify(self, path: Path, *words: str) -> Said:
        return self.run("verify", str(path), "--store", self.store, *words)


@pytest.fixture
def scene(harness: Harness, benched: Benched, tmp_path: Path) -> Scene:
    database = benched.folder / ".harness" / "harness.db"
    return Scene(harness, benched.keys, shutil.copyfile(database, tmp_path / "copy.db"))


def test_each_format_is_confirmed_from_any_folder(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = scene.printed()
    frame = pd.read_csv(path, dtype=RESULT_DTYPES, keep_default_na=False, na_values="")
    frame.to_parquet(tmp_path / "results.parquet", index=False)
    monkeypatch.chdir(tmp_path)
    for each in (path, tmp_path / "results.parquet"):
        said = scene.verify(each)
        assert said.status == 0, said.out
        assert said.out.endswith("Confirmed.\n")
        assert "Differences from what plan and records give: 0." in said.out
        assert "Compared with the plan of 14 runs of: harness bench --table few_shot" in said.out


# ----------------------------------------------------------------------------------------------------- tampering


def worst_deleted(scene: Scene) -> Path:
    with scene.printed().open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: float(row["test"]))
    for row in rows[:3]:
        scene.delete(row["key"])
    return scene.printed()


def parents_deleted(scene: Scene) -> Path:
    path, store = scene.printed(), Store(scene.store, create=False)
    for seed in (31, 42):
        parent = store.stage(scene.keys["CMLM", seed]).parent  # type: ignore[union-attr]
        assert parent is not None
        scene.delete(parent.key)
    return path


def bench_forgotten(scene: Scene) -> Path:
    path = scene.printed()
    with sqlite3.connect(scene.database) as connection:
        connection.execute("delete from requests")
    return path


def changed(change: Callable[[list[dict[str, Any]]], Any]) -> Callable[[Scene], Path]:
    return lambda scene: scene.printed(change)


NOT, PART = "NOT confirmed.\n", "Confirmed in part, without "
PLACE = "row 3 (SCL, sst2, 20 examples, subset 0, seed 31, "


@pytest.mark.parametrize(
    ("tamper", "verdict", "says"),
    [
        (worst_deleted, PART, "without 3 of the 14 runs of the bench, which have no record (never trained, or deleted)."),
        (bench_forgotten, PART, "14 rows whose bench cannot be planned here ("),
        (parents_deleted, NOT, "the post-train stage before runs of the file: the store has no record "),
        (changed(lambda rows: rows.extend(30 * [max(rows, key=lambda row: float(row["test"]))])), NOT, "Contradictions: 30.\n  row 15 ("),
        (changed(lambda rows: rows.append(rows[2] | {"seed": "53", "test": "0.99"})), NOT,
         "row 15 (SCL, sst2, 20 examples, subset 0, seed 53, accuracy): the bench has no such run and score"),
        (changed(lambda rows: rows[2].update(row="SCL (ours)")), NOT, "the file leaves out the run SCL, sst2, 20 examples, subset 0, seed 31"),
        (changed(lambda rows: rows.pop(3)), NOT, "the file leaves out the run SCL, sst2, 20 examples, subset 0, seed 42"),
        (changed(lambda rows: rows.__setitem__(slice(None), [row for row in rows if row["seed"] == "31"])), PART,
         "without 7 of the 14 runs of the bench, which the file leaves out."),
        (changed(lambda rows: rows[2].update(test="0.987")), NOT, f"{PLACE}accuracy): test is 0.987 in the file and "),
        (changed(lambda rows: rows[2].update(dev="")), NOT, f"{PLACE}accuracy): dev is missing in the file and "),
        (changed(lambda rows: rows[2].update(metric="f1")), NOT, f"{PLACE}f1): the bench has no such run and score"),
    ],
)  # fmt: skip
def test_tampering_is_named(tamper: Callable[[Scene], Path], verdict: str, says: str, scene: Scene) -> None:
    said = scene.verify(tamper(scene))
    assert said.status == 1, said.out
    assert says in said.out, said.out
    assert verdict in said.out[said.out.rindex("Not checked: ") :], said.out


def parquet_of(**column: Any) -> bytes:
    row = dict.fromkeys(RESULT_DTYPES, "a") | {"size": 1, "subset": 1, "seed": 1, "test": 0.5} | column
    return pd.DataFrame([row]).to_parquet()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("none.csv", None, "cannot be read (No such file or directory)"),
        ("other.csv", "a,b\n1,2\n", "is not a file of results, as 'harness report --format csv' writes it (it has no column size, row, "),
        ("ragged.csv", "a,b\n1,2,3\n", "(it has rows with more values than columns)"),
        ("other.json", "[1]", "(it should be a .csv or .parquet file)"),
        ("broken.parquet", b"PAR1", "is not a file of results"),
        ("huge.csv", f"{','.join(RESULT_DTYPES)}\n{','.join(['1'] * 7 + ['1' + '0' * 400] + ['1'] * 14)}\n", "is not a file of results"),
        ("dict.parquet", parquet_of(seed={"a": 1}), "is not a file of results"),
    ],
)  # fmt: skip
def test_other_files_are_refused(name: str, content: str | bytes | None, says: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=re.escape(says)):
        read_results(tmp_path / name)


def test_wrong_values_and_places_are_refused(scene: Scene) -> None:
    path = scene.printed()
    assert "--seed draws the stages of --rerun K" in scene.verify(path, "--seed", "1").err
    assert "There is no store at " in scene.run("verify", str(path), "--store", "sqlite:///nowhere.db").err
    path = scene.printed(lambda rows: rows[1].update(seed="many"))
    assert "(invalid literal for int() with base 10: 'many')" in scene.verify(path).err


def test_stages_trained_again_are_bit_identical_and_the_store_is_only_read(scene: Scene, benched: Benched) -> None:
    """Twelve of the stages: leaves, and stages without labels, whose weights are compared."""
    before = {path: path.read_bytes() for path in (benched.folder / ".harness").rglob("*") if path.is_file()}
    said = scene.run("verify", str(scene.printed()), "--rerun", "12", "--seed", "3")
    assert said.status == 0, said.out
    assert "Stages trained again: 12, of which 12 agree with their records." in said.out
    assert said.out.count("bit-identical") == 12
    assert " predictions and weights (" in said.out, "a stage without labels is among them"
    assert {path: path.read_bytes() for path in (benched.folder / ".harness").rglob("*") if path.is_file()} == before


def test_predictions_that_training_does_not_give_are_found(scene: Scene) -> None:
    """Test predictions changed and published: only training finds that out."""
    path, keys = scene.printed(), [scene.keys[row, 31] for row in ("FT", "SCL")]
    with sqlite3.connect(scene.database) as connection:
        for key, blob in connection.execute("select key, predictions from records").fetchall():
            if key in keys:
                predictions = unpacked(blob)
                for each in predictions.values():
                    each.logits[:2] += 1e-4
                connection.execute("update records set predictions = ? where key = ?", [packed(predictions), key])
    assert scene.verify(path).status == 0
    said = scene.verify(path, "--rerun", "99")
    assert said.status == 1
    assert said.out.count("DIFFERS from its record in its predictions (logits by up to 0.0001)") == len(keys)


# ----------------------------------------------------------------------------------------------- other hardware


def results_of(scores: np.ndarray[Any, Any]) -> pd.DataFrame:
    place = {"row": "FT", "column": "c", "size": 20, "metric": "accuracy", "evaluation": "test"}
    runs = [{"subset": s, "seed": r, "test": x, "key": f"k{s}{r}"} for (s, r), x in np.ndenumerate(scores)]
    return pd.DataFrame([place | run for run in runs])


def test_the_tolerance_holds_runs_of_one_subset_and_seed() -> None:
    """Two runs that differ by their own noise alone lie within the tolerance of their cell in 95 % of cases."""
    rng, held, draws = np.random.default_rng(0), 0, 400
    for _ in range(draws):
        effects = rng.normal(0, 0.05, (5, 1)) + rng.normal(0, 0.02, (1, 3))
        scores = 0.7 + effects + rng.normal(0, 0.01, (5, 3))
        again = 0.7 + effects[0, 0] + rng.normal(0, 0.01)
        found = rerun.tolerance_of(results_of(scores), "k00", 1)
        assert found is not None
        held += abs(again - scores[0, 0]) <= found.value
    assert 0.92 <= held / draws <= 0.98
    assert rerun.tolerance_of(results_of(np.full((1, 1), 0.5)), "k00", 1) is None


def test_on_other_hardware_scores_and_first_losses_are_compared(
    benched: Benched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(benched.folder)
    store = Store("sqlite:///.harness/harness.db", create=False)
    key = benched.keys["FT", 31]
    stage, record = store.stage(key), store.records([key], predictions=True)[key]
    assert stage is not None
    moved = replace(record, provenance=record.provenance | {"device": "abacus"})
    agrees, said = rerun.judged(stage, record, moved, None)
    assert agrees
    assert "too few runs for a tolerance of scores (other hardware: device abacus instead of" in said
    limit = rerun.Tolerance("accuracy", "test", 0.05, 15)
    assert rerun.within_tolerance(stage, record, moved, limit)[0]
    worse = {d: Predictions({"logits": -each.logits}, each.gold) for d, each in record.predictions.items()}
    agrees, said = rerun.within_tolerance(stage, record, replace(record, predictions=worse), limit)
    assert not agrees
    assert "tolerance 5.00 points by the runs of its cell (15)" in said
    history = [entry | {"loss": 9.0, "curve": {}} for entry in record.history]
    assert not rerun.within_tolerance(stage, record, replace(record, history=history), limit)[0]
    assert not rerun.judged(stage, record, Record(key, "failed", "no memory"), None)[0]
