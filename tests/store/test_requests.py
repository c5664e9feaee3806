"""Requests are kept once each with the stages that they need, the last one first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.store import Store, StoredRequest

VALUES: dict[str, Any] = {"table": "few_shot", "folder": "/somewhere", "methods": ["ft"], "set": ["optim.lr=1e-4"]}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path}/x.db")


def values(store: Store, **which: Any) -> list[Any]:
    return [dict(request.values) for request in store.requests(**which)]


def test_a_request_reads_back_as_it_was_kept(store: Store) -> None:
    store.keep_request(StoredRequest("few_shot", VALUES, "a study"), ["k1"])
    (found,) = store.requests()
    assert (found.table, found.study, dict(found.values)) == ("few_shot", "a study", VALUES)
    assert found.asked_at > 0


def test_the_last_one_comes_first_and_each_is_kept_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1, 10))
    monkeypatch.setattr(Store, "_now", lambda *_: float(next(clock) // 2))
    first, second = VALUES, VALUES | {"set": []}
    for each in (first, second, first):
        store.keep_request(StoredRequest("few_shot", each), ["k1"])
    assert values(store) == [first, second]


def test_a_stage_knows_the_requests_that_need_it(store: Store) -> None:
    store.keep_request(StoredRequest("few_shot", VALUES), ["k1", "k2"])
    store.keep_request(StoredRequest("few_shot", VALUES | {"set": []}), ["k2", "k3"])
    store.keep_request(StoredRequest("few_shot", VALUES), ["k2", "k4"])  # the same again, with one stage more
    assert values(store, key="k1") == values(store, key="k4") == [VALUES]
    assert len(values(store, key="k2")) == 2
    assert values(store, key="k5") == []


def test_a_store_without_requests_has_none(tmp_path: Path) -> None:
    assert Store(f"sqlite:///{tmp_path}/none/x.db", create=False).requests() == []
    new = Store(f"sqlite:///{tmp_path}/new.db")
    assert new.requests() == new.requests(key="k1") == []
