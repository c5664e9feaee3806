"""Requests are kept once each with the stages that they need, the last one first."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from harness.errors import UserError
from harness.planning.request import FIELDS, from_json, to_json
from harness.store import Store, StoredRequest
from harness.store.tables import REQUESTS

VALUES: dict[str, Any] = {"table": "few_shot", "folder": "/somewhere", "methods": ["ft"], "set": ["optim.lr=1e-4"]}


def values(store: Store, key: str) -> list[Any]:
    return [dict(request.values) for request, _ in store.requests_for([key])]


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
    assert values(store, "k1") == [first, second]


def test_a_stage_knows_the_requests_that_need_it(store: Store) -> None:
    store.keep_request(StoredRequest("few_shot", VALUES), ["k1", "k2"])
    store.keep_request(StoredRequest("few_shot", VALUES | {"set": []}), ["k2", "k3"])
    store.keep_request(StoredRequest("few_shot", VALUES), ["k2", "k4"])  # the same again, with one stage more
    assert values(store, "k1") == values(store, "k4") == [VALUES]
    assert len(values(store, "k2")) == 2
    assert values(store, "k5") == []


@pytest.mark.parametrize("name", ["table", "folder", "set", *FIELDS])
@pytest.mark.parametrize("value", [["x"], [["x"]], {"a": 1}, 7, -1, True, None])
def test_a_request_of_any_shape_is_read_or_named_with_its_field(name: str, value: Any) -> None:
    said = ""
    try:
        read = from_json({**VALUES, name: value})
    except UserError as error:
        said = str(error)
    assert f"recorded bench, {name}" in said if said else from_json(to_json(read)) == read


@pytest.mark.parametrize("body", ["", "[]", "NaN", '{"a": 1e400}', "[" * 100_000])
def test_what_is_no_request_is_named_with_its_store(body: str, store: Store) -> None:
    store.keep_request(StoredRequest("few_shot", VALUES), ["k1"])
    with store._write() as connection:
        connection.execute(sa.update(REQUESTS).values(body=body))
    with pytest.raises(UserError, match=r"holds a request that is no object in JSON"):
        store.requests_for(["k1"])
