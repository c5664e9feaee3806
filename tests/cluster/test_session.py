"""What a session needs before Ray is imported."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from cluster.driver import OURS

import harness.cluster.session as place
from harness import private
from harness.cluster.session import OWNER, SESSION, Dashboard, new_folder, remove_abandoned, session
from harness.errors import UserError
from harness.execution import Execution
from harness.store import Owner

SET_FIRST = """
import importlib, os, sys
def end():
    names = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_ROTATION_MAX_BYTES", "RAY_ROTATION_BACKUP_COUNT"
    sys.exit(" ".join(os.environ.get(name, "unset") for name in names))
class Ray:
    def find_spec(self, name, path, target=None):
        if name == "ray":
            end()
sys.meta_path.insert(0, Ray())
importlib.import_module(sys.argv[1])
end()
"""
"""Ends as Ray would be imported, or afterwards where it is not, with what it would read then."""


@pytest.mark.parametrize("module", ["pool", "proposals", "jobs"])
def test_whatever_is_imported_first_ray_finds_its_environment(module: str) -> None:
    """Ray reads once, as it is imported, that it has to stay on loopback, and how long its logs may be."""
    environment = {name: value for name, value in os.environ.items() if name not in OURS}
    done = subprocess.run(
        [sys.executable, "-c", SET_FIRST, f"harness.cluster.{module}"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == f"0 {16 * 2**20} 1\n"


def test_the_folders_of_a_command_that_was_killed_are_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folders = {}
    own = Owner.current()
    for name, started, host in (("living", own.started, own.host), ("elsewhere", 1.0, "x"), ("dead", 1.0, own.host)):
        logs = tmp_path / "ray" / f"session_{name}" / "logs"
        logs.mkdir(parents=True)
        (logs / "raylet.out").write_text("log")
        folders[name] = tmp_path / f"harness-{name}"
        folders[name].mkdir()
        (folders[name] / OWNER).write_text(f"{own.pid} {started} {host}")
        (folders[name] / SESSION).symlink_to(logs.parent)
    (tmp_path / "harness-others").mkdir()
    latest = tmp_path / "ray" / "session_latest"
    latest.symlink_to(tmp_path / "ray" / "session_dead")
    new = new_folder()
    remove_abandoned()
    assert {*tmp_path.iterdir()} == {new, *folders.values(), tmp_path / "harness-others", tmp_path / "ray"} - {
        folders["dead"]
    }
    assert sorted(path.name for path in (tmp_path / "ray").iterdir()) == ["session_elsewhere", "session_living"]
    remove_abandoned()
    assert new.exists(), "its process lives"


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (Exception("The current node timed out during startup. More.\nAnd more."), UserError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_ray_that_does_not_start_leaves_nothing(
    error: BaseException, raised: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(**options: object) -> None:
        (Path(os.environ["RAY_TMPDIR"]) / "ray" / f"session_of_it_{os.getpid()}").mkdir(parents=True)
        raise error

    monkeypatch.setattr("ray.init", late)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    abandoned = tmp_path / "harness-dead"
    abandoned.mkdir()
    (abandoned / OWNER).write_text(f"{os.getpid()} 1.0 {Owner.current().host}")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    says = r"^Ray did not start on this machine \(The current node timed out" if raised is UserError else None
    with pytest.raises(raised, match=says), session(Execution("local", slots=1), {}):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["ray"]


@pytest.mark.parametrize(
    ("answers", "address"),
    [(["", "", "127.0.0.1:8265"], "127.0.0.1:8265"), (["", RuntimeError("it ended")], ""), ([""] * 600, "")],
    ids=["answers", "ended", "silent"],
)
def test_a_dashboard_is_shown_once_it_answers(
    answers: list[str | RuntimeError], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, shown, there = [], [], threading.Event()

    def asked() -> str:
        answer = answers.pop(0)
        if isinstance(answer, RuntimeError):
            raise answer
        return answer

    def show(address: str) -> None:
        shown.append(address)
        there.set()

    monkeypatch.setattr(private, "started_dashboard", asked)
    monkeypatch.setattr(place, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(place, "DASHBOARD_SECONDS", 0.5 if len(answers) > 3 else 60.0)
    dashboard = Dashboard(start=lambda: starts.append("started"))
    dashboard.when_there(show)
    assert (starts, shown) == ([], []), "it takes its time once a stage trains"
    for _ in range(2):
        dashboard.start()
    assert there.wait(60)
    dashboard.when_there(shown.append)
    assert starts == ["started"]
    assert shown == [address, *([address] if address else [])]


@contextmanager
def running(program: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A program that starts a Ray, and the folder of all temporary files."""
    with tempfile.TemporaryDirectory(prefix="ray") as short:  # a socket's path has 107 bytes
        environment = {**os.environ, "RAY_TMPDIR": short, "TMPDIR": short}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(
            [sys.executable, "-c", program], cwd=folder, env=environment, text=True, **pipes
        ) as command:
            yield command, Path(short)


