"""`submit` against a real cluster with a job server: what arrives there, how its end comes back, and what is refused before."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.command import command
from cluster.driver import TRACE, Driver, kept, started, waited
from cluster.studies import leases

from harness.cluster import jobs

pytestmark = pytest.mark.ray

HEAD = """
import pathlib, signal, sys
import harness.cluster
from ray.cluster_utils import Cluster
# Port 0: clusters beside this one on the machine have the usual ports.
options = {"num_cpus": 2, "include_dashboard": True, "dashboard_host": "127.0.0.1", "dashboard_port": 0}
options |= {"dashboard_agent_listen_port": 0, "temp_dir": sys.argv[1]}
cluster = Cluster(initialize_head=True, head_node_args=options)
# As 'ray start' does: where several clusters run on one machine, a job finds its own by this file alone.
pathlib.Path(sys.argv[1], "ray_current_cluster").write_text(cluster.address)
print(cluster.webui_url, cluster.address, flush=True)
signal.pause()
"""
BENCH = (
    "bench --table sub/mine.yaml --tasks movies --sizes 20 --subsets 0 --seeds 31 --methods ft --slots 1 --format json "
    "--set max_length=16 --set mlm_head.steps=2 --set fine_tune.steps=2"
)
TABLE = Path(__file__).resolve().parents[2] / "benchmarks" / "few_shot.yaml"
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory, packaged: dict[str, Path]) -> Iterator[tuple[str, str]]:
    """A running cluster: the addresses of its dashboard and of its head node."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where nodes find the command
    folder = tmp_path_factory.mktemp("head")
    with (
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as short,  # a socket's path has 107 bytes
        started(
            folder, short, ("-c", HEAD), RAY_AUTH_MODE="token", RAY_JOB_STOP_WAIT_TIME_S="120", PATH=path
        ) as driver,
    ):
        dashboard, address = waited("the head", lambda: driver.out.split() or (driver.popen.poll() and [driver.err]))
        yield f"http://{dashboard}", address


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a table, a task and a method of the user's own, from which commands are given."""
    (tmp_path / "sub").mkdir()
    shutil.copy(TABLE, tmp_path / "sub" / "mine.yaml")
    task = "name: own\ndata: a.csv\ncolumns: [text]\nclasses: [a, b]\nmetrics: [accuracy]\n"
    (tmp_path / "sub" / "own.yaml").write_text(task)
    method = 'from dataclasses import replace\nfrom harness.methods.ft import FT\nMINE = replace(FT, name="mine", title="Mine")\n'
    (tmp_path / "sub" / "mine.py").write_text(method)
    return tmp_path


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, for a command in this process. A driver must not run in it: it kills all processes of its folder."""
    monkeypatch.chdir(folder)
    return folder


def answer(address: str) -> Any:
    token = os.environ.get("RAY_AUTH_TOKEN") or (Path.home() / ".ray" / "auth_token").read_text().strip()
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def printed(driver: Driver, what: str) -> str:
    """A command that `submit` printed."""
    found = re.search(rf"^{what}: +(.*)$", driver.out, re.MULTILINE)
    assert found, driver.out
    return found[1]


def plain_shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The line typed into a shell of this user that knows nothing of Ray but where its command is."""
    kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "-c", line], cwd=folder, env={**kept, "PATH": path}, capture_output=True, text=True, check=False
    )


