"""The processor: its name, the cores of it that this process may use, and whether a record is of one."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CPU_KERNELS = ("default", "mkl", "intel")
"""Kernels that a record names where its stage ran on a CPU."""


def on_cpu(origin: Mapping[str, Any]) -> bool:
    """Whether a stage of this provenance ran on a CPU; where it names no kernels, as older ones, on this machine's."""
    if "kernels" in origin:
        return origin["kernels"] in CPU_KERNELS
    return bool(origin.get("device", cpu_name()) == cpu_name())


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
