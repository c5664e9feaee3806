"""How long a plan takes on this machine: before anything ran, with an interval, and while it runs.

Stages cost FLOPs (`runs.stage_flops`); what is learned is the seconds that a FLOP takes, from the last stages that ended.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.devices import cores
from harness.store import Speed

PROBE_SHARE = 0.5
"""Share of a matrix product's speed that a training step reaches; used until a stage has been timed on this machine."""
WINDOW = 24
"""The last stages, which alone are learned from: the load of a machine changes."""
Z = 1.28
"""Standard deviations on each side of an 80 % interval."""
SPREAD, PROBE = math.log(1.4), math.log(4)
"""Standard deviations of the logarithm of a time: between stages, until some are timed; of a plan that is estimated from a matrix
product alone."""

LATE = 0.1
"""Share of its time that a stage is assumed to need yet when it runs longer than estimated."""


@dataclass(frozen=True)
class Estimate:
    """Estimated seconds, with the ends of an 80 % interval."""

    seconds: float
    low: float
    high: float


def estimated(seconds: float, spread: float) -> Estimate:
    """`spread`: the standard deviation of the logarithm of the seconds."""
    return Estimate(seconds, seconds * math.exp(-Z * spread), seconds * math.exp(Z * spread))


def spread_of(ratios: Iterable[float]) -> float:
    """Standard deviation of the logarithm of measured over expected, in which SPREAD counts as two stages."""
    squares = [math.log(ratio) ** 2 for ratio in ratios]
    return math.sqrt((math.fsum(squares) + 2 * SPREAD**2) / (len(squares) + 2))


# --------------------------------------------------------------------------------------------------- before it runs


@dataclass(frozen=True)
class Calibration:
    """FLOP/s of one slot on this machine, the source of that number, and the standard deviation of its logarithm."""

    flops: float
    known_by: str
    spread: float = PROBE


def calibrate(speeds: Iterable[Speed], encoder: str, device: str) -> Calibration:
    """From the last finished stages of this encoder on a device of this name, the newest first, else from a matrix product."""
    here = [s for s in speeds if s.device == device and s.flops > 0 and s.seconds > 0.5]
    same = [s for s in here if s.encoder == encoder][:WINDOW]
    if not same:
        return Calibration(_probe() * PROBE_SHARE, "guessed from the speed of a matrix product")
    # A ratio of sums: the fixed cost of a stage of a few steps should not count as slowness.
    speed = math.fsum(s.flops for s in same) / math.fsum(s.seconds for s in same)
    known_by = f"measured on the last stage{'s' if len(same) > 1 else ''} of this encoder on {device}"
    return Calibration(speed, known_by, spread_of(s.flops / s.seconds / speed for s in same))


@functools.cache
def _probe() -> float:
    """FLOP/s of a matrix product on one core."""
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


# --------------------------------------------------------------------------------------------------- while it runs


@dataclass(frozen=True)
class Timed:
    """A stage and its seconds: its duration, or for a running one the time since its start."""

    phase: str
    cost: float
    seconds: float = 0.0


def remaining(ended: Sequence[Timed], running: Sequence[Timed], waiting: Sequence[Timed], slots: int) -> float | None:
    """The seconds that are left, learned from the last stages that `ended`, oldest first. None before one has ended.

    Each phase has seconds a FLOP of its own, drawn to those of all. `slots` slots share the work; the longest stage bounds it.
    """
    timed = [stage for stage in ended if stage.cost > 0 and stage.seconds > 0][-max(WINDOW, 2 * slots) :]
    if not timed or not (running or waiting):
        return None
    rate = _rate(timed)
    rates: dict[str, float] = {}
    for phase in {stage.phase for stage in timed}:
        own = [stage for stage in timed if stage.phase == phase]
        cost = math.fsum(stage.cost for stage in own) / len(own)
        rates[phase] = _rate([*own, Timed(phase, cost, cost * rate)])  # the rate of all counts as one stage more

    def left(stage: Timed) -> float:
        whole = stage.cost * rates.get(stage.phase, rate)
        return max(whole - stage.seconds, LATE * max(whole, stage.seconds))

    seconds = [left(stage) for stage in (*running, *waiting)]
    return max(math.fsum(seconds) / max(1, slots), *seconds) or None


def _rate(stages: Sequence[Timed]) -> float:
    """Seconds a FLOP."""
    return math.fsum(stage.seconds for stage in stages) / math.fsum(stage.cost for stage in stages)
