"""How long a plan takes on this machine: FLOPs by the speed of the last stages that ended, and while it runs by their seconds a FLOP."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from harness.devices import cores
from harness.specs import Record

PROBE_SHARE = 0.5
"""Share of a matrix product's speed that a training step reaches; used until a stage has been timed on this machine."""
WINDOW = 24
"""The last stages, which alone are learned from: the load of a machine changes."""
LATE = 0.1
"""Share of its time that a stage is assumed to need yet when it runs longer than estimated."""


class Calibration(NamedTuple):
    """FLOP/s of one slot on this machine, and the source of that number."""

    flops: float
    known_by: str


def calibrate(ended: Iterable[Record], encoder: str, device: str) -> Calibration:
    """From the last finished stages of this encoder on a device of this name, the newest first, else from a matrix product."""
    of, long = {"device": device, "encoder": encoder}, [s for s in ended if s.flops > 0 and s.seconds > 0.5]
    same = [s for s in long if of.items() <= s.provenance.items()][:WINDOW]
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


def hours(flops: float, calibration: Calibration, slots: int, stages: int) -> float:
    """Hours that `stages` stages of `flops` in all take on `slots` slots."""
    return flops / calibration.flops / max(1, min(slots or cores(), stages)) / 3600


class Timed(NamedTuple):
    """A stage and its seconds: its duration, or for a running one the time since its start."""

    cost: float
    seconds: float = 0.0


def remaining(ended: Sequence[Timed], running: Sequence[Timed], waiting: Sequence[Timed], slots: int) -> float | None:
    """The seconds that are left, learned from the last stages that `ended`, oldest first. None before one has ended. `slots` slots share
    the work; the longest stage bounds it."""
    timed = [stage for stage in ended if stage.cost > 0 and stage.seconds > 0][-max(WINDOW, 2 * slots) :]
    if not timed or not (running or waiting):
        return None
    rate = math.fsum(stage.seconds for stage in timed) / math.fsum(stage.cost for stage in timed)
    whole = [(stage.cost * rate, stage.seconds) for stage in (*running, *waiting)]
    seconds = [max(all_of_it - spent, LATE * max(all_of_it, spent)) for all_of_it, spent in whole]
    return max(math.fsum(seconds) / max(1, slots), *seconds) or None
