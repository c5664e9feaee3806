"""Gauges for Prometheus and Ray's dashboard: stages of a command by state, and the speed, loss and dev score of running stages.

Every node of a Ray serves them on its metrics port; docs/clusters.md says where.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ray.util.metrics import Gauge

from harness.tables.lifecycle import Lifecycle
from harness.tables.work import Item


class StagesGauge:
    """How many stages of a table wait, run and ended, and how."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._gauge = Gauge("harness_stages", "Stages of a bench by state.", ("table", "state"))

    def show(self, life: Lifecycle) -> None:
        running = life.count("running")
        for state, count in [("waiting", life.unfinished - running), ("running", running), *life.ends.items()]:
            self._gauge.set(count, {"table": self._table, "state": state})


@lru_cache(maxsize=1)
def _gauges() -> dict[str, Gauge]:
    """One of each in a process."""
    tags = ("run", "phase")
    return {
        "updates": Gauge("harness_updates_per_second", "Optimizer updates a second of a running stage.", tags),
        "step": Gauge("harness_step", "Updates so far of a running stage.", tags),
        "loss": Gauge("harness_loss", "Mean loss of a running stage since its last evaluation.", tags),
        "dev": Gauge("harness_dev_score", "Dev score of a running stage, by its metric of selection.", tags),
    }


class StageGauges:
    """The gauges of one stage while it runs: set at every evaluation, of stages without dev every 100 updates."""

    def __init__(self, item: Item) -> None:
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

    def end(self) -> None:
        """It runs no more; the last loss and score stay until the worker's process ends."""
        _gauges()["updates"].set(0.0, self._tags)