def test_a_job_is_stopped_and_the_same_command_goes_on(head: tuple[str, str], folder: Path) -> None:
    """By the command that was printed. Whoever follows the job ends with a sentence. The table's file is here alone and travels
    with the job; the second time it goes by the head's HOST:PORT and fills the table."""
    (folder / ".harness").mkdir()
    seeds = ",".join(map(str, range(24)))  # enough that it is not done before it is stopped
    bench = f"{BENCH.replace('--seeds 31', f'--seeds {seeds}')} --store sqlite:///{folder}/.harness/harness.db"
    with started(folder, f"submit --address {head[0]} --follow {bench}") as driver:
        driver.recorded(1)
        before = kept(folder)
        stopped = plain_shell(printed(driver, "Stop it"), folder)
        assert stopped.returncode == 0, stopped.stderr
        assert driver.wait() == 143, driver.out + driver.err
    (id,) = re.findall(r"^Job (\S+) is submitted", driver.out, re.MULTILINE)
    assert answer(f"{head[0]}/api/jobs/{id}")["status"] == "STOPPED"
    assert "harness: interrupted by SIGTERM; recorded stages are kept, and the same command resumes." in driver.out
    assert driver.err.startswith(f"harness: job {id} stopped: ")
    assert not TRACE.search(driver.out + driver.err)
    assert leases(folder) == 0

    with started(folder, f"submit --address {head[1]} --follow {bench}") as driver:
        assert driver.wait() == 0, driver.out + driver.err
        assert driver.processes() == [], "submit starts nothing of its own"
    assert driver.err == "", "no noise of Ray's"
    after = kept(folder)
    assert {key: after[key] for key in before} == before
    assert sorted((each.status, each.attempt) for each in after.values()) == [("done", 1)] * 24

    (id,) = re.findall(r"^Job (harness-few_shot-\d{8}-\d{6}-[0-9a-f]{4}) is submitted\.$", driver.out, re.MULTILINE)
    assert f"ray job stop {id} --address {head[0]}" in driver.out
    followed = plain_shell(printed(driver, "Follow it"), folder)
    assert followed.returncode == 0, followed.stderr
    assert '"results": [' in followed.stdout, "the table, as the job printed it"
    assert f"{head[0]}/#/jobs/{id}    (its token: ray get-auth-token)" in driver.out
    assert f"Ray dashboard: {head[0]} " in driver.out, "the job joined the cluster that it was handed to"
    table = json.loads(driver.out[driver.out.index("\n{") :])
    assert next((cell["row"], cell["done"], cell["expected"]) for cell in table["cells"]) == ("FT", 24, 24)
    assert len(table["results"]) == 24

    job = answer(f"{head[0]}/api/jobs/{id}")
    assert (job["status"], job["driver_exit_code"]) == ("SUCCEEDED", 0)
    assert job["entrypoint"] == f"harness {bench} --address auto --yes"
    assert job["metadata"] == {
        "harness_command": f"harness {bench}",
        "harness_table": "few_shot",
        "harness_preset": "quick",
        "harness_encoder": "bert-tiny",
    }


def test_the_status_of_the_job_is_that_of_the_command(head: tuple[str, str], folder: Path) -> None:
    """What can be seen on the cluster only is told there, after the method's file, which travels with the job; then a name that was taken."""
    bench = BENCH.replace("--methods ft", "--methods ft,tapt+sub/mine.py")
    line = f"submit --address {head[0]} --follow --id twice {bench} --store sqlite:///{folder}/a.db --data /nowhere"
    with started(folder, line) as driver:
        assert driver.wait() == 2, driver.out + driver.err
    assert "harness: " in driver.out
    assert "/nowhere" in driver.out.splitlines()[-1]
    assert driver.err.startswith("harness: job twice failed: "), driver.err
    with started(folder, line) as driver:
        assert driver.wait() == 2
    assert driver.err == "harness: --id twice: this cluster has a job of that name; choose another.\n"


def test_a_wrong_token(head: tuple[str, str], folder: Path) -> None:
    for line, address in ((f"submit --address {each} {BENCH} --store sqlite:////tmp/x.db", each) for each in head):
        with started(folder, line, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="wrong") as driver:
            assert driver.wait() == 2
        said = driver.err.splitlines()[-1]  # before it Ray's own line, where the head node was asked
        assert said.startswith(f"harness: --address {address}: the cluster rejects this token; copy its own")
        assert driver.out == ""


