"""The machine: its processor, the cores that this process may use, and how processes begin, end and hold their memory."""

from __future__ import annotations

import ctypes
import platform
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psutil


def on_cpu(origin: Mapping[str, Any]) -> bool:
    """Whether a stage of this provenance ran on a CPU, by its kernels."""
    return origin.get("kernels") in ("default", "mkl", "intel")


def cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """The cores that this process may use: those of its affinity (as `taskset` and slurm set it), and of the quota of its control group."""
    import joblib

    return int(joblib.cpu_count())


def started_at(process: psutil.Process) -> float:
    """When a process began, in seconds since the machine's boot: the same after the machine's clock was set."""
    import psutil  # which doctor and --help do without

    return process.create_time() - psutil.boot_time()


def end_with_parent() -> None:
    """Let this process be killed when the one dies that started it: the raylet. Ray ends most such processes, after a while; one
    that it leaves idle would hold its leases for ever. Linux only."""
    pr_set_pdeathsig = 1
    with suppress(AttributeError, OSError):  # another system
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8
KEEP_FREED = {M_MMAP_THRESHOLD: 2**31 - 1, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 2**26}
"""Keeps the memory that a process frees for its next allocations. By default glibc gives large blocks back to the kernel at once. A training loop
allocates the same activations and gradients at every update, and the kernel zeroes and maps each of their pages anew: a tenth of a run's time on a
virtual machine (docs/LOG.md)."""
FEW_ARENAS = {M_ARENA_MAX: 2}
"""By default glibc gives each of Ray's threads an arena and keeps the memory that is freed there: 20 to 40 kB a stage, hundreds of megabytes in a
long bench."""


def set_malloc(values: Mapping[int, int]) -> None:
    """Set parameters of glibc's malloc for this process."""
    with suppress(AttributeError, OSError):  # another C library
        for parameter, value in values.items():
            ctypes.CDLL(None).mallopt(parameter, value)
