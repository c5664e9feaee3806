"""Gauges for Prometheus and Ray's dashboard: the stages of a bench that are left and that ended, and how fast each one trains.

Every node of a Ray serves them on its metrics port; docs/clusters.md says where.
"""

from __future__ import annotations

from functools import lru_cache
from typing import get_args

from ray.util.metrics import Gauge

from harness.planning.lifecycle import End, Lifecycle


@lru_cache
def _gauge(name: str, description: str, *tags: str) -> Gauge:
    """One of each in a process."""
    return Gauge(name, description, tags)


def show_stages(table: str, life: Lifecycle) -> None:
    """How many stages are left, and how many ended in each way."""
    gauge = _gauge("harness_stages", "Stages of a bench by state.", "table", "state")
    for state, count in (("left", life.unfinished), *((end, life.ends[end]) for end in get_args(End))):
        gauge.set(count, {"table": table, "state": state})


def show_speed(run: str, phase: str, updates: float, tokens: float) -> None:
    """Updates and tokens a second of a stage that trains; 0 once it has ended."""
    tags = {"run": run, "phase": phase}
    _gauge("harness_updates_per_second", "Updates a second of a running stage.", "run", "phase").set(updates, tags)
    _gauge("harness_tokens_per_second", "Tokens a second of a running stage.", "run", "phase").set(tokens, tags)
