"""`verify`: what is published agrees with the records, and every kind of tampering is named; nothing of a store is written."""

from __future__ import annotations

import csv
import json
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


@pytest.fixture
def published(harness: Harness, tmp_path: Path) -> Path:
    """The bench's results as CSV."""
    path = tmp_path / "results.csv"
    path.write_text(harness("report --format csv").out)
    return path


@pytest.fixture
def copied(benched: Benched, tmp_path: Path) -> Path:
    """A copy of the store's database."""
    return shutil.copyfile(benched.folder / ".harness" / "harness.db", tmp_path / "copy.db")


def changed(path: Path, row: int, column: str, value: str) -> None:
    """Write another value into a CSV, in a row counted from 1."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows[row - 1][column] = value
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


def tampered(database: Path, key: str, change: Callable[[dict[str, Any], dict[str, Predictions]], None]) -> None:
    """Change a record and its predictions."""
    with sqlite3.connect(database) as connection:
        body, blob = connection.execute("select record, predictions from records where key = ?", [key]).fetchone()
        record, predictions = json.loads(body), unpacked(blob) if blob else {}
        change(record, predictions)
        body, blob = json.dumps(record), packed(predictions) if blob else None
        connection.execute("update records set record = ?, predictions = ? where key = ?", [body, blob, key])


def test_each_format_is_confirmed_from_any_folder(
    harness: Harness, benched: Benched, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pd.read_csv(published, dtype=RESULT_DTYPES, keep_default_na=False, na_values="")
    frame.to_parquet(tmp_path / "results.parquet", index=False)
    store = f"sqlite:///{benched.folder}/.harness/harness.db"
    for folder in (benched.folder, tmp_path):
        monkeypatch.chdir(folder)
        for path in (published, tmp_path / "results.parquet"):
            said = harness("verify", str(path), "--store", store)
            assert said.status == 0, said.out
            assert said.out.endswith("Confirmed.\n")
            assert "Differences from what plan and records give: 0." in said.out
            assert "Compared with the plan of 14 runs of: harness bench --table few_shot" in said.out


# ----------------------------------------------------------------------------------------------------- tampering


@dataclass
class Scene:
    """A copy of the bench's database, and files printed from it. `run`: the command, `keys`: of the bench's runs."""

    run: Harness
    keys: dict[tuple[str, int], str]
    database: Path

    @property
    def store(self) -> str:
        return f"sqlite:///{self.database}"

    def sql(self, statement: str, *values: str) -> list[Any]:
        with sqlite3.connect(self.database) as connection:
            return connection.execute(statement, values).fetchall()

    def printed(self, change: Callable[[list[dict[str, Any]]], Any] = lambda rows: None) -> Path:
        """The results as CSV, with changed rows."""
        path = self.database.with_suffix(".csv")
        path.write_text(self.run("report", "--format", "csv", "--store", self.store).out)
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        names = [*rows[0]]
        change(rows)
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
        return path

    def worst(self) -> list[str]:
        with self.printed().open(newline="") as file:
            rows = sorted(csv.DictReader(file), key=lambda row: float(row["test"]))
        return list(dict.fromkeys(row["key"] for row in rows))[:3]


@pytest.fixture
def scene(harness: Harness, benched: Benched, copied: Path) -> Scene:
    return Scene(harness, benched.keys, copied)


def without_worst(scene: Scene) -> Path:
    for key in scene.worst():
        scene.sql("delete from records where key = ?", key)
    return scene.printed()


def best_repeated(scene: Scene) -> Path:
    return scene.printed(lambda rows: rows.extend(30 * [max(rows, key=lambda row: float(row["test"]))]))


def row_added(scene: Scene) -> Path:
    return scene.printed(lambda rows: rows.append(rows[2] | {"seed": "53", "test": "0.99"}))


def row_renamed(scene: Scene) -> Path:
    return scene.printed(lambda rows: rows[2].update(row="SCL (ours)"))


def row_dropped(scene: Scene) -> Path:
    return scene.printed(lambda rows: rows.pop(3))


def seed_dropped(scene: Scene) -> Path:
    return scene.printed(lambda rows: rows.__setitem__(slice(None), [row for row in rows if row["seed"] == "31"]))


def parents_deleted(scene: Scene) -> Path:
    path = scene.printed()
    store = Store(scene.store, create=False)
    for seed in (31, 42):
        stage = store.stage(scene.keys["CMLM", seed])
        assert stage is not None
        assert stage.parent is not None
        scene.sql("delete from records where key = ?", stage.parent.key)
    return path


NOT, PART = "NOT confirmed.\n", "Confirmed in part, without "


@pytest.mark.parametrize(
    ("tamper", "verdict", "says"),
    [
        (without_worst, PART, "without 3 of the 14 runs of the bench, which have no record (never trained, or deleted)."),
        (best_repeated, NOT, "Contradictions: 30.\n  row 15 ("),
        (row_added, NOT, "row 15 (SCL, sst2, 20 examples, subset 0, seed 53, accuracy): the bench has no such run and score"),
        (row_renamed, NOT, "the file leaves out the run SCL, sst2, 20 examples, subset 0, seed 31"),
        (row_dropped, NOT, "the file leaves out the run SCL, sst2, 20 examples, subset 0, seed 42"),
        (seed_dropped, PART, "without 7 of the 14 runs of the bench, which the file leaves out."),
        (parents_deleted, NOT, "the post-train stage before runs of the file: the store has no record "),
    ],
)  # fmt: skip
def test_tampering_is_named(tamper: Callable[[Scene], Path], verdict: str, says: str, scene: Scene) -> None:
    path = tamper(scene)
    said = scene.run("verify", str(path), "--store", scene.store)
    assert said.status == 1, said.out
    assert says in said.out, said.out
    assert verdict in said.out[said.out.rindex("Not checked: ") :], said.out


def test_without_its_data_a_bench_is_not_confirmed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    path = scene.printed()

    def gone(*_: Any, **__: Any) -> None:
        raise UserError("There is no folder data.")

    monkeypatch.setattr("harness.commands.verify.prepare_recorded", gone)
    said = scene.run("verify", str(path), "--store", scene.store)
    assert said.status == 1
    assert "14 rows whose bench cannot be planned here (There is no folder data)" in said.out, said.out
    assert PART in said.out


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("test", "0.987", "row 3 (SCL, sst2, 20 examples, subset 0, seed 31, accuracy): test is 0.987 in the file and "),
        ("dev", "", "row 3 (SCL, sst2, 20 examples, subset 0, seed 31, accuracy): dev is missing in the file and "),
        ("metric", "f1", "row 3 (SCL, sst2, 20 examples, subset 0, seed 31, f1): the bench has no such run and score"),
    ],
)  # fmt: skip
def test_a_changed_figure_is_named(column: str, value: str, says: str, harness: Harness, published: Path) -> None:
    changed(published, 3, column, value)
    said = harness("verify", str(published))
    assert said.status == 1
    assert says in said.out, said.out
    assert said.out.endswith("NOT confirmed.\n")


def parquet_of(**column: Any) -> bytes:
    row = dict.fromkeys(RESULT_DTYPES, "a") | {"size": 1, "subset": 1, "seed": 1, "test": 0.5} | column
    return pd.DataFrame([row]).to_parquet()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("none.csv", None, "cannot be read (No such file or directory)"),
        ("other.csv", "a,b\n1,2\n", "is not a file of results, as 'harness report --format csv' writes it (it has no column size, row, "),
        ("ragged.csv", "a,b\n1,2,3\n", "(it has rows with more values than columns)"),
        ("empty.csv", "", "(No columns to parse from file)"),
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


def test_wrong_values_and_places_are_refused(harness: Harness, published: Path) -> None:
    assert "--seed draws the stages of --rerun K" in harness("verify", str(published), "--seed", "1").err
    assert "There is no store at " in harness("verify", str(published), "--store", "sqlite:///nowhere.db").err
    changed(published, 2, "seed", "many")
    assert "(invalid literal for int() with base 10: 'many')" in harness("verify", str(published)).err


def test_stages_trained_again_are_bit_identical_and_the_store_is_only_read(
    harness: Harness, benched: Benched, published: Path
) -> None:
    """Twelve of the stages: leaves, and stages without labels, whose weights are compared."""
    before = {path: path.read_bytes() for path in (benched.folder / ".harness").rglob("*") if path.is_file()}
    said = harness("verify", str(published), "--rerun", "12", "--seed", "3")
    assert said.status == 0, said.out
    assert "Stages trained again: 12, of which 12 agree with their records." in said.out
    assert said.out.count("bit-identical") == 12
    assert " predictions and weights (" in said.out, "a stage without labels is among them"
    assert {path: path.read_bytes() for path in (benched.folder / ".harness").rglob("*") if path.is_file()} == before


def test_predictions_that_training_does_not_give_are_found(
    harness: Harness, benched: Benched, published: Path, copied: Path
) -> None:
    """Test predictions changed and published: only training finds that out."""

    def better(_: dict[str, Any], predictions: dict[str, Predictions]) -> None:
        for each in predictions.values():
            each.logits[:2] += 1e-4

    for key in benched.keys.values():
        tampered(copied, key, better)
    store = f"sqlite:///{copied}"
    assert harness("verify", str(published), "--store", store).status == 0
    said = harness("verify", str(published), "--store", store, "--rerun", "99")
    assert said.status == 1
    assert said.out.count("DIFFERS from its record in its predictions (logits by up to 0.0001)") == len(benched.keys)


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
