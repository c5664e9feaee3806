"""Heartbeats: every worker process sends them to the ledger, and one that falls silent is killed. An answer may ask the process to stop.

A stopped process (SIGSTOP, a debugger, a paused container) keeps its connections, so Ray takes it for alive, and
`ray.kill` asks it to end, which it cannot do.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil
import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from harness import retry
from harness.processes import end_with_parent, process_of, started_at

HANG_SECONDS = float(os.environ.get("HARNESS_HANG_SECONDS", "60"))
"""A process that sends no heartbeat for this long is killed. The driver's value holds for all processes."""
CHECKS = 12
"""Heartbeats that a process must miss in a row."""
KILL_SECONDS = 30.0

STOP = threading.Event()
"""Set in a worker process that is to stop its stage with a checkpoint: its node leaves, or the command's time is over."""


@dataclass(frozen=True)
class ProcessId:
    """One process of the cluster: Ray's id of its node, its pid there, and when it began (`harness.processes.started_at`), since pids are reused."""

    node: str
    pid: int
    started: float

    @classmethod
    def current(cls) -> ProcessId:
        pid = os.getpid()
        return cls(ray.get_runtime_context().get_node_id(), pid, started_at(psutil.Process(pid)))


def on_node(node: str) -> NodeAffinitySchedulingStrategy:
    """A strategy that places an actor or a task on this node only."""
    return NodeAffinitySchedulingStrategy(node, soft=False)


def on_driver_node() -> NodeAffinitySchedulingStrategy:
    """A strategy for the node of the calling process: what a driver depends on must not die with another node."""
    return on_node(ray.get_runtime_context().get_node_id())


def start_heartbeat(ledger: Any, name: str) -> None:
    """Send heartbeats for as long as this process runs, which is no longer than its raylet does.

    From a thread: training releases the interpreter's lock while it computes.
    """
    end_with_parent()
    process = ProcessId.current()

    def send() -> None:
        with suppress(RayActorError):  # the ledger ends with its driver
            while True:
                seconds, stop = ray.get(ledger.heartbeat.remote(name, process, dict(retry.outages)))
                if stop:
                    STOP.set()
                time.sleep(seconds)

    threading.Thread(target=send, daemon=True).start()


def _kill(identity: ProcessId) -> bool:
    """Kill a process of this node. Returns whether it was there."""
    process = process_of(identity.pid, identity.started)
    if process is None:
        return False
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True


class HeartbeatMonitor:
    """Receives heartbeats, and kills processes that fell silent.

    Silence is counted in checks without a heartbeat and not by the clock: after a machine slept, every process was silent.
    """

    def __init__(self, hang_seconds: float) -> None:
        self._interval = hang_seconds / CHECKS
        self._heartbeats: Counter[tuple[str, ProcessId]] = Counter()
        self._outages: dict[tuple[str, ProcessId], dict[str, str]] = {}
        self._hung: set[tuple[str, ProcessId]] = set()
        self._stopping: frozenset[str] | None = frozenset()
        threading.Thread(target=self._watch, daemon=True).start()

    def receive(self, name: str, process: ProcessId, outages: dict[str, str]) -> tuple[float, bool]:
        """Returns the seconds until the next heartbeat is due, and whether the process is to stop its stage. `outages`: what the process waits for
        (`harness.retry.outages`)."""
        self._heartbeats[name, process] += 1
        self._outages[name, process] = outages
        return self._interval, self._stopping is None or process.node in self._stopping

    def outages(self) -> dict[str, str]:
        """What the processes wait for, a sentence by the name of the place."""
        return {place: sentence for found in list(self._outages.values()) for place, sentence in found.items()}

    def stop(self, nodes: frozenset[str] | None) -> None:
        """Ask the processes of these nodes to stop their stages (None: all processes), with their next heartbeat."""
        self._stopping = nodes

    def hung(self, name: str) -> bool:
        """Whether a process of this name, or a rank of a group of this name (`name/...`), was killed because it was silent."""
        return any(each == name or each.startswith(f"{name}/") for each, _ in list(self._hung))

    def _watch(self) -> None:
        last: dict[tuple[str, ProcessId], int] = {}
        silent: Counter[tuple[str, ProcessId]] = Counter()
        while True:
            time.sleep(self._interval)
            for each, count in list(self._heartbeats.items()):
                silent[each] = silent[each] + 1 if last.get(each) == count else 0
                last[each] = count
                if silent[each] >= CHECKS:
                    del self._heartbeats[each], self._outages[each], last[each], silent[each]
                    self._kill(each)

    def _kill(self, process: tuple[str, ProcessId]) -> None:
        self._hung.add(process)  # before its death is known
        kill: Any = ray.remote(num_cpus=0, max_retries=0)(_kill)
        with suppress(RayError):  # its node died, and the process with it
            killed = kill.options(scheduling_strategy=on_node(process[1].node)).remote(process[1])
            if not ray.get(killed, timeout=KILL_SECONDS):
                self._hung.discard(process)  # it had ended before, and was silent because of that
