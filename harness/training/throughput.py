"""The speed of a stage: tokens and FLOPs a second while it trains, and their share of what its device can do at most."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from harness.devices import device_called
from harness.training.precision import DTYPES

PRODUCT = 512
"""Rows and columns of the matrices whose product is timed on a CPU."""
REPORT_SECONDS = 2.0
"""The time between two reports of the speed."""


@dataclass(frozen=True)
class Speed:
    """The speed of a stage of `steps` updates after `step` of them: `updates`, `tokens` and training `flops` a second of this process's
    own time. Tokens are those of the whole batch, without padding."""

    step: int
    steps: int
    updates: float
    tokens: float
    flops: float

    @property
    def seconds_left(self) -> float:
        return (self.steps - self.step) / self.updates


class Stopwatch:
    """Counts what a stage trains and the seconds of it, without those of evaluations."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self.updates = self.tokens = 0
        self.flops = self.seconds = 0.0
        self._since: float | None = None
        self._reported = time.monotonic()

    def start(self) -> None:
        """Training goes on from here."""
        if self._since is None:
            self._since = time.monotonic()

    def stop(self) -> None:
        """Training pauses; the device has finished its work."""
        if self._since is not None:
            self.seconds += time.monotonic() - self._since
        self._since = None

    def count(self, tokens: int, flops: float) -> None:
        """One more update, on the tokens of the whole batch."""
        self.updates += 1
        self.tokens += tokens
        self.flops += flops

    def speed(self, step: int) -> Speed | None:
        """So far; None before anything was timed."""
        running = 0.0 if self._since is None else time.monotonic() - self._since
        seconds = self.seconds + running
        if not self.updates or seconds <= 0:
            return None
        rates = (self.updates / seconds, self.tokens / seconds, self.flops / seconds)
        return Speed(step, self._steps, *rates)

    def due(self) -> bool:
        """Whether it is time for a report; if so, the next one is due later."""
        if time.monotonic() - self._reported < REPORT_SECONDS:
            return False
        self._reported = time.monotonic()
        return True


def peak_flops(device: torch.device, name: str, precision: str, threads: int) -> float:
    """FLOP/s that a device does at most in matrix products: as published of a GPU, timed on a CPU. 0 where it is not known, and for fp16
    on a CPU, where most of a stage's own products are faster than the one that would be timed."""
    if device.type == "cpu":
        return 0.0 if precision == "fp16" else _timed_product(precision, threads)
    device_of_sheet = device_called(name)
    return device_of_sheet.peak(precision) if device_of_sheet else 0.0


@lru_cache(maxsize=4)
def _timed_product(precision: str, threads: int) -> float:
    """The best of a few products of square matrices, with as many threads as torch has now (`threads` is for the cache alone)."""
    left = torch.ones(PRODUCT, PRODUCT, dtype=DTYPES[precision])
    best = float("inf")
    for _ in range(10):  # other work on the machine slows down some of them
        started = time.perf_counter()
        torch.mm(left, left)
        best = min(best, time.perf_counter() - started)
    return 2 * PRODUCT**3 / best


def provenance_of(speed: Speed | None, peak: float, workers: int) -> dict[str, Any]:
    """Fields of a record's provenance. `peak`: FLOP/s of one of `workers` devices, 0 where it is not known."""
    if speed is None:
        return {}
    found: dict[str, Any] = {"tokens_per_second": round(speed.tokens, 1), "flops_per_second": speed.flops}
    return found | ({"peak_flops_per_second": peak * workers} if peak else {})
