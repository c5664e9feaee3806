"""An error in a user's file names file, line and key, and nothing is trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cli.command import MOVIES, SST2, Said

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
    Path("point.yaml").write_text("method: taco\nset: {window: -1}\n", encoding="utf-8")
    said = refused("plan --table few_shot --tasks movies --methods taco --with point.yaml")
    assert "harness: point.yaml, line 2, key set.window: should be greater" in said


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


def test_no_data_folder(refused: Refused, workdir: Path) -> None:
    assert "nowhere: there is no such folder; --data takes 'hub', or a folder" in refused(
        f"bench {SST2} --data nowhere"
    )
    (workdir / "file").touch()
    assert "file: is a file, not a folder" in refused(f"bench {SST2} --data file")
