"""`--track`: a bench writes its stages to trackers and is never stopped by one; a report writes what is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.command import data_folder
from cli.conftest import Harness
from cluster import in_process
from views.runs import commit

from harness.cli.request import read_words
from harness.commands.prepare import prepare
from harness.store import Store

SHORT = (
    "--table few_shot --methods ft --tasks sst2 --sizes 20 --subsets 0 --seeds 31,42 --data data --encoder {} "
    "--set max_length=16 --set fine_tune.steps=2 --track tensorboard"
)


@pytest.fixture
def words(workdir: Path, bert: Path) -> str:
    """Of a small bench, with one of its two stages recorded."""
    data_folder(workdir / "data")
    words = SHORT.format(bert)
    first, _ = prepare(read_words(["plan", *words.replace(" --track tensorboard", "").split()]), train=False).plan.runs
    commit(Store("sqlite:///.harness/harness.db"), first.stage)
    return words


def test_a_bench_goes_on_without_its_tracker_and_the_next_command_catches_up(
    words: str, harness: Harness, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder cannot be written while it trains. A report writes each stage once, and says so."""
    in_process.patch(monkeypatch)
    folder = workdir / ".harness" / "tensorboard"
    for _ in range(2):
        said = harness(f"report {words}")
        assert said.status == 1, "a run is missing"
        assert f"Tracker tensorboard: 1 stage; tensorboard --logdir {folder}." in said.err
    folder.rename(workdir / "away")
    folder.write_text("a file")
    said = harness(f"bench {words}")
    assert (said.status, said.err.count("Tracker tensorboard cannot be written")) == (0, 1)
    said = harness(f"report {words}")
    assert said.status == 2
    assert "FT" in said.out, "the table comes first"
    assert "harness: --track tensorboard: cannot be written (" in said.err
    folder.unlink()
    for command in ("bench", "report"):
        said = harness(f"{command} {words}")
        assert (said.status, "Tracker tensorboard: 2 stages;" in said.err) == (0, True)
    assert len([*folder.rglob("events.*")]) == 2


def test_an_unknown_or_missing_tracker_is_refused_before_anything(
    harness: Harness, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.commands.tracking.find_spec", lambda name: None)
    for command in ("bench --table few_shot", "report --table few_shot", "tune ft"):
        said = harness(f"{command} --track wandb")
        missing = "--track wandb: the package wandb is not installed; run pip install 'glue-harness[wandb]'."
        assert (said.status, missing in said.err) == (2, True)
    said = harness("bench --table few_shot --track mlfow")
    assert (said.status, "--track: unknown tracker 'mlfow'. Did you mean 'mlflow'?" in said.err) == (2, True)
    assert not any(workdir.iterdir())
