from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli.command import Said, TrainingStartedError, command

from harness.cli import main
from harness.commands.prepare import prepare
from harness.planning.request import from_json
from harness.store import Store

Harness = Callable[..., Said]

METHODS = "ft,scl,tapt,cmlm,taco,electra,coco_lm"
BENCH = (
    "bench --table few_shot --tasks sst2 --data data --sizes 20 --subsets 0 --seeds 31,42 --encoder {encoder} --methods {methods} "
    "--set max_length=64 --set fine_tune.steps=6 --set post_train.steps=2 --set fine_tune.batch_size=8 --set post_train.batch_size=4"
)


@dataclass
class Benched:
    """A folder with a store. `keys`: of its runs, by row and seed."""

    folder: Path
    keys: dict[tuple[str, int], str]


@pytest.fixture(scope="session")
def benched(tmp_path_factory: pytest.TempPathFactory, folders: dict[str, Path]) -> Benched:
    """Every method trained on the tiny BERT, once; tests leave the store as it is."""
    import trained  # imports torch, and the other one Ray
    from cluster import in_process

    folder = tmp_path_factory.mktemp("benched")
    trained.sentiment_folder(folder / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        in_process.patch(patch)
        assert main(BENCH.format(encoder=folders["bert"], methods=METHODS).split()) == 0
        (stored,) = Store("sqlite:///.harness/harness.db", create=False).requests()
        runs = prepare(from_json(stored.values), train=False).plan.runs
    return Benched(folder, {(run.row, run.seed): run.stage.key for run in runs})


@pytest.fixture(autouse=True)
def _no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting Ray raises TrainingStartedError, and standard input is no terminal."""

    def started(*_: Any) -> None:
        raise TrainingStartedError

    monkeypatch.setattr("harness.cluster.session.session", started)
    monkeypatch.setattr("sys.stdin", io.StringIO())


@pytest.fixture
def harness(workdir: Path, capsys: pytest.CaptureFixture[str]) -> Harness:
    """The command in an empty folder: `harness("plan --table few_shot")` or its words one by one."""
    return lambda *words: command(capsys, *words)


@pytest.fixture
def at_bench(benched: Benched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Harness:
    """The command in the folder of the bench, whose store stays as it is."""
    monkeypatch.chdir(benched.folder)
    return lambda *words: command(capsys, *words)


@pytest.fixture
def refused(harness: Harness, workdir: Path) -> Callable[..., str]:
    """The one sentence by which a command is refused: exit status 2, nothing else printed, nothing written."""

    def run(*words: str) -> str:
        before = sorted(workdir.rglob("*"))
        said = harness(*words)
        assert said.status == 2, said
        assert said.out == ""
        assert said.err.startswith("harness: ")
        assert said.err.count("\n") == 1, "more than a sentence"
        assert "Traceback" not in said.err
        assert sorted(workdir.rglob("*")) == before, "something was written"
        return said.err.strip()

    return run
