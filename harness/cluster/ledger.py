"""The ledger: one actor beside the driver that owns the database and is its only writer, for bench and tune alike."""

from __future__ import annotations

import threading
import time
from typing import Any

import ray

from harness.cluster.worker import answer
from harness.errors import UserError
from harness.search.points import Ended
from harness.specs import Record, Stage, Status
from harness.storage import Storage, weights_of
from harness.store import RENEW_SECONDS, Grant, Owner, Store


@ray.remote(num_cpus=0)
class Ledger:
    """Leases and commits in the name of the driver `owner`, whose process decides whether its leases are alive, or of a
    process of its own that holds some (a trial, which can die alone)."""

    def __init__(self, url: str, storage: Storage, owner: Owner) -> None:
        self._store = Store(url)
        self._storage = storage
        self._owner = owner
        self._tried: set[str] = set()
        self._users: dict[str, set[str]] = {}
        threading.Thread(target=self._renew, daemon=True).start()

    def __repr__(self) -> str:
        return "harness-ledger"

    def _renew(self) -> None:
        own = Store(self._store.url)
        while True:
            time.sleep(RENEW_SECONDS)
            try:
                own.renew(self._owner)
            except UserError:
                continue  # a database that is away for a moment: the next round renews

    def renew(self, owner: Owner) -> None:
        self._store.renew(owner)

    def lease(self, key: str, seen_attempt: int, remake: bool, owner: Owner | None = None) -> Grant:
        return self._store.lease(key, owner or self._owner, seen_attempt=seen_attempt, remake=remake)

    def commit(self, stage: Stage, record: Record, owner: Owner | None = None) -> bool:
        self._tried.add(stage.key)
        return self._store.commit(stage, record, owner or self._owner)

    def release(self, key: str, owner: Owner | None = None) -> None:
        self._store.release(owner or self._owner, key)

    def status(self, key: str) -> tuple[Status, int] | None:
        return self._store.statuses([key]).get(key)

    def look(self, key: str, retry: bool) -> tuple[int, Ended | None]:
        """Attempts at a stage so far, and how it ended; None where it is still to be trained: without a record, and after
        a failure (with `retry` a divergence) that an earlier command recorded."""
        status, attempt = self._store.statuses([key]).get(key, (None, 0))
        again = status == "failed" or (retry and status == "diverged")
        if status is None or (again and key not in self._tried):
            return attempt, None
        record = self._store.records([key])[key]
        return attempt, Ended(record.status, record.reason, record.dev_scores, record.flops, record.seconds)

    def hold(self, key: str, user: str) -> None:
        """`user` needs the weights of a stage: they stay."""
        self._users.setdefault(key, set()).add(user)

    def let_go(self, key: str, user: str) -> None:
        """Weights that nobody here needs any more are deleted, unless another driver may be at work with them."""
        users = self._users.get(key, set())
        users.discard(user)
        if not users and not self._store.others_alive(self._owner):
            self._storage.delete(weights_of(key))

    def others_alive(self) -> bool:
        return self._store.others_alive(self._owner)

    def ready(self) -> dict[str, Any]:
        return {"store": self._store.shown}


def ledger_of(store: Store, storage: Storage, owner: Owner) -> Any:
    """A ledger for this driver, once its database has answered."""
    actor: Any = Ledger
    ledger = actor.options(name=f"harness-ledger-{owner.token[:6]}").remote(store.url, storage, owner)
    answer(ledger.ready.remote())
    return ledger
