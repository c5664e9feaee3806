"""The stages of one command: their state machine, with the ledger's and the artifact storage's answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayActorError

from harness.cluster import heartbeat
from harness.cluster.ledger import ask
from harness.cluster.worker import WorkerGroupEndedError, WorkerResult, death_reason, died_with_node
from harness.specs import Parent, Record, Stage
from harness.storage import Storage, weights_of
from harness.store import Owner
from harness.tables.lifecycle import DiscardWeights, Event, Lifecycle, Output, RecordFailure, ReleaseLease
from harness.tables.work import Item


@dataclass
class LeasedStages:
    """Leases and ends stages in the name of `owner` (None: the driver). `discard` deletes the weights of a stage when nothing in
    `life` starts from them any more. Every report returns its events, after it did what follows from it."""

    life: Lifecycle
    ledger: Any
    storage: Storage
    owner: Owner | None
    discard: Callable[[Stage], None]

    def lease(self, item: Item) -> list[Event]:
        """Ask for the lease of an item that `life.next_item` returned. Where it is granted, and nothing else must come first, the
        stage is 'running' afterwards: train it, and report with `trained` or `lost`."""
        grant = ask(self.ledger, "lease", item.stage.key, item.seen_attempt, item.remake, self.owner)
        if grant == "held":
            outputs = self.life.held(item)
        elif grant == "settled":
            outputs = self._recorded(item)
        elif item.remake and self._stored(*item.stored):
            outputs = self.life.weights_found(item)
        elif isinstance(start := item.stage.init, Parent) and not self._stored(weights_of(start.stage.key, start.step)):
            outputs = self.life.weights_missing(item, self.storage.shown)
        else:
            outputs = self.life.started(item)
        return self._events(outputs)

    def trained(self, item: Item, result: WorkerResult) -> list[Event]:
        """A worker returned this result."""
        if result.ours:
            return self._events(self.life.finished(item, result.status, result.reason))
        return self._events(self._recorded(item))

    def lost(self, item: Item, error: Exception, worker: str = "") -> list[Event]:
        """The process that trained the stage ended, as one of WORKER_LOST says. `worker`: its name in the ledger."""
        found = ask(self.ledger, "status", item.stage.key)
        recorded = found[0] if found and found[1] > item.seen_attempt else None
        with_node = died_with_node(error)
        hung = worker and isinstance(error, RayActorError | WorkerGroupEndedError) and not with_node
        if with_node:
            reason = "its worker's node left"
        elif hung and ask(self.ledger, "hung", worker):
            reason = f"its worker did not answer for {heartbeat.HANG_SECONDS:g} s"
        else:
            reason = death_reason(item.deaths + 1, error)
        return self._events(self.life.worker_lost(item, reason, with_node=with_node, recorded=recorded))

    def _recorded(self, item: Item) -> list[Output]:
        found = ask(self.ledger, "status", item.stage.key)
        return self.life.recorded(item, found[0] if found else "done", weights=self._stored(*item.stored))

    def _stored(self, *names: str) -> bool:
        return all(map(self.storage.exists, names))

    def _events(self, outputs: Iterable[Output]) -> list[Event]:
        events = []
        for output in outputs:
            match output:
                case Event():
                    events.append(output)
                case RecordFailure(item, reason):
                    ask(self.ledger, "commit", item.stage, Record(item.stage.key, "failed", reason), self.owner)
                case ReleaseLease(item):
                    ask(self.ledger, "release", item.stage.key, self.owner)
                case DiscardWeights(stage):
                    self.discard(stage)
        return events