def left_in(short: Path) -> set[str]:
    """Temporary files, and what Ray has in its folder."""
    return {path.name for path in short.iterdir()} - {"ray"} | {path.name for path in (short / "ray").iterdir()}


STARTED = """
from harness.cluster.session import session
from harness.execution import Execution
with session(Execution("local", slots=1), {}):
    print("started", flush=True)
"""


@pytest.mark.ray
def test_a_gcs_that_ends_while_ray_starts_ends_the_command_in_a_sentence(tmp_path: Path) -> None:
    """Ray itself would be deaf for a minute, and end the process then without a word."""
    with running(STARTED, tmp_path) as (command, short):
        while not any(short.glob("ray/session_*/gcs_server_port_*")):  # no other thread runs until then
            assert command.poll() is None
            time.sleep(0.01)
        (gcs,) = (child for child in psutil.Process(command.pid).children() if child.name() == "gcs_server")
        gcs.kill()
        out, err = command.communicate()
        left = left_in(short)
    assert (command.returncode, out) == (2, "")
    assert err.startswith("harness: Ray did not start on this machine (its GCS process ended); ")
    assert err.count("\n") == 1
    assert not left


DEAF = """
import signal, sys, time
from harness.cluster import session
from harness.execution import Execution
session.DEAF_SECONDS = 0.5
with session.session(Execution("local", slots=1), {}):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])  # as in a call to the GCS, which asks Python for no signals
    print("waits", file=sys.__stdout__, flush=True)
    time.sleep(600)
"""


@pytest.mark.ray
def test_a_command_that_waits_for_a_dead_gcs_ends_in_a_sentence(tmp_path: Path) -> None:
    with running(DEAF, tmp_path) as (command, short):
        assert command.stdout
        assert command.stdout.readline() == "waits\n"
        for child in psutil.Process(command.pid).children():
            if child.name() in ("gcs_server", "raylet"):
                child.kill()
        _, err = command.communicate()
        left = left_in(short)
    assert command.returncode == 2
    assert err.splitlines()[-1].startswith("harness: Ray's ")
    assert err.endswith("; recorded stages are kept, and the same command resumes.\n")
    assert not left


BROKEN_END = """
import contextlib, os, signal, sys, time, psutil
from harness.cli.terminal import interruptible
from harness.cluster import session
from harness.errors import SessionLostError
from harness.execution import Execution
def alive(process):
    with contextlib.suppress(psutil.Error):  # it ends just now
        return process.is_running() and process.status() != "zombie"
remove = session._remove
def broken(folder):
    session._remove = remove
    if sys.argv[1] == "removed":
        remove(folder)
    signal.raise_signal(signal.SIGHUP)
with interruptible() as received:
    try:
        with session.session(Execution("local", slots=1), {}):
            session._remove = broken
            import ray
            @ray.remote
            class Worker:
                def pid(self):
                    return os.getpid()
            worker = Worker.remote()
            print(ray.get(worker.pid.remote()), file=sys.__stdout__, flush=True)
            (raylet,) = (child for child in psutil.Process().children() if child.name() == "raylet")
            started = psutil.Process().children(recursive=True)
            raylet.kill()  # the watchdog interrupts what comes after it
            while True:
                time.sleep(0.1)
    except SessionLostError as error:
        left = [process.pid for process in started if alive(process)]
        print(error, *left, signal.Signals(received.number).name, flush=True)
        session.os._exit(0)
"""


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("folders", ["there", "removed"])
def test_a_signal_during_the_end_of_a_lost_ray_leaves_nothing(folders: str, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="ray") as short:  # a socket's path has 107 bytes
        environment = {**os.environ, "RAY_TMPDIR": short, "TMPDIR": short}
        program = [sys.executable, "-c", BROKEN_END, folders]
        done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        pid, _, said = done.stdout.partition("\n")
        assert said.startswith("Ray's raylet process ended"), done.stderr
        assert said.endswith("resumes. SIGHUP\n"), "none of its processes lives"
        with suppress(psutil.NoSuchProcess):
            assert psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE, "its worker, whose parent is dead"
        left = {path.name for path in Path(short).iterdir()} - {"ray"}
        left |= {path.name for path in (Path(short) / "ray").glob("session_*")}
    assert not left


IMPORTED = """
import sys
import harness.cluster.worker, harness.cluster.gauges, harness.running
print(*sorted({"harness.methods", "optuna", "pandas", "pydantic", "scipy.optimize", "sqlalchemy"} & set(sys.modules)))
import harness.cluster.ledger
print(*sorted({"harness.methods", "optuna", "pandas", "pydantic", "sqlalchemy"} & set(sys.modules)))
"""


def test_workers_and_ledger_import_what_they_need_only() -> None:
    """Each worker pays for its imports before its first stage: no database, no methods, no optimisers of SciPy."""
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["", "sqlalchemy"], done.stderr
