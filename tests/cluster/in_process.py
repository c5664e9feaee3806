"""The driver of a bench without Ray: its leases, stages and records are the real ones, and this process is the only worker."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from harness.cli import main
from harness.cluster import worker as worker_module
from harness.cluster.ledger import Ledger
from harness.cluster.stages import Stages
from harness.cluster.worker import TokenCache, train
from harness.encoders.tokens import Vocabulary
from harness.planning.request import Request
from harness.planning.work import Ended, Event, Item
from harness.storage import WorkerSetup
from harness.store import Owner, Store

LedgerHere: Any = Ledger.__ray_metadata__.modified_class


def ask(ledger: Any, method: str, *arguments: Any) -> Any:
    """As `harness.cluster.ledger.ask`."""
    return getattr(ledger, method)(*arguments)


@contextmanager
def session_here(request: Request) -> Iterator[tuple[str, Request]]:
    """As `harness.cluster.session.session`."""
    yield "", request


class PoolHere:
    """As `harness.cluster.pool.Pool`, one stage after another. KeyboardInterrupt comes before the stage number `stop_after` + 1."""

    stop_after = trained = 0

    def __init__(
        self,
        store: Store,
        setup: WorkerSetup,
        vocabularies: Mapping[str, Vocabulary],
        tokenised: Callable[..., Any],
        request: Request,
        table: str,
        keep_weights: bool = False,
        deadline: float = math.inf,
    ) -> None:
        self._setup, self._vocabularies, self._keep_weights = setup, vocabularies, keep_weights
        self._token_cache = TokenCache(tokenised)
        self._owner, self._store = Owner.current(), store
        self._deadline, self.over = deadline, ""
        self._ledger = LedgerHere(store.url, self._owner)

    def run(self, items: Iterable[Item]) -> Iterator[Event]:
        stages = Stages(items, lambda *asked: ask(self._ledger, *asked), self._setup.storage, self._keep_weights)
        while stages.open:
            if time.monotonic() >= self._deadline:
                self.over = "the time of this command is over"
                break
            item = stages.next()
            yield from stages.events()
            if item:
                stages.ended(item, self._train(item))
                yield from stages.events()

    def _train(self, item: Item) -> Ended:
        PoolHere.trained += 1
        if PoolHere.trained > self.stop_after > 0:
            raise KeyboardInterrupt
        vocabulary, sets = self._vocabularies[item.stage.encoder.digest], self._token_cache.references(item.stage)
        record = train(item, self._setup, vocabulary, sets, Mock())
        if isinstance(record, Ended):
            return record
        if item.remake:
            self._ledger.release(item.stage.key)
        elif not self._ledger.commit(item.stage, record):
            return Ended("elsewhere")
        return Ended(record.status, record.reason)

    def close(self) -> None:
        self._store.release(self._owner)


def patch(monkeypatch: pytest.MonkeyPatch, stop_after: int = 0) -> None:
    """Let benches of this process train here; `stop_after`: KeyboardInterrupt after so many stages."""
    monkeypatch.setattr("harness.cluster.session.session", session_here)
    monkeypatch.setattr("harness.cluster.pool.Pool", PoolHere)
    monkeypatch.setattr(worker_module, "_stored", lambda what, content: content)
    monkeypatch.setattr(PoolHere, "stop_after", stop_after)
    monkeypatch.setattr(PoolHere, "trained", 0)


def alone(folder: Path, lines: Iterable[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Run these commands in this process, in a new folder. Returns what they printed."""
    with monkeypatch.context() as here, redirect_stdout(io.StringIO()) as out:
        folder.mkdir()
        here.chdir(folder)
        patch(here)
        assert not any(main(line.split()) for line in lines)
    return out.getvalue()
