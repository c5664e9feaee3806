"""`verify`: what is published agrees with the records, and every kind of tampering is named; nothing of a store is written."""

from __future__ import annotations

import csv
import json
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import trained
from cli.command import Said, command
from cli.conftest import Benched

from harness.commands import rerun
from harness.commands.verify import Verification
from harness.specs import Predictions, Record
from harness.store import Store
from harness.store.integrity import checksum, packed, sha256_of, unpacked
from harness.tables.published import Published
from harness.tables.schema import RESULT_DTYPES

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
    """Change a record and its predictions, and write the checksum that the change needs."""
    with sqlite3.connect(database) as connection:
        names = "status, attempt, stage, record, predictions"
        status, attempt, stage, body, blob = connection.execute(
            f"select {names} from records where key = ?", [key]
        ).fetchone()
        record, predictions = json.loads(body), unpacked(blob)
        change(record, predictions)
        body, blob = json.dumps(record), packed(predictions)
        whole = checksum(key, status, attempt, stage, body, sha256_of(blob))
        connection.execute(
            "update records set record = ?, predictions = ?, checksum = ? where key = ?", [body, blob, whole, key]
        )


def test_each_format_is_confirmed(harness: Harness, published: Path, tmp_path: Path) -> None:
    every = tmp_path / "results.json"
    every.write_text(harness("report --format json").out)
    part = tmp_path / "part.json"
    part.write_text(harness("report --last --seeds 31 --methods ft,cmlm --format json").out)
    frame = pd.read_csv(published, dtype=RESULT_DTYPES, keep_default_na=False, na_values="")
    frame.to_parquet(tmp_path / "results.parquet", index=False)
    figures = []
    for path in (published, every, tmp_path / "results.parquet", part):
        said = harness("verify", str(path))
        assert said.status == 0, said.out
        assert said.out.endswith("Confirmed.\n")
        assert "of which 0 differ" in said.out
        figures.append(int(said.out.split("again from the records: ")[1].split(",")[0]))
    assert figures[0] == figures[2] == 14 * len(RESULT_DTYPES)
    assert figures[1] > figures[0], "cells are compared too"
    assert "14 rows of 14 runs of table few_shot" in harness("verify", str(published)).out
    assert "has 12 more runs" not in harness("verify", str(every)).out
    assert "which the file leaves out" in harness("verify", str(part)).out


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        (
            "test",
            "0.987",
            "row 3 (SCL, sst2, 20 examples, subset 0, seed 31, accuracy): test is 0.987 in the file and ",
        ),
        ("dev", "", "row 3 (SCL, sst2, 20 examples, subset 0, seed 31, accuracy): dev is missing in the file and "),
        ("hardware", "abacus", "hardware is 'abacus' in the file and "),
        ("seed", "33", "seed 33, accuracy): its key "),
        ("row", "CMLM", "is the run of SCL, sst2, 20 examples, subset 0, seed 31"),
        ("key", "f" * 32, "the store has no record ffffffffffff"),
    ],
)
def test_a_changed_figure_is_named(column: str, value: str, says: str, harness: Harness, published: Path) -> None:
    changed(published, 3, column, value)
    said = harness("verify", str(published))
    assert said.status == 1
    assert says in said.out, said.out
    assert said.out.endswith("NOT confirmed.\n")


def test_a_row_that_is_left_out_is_missed(harness: Harness, published: Path) -> None:
    lines = published.read_text().splitlines()
    published.write_text("\n".join([*lines[:4], *lines[5:]]) + "\n")
    said = harness("verify", str(published))
    assert said.status == 1
    assert "the file leaves out 1 row of its own subsets and seeds; the first: SCL, sst2" in said.out


def test_a_changed_cell_of_a_json_file_is_named(harness: Harness, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    body = json.loads(harness("report --format json").out)
    body["cells"][0]["value"] += 0.01
    path.write_text(json.dumps(body))
    said = harness("verify", str(path))
    assert said.status == 1
    assert "cell FT, sst2, 20 examples: value is 0." in said.out


def flip_dev(record: dict[str, Any], _: dict[str, Predictions]) -> None:
    record["dev_scores"]["accuracy"] += 0.25


def other_update(record: dict[str, Any], _: dict[str, Predictions]) -> None:
    record["selected_step"] = 1


def other_classes(record: dict[str, Any], _: dict[str, Predictions]) -> None:
    record["collapsed"] = not record["collapsed"]


def other_labels(_: dict[str, Any], predictions: dict[str, Predictions]) -> None:
    for each in predictions.values():
        each.gold[:] = 1 - each.gold


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (flip_dev, "for accuracy on dev, and its predictions give 0."),
        (other_update, "it selects update 1, and its history is best on dev at update 6"),
        (other_classes, "are not those of its predictions"),
        (other_labels, "the labels of sst2/test that it keeps are not those of the data"),
    ],
)
def test_a_changed_record_is_named(
    change: Any, says: str, harness: Harness, benched: Benched, published: Path, copied: Path
) -> None:
    """One whose checksum was computed again, so that the store itself takes it for whole."""
    key = benched.keys["FT", 31]
    tampered(copied, key, change)
    said = harness("verify", str(published), "--store", f"sqlite:///{copied}")
    assert said.status == 1
    assert f"record {key[:12]}: " in said.out
    assert says in said.out, said.out


