"""Whether a process still runs: each beats in the ledger, and one that has stopped without dying is killed for real.

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

from harness.store import process_of

HANG_SECONDS = float(os.environ.get("HARNESS_HANG_SECONDS", "60"))
"""A process that did not beat for this long is killed. The driver's value holds for all."""
LOOKS = 12
END_SECONDS = 30.0


@dataclass(frozen=True)
class ProcessId:
    """Where a process runs: Ray's id of its node, its pid there, and when it started, since pids come again."""

    node: str
    pid: int
    started: float

    @classmethod
    def current(cls) -> ProcessId:
        pid = os.getpid()
        return cls(ray.get_runtime_context().get_node_id(), pid, psutil.Process(pid).create_time())


def on_node(node: str) -> NodeAffinitySchedulingStrategy:
    """There and nowhere else."""
    return NodeAffinitySchedulingStrategy(node, soft=False)


def on_driver_node() -> NodeAffinitySchedulingStrategy:
    """On the node of the process that calls: what a driver depends on must not die with another node."""
    return on_node(ray.get_runtime_context().get_node_id())


def start_heartbeat(ledger: Any, name: str) -> None:
    """Begin to beat, for as long as this process runs.

    A thread of its own: training lets go of the interpreter's lock whenever it computes.
    """
    place = ProcessId.current()

    def go_on() -> None:
        with suppress(RayActorError):  # the ledger ends with its driver
            while True:
                time.sleep(ray.get(ledger.heartbeat.remote(name, place)))

    threading.Thread(target=go_on, daemon=True).start()


def _end(place: ProcessId) -> bool:
    """Whether there was something to be ended."""
    process = process_of(place.pid, place.started)
    if process is None:
        return False
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True


class HeartbeatMonitor:
    """Hears the beats of processes, and kills those that fell silent.

    Silence is counted in looks without a beat and not by the clock: a machine that slept wakes up with everybody silent.
    """

    def __init__(self, hang_seconds: float) -> None:
        self._between = hang_seconds / LOOKS
        self._heard: Counter[tuple[str, ProcessId]] = Counter()
        self._hung: set[tuple[str, ProcessId]] = set()
        threading.Thread(target=self._watch, daemon=True).start()

    def hear(self, name: str, place: ProcessId) -> float:
        """Returns the seconds until the next beat."""
        self._heard[name, place] += 1
        return self._between

    def hung(self, name: str) -> bool:
        """Whether a process of this name was killed because it, or a part of it (`name/...`), did not beat."""
        return any(each == name or each.startswith(f"{name}/") for each, _ in list(self._hung))

    def _watch(self) -> None:
        last: dict[tuple[str, ProcessId], int] = {}
        silent: Counter[tuple[str, ProcessId]] = Counter()
        while True:
            time.sleep(self._between)
            for each, beats in list(self._heard.items()):
                silent[each] = silent[each] + 1 if last.get(each) == beats else 0
                last[each] = beats
                if silent[each] >= LOOKS:
                    del self._heard[each], last[each], silent[each]
                    self._end(each)

    def _end(self, each: tuple[str, ProcessId]) -> None:
        self._hung.add(each)  # before its death is known
        killing: Any = ray.remote(num_cpus=0, max_retries=0)(_end)
        with suppress(RayError):  # its node is gone, and it with it
            there = killing.options(scheduling_strategy=on_node(each[1].node)).remote(each[1])
            if not ray.get(there, timeout=END_SECONDS):
                self._hung.discard(each)  # it had ended long ago, and was silent for that
