"""A session: what it needs before Ray is imported, and that it touches nothing that it has not made."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray._private import utils

from harness.cluster.session import _starting, session
from harness.errors import UserError
from harness.planning.request import Request


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of all temporary files. The path of a socket has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.delenv("RAY_TMPDIR", raising=False)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture(autouse=True)
def _command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utils, "get_entrypoint_name", lambda: "harness bench --storage s3://me:hush@bucket/x")


@pytest.mark.parametrize("error", [Exception("The node timed out. More.\nAnd more."), KeyboardInterrupt()])
def test_a_ray_that_does_not_start_keeps_its_logs_where_the_error_says(
    error: BaseException, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*, _temp_dir: str, **options: object) -> None:
        (Path(_temp_dir) / "session_1" / "logs").mkdir(parents=True)
        Path(_temp_dir).chmod(0o777)  # as Ray does
        assert utils.get_entrypoint_name() == "harness bench --storage s3://***@bucket/x", "told to the dashboard"
        raise error

    monkeypatch.setattr("ray.init", late)
    raised = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else UserError
    with pytest.raises(raised) as caught, session(Request(slots=1)):
        pass
    folders = [*short.iterdir()]
    assert {folder.stat().st_mode & 0o777 for folder in folders} <= {0o700}, "no other user's"
    if isinstance(error, KeyboardInterrupt):
        assert folders == []
    else:
        assert "(The node timed out. More.)" in str(caught.value)
        assert f"logs are in {folders[0]}." in str(caught.value)
        assert (folders[0] / "r" / "session_1" / "logs").is_dir()


def test_a_signal_while_ray_starts_is_heard_once_it_has() -> None:
    heard = list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    with _starting({}):
        signal.raise_signal(signal.SIGTERM)
        assert not heard
    assert heard == [signal.SIGTERM]
    signal.signal(signal.SIGTERM, before)


def test_a_ray_of_the_callers_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, answer in (("is_initialized", lambda: True), ("init", lambda **_: 1 / 0), ("shutdown", lambda: 1 / 0)):
        monkeypatch.setattr(f"ray.{name}", answer)
    refused = pytest.raises(UserError, match=r"Ray runs in this process already, .* call ray\.shutdown\(\) first")
    for address in ("local", "auto"):
        with refused, session(Request(address=address, slots=1)):
            pass


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