def test_damaged_and_missing_records_are_told_apart(
    harness: Harness, benched: Benched, published: Path, copied: Path
) -> None:
    with sqlite3.connect(copied) as connection:
        connection.execute("delete from records where key = ?", [benched.keys["FT", 31]])
        connection.execute(
            "update records set record = replace(record, '\"tied\"', '\"Tied\"') where key = ?",
            [benched.keys["SCL", 42]],
        )
    said = harness("verify", str(published), "--store", f"sqlite:///{copied}")
    assert said.status == 1
    assert "Runs without a record that gives them: 2." in said.out
    assert f"the store has no record {benched.keys['FT', 31][:12]}" in said.out
    assert f"its record {benched.keys['SCL', 42][:12]} is damaged (its checksum does not match)" in said.out


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("none.csv", None, "cannot be read (No such file or directory)"),
        ("empty.csv", "", "is empty; write it with 'harness report --format csv'"),
        ("notes.txt", "hello", "should be a .csv, .json or .parquet file"),
        ("other.csv", "a,b\n1,2\n", "is not a file of results of 'harness report' (it has no column size, row, column"),
        ("header.csv", ",".join(RESULT_DTYPES) + "\n", "has no results"),
        ("ragged.csv", "a,b\n1\n", "(row 1 has 1 values for 2 columns)"),
        ("other.json", "[1]", "(it has no list 'results')"),
        ("broken.json", "{", "is not a file of results of 'harness report' ("),
        ("broken.parquet", "PAR1", "is not a file of results of 'harness report' ("),
    ],
)
def test_other_files_are_refused(name: str, content: str | None, says: str, harness: Harness, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    said = harness("verify", str(tmp_path / name))
    assert said.status == 2
    assert says in said.err
    assert said.err.count("\n") == 1


def test_wrong_values_and_places_are_refused(harness: Harness, published: Path) -> None:
    assert "--seed draws the stages of --rerun K" in harness("verify", str(published), "--seed", "1").err
    assert "There is no store at " in harness("verify", str(published), "--store", "sqlite:///nowhere.db").err
    changed(published, 2, "seed", "many")
    assert "row 2: seed is 'many'" in harness("verify", str(published)).err


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
    """Test predictions changed with their checksum and published: only training finds that out."""

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


def published_scores(scores: np.ndarray[Any, Any]) -> Verification:
    rows = [
        {"row": "FT", "column": "c", "size": 20, "metric": "accuracy", "evaluation": "test", "subset": s, "seed": r}
        | {"test": float(scores[s, r]), "key": f"k{s}{r}"}
        for s in range(scores.shape[0])
        for r in range(scores.shape[1])
    ]
    return Verification(Published(Path("x.csv"), tuple(rows)), Store("sqlite:///none.db", create=False))


class Keyed:
    key = "k00"


def test_the_tolerance_holds_runs_of_one_subset_and_seed() -> None:
    """Two runs that differ by their own noise alone lie within the tolerance of their cell in 95 % of cases."""
    rng, held, draws = np.random.default_rng(0), 0, 400
    for _ in range(draws):
        effects = rng.normal(0, 0.05, (5, 1)) + rng.normal(0, 0.02, (1, 3))
        scores = 0.7 + effects + rng.normal(0, 0.01, (5, 3))
        again = 0.7 + effects[0, 0] + rng.normal(0, 0.01)
        found = rerun.tolerance_of(published_scores(scores), Keyed(), 1)  # type: ignore[arg-type]
        assert found is not None
        held += abs(again - scores[0, 0]) <= found.value
    assert 0.92 <= held / draws <= 0.98
    assert rerun.tolerance_of(published_scores(np.full((1, 1), 0.5)), Keyed(), 1) is None  # type: ignore[arg-type]


def test_on_other_hardware_scores_and_first_losses_are_compared(
    benched: Benched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(benched.folder)
    store = Store("sqlite:///.harness/harness.db", create=False)
    key = benched.keys["FT", 31]
    stage, record = store.stage(key), store.records([key], predictions=True)[key]
    assert stage is not None
    moved = replace(record, provenance=record.provenance | {"device": "abacus"})
    found = published_scores(np.zeros((1, 1)))
    judged = rerun._judged(found, stage, ["FT"], record, moved, 1)
    assert judged.agrees
    assert "too few runs for a tolerance of scores (other hardware: device abacus instead of" in judged.sentence
    limit = rerun.Tolerance("accuracy", "test", 0.05, 15)
    assert rerun.within_tolerance(stage, record, moved, limit)[0]
    worse = {d: Predictions(-each.logits, each.gold) for d, each in record.predictions.items()}
    agrees, said = rerun.within_tolerance(stage, record, replace(record, predictions=worse), limit)
    assert not agrees
    assert "tolerance 5.00 points by the runs of its cell (15)" in said
    history = [entry | {"loss": 9.0, "curve": {}} for entry in record.history]
    assert not rerun.within_tolerance(stage, record, replace(record, history=history), limit)[0]
    assert not rerun._judged(found, stage, ["FT"], record, Record(key, "failed", "no memory"), 1).agrees
