"""The ledger: one actor on the driver's node that holds the database and is its only writer, for bench and tune alike."""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError
from ray.util.placement_group import remove_placement_group

from harness import private
from harness.cluster.worker import answer, on_driver_node
from harness.errors import KEPT, UserError
from harness.specs import Record, Stage, Status
from harness.store.records import RENEW_SECONDS, Grant, Owner, Store

if TYPE_CHECKING:
    from harness.training.result import Speed

LOOK_SECONDS = 2.0
"""The time between two questions after nodes, the progress of running stages, and stages that another command trains."""


# Its calls are not shown in the dashboard, where they would hide the stages.
@ray.remote(num_cpus=0, enable_task_events=False)
class Ledger:
    """Leases and commits in the name of the driver `owner`, whose leases are alive as long as its process; and what workers ask and report."""

    def __init__(self, url: str, owner: Owner) -> None:
        self._store, self._owner = Store(url), owner
        self._trials: dict[str, int] = {}
        """Which trial of a study trains a stage now."""
        self._tried: set[str] = set()
        self._stopping: frozenset[str] | None = frozenset()
        self._running: dict[str, Speed] = {}
        threading.Thread(target=self._renew, daemon=True).start()

    def _renew(self) -> None:
        while True:
            time.sleep(RENEW_SECONDS)
            with suppress(UserError):  # the next round renews
                self._store.renew(self._owner)

    def lease(self, key: str, seen_attempt: int, remake: bool, trial: int = 0) -> Grant:
        """Of two trials that need one stage the first trains it, and the second waits."""
        if self._trials.get(key, trial) != trial:
            return "held"
        grant = self._store.lease(key, self._owner, seen_attempt=seen_attempt, remake=remake)
        if grant == "granted":
            self._trials[key] = trial
        return grant

    def commit(self, stage: Stage, record: Record) -> bool:
        self._trials.pop(stage.key, None)
        self._tried.add(stage.key)
        return self._store.commit(stage, record, self._owner)

    def release(self, key: str) -> None:
        self._trials.pop(key, None)
        self._store.release(self._owner, key)

    def ended(self, keys: list[str]) -> tuple[dict[str, tuple[Status, int]], set[str]]:
        """How stages ended, and which of them this command trained."""
        return self._store.statuses(keys), self._tried.intersection(keys)

    def others_alive(self) -> bool:
        return self._store.others_alive(self._owner)

    def stop(self, nodes: frozenset[str] | None) -> None:
        """Ask the processes of these nodes to stop their stages (None: of all nodes)."""
        self._stopping = nodes

    def stops(self, node: str) -> bool:
        """Whether the processes of a node are to stop their stages."""
        return self._stopping is None or node in self._stopping

    def report(self, key: str, speed: Speed) -> None:
        """A worker's report of the stage that it trains."""
        self._running[key] = speed

    def reports(self) -> dict[str, Speed]:
        """The last report of each stage since the last question."""
        reports, self._running = self._running, {}
        return reports


def ask(ledger: Any, method: str, *arguments: Any) -> Any:
    """A ledger's answer. Raises UserError if its process died: nothing can be leased or recorded any more."""
    try:
        return answer(getattr(ledger, method).remote(*arguments))
    except RayActorError as error:
        raise UserError(
            f"The ledger's process ended ({type(error).__name__}), perhaps for lack of memory; {KEPT}."
        ) from None


class StopRequests:
    """Asks running stages to stop with a checkpoint: those on nodes that leave the cluster (a drain, a spot notice), and all when the
    time of the command is over or its own node leaves. Frees what worker groups held whose controller is dead. `deadline`: by
    `time.monotonic()`. `leaving`: nodes by Ray's id; `over`: why no further stage may start."""

    def __init__(self, ledger: Any, deadline: float = math.inf) -> None:
        self._ledger, self._deadline = ledger, deadline
        self._own_node = ray.get_runtime_context().get_node_id()
        self.leaving: frozenset[str] = frozenset()
        self.over = ""

    def look(self) -> list[str]:
        """Ask the cluster, every LOOK_SECONDS. Returns notices for the user, one sentence each."""
        if self.over:
            return []
        for group in private.orphaned_placement_groups():
            remove_placement_group(group)
        before, self.leaving = self.leaving, private.draining_nodes()
        if self._own_node in self.leaving:
            self.over = "the node of this command leaves the cluster"
        elif time.monotonic() >= self._deadline:
            self.over = "the time of this command is over"
        if self.over or self.leaving != before:
            ask(self._ledger, "stop", None if self.over else self.leaving)
        if self.over:
            return [f"{self.over}: running stages stop with a checkpoint."]
        new = sorted(self.leaving - before)
        return [f"node {node[:10]} leaves the cluster: its stages stop with a checkpoint." for node in new]


def start_ledger(store: Store, owner: Owner) -> Any:
    """Start a ledger for this driver on the driver's node. Does not wait for it: the first answer comes once its process has
    started and its database has answered."""
    actor: Any = Ledger
    return actor.options(scheduling_strategy=on_driver_node()).remote(store.url, owner)
