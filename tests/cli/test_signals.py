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
        print("begun", flush=True)
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
WAIT = "wait()"
KEPT = "recorded stages are kept, and the same command resumes."


def heard() -> None:
    """The tests themselves may run under `nohup` or in the background of a script, which ignore these."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def program(
    folder: Path, work: str = WAIT, cleanup: str = "pass", before: Callable[[], object] = lambda: None
) -> subprocess.Popen[str]:
    """Started and training."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(work=work, cleanup=cleanup)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: (heard(), before()),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "interrupted by SIGTERM"),
        (signal.SIGHUP, 129, "interrupted by SIGHUP"),
    ],
)
def test_a_signal_that_ends_the_command(number: signal.Signals, status: int, said: str, tmp_path: Path) -> None:
    process = program(tmp_path)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (status, f"still said\nharness: {said}; {KEPT}\n")
    assert (tmp_path / "cleaned").exists()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_that_arrives_in_a_destructor(number: signal.Signals, status: int, tmp_path: Path) -> None:
    """Python prints an exception there and goes on: the command would train to its end."""
    destructor = "lambda self: (print('destroyed', flush=True), wait())"
    process = program(tmp_path, f"type('Any', (), dict(__del__={destructor}))(); {WAIT}")
    assert process.stdout is not None
    assert process.stdout.readline() == "destroyed\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == status
    assert err.startswith("still said\nharness: interrupted")
    assert "Traceback" not in err


def test_what_it_broke_before_it_is_sent_again(tmp_path: Path) -> None:
    """It arrived in a destructor, and a process that the command needs died of it: the command ends by the signal, not by an error."""
    destructor = "lambda self: (print('destroyed', flush=True), wait())"
    process = program(
        tmp_path, f"type('Any', (), dict(__del__={destructor}))(); raise UserError('a process of Ray is dead')"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "destroyed\n"
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert err.endswith(f"harness: interrupted by SIGTERM; {KEPT}\n")


def test_another_one_does_not_disturb_the_cleanup(tmp_path: Path) -> None:
    process = program(tmp_path, cleanup="[os.kill(os.getpid(), n) for n in (signal.SIGTERM, signal.SIGHUP)]")
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, f"still said\nharness: interrupted by SIGTERM; {KEPT}\n")


def test_nohup_holds(tmp_path: Path) -> None:
    process = program(tmp_path, before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    process.send_signal(signal.SIGHUP)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, f"still said\nharness: interrupted by SIGTERM; {KEPT}\n")


def test_what_a_signal_broke_is_said_as_the_signal(tmp_path: Path) -> None:
    """The signal reaches a whole process group: processes that the command needs may end first."""
    process = program(tmp_path, cleanup="raise UserError('a process of Ray is dead')")
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, f"harness: interrupted by SIGTERM; {KEPT}\n")


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
