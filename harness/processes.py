"""A process by its pid and when it began: pids are reused."""

from __future__ import annotations

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
