"""A session: what it needs before Ray is imported, and that it touches nothing that it has not made."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cluster.session import session
from harness.errors import UserError
from harness.execution import Execution
from harness.store import Owner


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of all temporary files. The path of a socket has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.delenv("RAY_TMPDIR", raising=False)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.mark.parametrize("error", [Exception("The node timed out. More.\nAnd more."), KeyboardInterrupt()])
def test_a_ray_that_does_not_start_is_ended_and_keeps_its_logs_where_the_error_says(
    error: BaseException, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def late(*, _temp_dir: str, **options: object) -> None:
        logs = Path(_temp_dir) / "session_1" / "logs"
        logs.mkdir(parents=True)
        (logs / "raylet.err").write_text("first\nits ports are taken\n")
        Path(_temp_dir).chmod(0o777)  # as Ray does
        wait = [sys.executable, "-c", "import time; time.sleep(600)"]
        started.extend(map(subprocess.Popen, ([*wait, f"--temp-dir={_temp_dir}"], [*wait, "another's"])))
        raise error

    monkeypatch.setattr("ray.init", late)
    raised = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else UserError
    with pytest.raises(raised) as caught, session(Execution("local", slots=1), {}):
        pass
    own, anothers = started
    assert own.wait(60) != 0
    assert anothers.poll() is None
    anothers.kill()
    anothers.wait()
    folders = [*short.iterdir()]
    assert {folder.stat().st_mode & 0o777 for folder in folders} <= {0o700}, "no other user's"
    if isinstance(error, KeyboardInterrupt):
        assert folders == []
    else:
        assert "(The node timed out. More.; its ports are taken)" in str(caught.value)
        assert f"logs are in {folders[0]}." in str(caught.value)
        assert (folders[0] / "r" / "session_1" / "logs").is_dir()


def test_a_folder_that_a_command_has_not_made_is_left_alone(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody can write into the folder of temporary files: what stands there may be a trap of another user's."""
    precious = short / "precious"
    precious.mkdir()
    for prefix in ("harness-", "ray-"):
        trap = short / f"{prefix}x"
        trap.mkdir()
        (trap / "owner").write_text(f"999999 0 {Owner.current().host}")
        (trap / "session").symlink_to(precious)
    monkeypatch.setattr("ray.init", lambda **_: 1 / 0)
    with pytest.raises(UserError), session(Execution("local", slots=1), {}):
        pass
    assert precious.is_dir()
    assert {"harness-x", "ray-x"} <= {path.name for path in short.iterdir()}


OWN_RAY = """
import psutil
from harness.cluster.session import session
from harness.errors import UserError
from harness.execution import Execution
import ray
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
before = {child.pid for child in psutil.Process().children()}
for address in ("local", "auto"):
    try:
        with session(Execution(address, slots=1), {}):
            pass
    except UserError as error:
        print(error)
print(before <= {child.pid for child in psutil.Process().children()}, ray.get(ray.put(7)))
ray.shutdown()
with session(Execution("local", slots=1), {}):
    print(*(job["Entrypoint"] for job in ray._private.state.jobs()))
"""


@pytest.mark.ray
def test_a_ray_of_the_callers_is_left_alone_and_named(tmp_path: Path) -> None:
    """And the dashboard of an own one shows no password of the command line."""
    words = [sys.executable, "-c", OWN_RAY, "s3://me:hush@bucket/x"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *errors, alive = done.stdout.splitlines()
    assert "s3://***@bucket/x" in done.stderr
    assert "hush" not in done.stderr
    assert len(errors) == 2
    assert all("Ray runs in this process already" in error and "ray.shutdown()" in error for error in errors)
    assert alive == "True 7"


IMPORTED = """
import sys
import harness.cluster.worker, harness.running
print(*sorted({"optuna", "pandas", "scipy.optimize", "sqlalchemy"} & set(sys.modules)))
import harness.cluster.ledger
print(*sorted({"optuna", "pandas", "sqlalchemy"} & set(sys.modules)))
"""


def test_workers_and_ledger_import_what_they_need_only() -> None:
    """Each worker pays for its imports before its first stage: no database, no optimisers of SciPy."""
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["", "sqlalchemy"], done.stderr
