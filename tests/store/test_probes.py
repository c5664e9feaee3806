"""Results of probes in the store."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from harness.store import Store
from harness.store.tables import PROBES


def test_the_first_result_stays_and_a_damaged_one_is_replaced(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    assert Store(url, create=False).probes(["a"]) == {}
    store = Store(url)
    assert store.probes(["a"]) == {}, "a store of an older harness lacks the table"
    store.keep_probe("a", {"values": {"cosine": 0.5}})
    store.keep_probe("a", {"values": {"cosine": 0.25}})
    store.keep_probe("b", {"values": {"cosine": None}})
    assert Store(url).probes(["a", "b", "c"]) == {"a": {"values": {"cosine": 0.5}}, "b": {"values": {"cosine": None}}}
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.update(PROBES).where(PROBES.c.digest == "a").values(body='{"values": {"cosine": 0.9}}'))
    assert store.probes(["a"]) == {}
    store.keep_probe("a", {"values": {"cosine": 0.75}})
    assert store.probes(["a"]) == {"a": {"values": {"cosine": 0.75}}}
