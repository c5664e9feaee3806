"""A lease that is lost while its stage is trained to another driver, whose record is waited for."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from cluster.in_process import LedgerHere
from store.samples import record, same, stage

from harness.cluster import ledger as ledger_module
from harness.cluster.ledger import LeasedStages
from harness.cluster.worker import WorkerResult
from harness.planning.lifecycle import Lifecycle
from harness.planning.work import Item
from harness.storage import Storage
from harness.store import Owner, Store
from harness.store.tables import LEASES

OF = stage().chain[0]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path / 'harness.db'}")


@pytest.fixture
def stages(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LeasedStages:
    """One stage, which runs here."""
    monkeypatch.setattr(ledger_module, "ask", lambda ledger, what, *arguments: getattr(ledger, what)(*arguments))
    storage = Storage(str(tmp_path / "weights"))
    ledger = LedgerHere(store.url, storage, Owner.current())
    made = LeasedStages(
        Lifecycle([Item(OF, "a stage", 1.0, (), False, False, 0)]), ledger, storage, None, lambda _: None
    )
    again(made)
    assert made.life.state(OF.key) == "running"
    return made


def again(stages: LeasedStages) -> list[str]:
    """Ask for the lease once more; the kinds of what happened."""
    stages.life.ask_again()
    item = stages.life.next_item()
    assert item is not None
    return [event.kind for event in stages.lease(item)]


def trained(stages: LeasedStages) -> list[str]:
    """The worker commits its record, and returns."""
    item = Item(OF, "a stage", 1.0, (), False, False, 0)
    ours = stages.ledger.commit(OF, record(OF))
    return [event.kind for event in stages.trained(item, WorkerResult("done", "", ours))]


def test_the_record_of_the_driver_that_has_the_lease_is_waited_for(stages: LeasedStages, store: Store) -> None:
    other = Owner.current()
    with store._write() as connection:
        connection.execute(sa.update(LEASES).values(owner=other.token))
    assert trained(stages) == ["waiting"]
    assert stages.life.state(OF.key) == "held"
    assert again(stages) == ["waiting"]
    assert store.commit(OF, record(OF, mark=1), other)
    assert again(stages) == ["elsewhere"]
    assert same(store.records([OF.key], predictions=True)[OF.key], record(OF, mark=1))
