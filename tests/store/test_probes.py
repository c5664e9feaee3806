"""Results of probes in the store."""

from __future__ import annotations

from pathlib import Path

from harness.store import Store


def test_the_first_result_stays(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    assert Store(url, create=False).probes(["a"]) == {}
    store = Store(url)
    store.keep_probe("a", {"values": {"cosine": 0.5}})
    store.keep_probe("a", {"values": {"cosine": 0.25}})
    store.keep_probe("b", {"values": {"cosine": None}})
    assert Store(url).probes(["a", "b", "c"]) == {"a": {"values": {"cosine": 0.5}}, "b": {"values": {"cosine": None}}}
