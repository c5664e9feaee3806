from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli.command import command
from cluster import in_process
from cluster.driver import BENCH, Kept, kept, table_of
from filelock import FileLock

from harness.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path / 'harness.db'}")


@dataclass(frozen=True)
class Ended:
    """A bench that ended, with what it printed."""

    out: str
    err: str = ""

    @property
    def table(self) -> dict[str, Any]:
        return table_of(self.out)


@dataclass(frozen=True)
class Undisturbed(Ended):
    """A bench that nobody disturbed, one stage after another in one process, with its folder and records."""

    folder: Path = Path()
    records: dict[str, Kept] | None = None


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, packaged: dict[str, Path]) -> Undisturbed:
    """Run once, for all processes of pytest-xdist; the other tests hold theirs against it, or go on from a copy of its store."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder, found = root / "undisturbed", root / "undisturbed.pickle"
    with FileLock(root / "undisturbed.lock"), pytest.MonkeyPatch.context() as patched:
        if not found.exists():
            out = in_process.alone(folder, [BENCH], patched)
            found.write_bytes(pickle.dumps(Undisturbed(out, "", folder, kept(folder))))
    seen: Undisturbed = pickle.loads(found.read_bytes())
    return seen


@pytest.fixture
def copied(undisturbed: Undisturbed, tmp_path: Path) -> Path:
    """A folder with a copy of the undisturbed store and its weights."""
    shutil.copytree(undisturbed.folder / ".harness", tmp_path / ".harness")
    return tmp_path


Bench = Callable[..., Ended]
"""(folder, command line, exit status it must end with) -> what it printed."""


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, packaged: dict[str, Path]) -> Bench:
    """Runs a bench in a folder, with the real driver and this process as its only worker."""

    def here(folder: Path, line: str, status: int = 0) -> Ended:
        with monkeypatch.context() as patched:
            patched.chdir(folder)
            in_process.patch(patched)
            said = command(capsys, line)
        assert said.status == status, said.err
        return Ended(said.out, said.err)

    return here
