"""Which CPU kernels a kind of processor runs: a fixed choice, never a timing, so that the same stage gives the same bits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Kernels:
    """`name` is recorded in a stage's provenance. `onednn_from`: multiplications from which a float32 product goes through oneDNN and
    not through MKL (0: none does). `whole_layers`: BERT's layers run as one operator each."""

    name: str
    onednn_from: int
    whole_layers: bool


DEFAULT = Kernels("default", 2**21, whole_layers=False)
"""Measured on AMD's Zen 4. MKL keeps to AVX2 on processors that are not Intel's; a call of oneDNN costs about 20 microseconds more."""
INTEL = Kernels("intel", 0, whole_layers=True)
"""Measured on Sapphire Rapids: MKL's float32 products are as fast as oneDNN's or faster in every shape."""


@cache
def kernels() -> Kernels:
    """Those of this machine's processor."""
    try:
        intel = "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        intel = False
    return INTEL if intel else DEFAULT
