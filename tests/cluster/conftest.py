from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import tempfile
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cli.command import command
from cluster import in_process
from cluster.driver import BENCH, Driver, Kept, kept, numbers, started, table_of
from filelock import FileLock


@dataclass
class Undisturbed:
    """A bench on two slots that nobody disturbed, and what was seen of it while it ran."""

    folder: Path
    driver: Driver
    records: dict[str, Kept]
    listeners: dict[tuple[str, int], str] = field(default_factory=dict)
    """(address, port) of every listening socket -> command line."""
    left: list[str] = field(default_factory=list)
    """Temporary files, and those in Ray's folder, after its end."""


def asked(driver: Driver, path: str) -> Any:
    """An answer of the session's dashboard; None while it does not answer."""
    address = re.search(r"Ray dashboard: (http://127\.0\.0\.1:\d+)", driver.err)
    assert address, driver.err
    token = os.environ.get("RAY_AUTH_TOKEN") or (Path.home() / ".ray" / "auth_token").read_text().strip()
    request = urllib.request.Request(address[1] + path, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)
    except OSError:
        return None


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, packaged: dict[str, Path]) -> Undisturbed:
    """Run once, for all processes of pytest-xdist; the other tests hold theirs against it, or go on from a copy of its store."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    found = root / "undisturbed.pickle"
    with FileLock(root / "undisturbed.lock"):
        if not found.exists():
            found.write_bytes(pickle.dumps(run_undisturbed(root / "undisturbed")))
    seen: Undisturbed = pickle.loads(found.read_bytes())
    return seen


def run_undisturbed(folder: Path) -> Undisturbed:
    folder.mkdir()
    with (
        tempfile.TemporaryDirectory(prefix="ray") as short,  # a socket's path has 107 bytes
        started(folder, f"{BENCH} --slots 2", RAY_TMPDIR=short, TMPDIR=short) as driver,
    ):
        driver.recorded(1)
        seen = Undisturbed(folder, driver, {}, driver.listeners())
        assert driver.wait() == 0, driver.err
        driver.gone()
        seen.records = kept(folder)
        seen.left = sorted(str(path.relative_to(short)) for path in Path(short).rglob("*"))
    del driver.popen  # it has ended, and cannot be pickled
    return seen


@pytest.fixture
def copied(undisturbed: Undisturbed, tmp_path: Path) -> Path:
    """A folder with a copy of the undisturbed store and its weights."""
    shutil.copytree(undisturbed.folder / ".harness", tmp_path / ".harness")
    return tmp_path


@pytest.fixture
def same_table(undisturbed: Undisturbed) -> Callable[[Driver], None]:
    """Asserts that a driver printed the undisturbed table and that its store holds the undisturbed numbers."""

    def check(driver: Driver) -> None:
        assert driver.table == undisturbed.driver.table
        found = kept(driver.folder)
        assert numbers(found) == numbers(undisturbed.records)
        assert {(each.status, each.attempt) for each in found.values()} == {("done", 1)}

    return check


@dataclass(frozen=True)
class Ended:
    """A bench that ended, with what it printed."""

    out: str
    err: str

    @property
    def table(self) -> dict[str, Any]:
        return table_of(self.out)


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
