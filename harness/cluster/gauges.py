"""Gauges for Prometheus and Ray's dashboard: stages of a command by state, and the speed, loss and dev score of running stages.

Every node of a Ray serves them on its metrics port; docs/clusters.md says where.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, get_args

from ray.util.metrics import Gauge

from harness.execution import WorkerSetup
from harness.planning.lifecycle import End, Lifecycle, Running
from harness.planning.work import Item

if TYPE_CHECKING:
    from harness.training.throughput import Speed


class StagesGauge:
    """How many stages of a table wait, run and ended, and how."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._gauge = Gauge("harness_stages", "Stages of a bench by state.", ("table", "state"))

    def show(self, life: Lifecycle) -> None:
        running = life.count("running")
        ends = ((end, life.ends[end]) for end in get_args(End))
        for state, count in [("waiting", life.unfinished - running), ("running", running), *ends]:
            self._gauge.set(count, {"table": self._table, "state": state})


@lru_cache(maxsize=1)
def _gauges() -> dict[str, Gauge]:
    """One of each in a process."""
    tags = ("run", "phase")
    return {
        "updates": Gauge("harness_updates_per_second", "Optimizer updates a second of a running stage.", tags),
        "tokens": Gauge("harness_tokens_per_second", "Tokens a second of a running stage.", tags),
        "share": Gauge("harness_flops_share", "Share of its device's FLOP/s that a running stage reaches.", tags),
        "step": Gauge("harness_step", "Updates so far of a running stage.", tags),
        "loss": Gauge("harness_loss", "Mean loss of a running stage since its last evaluation.", tags),
        "dev": Gauge("harness_dev_score", "Dev score of a running stage, by its metric of selection.", tags),
    }


class StageGauges:
    """The gauges of one stage while it runs: set at every evaluation, of stages without dev every 100 updates; its speed every few
    seconds, which the ledger hears of too. `workers` train it together."""

    def __init__(self, item: Item, setup: WorkerSetup, workers: int, ledger: Any) -> None:
        self._item, self._setup, self._workers, self._ledger = item, setup, workers, ledger
        self._tags = {"run": item.name, "phase": item.stage.phase}
        self._metric = item.stage.selection.metric if item.stage.selection else ""
        self._step, self._at = 0, time.monotonic()

    def report(self, entry: Mapping[str, Any]) -> None:
        """An entry of the history."""
        gauges, now = _gauges(), time.monotonic()
        gauges["updates"].set((entry["step"] - self._step) / max(now - self._at, 1e-9), self._tags)
        gauges["step"].set(entry["step"], self._tags)
        if "loss" in entry:
            gauges["loss"].set(entry["loss"], self._tags)
        if self._metric in entry.get("dev", {}):
            gauges["dev"].set(entry["dev"][self._metric], self._tags)
        self._step, self._at = entry["step"], now

    def report_speed(self, speed: Speed) -> None:
        """The speed so far."""
        import torch

        from harness.running import device_name
        from harness.training.throughput import peak_flops

        setup, gauges = self._setup, _gauges()
        precision = self._item.stage.optim.precision
        peak = peak_flops(torch.device(setup.device), device_name(setup.device), precision, setup.threads)
        share = speed.flops / (peak * self._workers) if peak else None
        gauges["tokens"].set(speed.tokens, self._tags)
        if share is not None:
            gauges["share"].set(share, self._tags)
        running = Running(speed.step, speed.steps, speed.tokens, speed.flops, share, speed.seconds_left)
        self._ledger.report.remote(self._item.stage.key, running)

    def end(self) -> None:
        """It runs no more; the last loss and score stay until the worker's process ends."""
        for name in ("updates", "tokens", "share"):
            _gauges()[name].set(0.0, self._tags)
