"""Runs the stages of one run for a trial: what is recorded is taken as it is, the rest is trained under a lease."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import ray

from harness.cluster.ledger import ask
from harness.cluster.stages import LeasedStages
from harness.cluster.worker import WORKER_LOST, WorkerResult
from harness.execution import WorkerSetup
from harness.search.points import StageResult
from harness.specs import SHARED_PHASES, Parent, Run, Stage
from harness.storage import weights_of
from harness.store import RENEW_SECONDS, Owner
from harness.tables.lifecycle import Event, Lifecycle
from harness.tables.work import Item

POLL_SECONDS = 0.5

Train = Callable[[Item, Owner], WorkerResult]
"""Trains an item and commits its record for an owner; raises one of WORKER_LOST when its process died."""


@dataclass
class ChainRunner:
    """Trains in the name of `owner`, a trial's process. Of two trials that need one stage the first trains it, and the second
    waits. `setup`: where weights are. `retry`: diverged stages of earlier commands are trained again."""

    ledger: Any
    owner: Owner
    setup: WorkerSetup
    train: Train
    retry: bool

    def __post_init__(self) -> None:
        threading.Thread(target=self._renew, daemon=True).start()

    def _renew(self) -> None:
        """On another host than the database's, a lease lives as long as it is renewed."""
        while True:
            time.sleep(RENEW_SECONDS)
            try:
                ray.get(self.ledger.renew.remote(self.owner))
            except Exception:  # the ledger is unavailable for a moment, or ended with its driver
                continue

    def run(self, run: Run, metrics: tuple[str, ...], name: str) -> list[StageResult]:
        """How the stages of a run ended, from the root to the leaf or to the first one that did not finish."""
        own = [stage.key for stage in run.stage.chain[:-1] if stage.phase not in SHARED_PHASES]
        user = run.stage.key  # not this process: whoever goes on with the run after its death releases them
        for key in own:
            ask(self.ledger, "hold", key, user)
        trained, failed = self._trained(self._items(run.stage, metrics, name))
        for key in own:
            ask(self.ledger, "let_go", key, user)
        chain = []
        for stage in run.stage.chain:
            ended: StageResult = (
                ask(self.ledger, "look", stage.key, False, metrics)[1] or failed.get(stage.key) or StageResult("done")
            )
            chain.append(replace(ended, trained=stage.key in trained))
            if ended.status != "done":
                break
        return chain

    def _items(self, leaf: Stage, metrics: tuple[str, ...], name: str) -> list[Item]:
        """What must be trained before the leaf is recorded, from the leaf upwards; nothing where an ancestor ended without
        weights."""
        items: list[Item] = []
        start: Parent | None = None  # of the stage after the one looked at
        for stage in reversed(leaf.chain):
            attempt: int
            ended: StageResult | None
            attempt, ended = ask(self.ledger, "look", stage.key, self.retry)
            if ended and ended.status != "done":
                return []
            if ended and (start is None or self.setup.storage.exists(weights_of(stage.key, start.step))):
                break
            save_at = start.save_at if start else ()
            keep = start is not None and not (ended and save_at)
            items.append(
                Item(stage, f"{name} ({stage.phase})", 0.0, metrics, keep, bool(ended), attempt, save_at=save_at)
            )
            start = stage.init if isinstance(stage.init, Parent) else None
        return items

    def _trained(self, items: Iterable[Item]) -> tuple[set[str], dict[str, StageResult]]:
        """Train items to their end. Returns the keys of those that were trained here, and how those ended that failed."""
        stages = LeasedStages(Lifecycle(items), self.ledger, self.setup.storage, self.owner, lambda _: None)
        trained: set[str] = set()
        events: list[Event] = []
        while stages.life.unfinished:
            item = stages.life.next_item()
            if item is None:
                time.sleep(POLL_SECONDS)
                stages.life.ask_again()
                continue
            events += stages.lease(item)
            if stages.life.state(item.stage.key) != "running":
                continue
            try:
                result = self.train(item, self.owner)
            except WORKER_LOST as error:
                events += stages.lost(item, error)
            else:
                events += stages.trained(item, result)
                trained |= {item.stage.key} if result.ours else set()
        failed = {
            event.item.stage.key: StageResult(event.kind, event.reason)
            for event in events
            if event.kind == "failed" or event.kind == "diverged"
        }
        return trained, failed
