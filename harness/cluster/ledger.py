"""The ledger: one actor beside the driver that owns the database and is its only writer, for bench and tune alike."""

from __future__ import annotations

import threading
import time
from typing import Any

import ray

from harness.errors import UserError
from harness.specs import Record, Stage, Status
from harness.store import RENEW_SECONDS, Grant, Owner, Store


@ray.remote(num_cpus=0)
class Ledger:
    """Leases and commits in the name of the driver `owner`, whose process decides whether its leases are alive."""

    def __init__(self, url: str, owner: Owner) -> None:
        self._store = Store(url)
        self._owner = owner
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

    def lease(self, key: str, seen_attempt: int, remake: bool) -> Grant:
        return self._store.lease(key, self._owner, seen_attempt=seen_attempt, remake=remake)

    def commit(self, stage: Stage, record: Record) -> bool:
        return self._store.commit(stage, record, self._owner)

    def release(self, key: str) -> None:
        self._store.release(self._owner, key)

    def status(self, key: str) -> tuple[Status, int] | None:
        return self._store.statuses([key]).get(key)

    def others_alive(self) -> bool:
        return self._store.others_alive(self._owner)

    def ready(self) -> dict[str, Any]:
        return {"store": self._store.shown}