@pytest.mark.parametrize(("scheme", "silent"), [("http://", False), ("", False), ("http://", True)])
def test_no_cluster_at_the_address(
    scheme: str,
    silent: bool,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nobody listens there, or somebody who says nothing. (Of a head node's port Ray itself gives up after 40 s.)"""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setattr(jobs, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(jobs, "CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"{scheme}127.0.0.1:{server.getsockname()[1]}"
        if not silent:
            server.close()
        said = command(capsys, f"submit --address {address} {BENCH} --store sqlite:////tmp/x.db")
    assert said.status == 2
    assert said.out == ""
    assert said.err.startswith(f"harness: --address {address}: no Ray cluster answers there (")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--adress x bench", "submit: unknown flag '--adress'. Did you mean '--address'?"),
        ("benhc --table few_shot", "submit: unknown command 'benhc'. Did you mean 'bench'? Known: bench, tune."),
        ("bench --tabel few_shot", "bench: unknown flag '--tabel'. Did you mean '--table'?"),
        ("bench --table few_shot --follow", "submit: --follow goes before the command"),
        ("bench --address 10.0.0.1:6379 --table few_shot", "submit bench --address 10.0.0.1:6379: the job joins"),
        ("bench --table few_shto {store}", "--table: unknown table 'few_shto'. Did you mean 'few_shot'?"),
        ("bench --table few_shot --methods ftt {store}", "--methods: unknown method 'ftt'. Did you mean 'ft'?"),
        ("bench --table few_shot --set optim.lrr=1 {store}", "--set optim.lrr=1: "),
        ("tune cmlm --space cmml {store}", "--space: unknown space 'cmml'. Did you mean 'cmlm'?"),
        ("bench --table few_shot", "submit bench --store: a job's own folder is deleted with it"),
        (
            "bench --table few_shot --store sqlite:///x.db",
            "submit bench --store: a job's own folder is deleted with it",
        ),
        ("bench --table few_shot --store x.db", "submit bench: store 'x.db' is not a database URL; write"),
        (
            "bench --table few_shot --store postgresql+psycopg://me@h/n",
            "submit bench --storage: a job's own folder is deleted",
        ),
        ("tune ft --out best {store}", "submit tune --out: a job's own folder is deleted with it"),
        ("bench --table few_shot --data sub {store}", "--data sub: data and encoders are not uploaded with a job"),
        (
            "bench --table few_shot --tasks sub/own.yaml {store}",
            "--tasks sub/own.yaml, key data: data are not uploaded with a job; name a path that every node sees",
        ),
        ("bench --table {here}/sub/mine.yaml {store}", "--table {here}/sub/mine.yaml: name the file from this folder"),
        (
            "bench --table few_shot --methods tapt+{here}/sub/mine.py {store}",
            "--methods {here}/sub/mine.py: name the file from this folder",
        ),
        ("--runtime-env e.yaml bench --table few_shot {store}", "e.yaml: there is no such file."),
        ("--id a/b bench --table few_shot {store}", "--id a/b: a job's name has letters"),
    ],
)
def test_what_is_refused_before_anything_is_sent(
    words: str, sentence: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody listens at the address, and nobody is asked."""
    store = f"--store sqlite:///{here}/x.db"
    said = command(capsys, f"submit --address {NOWHERE} {words.format(store=store, here=here)}")
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith(f"harness: {sentence.format(here=here)}")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        "--store postgresql+psycopg://me:hunter2@host/name",
        "--store=postgresql+psycopg://me:hunter2@host/name",
        "--store postgresql+psycopg://host/name?user=me&password=hunter2",
        "--store sqlite:////tmp/x.db --storage s3://key:hunter2@bucket/x",
        "--store postgresql:/me:hunter2@host",
        "postgresql+psycopg://me:hunter2@host/name",
        "--store sqlite:////tmp/x.db --storage s3:/key:hunter2@bucket",
    ],
)
def test_a_password_is_neither_sent_nor_said(words: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = command(capsys, f"submit --address {NOWHERE} {BENCH} {words}")
    assert said.status == 2
    assert "no Ray cluster" not in said.err
    assert "hunter2" not in said.out + said.err


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            "env_vars: {PGPASSWORD: hunter2}",
            "key env_vars.PGPASSWORD: the cluster stores and shows runtime environments",
        ),
        ("env_vars: {DATABASE: 'postgresql://me:hunter2@h/n'}", "key env_vars.DATABASE: the cluster stores"),
        ("working_dir: nowhere", "key working_dir: there is no folder nowhere."),
        ("working_dir: empty", "--table sub/mine.yaml: the runtime environment's working_dir empty has no such file."),
    ],
)
def test_a_runtime_environment_that_cannot_be(
    body: str, sentence: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "empty").mkdir()
    (here / "env.yaml").write_text(body)
    said = command(capsys, f"submit --address {NOWHERE} --runtime-env env.yaml {BENCH} --store sqlite:///{here}/x.db")
    assert said.status == 2
    assert sentence in said.err
    assert "hunter2" not in said.err
