"""How fast this machine is: by the speed of the last stages that ended."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Container, Iterable
from typing import Any, NamedTuple

from harness.specs import Record

PROBE_SHARE = 0.5
"""Share of a matrix product's speed that a training step reaches; used until a stage has been timed on this machine."""
WINDOW = 24
"""The last stages, which alone are learned from: the load of a machine changes."""


class Calibration(NamedTuple):
    """FLOP/s of one slot on this machine, and the source of that number."""

    flops: float
    known_by: str


def calibrate(ended: Iterable[Record], encoders: Container[Any], device: str) -> Calibration:
    """From the last finished stages of these encoders (digests) on a device of this name, the newest first, else from a matrix product."""
    long = [s for s in ended if s.flops > 0 and s.seconds > 0.5]
    here = [s for s in long if s.provenance.get("device") == device]
    same = [s for s in here if s.provenance.get("encoder") in encoders][:WINDOW]
    if not same:
        return Calibration(_probe() * PROBE_SHARE, "guessed from the speed of a matrix product")
    # A ratio of sums: the fixed cost of a stage of a few steps should not count as slowness.
    speed = math.fsum(s.flops for s in same) / math.fsum(s.seconds for s in same)
    return Calibration(speed, f"measured on the last stage{'s' if len(same) > 1 else ''} of this encoder on {device}")


@functools.cache
def _probe() -> float:
    import numpy as np
    from threadpoolctl import threadpool_limits

    left, best = np.ones((512, 512), dtype=np.float32), math.inf
    with threadpool_limits(1):
        for _ in range(20):  # other work on the machine slows down most of them
            started = time.perf_counter()
            left @ left
            best = min(best, time.perf_counter() - started)
    return float(2 * 512**3 / best)
