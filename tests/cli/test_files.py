"""An error in a user's file names file, line and key, and nothing is trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.command import MOVIES, SST2, Said, TrainingStartedError, data_folder, sst2, write_csv

from harness.yaml_files import packaged_files

Refused = Callable[..., str]
Harness = Callable[..., Said]
FEW_SHOT = packaged_files("benchmarks")["few_shot"]


def own_table(old: str, new: str) -> str:
    """A table of the user's: few_shot with one place changed. Returns the line of the change."""
    text = FEW_SHOT.read_text(encoding="utf-8")
    assert text.count(old) >= 1
    Path("mine.yaml").write_text(text.replace(old, new, 1), encoding="utf-8")
    return f"line {text[: text.index(old)].count(chr(10)) + 1}"


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("lr: 1e-5", "lrr: 1e-5", ["key recipe.fine_tune.lrr: unknown key. Did you mean 'lr'?"]),
        ("default_preset: quick", "default_preset: quik", ["key default_preset", "Did you mean 'quick'?"]),
        ("title: Few-shot", "title: [Few-shot", ["not valid YAML"]),
    ],
)
@pytest.mark.usefixtures("workdir")
def test_a_table_of_the_users_with_an_error(refused: Refused, old: str, new: str, parts: list[str]) -> None:
    line = own_table(old, new)
    said = refused("bench --table mine.yaml")
    assert "mine.yaml, line" in said
    assert line in said or "not valid YAML" in parts[0]
    assert all(part in said for part in parts), said


@pytest.mark.usefixtures("workdir")
def test_a_hyperparameter_names_its_file(refused: Refused) -> None:
    own_table("{name: TAPT, method: tapt}", "{name: TAPT, method: cmlm, set: {alpha: -2}}")
    assert "harness: mine.yaml, key rows.3.set.alpha: should be greater" in refused(
        "plan --table mine.yaml --tasks movies"
    )
    Path("point.yaml").write_text("method: cmlm\nset: {alpha: -1}\n", encoding="utf-8")
    said = refused("plan --table few_shot --tasks movies --with point.yaml")
    assert "harness: point.yaml, line 2, key set.alpha: should be greater" in said
    Path("point.yaml").write_text("method: taco\nset: {window: -1}\n", encoding="utf-8")
    said = refused("plan --table few_shot --tasks movies --methods taco --with point.yaml")
    assert "harness: point.yaml, line 2, key set.window: should be greater" in said


@pytest.mark.usefixtures("workdir")
def test_a_number_in_scientific_notation_is_a_number(harness: Harness) -> None:
    def settings(words: str) -> dict[str, Any]:
        body = json.loads(harness(f"report --view settings --format json {words}").out)
        return {each["key"]: each["value"] for each in body["settings"]}

    own_table("lr: 1e-5", "lr: 3e-4")
    assert settings("--table mine.yaml --preset paper --tasks cola --methods ft")["fine_tune.lr"] == "0.0003"
    Path("point.yaml").write_text("method: cmlm\nset: {alpha: 1e-3, fine_tune.lr: 7e-4}\n", encoding="utf-8")
    shown = settings(f"{MOVIES.replace('ft', 'cmlm')} --with point.yaml --set post_train.lr=2e-3")
    assert [shown[key] for key in ("post_train.lr", "CMLM:cmlm.alpha", "CMLM:fine_tune.lr")] == [
        "0.002",
        "0.001",
        "0.0007",
    ]


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (None, ["point.yaml: there is no such file"]),
        ("", ["point.yaml: the file is empty; it needs the keys method, set"]),
        (
            "method: cmlm\nset: {}\nsett: {alpha: 1}\n",
            ["point.yaml, line 3, key sett: unknown key. Did you mean 'set'?"],
        ),
    ],
)
@pytest.mark.usefixtures("workdir")
def test_a_wrong_file_of_a_point(refused: Refused, content: str | None, parts: list[str]) -> None:
    if content is not None:
        Path("point.yaml").write_text(content, encoding="utf-8")
    said = refused("bench --table few_shot --tasks movies --with point.yaml")
    assert all(part in said for part in parts), said


@pytest.mark.usefixtures("workdir")
def test_other_files_that_are_not_there_or_no_task(refused: Refused) -> None:
    assert "nowhere.yaml: there is no such file" in refused("bench --table nowhere.yaml")
    assert "nowhere.yaml: there is no such file" in refused("bench --table few_shot --tasks nowhere.yaml")
    assert "there is no such folder" in refused(f"bench {MOVIES} --encoder ./nowhere")
    Path("task.yaml").write_text("name: reviews\ncolumns: [text]\nmetrics: [accurracy]\nclasses: [a, b]\n")
    said = refused("bench --table few_shot --tasks task.yaml")
    assert "task.yaml, line 3, key metrics.0" in said
    assert "Did you mean 'accuracy'?" in said


@pytest.mark.usefixtures("workdir")
def test_two_tasks_of_one_name_are_refused(refused: Refused) -> None:
    """Otherwise one of them would be left out silently."""
    text = "name: reviews\ncolumns: [text]\nmetrics: [accuracy]\nclasses: [a, b]\n"
    for name in ("one.yaml", "two.yaml"):
        Path(name).write_text(text)
    said = refused("bench --table few_shot --tasks one.yaml,two.yaml")
    assert "--tasks: one.yaml and two.yaml both name their task 'reviews'; rename one of them." in said


# ---------------------------------------------------------------- data


@pytest.mark.usefixtures("workdir")
def test_good_data_come_to_training(harness: Harness, tmp_path: Path) -> None:
    data_folder(tmp_path / "data")
    with pytest.raises(TrainingStartedError):
        harness(f"bench {SST2} --data data")


def test_no_data_folder(refused: Refused, workdir: Path) -> None:
    assert "nowhere: there is no such folder; --data takes 'hub', or a folder" in refused(
        f"bench {SST2} --data nowhere"
    )
    (workdir / "file").touch()
    assert "file: is a file, not a folder" in refused(f"bench {SST2} --data file")


def broken_parquet(folder: Path) -> None:
    (folder / "train.csv").unlink()
    (folder / "train.parquet").write_bytes(b"PAR1 and then nothing")


def rows(*changed: tuple[str, str], count: int = 40) -> Callable[[Path], None]:
    """Writes training rows that end with `changed`."""
    return lambda folder: write_csv(folder / "train.csv", [*sst2(count), *changed]) and None


DATA: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "missing task": (
        lambda folder: folder.rename(folder.with_name("sst3")) and None,
        ["there is no folder 'sst2' (folders: sst3)", "add sst2/"],
    ),
    "unknown label": (rows(("A text", "7")), ["train.csv, line 42: label '7' is unknown to task sst2", "0 (", "1 ("]),
    "fewer than N": (rows(count=19), ["task sst2: 20 training examples are requested and there are 19"]),
    "broken Parquet": (broken_parquet, ["train.parquet: is not a whole Parquet file"]),
}


@pytest.mark.parametrize("kind", DATA)
def test_wrong_data_name_the_file_and_the_row(refused: Refused, tmp_path: Path, kind: str) -> None:
    spoil, parts = DATA[kind]
    spoil(data_folder(tmp_path / "data") / "sst2")
    said = refused(f"bench {SST2} --data data")
    assert all(part in said for part in parts), said
    assert "sst2" in said
