"""Store, GPUs, length and time: refused before anything is trained, and no store is made."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.command import MOVIES, Terminal, TrainingStartedError
from cli.conftest import Harness

from harness.store import DEFAULT_URL, Store

LONG = f"{MOVIES} --set fine_tune.steps=50000000"


def test_a_locked_store(refused: Callable[..., str], workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.store.database.LOCK_SECONDS", 0.1)
    Store(f"sqlite:///{workdir / 'x.db'}")
    other = sqlite3.connect(workdir / "x.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    assert "sqlite:///x.db failed (database is locked)" in refused(f"bench {MOVIES} --store sqlite:///x.db")
    other.close()


def test_gpus_and_positions_that_are_not_there(harness: Harness, workdir: Path, packaged: dict[str, Path]) -> None:
    import torch

    asked = torch.cuda.device_count() + 1
    said = harness(f"bench {MOVIES} --gpus-per-run {asked}")
    assert said.status == 2
    assert f"--gpus-per-run {asked}: torch {torch.__version__} sees {asked - 1} GPUs" in said.err.splitlines()[-1]
    assert "--num-workers 9999: " in harness(f"bench {MOVIES} --num-workers 9999").err.splitlines()[-1]
    weights = next(packaged["cognition"].rglob("model.safetensors"))
    shutil.copytree(weights.parent, workdir / "short")
    config = json.loads((workdir / "short" / "config.json").read_text())
    (workdir / "short" / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 100}))
    said = harness(f"bench {MOVIES} --encoder ./short")
    last = said.err.strip().splitlines()[-1]
    assert last == "harness: max_length is 128, but short has 100 positions; set max_length to 100 or less."
    said = harness(f"bench {MOVIES} --encoder ./short --set max_length=100")
    assert (said.status, "cannot be loaded" in said.err) == (2, True), "its weights have 512"
    assert [path.name for path in workdir.iterdir()] == ["short"]


def test_a_long_plan_is_trained_only_with_leave(
    harness: Harness, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal it is asked about, elsewhere it wants --yes; a short plan wants neither."""
    said = harness(f"bench {LONG}")
    assert (said.status, said.out) == (2, "")
    assert "To do: 1 stage" in said.err, "the plan is shown first"
    last = said.err.strip().splitlines()[-1]
    assert last.startswith("harness: This plan takes about")
    assert "add --yes to run it, or narrow it with --tasks" in last
    for answer in ("n\n", ""):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        said = harness(f"bench {LONG}")
        assert (said.status, said.out) == (2, "")
        assert "Continue? [y/N]" in said.err
        assert "Nothing was trained." in said.err
    assert list(workdir.iterdir()) == []
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    for words in (LONG, f"{LONG} --yes", f"{MOVIES} --gpus-per-run 0"):
        with pytest.raises(TrainingStartedError):
            harness(f"bench {words}")
    assert DEFAULT_URL.removeprefix("sqlite:///") in {str(p.relative_to(workdir)) for p in workdir.rglob("*.db")}
