"""Workers that are forked: they are what Ray's script would be in its own process, and live no longer than that."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness import private
from harness.cli import main
from harness.cluster import fork_server
from harness.cluster.forked_worker import ADDRESS, PATIENCE_SECONDS

SECONDS = 30
can_fork = fork_server.can_fork  # tests/conftest.py has another for tests without Ray
SCRIPT = """
import json, os, random, sys, time, uuid
print(json.dumps({
    "arguments": sys.argv[1:], "variable": os.environ.get("VARIABLE"), "folder": os.getcwd(), "pid": os.getpid(), "parent": os.getppid(),
    "input": sys.stdin.readline(), "drawn": [random.random(), uuid.uuid4().hex], "name": __name__, "oom": open("/proc/self/oom_score_adj").read(),
}), flush=True)
print("an error", file=sys.stderr, flush=True)
if sys.argv[1] == "wait":
    time.sleep(600)
sys.exit(3)
"""
RAYLET = """
import subprocess, sys, time
client = subprocess.Popen([sys.executable, sys.argv[1], "wait"], stdin=subprocess.DEVNULL)
print(client.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """That of a raylet beside a server that has imported nothing."""
    (tmp_path / "worker.py").write_text(SCRIPT)
    monkeypatch.setattr(private, "workers_by", lambda _: nullcontext(str(tmp_path / "worker.py")))
    nothing = "import harness.cluster.fork_server as server; server.IMPORTS = (); "
    monkeypatch.setattr(fork_server, "MAIN", fork_server.MAIN.replace("from ", f"{nothing}from "))
    monkeypatch.setattr(fork_server, "can_fork", can_fork)
    if not can_fork():
        pytest.skip("a GPU, or another system than Linux: workers import what they need")
    with fork_server.fork_server(), fork_server.forked_workers():
        yield dict(os.environ)


@contextmanager
def client(environment: dict[str, str], *arguments: str, **options: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A client that was answered, and what its worker says of itself."""
    command = [sys.executable, str(fork_server.WORKER_SCRIPT), *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes, **options) as process:
        try:
            process.stdin.write("a line\n")
            process.stdin.flush()
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def server_of(report: dict[str, Any]) -> psutil.Process:
    server = psutil.Process(report["parent"])
    assert "fork_server import main" in " ".join(server.cmdline())
    return server


def test_a_worker_has_what_its_client_was_given(environment: dict[str, str], tmp_path: Path) -> None:
    drawn = []
    for variable in ("one", "two"):
        given = environment | {"VARIABLE": variable}
        with client(given, "--flag=a b", "", cwd=tmp_path) as (process, said):
            assert process.stderr.read() == "an error\n"
            assert process.wait(SECONDS) == 3
        assert said["arguments"] == ["--flag=a b", ""]
        assert (said["variable"], said["folder"], said["input"]) == (variable, str(tmp_path), "a line\n")
        assert (said["name"], said["oom"]) == ("__main__", Path("/proc/self/oom_score_adj").read_text())
        assert server_of(said).pid != process.pid
        drawn += said["drawn"]
    assert len({*drawn}) == 4, "forks do not share their random numbers"


@pytest.mark.parametrize("killed", ["worker", "its group", "client", "server"])
def test_a_worker_and_its_client_end_together(killed: str, environment: dict[str, str]) -> None:
    with client(environment, "wait") as (process, said), client(environment, "wait") as (_, other):
        worker, another, server = psutil.Process(said["pid"]), psutil.Process(other["pid"]), server_of(said)
        if killed == "its group":  # as the raylet does
            os.killpg(os.getpgid(worker.pid), signal.SIGKILL)
        else:
            {"worker": worker, "client": process, "server": server}[killed].kill()
        assert process.wait(SECONDS) != 0
        worker.wait(SECONDS)
        if killed == "server":
            another.wait(SECONDS)
        else:
            assert another.is_running()
            assert server.is_running()


def test_without_the_server_the_script_runs_itself(environment: dict[str, str]) -> None:
    with client(environment, "wait") as (_, said):
        server = server_of(said)
        server.kill()
        server.wait(SECONDS)
    with client(environment, "a") as (process, said):
        assert said["pid"] == process.pid
        assert process.wait(SECONDS) == 3


def test_a_server_that_does_not_answer_is_not_waited_for(environment: dict[str, str], tmp_path: Path) -> None:
    impatient = tmp_path / "impatient.py"
    patience = f"PATIENCE_SECONDS = {PATIENCE_SECONDS}"
    assert patience in fork_server.WORKER_SCRIPT.read_text()
    impatient.write_text(fork_server.WORKER_SCRIPT.read_text().replace(patience, "PATIENCE_SECONDS = 0.1"))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"\0silent-{os.getpid()}")
        silent.listen()
        given = environment | {ADDRESS: f"silent-{os.getpid()}"}
        with subprocess.Popen([sys.executable, str(impatient), "a"], env=given, stdout=subprocess.PIPE) as process:
            assert process.stdout
            assert json.loads(process.stdout.readline())["pid"] == process.pid
            assert process.wait(SECONDS) == 3


def test_workers_end_with_their_raylet_alone(environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", RAYLET, str(fork_server.WORKER_SCRIPT)]
    with ExitStack() as stack:
        raylets, workers = [], []
        for _ in range(2):
            raylet = stack.enter_context(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
            stack.callback(raylet.kill)
            assert raylet.stdout
            client_pid, said = int(raylet.stdout.readline()), json.loads(raylet.stdout.readline())
            raylets.append(raylet)
            workers.append([psutil.Process(client_pid), psutil.Process(said["pid"])])
        raylets[0].kill()
        assert not psutil.wait_procs(workers[0], SECONDS)[1]
        with client(environment, "a") as (process, later):  # answered once the server has seen the first raylet's end
            assert server_of(later).pid == server_of(said).pid
            process.wait(SECONDS)
        assert all(process.is_running() for process in workers[1])
        raylets[1].kill()
        assert not psutil.wait_procs(workers[1], SECONDS)[1]


def test_a_script_that_runs_itself_ends_with_the_raylet_too(environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", RAYLET, str(fork_server.WORKER_SCRIPT)]
    given = environment | {ADDRESS: "nobody"}
    with subprocess.Popen(command, env=given, stdout=subprocess.PIPE, text=True) as raylet:
        assert raylet.stdout
        process = psutil.Process(int(raylet.stdout.readline()))
        assert json.loads(raylet.stdout.readline())["pid"] == process.pid
        raylet.kill()
        process.wait(SECONDS)


def test_the_server_ends_with_the_driver() -> None:
    code = (
        "from harness.cluster import fork_server as f; import os, time\n"
        "with f.fork_server(): print(bool(f._address), flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout
        forks = driver.stdout.readline() == "True\n"
        servers = psutil.Process(driver.pid).children()
        assert len(servers) == forks
        driver.send_signal(signal.SIGKILL)
        assert not psutil.wait_procs(servers, SECONDS)[1]


def test_contexts_share_a_server(environment: dict[str, str]) -> None:
    servers = psutil.Process().children()
    with fork_server.fork_server(), fork_server.forked_workers():
        assert (psutil.Process().children(), os.environ[ADDRESS]) == (servers, environment[ADDRESS])
    assert psutil.Process().children() == servers, "the outer one still needs it"


@pytest.mark.parametrize(
    ("line", "forks"), [("bench", True), ("tune cmlm", True), ("plan", False), ("bench --address auto", False)]
)
def test_what_workers_import_is_imported_while_a_command_plans(
    line: str, forks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {*psutil.Process().children()}  # tests that ran before in this process may have left some, as joblib's
    number = []

    def started() -> set[psutil.Process]:
        return {*psutil.Process().children()} - before

    def planned(*_: Any) -> int:
        number.append(len(started()))
        return 0

    monkeypatch.setattr(fork_server, "can_fork", lambda: True)
    command = line.split()[0]
    monkeypatch.setattr(f"harness.cli.{command}.{command}", planned)
    assert main(line.split()) == 0
    assert number == [int(forks)]
    assert not started()
