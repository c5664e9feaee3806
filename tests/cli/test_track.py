"""`--track`: a bench writes its stages to trackers and is never stopped by one; a report writes what is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.command import data_folder
from views.runs import commit

from harness.cli import main
from harness.commands.prepare import prepare
from harness.planning.request import Request, parse_override
from harness.specs import Stage
from harness.store import Store

SET = ("max_length=16", "fine_tune.steps=2")
STORE = "sqlite:///.harness/harness.db"


@pytest.fixture
def stages(workdir: Path, bert: Path) -> list[Stage]:
    """The stages of a small bench, none of them recorded."""
    data_folder(workdir / "data")
    request = Request(
        "few_shot",
        overrides=tuple(map(parse_override, SET)),
        methods=("ft",),
        tasks=("sst2",),
        sizes=(20,),
        subsets=(0,),
        seeds=(31, 42),
        data="data",
        encoder=str(bert),
    )
    return list(prepare(request, train=False).plan.stages.values())


def words(command: str, bert: Path, *more: str) -> list[str]:
    line = f"{command} --table few_shot --methods ft --tasks sst2 --sizes 20 --subsets 0 --seeds 31,42 --data data"
    return [*line.split(), "--encoder", str(bert), *(word for text in SET for word in ("--set", text)), *more]


def test_a_report_writes_what_is_recorded_and_says_so(
    stages: list[Stage], bert: Path, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(Store(STORE), stages[0])
    for _ in range(2):
        assert main(words("report", bert, "--track", "tensorboard")) == 1, "a run is missing"
        said = capsys.readouterr()
        assert f"Tracker tensorboard: 1 stage; tensorboard --logdir {workdir}/.harness/tensorboard." in said.err
    commit(Store(STORE), stages[1])
    assert main(words("report", bert, "--track", "tensorboard")) == 0
    assert "Tracker tensorboard: 2 stages;" in capsys.readouterr().err
    assert len([*workdir.rglob("events.*")]) == 2


def test_a_report_whose_tracker_cannot_be_written_says_so_after_the_table(
    stages: list[Stage], bert: Path, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(Store(STORE), stages[0])
    (workdir / ".harness" / "tensorboard").write_text("a file")
    assert main(words("report", bert, "--track", "tensorboard")) == 2
    said = capsys.readouterr()
    assert "FT" in said.out
    assert "harness: --track tensorboard: cannot be written (" in said.err


def test_a_bench_goes_on_without_its_tracker_and_catches_up(
    stages: list[Stage], bert: Path, workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder cannot be written while it trains; the same command afterwards trains nothing and writes all."""
    import trained

    monkeypatch.setattr("harness.commands.bench.train", trained.train_here)
    blocked = workdir / ".harness" / "tensorboard"
    blocked.parent.mkdir()
    blocked.write_text("a file")
    line = words("bench", bert, "--track", "tensorboard")
    assert main(line) == 0
    said = capsys.readouterr().err
    assert said.count("Tracker tensorboard cannot be written") == 1
    blocked.unlink()
    assert main(line) == 0
    assert "Tracker tensorboard: 2 stages;" in capsys.readouterr().err


def test_an_unknown_or_missing_tracker_is_refused_before_anything(
    workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.tracking.find_spec", lambda name: None)
    for command in ("bench --table few_shot", "report --table few_shot", "tune ft"):
        assert main([*command.split(), "--track", "wandb"]) == 2
        assert (
            "--track wandb: the package wandb is not installed; run pip install 'glue-harness[wandb]'."
            in capsys.readouterr().err
        )
    assert main(["bench", "--table", "few_shot", "--track", "mlfow"]) == 2
    assert "--track: unknown tracker 'mlfow'. Did you mean 'mlflow'?" in capsys.readouterr().err
    assert not any(workdir.iterdir())
