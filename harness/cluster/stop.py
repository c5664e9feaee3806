"""What every process of the cluster that trains does beside it: it ends with its raylet, and asks the ledger whether to stop its stage."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from harness.processes import end_with_parent

ASK_SECONDS = 5.0
"""The time between two questions of a process."""

STOP = threading.Event()
"""Set in a worker process that is to stop its stage with a checkpoint: its node leaves, or the command's time is over."""


def on_driver_node() -> NodeAffinitySchedulingStrategy:
    """A strategy for the node of the calling process: what a driver depends on must not die with another node."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def stop_when_asked(ledger: Any) -> None:
    """Set STOP once the ledger asks the processes of this node to stop, and end this process with its raylet.

    From a thread: training releases the interpreter's lock while it computes.
    """
    end_with_parent()
    node = ray.get_runtime_context().get_node_id()

    def ask() -> None:
        with suppress(RayActorError):  # the ledger ends with its driver
            while not ray.get(ledger.stops.remote(node)):
                time.sleep(ASK_SECONDS)
            STOP.set()

    threading.Thread(target=ask, daemon=True).start()
