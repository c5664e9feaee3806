"""How long a plan takes on this machine: before anything ran, and while it runs, each with an interval.

Stages cost FLOPs (`plan.stage_flops`); what is learned is the seconds that a FLOP takes, from the last stages that ended.
"""

from __future__ import annotations

import heapq
import math
import os
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.store import Speed

PROBE_SHARE = 0.5
"""Share of a matrix product's speed that a training step reaches; used until a stage has been timed on this machine."""
HALF_LIFE = 8
"""Stages after which a timing has half its weight: the load of a machine changes."""
Z = 1.28
"""Standard deviations on each side of an 80 % interval."""
SPREAD, DRIFT, UNSEEN, PROBE = math.log(1.4), math.log(1.15), math.log(2), math.log(4)
"""Standard deviations of the logarithm of a time: between stages, until some are timed; of the machine's speed until the end;
of a phase that is not yet timed; of a plan that is estimated from a matrix product alone."""

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


# --------------------------------------------------------------------------------------------------- before it runs


@dataclass(frozen=True)
class Calibration:
    """FLOP/s of one slot on this machine, the source of that number, and the standard deviation of its logarithm."""

    flops: float
    known_by: str
    spread: float = PROBE


def calibrate(speeds: Iterable[Speed], encoder: str) -> Calibration:
    """From the last finished stages of this machine and encoder, the newest first, else from a matrix product."""
    here = [s for s in speeds if s.host == platform.node() and s.flops > 0 and s.seconds > 0.5]
    same = [s for s in here if s.encoder == encoder]
    if not same:
        return Calibration(_probe() * PROBE_SHARE, "guessed from the speed of a matrix product")
    # A ratio of sums: the fixed cost of a stage of a few steps should not count as slowness.
    weights = [_weight(age) for age in range(len(same))]
    seconds = math.fsum(w * s.seconds for w, s in zip(weights, same, strict=True))
    speed = math.fsum(w * s.flops for w, s in zip(weights, same, strict=True)) / seconds
    errors = [math.log(s.flops / s.seconds / speed) for s in same]
    shares = [w * s.seconds / seconds for w, s in zip(weights, same, strict=True)]
    known_by = f"measured on the last stage{'s' if len(same) > 1 else ''} of this encoder here"
    return Calibration(speed, known_by, _spread(errors, shares, len(same)))


def _weight(age: int, half_life: float = HALF_LIFE) -> float:
    return float(0.5 ** (age / half_life))


def _spread(errors: Sequence[float], shares: Sequence[float], count: float) -> float:
    """Weighted standard deviation of logarithms, in which SPREAD counts as two stages."""
    seen = math.fsum(share * error**2 for share, error in zip(shares, errors, strict=True))
    return math.sqrt((count * seen + 2 * SPREAD**2) / (count + 2))


def _probe() -> float:
    import numpy as np
    from threadpoolctl import threadpool_limits

    left = np.ones((512, 512), dtype=np.float32)
    with threadpool_limits(1):
        best = min(_timed(lambda: left @ left) for _ in range(20))  # other work on the machine slows down most of them
    return float(2 * 512**3 / best)


def _timed(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def hours(flops: float, calibration: Calibration, slots: int, stages: int) -> float:
    """Hours that `stages` stages of `flops` in all take on `slots` slots."""
    return flops / calibration.flops / max(1, min(slots or os.cpu_count() or 1, stages)) / 3600


# --------------------------------------------------------------------------------------------------- while it runs


@dataclass(frozen=True)
class Timed:
    """A stage and its seconds: its duration, or for a running one the time since its start."""

    phase: str
    cost: float
    seconds: float = 0.0


def remaining(
    ended: Sequence[Timed], running: Sequence[Timed], waiting: Sequence[Timed], slots: int
) -> Estimate | None:
    """The remaining time, estimated from the stages that `ended`, oldest first. None before one has ended.

    Each phase has seconds a FLOP of its own, drawn to those of all; the last stages count most. The dearest stage that waits
    takes the first of `slots` slots that is free, as in the pool; that stages wait for their parents is left out.
    """
    timed = [stage for stage in ended if stage.cost > 0 and stage.seconds > 0]
    if not timed or not (running or waiting):
        return None
    half_life = max(HALF_LIFE, 2 * slots)
    weights = [_weight(age, half_life) for age in range(len(timed))][::-1]
    rates = _Rates(timed, weights)
    begun = [(stage.cost * rates[stage.phase], stage.seconds) for stage in running]
    begun_left = [max(took - since, LATE * max(took, since)) for took, since in begun]
    left = [*begun_left, *(stage.cost * rates[stage.phase] for stage in waiting)]
    whole = math.fsum(left)
    if not whole:
        return None
    seconds = _last_end(begun_left, left[len(begun) :], slots)
    errors = [math.log(stage.seconds / (stage.cost * rates[stage.phase])) for stage in timed]
    total = math.fsum(weights)
    spread = _spread(errors, [weight / total for weight in weights], total)
    effective = total**2 / math.fsum(weight**2 for weight in weights)
    average = math.fsum(each**2 for each in left) / whole**2
    uneven = (whole / len(left) / seconds) ** 2 if slots > 1 else 0.0  # slots do not end together
    unseen = math.fsum(
        each for each, stage in zip(left, [*running, *waiting], strict=True) if stage.phase not in rates.seen
    )
    variance = spread**2 * (1 / effective + average + uneven) + DRIFT**2 + (unseen / whole * UNSEEN) ** 2
    return estimated(seconds, math.sqrt(variance))


def _last_end(running: Sequence[float], waiting: Sequence[float], slots: int) -> float:
    """When the last stage ends: `running` has the seconds that are left of each, `waiting` those that each takes."""
    free = [*running, *[0.0] * (max(1, slots) - len(running))]
    heapq.heapify(free)
    last = max(free)
    for took in sorted(waiting, reverse=True):
        end = heapq.heappop(free) + took
        last = max(last, end)
        heapq.heappush(free, end)
    return last


class _Rates:
    """Seconds a FLOP by phase: the weighted ratio of its stages, with the ratio of all stages as one stage more."""

    def __init__(self, timed: Sequence[Timed], weights: Sequence[float]) -> None:
        seconds, cost, count = (defaultdict[str, float](float) for _ in range(3))
        for stage, weight in zip(timed, weights, strict=True):
            seconds[stage.phase] += weight * stage.seconds
            cost[stage.phase] += weight * stage.cost
            count[stage.phase] += weight
        self.seen = frozenset(count)
        self._every = math.fsum(seconds.values()) / math.fsum(cost.values())
        self._rates = {
            phase: (seconds[phase] + self._every * cost[phase] / count[phase])
            / (cost[phase] + cost[phase] / count[phase])
            for phase in self.seen
        }

    def __getitem__(self, phase: str) -> float:
        return self._rates.get(phase, self._every)
