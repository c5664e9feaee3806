"""A process by its pid and when it began, since pids are reused; and one that ends with its parent."""

from __future__ import annotations

import ctypes
import signal
from contextlib import suppress

import psutil


def started_at(process: psutil.Process) -> float:
    """When a process began, in seconds since the machine's boot: the same after the machine's clock was set."""
    return process.create_time() - psutil.boot_time()


def process_of(pid: int, started: float) -> psutil.Process | None:
    """The process that has had this pid since `started` (`started_at`); None if it ended (another may have its pid)."""
    try:
        process = psutil.Process(pid)
        return process if abs(started_at(process) - started) < 1.0 else None
    except psutil.Error:
        return None


def end_with_parent() -> None:
    """Let this process be killed when the one dies that started it: the raylet, or the fork server, which ends with the raylet. Ray ends most such processes,
    after a while; one that it leaves idle would hold its leases for ever. Linux only."""
    pr_set_pdeathsig = 1
    with suppress(AttributeError, OSError):  # another system
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
