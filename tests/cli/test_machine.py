"""Store, GPUs, length and time: refused before anything is trained, and no store is made."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.command import MOVIES, Said, TrainingStartedError

from harness.commands.execution import check_machine
from harness.errors import UserError
from harness.planning.request import Request
from harness.store import DEFAULT_URL, Store

Refused = Callable[..., str]
Harness = Callable[..., Said]
LONG = f"{MOVIES} --set fine_tune.steps=50000000"


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("harness.db", ["store 'harness.db' is not a database URL", "sqlite:///results/harness.db"]),
        ("postgresql+psycopg://someone:hush@127.0.0.1:1/x", ["--store: a password in the URL", "PGPASSWORD"]),
        ("sqlite:///letter.txt", ["sqlite:///letter.txt failed (file is not a database)"]),
        ("sqlite:///newer.db", ["another harness (schema 999", "name another store"]),
    ],
)
def test_a_store_that_cannot_be_used(refused: Refused, workdir: Path, url: str, parts: list[str]) -> None:
    (workdir / "letter.txt").write_text("this is a letter and no database" * 40)
    newer = Store(f"sqlite:///{workdir / 'newer.db'}")
    with newer._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE meta SET value = '999'")
    newer._engine.dispose()
    said = refused(f"bench {MOVIES} --store {url}")
    assert all(part in said for part in parts), said
    assert "hush" not in said


def test_a_locked_store(refused: Refused, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.store.database.LOCK_SECONDS", 0.1)
    Store(f"sqlite:///{workdir / 'x.db'}")
    other = sqlite3.connect(workdir / "x.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    assert "sqlite:///x.db failed (database is locked)" in refused(f"bench {MOVIES} --store sqlite:///x.db")
    other.close()


def test_a_store_in_a_folder_that_cannot_be_made(harness: Harness, workdir: Path) -> None:
    (workdir / "file").touch()
    said = harness(f"bench {MOVIES} --store sqlite:///file/x.db")
    assert said.status == 2
    assert "/file/x.db cannot be opened or made: File exists." in said.err
    assert sorted(p.name for p in workdir.iterdir()) == ["file"]


def test_gpus_on_a_machine_without(harness: Harness, workdir: Path) -> None:
    import torch

    asked = torch.cuda.device_count() + 1
    said = harness(f"bench {MOVIES} --gpus-per-run {asked}")
    assert said.status == 2
    last = said.err.strip().splitlines()[-1]
    assert f"--gpus-per-run {asked}: torch {torch.__version__} sees {asked - 1} GPUs" in last
    assert list(workdir.iterdir()) == []


def test_no_gpu_asked_for_is_none(harness: Harness) -> None:
    with pytest.raises(TrainingStartedError):
        harness(f"bench {MOVIES} --gpus-per-run 0")


def test_sequences_longer_than_the_encoders_positions(
    harness: Harness, workdir: Path, packaged: dict[str, Path]
) -> None:
    weights = next(packaged["cognition"].rglob("model.safetensors"))
    shutil.copytree(weights.parent, workdir / "short")
    config = json.loads((workdir / "short" / "config.json").read_text())
    (workdir / "short" / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 100}))
    said = harness(f"bench {MOVIES} --encoder ./short")
    assert said.status == 2
    last = said.err.strip().splitlines()[-1]
    assert last == "harness: max_length is 128, but short has 100 positions; set max_length to 100 or less."
    assert [p.name for p in workdir.iterdir()] == ["short"]
    said = harness(f"bench {MOVIES} --encoder ./short --set max_length=100")
    assert (said.status, "cannot be loaded" in said.err) == (2, True), "its weights have 512"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_plan_without_a_terminal_is_refused(harness: Harness, workdir: Path) -> None:
    said = harness(f"bench {LONG}")
    assert said.status == 2
    assert "To do: 1 stage" in said.err, "the plan is shown first"
    last = said.err.strip().splitlines()[-1]
    assert last.startswith("harness: This plan takes about")
    assert "add --yes to run it, or narrow it with --tasks" in last
    assert said.out == ""
    assert list(workdir.iterdir()) == []
    with pytest.raises(TrainingStartedError):
        harness(f"bench {LONG} --yes")


def test_a_long_plan_is_asked_about_on_a_terminal(
    harness: Harness, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer in ("n\n", "\n", ""):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        said = harness(f"bench {LONG}")
        assert (said.status, said.out) == (2, "")
        assert "Continue? [y/N]" in said.err
        assert "Nothing was trained." in said.err
        assert list(workdir.iterdir()) == []
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    with pytest.raises(TrainingStartedError):
        harness(f"bench {LONG}")


def test_a_short_plan_is_not_asked_about(harness: Harness, workdir: Path) -> None:
    with pytest.raises(TrainingStartedError):
        harness(f"bench {MOVIES}")
    assert DEFAULT_URL.removeprefix("sqlite:///") in {str(p.relative_to(workdir)) for p in workdir.rglob("*.db")}


@pytest.mark.parametrize(
    ("name", "folder", "refused"),
    [
        ("TMPDIR", "/tmp/ü", True),
        ("RAY_TMPDIR", "/tmp/ü", True),
        ("TMPDIR", "/tmp", False),
        ("RAY_TMPDIR", "/tmp", False),
    ],
)
def test_a_folder_that_ray_cannot_take(name: str, folder: str, refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in ("TMPDIR", "RAY_TMPDIR"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, folder)
    if name == "RAY_TMPDIR" and not refused:
        monkeypatch.setenv("TMPDIR", "/tmp/ü")  # then Ray does not read it
    request = Request()
    if refused:
        with pytest.raises(UserError, match=f"^{name} is '/tmp/ü': Ray takes ASCII paths only"):
            check_machine(request)
    else:
        check_machine(request)
    check_machine(Request(address="auto"))


@pytest.mark.parametrize(("limit", "refused"), [(4 << 30, True), (-1, False), (1 << 50, False)])
def test_a_limit_on_address_space(limit: int, refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would fail after a minute, with a traceback."""
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", "/tmp")
    monkeypatch.setattr("resource.getrlimit", lambda _: (limit, -1))
    request = Request()
    if refused:
        with pytest.raises(UserError, match="'ulimit -v' allows "):
            check_machine(request)
    else:
        check_machine(request)
