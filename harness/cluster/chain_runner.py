"""Walks a run's chain for a trial: what is recorded answers at once, the rest is trained under a lease."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ray

from harness.bench.work import Item
from harness.cluster.ledger import ask
from harness.cluster.worker import WORKER_DEATHS, WORKER_LOST, death_reason, died_with_node
from harness.search.points import StageResult
from harness.specs import SHARED_PHASES, Record, Run, Stage, Status, WorkerSetup
from harness.storage import weights_of
from harness.store import RENEW_SECONDS, Owner

POLL_SECONDS = 0.5

Train = Callable[[Item, Owner], tuple[Status, str, bool]]
"""Trains an item and commits its record for an owner; raises one of WORKER_LOST when its process died."""


@dataclass
class ChainRunner:
    """Settles stages in the name of `owner`, a trial's process. Two trials that want one stage train it once: the second
    waits for the first. `setup`: where weights are."""

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
            except Exception:  # the ledger is away for a moment, or for good with its driver
                continue

    def _ask(self, what: str, *arguments: Any) -> Any:
        return ask(self.ledger, what, *arguments)

    def run(self, run: Run, metrics: tuple[str, ...], name: str) -> list[StageResult]:
        """How the stages of a run ended, from the root to the leaf or to the one that did not finish."""
        trained: dict[str, StageResult] = {}
        user = run.stage.key  # and not this process: whoever goes on with the run when it dies lets them go
        leaf = self._settle(run.stage, name, metrics, trained, user, wanted=False)
        for stage in (each for each in run.stage.chain[:-1] if each.phase not in SHARED_PHASES):
            self._ask("let_go", stage.key, user)
        chain = []
        for stage in run.stage.chain[:-1]:
            ended: StageResult = trained.get(stage.key) or self._ask("look", stage.key, False)[1] or StageResult("done")
            chain.append(ended)
            if ended.status != "done":
                return chain
        return [*chain, leaf]

    def _settle(
        self,
        stage: Stage,
        name: str,
        metrics: tuple[str, ...],
        trained: dict[str, StageResult],
        user: str,
        *,
        wanted: bool,
    ) -> StageResult:
        """Train a stage unless it is recorded; with `wanted` its weights are there when this returns, and stay as long as
        `user` needs them."""
        deaths = 0
        if wanted and stage.parent:
            self._ask("hold", stage.key, user)
        while True:
            attempt: int
            ended: StageResult | None
            attempt, ended = self._ask("look", stage.key, self.retry)
            there = self.setup.storage.exists(weights_of(stage.key))
            remake = ended is not None and ended.status == "done" and wanted and not there
            if ended is not None and not remake:
                return trained.get(stage.key, ended)
            if stage.parent:
                parent = self._settle(stage.parent, name, metrics, trained, user, wanted=True)
                if parent.status != "done":
                    return StageResult(parent.status, f"{stage.parent.phase} {parent.status}: {parent.reason}")
            grant = self._ask("lease", stage.key, attempt, remake, self.owner)
            if grant != "granted":
                time.sleep(POLL_SECONDS if grant == "held" else 0)
                continue
            item = Item(stage, f"{name} ({stage.phase})", 0.0, metrics, wanted, remake, attempt)
            try:
                status, reason, _ = self.train(item, self.owner)
            except WORKER_LOST as error:
                deaths += not died_with_node(error)
                status = "failed"
                reason = death_reason(deaths, error)
                if deaths < WORKER_DEATHS:
                    continue
                self._ask("commit", stage, Record(stage.key, "failed", reason), self.owner)
            if remake and status != "done":
                return StageResult(status, reason)
            ended = self._ask("look", stage.key, self.retry)[1]
            if ended is not None:
                trained[stage.key] = replace(ended, trained=True)
