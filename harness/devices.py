"""The processor: its name, and the cores of it that this process may use."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cores() -> int:
    """The cores that this process may use: those of its affinity (as `taskset` and slurm set it), and of the quota of its control group."""
    import joblib

    return int(joblib.cpu_count())
