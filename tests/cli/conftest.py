from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.command import Said, TrainingStartedError, command

Harness = Callable[..., Said]


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
