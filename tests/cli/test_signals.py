"""SIGTERM and SIGHUP end the command as Ctrl-C does: it cleans up, prints why and exits with the signal's status."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = """
import os, pathlib, signal, sys, time, types
import harness.cli
from harness.errors import UserError

def wait():
    for _ in range(6000):
        time.sleep(0.1)

def plan(args):
    try:
        {work}
    finally:
        {cleanup}
        print("still said", file=sys.stderr, flush=True)
        pathlib.Path("cleaned").touch()

harness.cli.import_module = lambda name: types.SimpleNamespace(plan=plan)
sys.exit(harness.cli.main(["plan"]))
"""
"""The command, at work at something else. It waits in short pieces: Python runs a handler between instructions, so a signal that
arrives after the last of them and before the system call has to wait for that call's end (measured with one call: 11 of 1,000)."""
WAIT = "print('begun', flush=True); wait()"
KEPT = "recorded stages are kept, and the same command resumes."
BROKEN = "raise UserError('a process of Ray is dead')"


def heard() -> None:
    """The tests themselves may run under `nohup` or in the background of a script, which ignore these."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def deaf() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


@pytest.mark.parametrize(
    ("numbers", "said", "work", "cleanup", "before"),
    [
        pytest.param([signal.SIGINT], "", WAIT, "pass", heard, id="Ctrl-C"),
        pytest.param([signal.SIGTERM], " by SIGTERM", WAIT, "pass", heard, id="a scheduler"),
        pytest.param([signal.SIGHUP], " by SIGHUP", WAIT, "pass", heard, id="a closed terminal"),
        pytest.param([signal.SIGHUP, signal.SIGTERM], " by SIGTERM", WAIT, "pass", deaf, id="nohup"),
        pytest.param(
            *([signal.SIGTERM], " by SIGTERM", WAIT),
            *("[os.kill(os.getpid(), n) for n in (signal.SIGTERM, signal.SIGHUP)]", heard),
            id="others do not disturb the cleanup",
        ),
        # The signal reaches a whole process group: processes that the command needs may end first
        pytest.param([signal.SIGTERM], " by SIGTERM", WAIT, BROKEN, heard, id="what it broke"),
    ],
)
def test_a_signal_ends_the_command(
    numbers: list[signal.Signals], said: str, work: str, cleanup: str, before: Callable[[], None], tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(work=work, cleanup=cleanup)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: (heard(), before()),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    for number in numbers:
        process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + numbers[-1]
    assert err.endswith(f"harness: interrupted{said}; {KEPT}\n"), err
    assert "Traceback" not in err
    assert (tmp_path / "cleaned").exists() == ("still said\n" in err) == (cleanup != BROKEN)


def test_a_terminal_that_is_closed(tmp_path: Path) -> None:
    """Nothing can be printed to the closed terminal, and the cleanup continues."""
    main, other = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(work=WAIT, cleanup="pass")],
        cwd=tmp_path,
        stdin=other,
        stdout=other,
        stderr=other,
        start_new_session=True,
        preexec_fn=lambda: (heard(), os.close(os.open(os.ttyname(0), os.O_RDWR))),  # makes it the controlling terminal
    )
    os.close(other)
    assert os.read(main, 5) == b"begun"
    os.close(main)
    assert process.wait(60) == 129
    assert (tmp_path / "cleaned").exists()
